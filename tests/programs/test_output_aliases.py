"""Results that share memory are views of each other for autograd too, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same, clone

CALLS = [(3, 4), (5, 4), (6, 4)]


def whole_and_parts(x):
    y = x * 2
    return y, y.t(), y[0], y


def parts_only(x):
    y = x * 2
    return y.t(), y[1:]


def halves(x):
    y = x * x
    a, b = y[:, :2], y[:, 2:]
    return a, b


def with_detached(x):
    y = x * 2
    return y.t(), y.detach(), y[0]


def written_through_a_view(x):
    y = x * 2
    row = y[0]
    row.mul_(x[1])
    return y, row, y.view(-1)


def one_view(x):
    return (x * 2).t()


def under_enable_grad(x):
    with torch.enable_grad():
        y = x * 2
        return y, y[0]


PROGRAMS = [
    whole_and_parts, parts_only, halves, with_detached, written_through_a_view, one_view,
    under_enable_grad,
]  # fmt: skip


def results_of(f: Callable, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = f(x)
    return (found,) if isinstance(found, torch.Tensor) else found


def relations(results: tuple[torch.Tensor, ...]) -> list:
    """Which results are one object, share memory, are views of one base."""
    pairs = [(a, b) for i, a in enumerate(results) for b in results[i + 1 :]]
    return [
        (
            a is b,
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr(),
            a._base is b or b._base is a or (a._base is not None and a._base is b._base),
        )
        for a, b in pairs
    ]


def observe(f: Callable, x: torch.Tensor, write: int | None) -> list:
    """What a program sees of the results, after a write to one of them, and the gradient."""
    results = results_of(f, x)
    seen = [relations(results)]
    if write is not None:
        results[write].mul_(3)
    seen.append([r.detach().clone() for r in results])
    seen.append([(r.requires_grad, r.is_leaf, r._version) for r in results])
    loss = sum((r * r).sum() * (i + 1) for i, r in enumerate(results) if r.requires_grad)
    loss.backward()
    return [*seen, x.grad]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_aliases(program: Callable) -> None:
    jitshape.reset()
    compiled = jitshape.compile(program)
    count = len(results_of(program, torch.ones(3, 4)))
    for shape in CALLS:
        for write in (None, *range(count)):
            x = torch.randn(shape, requires_grad=True)
            y = clone(x)
            expected, found = observe(program, x, write), observe(compiled, y, write)
            if program is written_through_a_view:  # the graph's own writes are one
                expected[2], found[2] = ([r[:2] for r in rows[2]] for rows in (expected, found))
            assert_same(expected, found, f"{shape}, write to {write}")
    stats = jitshape.stats()
    assert stats["compiles"] == 2 and stats["fallbacks"] == stats["graph_breaks"] == 0


def test_a_view_of_what_the_caller_may_not_track() -> None:
    jitshape.reset()
    compiled = jitshape.compile(under_enable_grad)
    for f in (under_enable_grad, compiled):
        x = torch.ones(2, 4, requires_grad=True)
        with torch.no_grad():
            y, row = f(x)
        assert row.requires_grad and row._base is y
        row.sum().backward()
        assert x.grad.sum() == 8
