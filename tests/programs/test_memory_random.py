"""Random programs of views, writes and reads leave what eager leaves: values, aliases, bases,
version counters.  `pytest --memory-programs 2000` runs more of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.programs.memory import check_memory

VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "row": lambda t: t[0],
    "last": lambda t: t[-1],
    "head": lambda t: t[: t.shape[0] - 1],
    "odd": lambda t: t[1::2],
    "columns": lambda t: t[..., 1:],
    "turned": lambda t: t.transpose(0, -1),
    "moved": lambda t: t.movedim(0, -1),
    "wide": lambda t: t.unsqueeze(0),
    "narrow": lambda t: t.squeeze(),
    "flat": lambda t: t.view(-1),
    "reshaped": lambda t: t.reshape(-1),
    "diagonal": lambda t: t.diagonal(),
    "windows": lambda t: t.unfold(0, 2, 1),
    "pairs": lambda t: t.unfold(-1, 2, 2),
    "spread": lambda t: t[:1].expand(3, *t.shape[1:]),
    "piece": lambda t: t.as_strided((2, 2), (2, 1), 1),
    "split": lambda t: t.split(2)[0],
    "unbound": lambda t: t.unbind(-1)[1],
    "bits": lambda t: t.view(torch.int32),
    "halves": lambda t: t.view(torch.int16),
    "bytes": lambda t: t.view(torch.uint8),
    "doubles": lambda t: t.view(torch.float64),
    "windowed": lambda t: t.as_strided((3, 2), (1, 1), t.storage_offset()),
    "spaced": lambda t: t.as_strided((2, 2), (3, 1)),
    "real": lambda t: t.real,
    "imaginary": lambda t: t.imag,
    "parts": lambda t: torch.view_as_real(t),
    "paired": lambda t: torch.view_as_complex(t),
    "conjugated": lambda t: t.conj(),
    "negated": lambda t: torch._neg_view(t),
    "detached": lambda t: t.detach(),
    "data": lambda t: t.data,
}
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda t: t.add_(1),
    "mul": lambda t: t.mul_(2),
    "neg": lambda t: t.neg_(),
    "fill": lambda t: t.fill_(3),
    "zero": lambda t: t.zero_(),
    "square": lambda t: t.mul_(t),
    "copy": lambda t: t.copy_(t * 2 + 1),
    "masked": lambda t: t.masked_fill_(t > 2, 1),
    "item": lambda t: t.__setitem__(0, 5),
    "mask": lambda t: t.__setitem__(t > 1, 4),
    "shifted": lambda t: t[1:].add_(t[:-1].clone()),
    "clamped": lambda t: t.clamp_(-3, 3),
    "summed": lambda t: t.cumsum_(0),
    "refilled": lambda t: t.uniform_(),
    "turned": lambda t: t.t_(),
    "swapped": lambda t: t.transpose_(0, -1),
    "wider": lambda t: t.unsqueeze_(0),
    "narrower": lambda t: t.squeeze_(),
    "shorter": lambda t: t.resize_(2),
    "picked": lambda t: t.__setitem__(torch.tensor([1, 0]), 7),
    "spread": lambda t: t.index_add_(0, torch.tensor([0, 0]), t[:2].clone()),
    "filled": lambda t: t.index_fill_(-1, torch.tensor([1]), 2),
    "drawn": lambda t: t.diagonal().fill_(6),
}
PURE: dict[str, Callable[[torch.Tensor], Any]] = {
    "half": lambda t: t * 0.5,
    "twice": lambda t: t + t,
    "clone": lambda t: t.clone(),
    "total": lambda t: t.sum(0),
}
PAIRS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "added": lambda a, b: a.add_(b),
    "copied": lambda a, b: a.copy_(b),
    "scaled": lambda a, b: b.mul_(a[:1]),
    "part": lambda a, b: a[:2].copy_(b[:2]),
    "chosen": lambda a, b: a.__setitem__(b > 0, 3),
    "scattered": lambda a, b: a.masked_scatter_(b > 1, b.clone()),
    "scattered itself": lambda a, b: a.masked_scatter_(b > 1, b),
    "placed": lambda a, b: a.index_copy_(0, torch.tensor([1, 0]), b[:2]),
    "put": lambda a, b: a.index_put_((torch.tensor([1, 0]),), b[:1], accumulate=True),
    "sum": lambda a, b: a + b,
    "stacked": lambda a, b: torch.cat([a, b]),
}


def _give(a: torch.Tensor, b: torch.Tensor) -> None:
    a.data = b


def _give_clone(a: torch.Tensor, b: torch.Tensor) -> None:
    a.data = b.clone()


def _as_large(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.numel() < b.numel():  # what it would show then is anybody's
        raise RuntimeError
    return a.resize_as_(b)


MEMORY: dict[str, Callable] = {
    "given": _give,
    "given a clone": _give_clone,
    "set": lambda a, b: a.set_(b),
    "set a clone": lambda a, b: a.set_(b.clone()),
    "as large": _as_large,
    "longer": lambda t: t.resize_(t.shape[0] + 1).zero_(),
    "of the same size": lambda t: t.resize_(t.shape),
    "itself": lambda t: t,
    "version": lambda t: torch.tensor(t._version),
    "offset": lambda t: torch.tensor(t.storage_offset()),
    "shares": lambda a, b: torch.tensor(a.data_ptr() == b.data_ptr()),
    "is base": lambda a, b: torch.tensor(a._base is b),
}
Step = tuple[Callable, int, int]
PLACE = st.integers(0, 9)
BACKENDS = st.sampled_from(["eager", "eager", "eager", "auto"])  # most without kernels: quick


def _steps(*tables: dict[str, Callable]) -> st.SearchStrategy[Step]:
    choices = [st.tuples(st.sampled_from(list(t.values())), PLACE, PLACE) for t in tables]
    return st.one_of(*choices)


TABLES = (VIEWS, VIEWS, WRITES, WRITES, PURE, PAIRS, MEMORY)
STEPS = st.lists(_steps(*TABLES), min_size=2, max_size=10)


def program(steps: Sequence[Step], results: Sequence[int]) -> Callable:
    """A function that runs each step on some of the tensors there are so far."""

    def run(*args):
        made = list(args)
        for step, first, second in steps:
            operands = [made[first % len(made)], made[second % len(made)]]
            count = step.__code__.co_argcount
            result = step(*operands[:count])
            if isinstance(result, torch.Tensor):
                made.append(result)
        return [made[which % len(made)] for which in results]

    return run


def inputs(n: int) -> Callable[[], list[torch.Tensor]]:
    """Tensors of their own: of reals, spaced, of integers and of complex numbers; two that
    overlap; and the first one again."""

    def make() -> list[torch.Tensor]:
        base = torch.arange(4.0 * n) - n
        pair = [base[: 2 * n].view(2, n), base[n : 3 * n]]
        first, spaced = torch.randn(n, 3), torch.arange(6.0 * n).view(3, 2, n)[:, 0] - 4
        numbers = torch.arange(2 * n).view(n, 2) - n
        return [first, spaced, *pair, numbers, torch.randn(n, 2, dtype=torch.complex64), first]

    return make


SIZES = (4, 5, 7)


def without_refused(steps: Sequence[Step]) -> list[Step]:
    """The steps that eager can run, at every size."""
    kept: list[Step] = []
    for step in steps:
        try:
            for n in SIZES:
                program([*kept, step], [])(*inputs(n)())
        except (RuntimeError, IndexError, TypeError):
            continue
        kept.append(step)
    return kept


def test_random_programs(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--memory-programs")

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=count < 100,
        suppress_health_check=list(HealthCheck),
    )
    @given(steps=STEPS, results=st.lists(PLACE, min_size=1, max_size=3), backend=BACKENDS)
    def run(steps: list[Step], results: list[int], backend: str) -> None:
        kept = without_refused(steps)
        check_memory(program(kept, results), *map(inputs, SIZES), backend=backend, breaks=None)

    run()
