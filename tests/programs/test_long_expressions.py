"""Numbers computed in many steps: none takes long, or the depth of Python's stack."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same


def repeated(step: Callable, times: int) -> Callable:
    def f(x: torch.Tensor, n: float) -> torch.Tensor:
        for i in range(times):
            n = step(n, i)
        return x * n

    return f


CHAINS: dict[str, Callable] = {
    "least of largest": repeated(lambda n, i: torch.sym_min(n + 1, torch.sym_max(n - 2, i)), 100),
    "largest": repeated(lambda n, i: max(n - i, (n + i) // 3), 60),
    "remainders": repeated(lambda n, i: n % (7 * i + 11) + i, 40),
    "quotients": repeated(lambda n, i: (3 * n + i) // 4, 100),
    "halves": repeated(lambda n, i: int(n / 2) + 5, 80),
    "roots": repeated(lambda n, i: math.floor(math.sqrt(2 * n)) + n % 3, 40),
    "products": repeated(lambda n, i: (n + i) * (n - i) % 1009, 40),
    "sums of floats": repeated(lambda n, i: n * 1.001 + 0.1, 300),
    "quotients of floats": repeated(lambda n, i: n / (n + i + 1) + n, 30),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    f, start = CHAINS[name], 0.5 if "floats" in name else 90
    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for x, n in ((torch.ones(3), start), (torch.ones(5), 2 * start)):
        assert_same(f(x, n), compiled(x, n))
    stats = jitshape.stats()
    assert stats["compiles"] <= 2 and not stats["graph_breaks"] + stats["fallbacks"]


def test_a_reshape_that_only_some_sizes_allow() -> None:
    """The fact it needs mixes quotients and products."""

    def f(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        return (torch.zeros(columns, (rows + 1) // 2, 2) + 1).reshape(columns, rows)

    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for rows, columns in ((4, 3), (6, 5), (8, 2)):
        x = torch.ones(rows, columns)
        assert_same(f(x), compiled(x))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        compiled(torch.ones(5, 3))
    assert jitshape.stats()["compiles"] == 2
