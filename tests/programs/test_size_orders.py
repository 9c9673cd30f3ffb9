"""Sizes in random orders, 0, 1 and equal ones among them, over many kinds of programs: one compile,
and one more at each call where a size changes for the first time, never a chain.

A program that tells a size of 0 or 1 from others, in what it does or in a layout that can be
observed, may have a compile more, for it, and then a fact says so; LIMITS says which, and why.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import jitshape
from tests.programs.compare import check

EXAMPLES = int(os.environ.get("SIZE_ORDERS", "4"))  # for each program
SIZES = (0, 1, 2, 3, 4, 7, 16, 33)

PROGRAMS: dict[str, tuple[Callable, Callable[[int, int], tuple]]] = {}
LIMITS = {  # compiles more than one a change
    # chunk makes no pieces of nothing, and the strides of every other column of two are free
    "halves": 2,
    # where the ones of the column are a symbol too, broadcasting tells it from the other
    "broadcast_with_fixed_ones": 1,
    "in_place": 1,  # the first column is not written where there is none
}


def program(make: Callable[[int, int], tuple]) -> Callable:
    """Register a program with the maker of its arguments for sizes n and m."""

    def add(fn: Callable) -> Callable:
        PROGRAMS[fn.__name__] = fn, make
        return fn

    return add


def rand(*shapes: tuple[int, ...]) -> tuple:
    return tuple(torch.randn(s) for s in shapes)


@program(lambda n, m: rand((n, m), (n, m)))
def pointwise(x, y):
    return torch.sin(x) * y + x.relu()


@program(lambda n, m: rand((n, m)))
def softmax(x):
    return torch.softmax(x * 0.5, -1), x.softmax(0)


@program(lambda n, m: rand((n, m, 8), (8,)))
def layer_norm(x, w):
    return F.layer_norm(x, (8,), w) + x


@program(lambda n, m: rand((n, m, 8), (n, m, 8)))
def attention(q, k):
    scores = q @ k.transpose(-1, -2) / 4.0
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, -1e4).softmax(-1) @ k


@program(lambda n, m: (torch.randn(n, m, 6, requires_grad=True), torch.randn(4, 6)))
def linear_and_loss(x, w):
    return F.gelu(F.linear(x, w)).square().sum()


@program(lambda n, m: rand((n, 3), (m, 3)))
def cat_of_two(x, y):
    return torch.cat([x, y, x]) * 2


@program(lambda n, m: rand((n, m)))
def flatten(x):
    return x.reshape(-1), x.t().reshape(-1) + 1, x.flatten().view(x.shape[0], x.shape[1])


@program(lambda n, m: rand((n, m, 4)))
def transpose(x):
    return (x.transpose(0, 1) + 1).contiguous().sum(-1), x.permute(2, 0, 1) * 2


@program(lambda n, m: rand((n, m), (m,), (n, 1)))
def broadcast_with_fixed_ones(x, row, column):
    return x * row + column


@program(lambda n, m: rand((n, m), (m, n)))
def products(x, y):
    return x @ y, y @ x, (x @ y).trace()


@program(lambda n, m: rand((n, m), (m, n)))
def square_by_chance(x, y):
    return x.t() + y, x.sum(0) * 2


@program(lambda n, m: rand((n, m)))
def reductions(x):
    return x.sum(0), x.mean(-1, keepdim=True), x.var(1, unbiased=False), x.sum()


@program(lambda n, m: rand((n, m)))
def scans_and_shifts(x):
    return x.cumsum(1), x.flip(0), torch.roll(x, 1, 0), F.pad(x, (1, 2))


@program(lambda n, m: (torch.randn(7, 5), torch.randint(7, (n, m))))
def embedding(table, index):
    return F.embedding(index, table) * 2


@program(lambda n, m: rand((n, m)))
def sizes_as_numbers(x):
    n, m = x.shape
    return x * n + m, n * m, torch.arange(n) + m, x.new_zeros(m, n)


@program(lambda n, m: rand((n, 2 * m)))
def halves(x):
    a, b = x.chunk(2, -1)
    return a * b, torch.stack([a, b]), x[:, ::2] + 1


@program(lambda n, m: rand((n, m), (n, m)))
def in_place(x, y):
    x.mul_(2).add_(y)
    y[:, :1] = 0
    return x.t()


def changes(order: list[tuple[int, int]]) -> int:
    """The calls at which a size differs for the first time."""
    fixed, count = {0, 1}, 0
    for pair in order[1:]:
        changed = {i for i in fixed if pair[i] != order[0][i]}
        count += bool(changed)
        fixed -= changed
    return count


def orders(test: Callable) -> Callable:
    """Run `test` for every program and random orders of its sizes."""
    sizes = st.tuples(st.sampled_from(SIZES), st.sampled_from(SIZES))
    test = given(order=st.lists(sizes, min_size=3, max_size=6))(test)
    test = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES <= 4,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(test)
    return pytest.mark.parametrize("name", PROGRAMS)(test)


def compiles_of(name: str, order: list[tuple[int, int]], expected: int, **options) -> None:
    """Equal to eager, in `expected` compiles; one that LIMITS allows more is explained."""
    fn, make = PROGRAMS[name]
    check(fn, *(make(*pair) for pair in order), **options)
    compiles = [r for r in jitshape.history() if not r.shared]
    if len(compiles) > expected:
        facts = [fact for record in compiles for fact in record.facts]
        assert any(fact.where.endswith(f"in {name}") for fact in facts), (order, facts)
    told = [list(map(str, r.failures)) for r in compiles]
    assert len(compiles) <= expected + LIMITS.get(name, 0), (order, told)


@orders
def test_at_most_one_compile_more_at_each_first_change(name, order):
    compiles_of(name, order, 1 + changes(order))


@orders
def test_one_compile_where_sizes_are_symbolic_from_the_start(name, order):
    compiles_of(name, order, 1, dynamic=True)
