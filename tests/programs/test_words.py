"""Integers that 64 bits do not hold, which Python has and kernels do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same

HUGE = (1 << 33, 1 << 40)
USES: dict[str, Callable[[torch.Tensor, int], object]] = {
    "added": lambda x, n: x + n * n,
    "power": lambda x, n: x * (n**3),
    "shifted": lambda x, n: x + (n << 40),
    "divided": lambda x, n: x + (n * n) // 3,
    "times a size": lambda x, n: x + x.shape[0] * n * n,
    "a float of it": lambda x, n: x * float(n * n),
    "full": lambda x, n: torch.full((2,), n * n),
    "fill_": lambda x, n: x.clone().fill_(n * n),
    "compared": lambda x, n: x < n * n,
    "tensor": lambda x, n: torch.tensor(n * n),
    "sizes": lambda x, n: torch.zeros(n * n - 16, 0),
    "returned": lambda x, n: (x + 1, n * n),
    "range": lambda x, n: x + len(range(n * n)),
    "truth of a range": lambda x, n: x + 1 if len(range(n)) else x - 1,
    "a branch": lambda x, n: x + 1 if n * n > 30 else x - 1,
}


def outcome(fn: Callable, *args: object) -> object:
    try:
        return fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"  # less C++'s stack


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("huge_first", [False, True])
def test_numbers(name: str, huge_first: bool) -> None:
    use, x = USES[name], torch.arange(3)
    compiled = jitshape.compile(use, dynamic=True)
    calls = [5, 6, *HUGE, 1 << 20]
    for n in reversed(calls) if huge_first else calls:
        assert_same(outcome(use, x, n), outcome(compiled, x, n), str(n))


def test_a_number_of_run_time() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + x.sum().item() * (1 << 40)

    compiled = jitshape.compile(f)
    for n in (1, 1 << 10, 1 << 30, 2):
        x = torch.full((3,), n)
        assert_same(outcome(f, x), outcome(compiled, x), str(n))


def test_plain_sizes_are_not_guarded() -> None:
    """A product of sizes is memory that there is."""

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.reshape(x.shape[0] * x.shape[1]) / (x.shape[0] * x.shape[1]) + n + len(range(n))

    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    compiled(torch.ones(4, 5), 3)
    assert "an int of 64 bits" not in {fact.why for fact in jitshape.history()[-1].facts}
    compiled(torch.ones(7, 2), 4)
    assert jitshape.stats()["compiles"] == 1


UNSIGNED = {
    "added": lambda x, n: x + n,
    "quotient": lambda x, n: x // n,
    "remainder": lambda x, n: x % n,
    "filled": lambda x, n: x.clone().fill_(n),
    "full_like": lambda x, n: torch.full_like(x, n),
    "chosen": lambda x, n: torch.where(x > 1, x, n),
    "masked": lambda x, n: x.masked_fill(x > 1, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "compared": lambda x, n: x < n,
}


@pytest.mark.parametrize("name", UNSIGNED)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32])
def test_integers_that_only_unsigned_words_hold(name: str, dtype: torch.dtype) -> None:
    """An entry for any int is not one for those that kernels cannot take."""
    use, x = UNSIGNED[name], torch.tensor([1, -2, 3]).to(dtype)
    jitshape.reset()
    compiled = jitshape.compile(use, dynamic=True)
    for n in (5, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 6):
        assert_same(outcome(use, x, n), outcome(compiled, x, n), str(n))
    assert jitshape.stats()["compiles"] <= 6  # one serves the first two and the last


BESIDE = {
    "less": lambda n, b: n < b,
    "sum": lambda n, b: n + b,
    "product": lambda n, b: n * b,
    "quotient": lambda n, b: b // n,
    "remainder": lambda n, b: n % b,
    "negated": lambda n, b: -n > b,
    "least": lambda n, b: min(n, b),
    "double": lambda n, b: n * 2 - b < 0,
}


@pytest.mark.parametrize("name", BESIDE)
def test_integers_beyond_floats_and_decimal_text(name: str) -> None:
    """Bounds of sizes are floats where they are infinite; texts of guards and code have digits."""
    use = BESIDE[name]
    jitshape.reset()
    compiled = jitshape.compile(use, dynamic=True)
    for big in (10**400, -(10**400), 10**5000):
        for n in (3, 5, 7):
            assert compiled(n, big) == use(n, big)
    assert jitshape.stats()["fallbacks"] == 0
