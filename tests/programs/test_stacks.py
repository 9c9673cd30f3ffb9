"""Breaks below several calls: what is left of the whole stack goes on as one graph."""

import contextlib

import pytest
import torch

import jitshape
from tests.programs.pieces import check_pieces, inputs, note


def third(x):
    y = x * 2
    note("third", y)
    return y + 1


def second(x):
    y = x.sin()
    return third(y) * y


def first(x):
    return second(x.cos()) - x


def test_three_calls_give_two_graphs():
    stats = check_pieces(first, *inputs([(3, 4)]))
    assert stats["graphs"] - stats["backward_compiles"] == stats["compiles"] == 2
    assert stats["graph_breaks"] == 1


def test_each_way_through_the_stack_is_compiled_once():
    def f(x):
        for _ in range(9):
            x = second(x) + 1
        return x

    stats = check_pieces(f, *inputs([(3, 4)], grad=False))
    # the start; a round of the loop in two pieces, with a counter at 0 and a symbolic one; the end
    assert stats["compiles"] <= 6


def finally_of_each_frame(x):
    def inner(y):
        try:
            return third(y) + 1
        finally:
            note("inner")

    def outer(y):
        with torch.no_grad():
            try:
                z = inner(y)
                note(torch.is_grad_enabled())
            finally:
                z = y * 3
                note("outer")
            return z * 2

    return outer(x) + x


def comprehension_in_a_call(x):
    def scaled(y):
        return [third(y) * k for k in range(3)]

    return sum(scaled(x), x), {k: second(x) for k in "ab"}


class Net:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return self.forward(x, scale=2) + self.calls

    def forward(self, x, *, scale):
        x = third(x) * scale
        self.calls += 1
        return x


def methods_and_lambdas(x):
    net = Net()
    apply = lambda f, *args: f(*args)  # noqa: E731
    return apply(net, x) + apply(lambda y: second(y) * 2, x), net.calls


def cells_of_inner_frames(x):
    total = x.sum()

    def add(y):
        nonlocal total

        def deeper(z):
            nonlocal total, y
            total = total + third(z).sum()
            y = y + 1
            return y

        result = deeper(y)
        total = total * 2
        return result + y

    return add(x) * 2, total


def deep_recursion(x, depth=40):
    if depth == 0:
        note("bottom")
        return x
    return deep_recursion(x + 1, depth - 1) * 0.9


def breaks_at_every_depth(x, depth=6):
    if depth == 0:
        return x
    note("down", depth)
    y = breaks_at_every_depth(x + 1, depth - 1) * 2
    note("up", depth)
    return y


def fails(x, kind):
    note("fails")
    jitshape.disable(raise_)(kind)
    return x


def raise_(kind):
    if kind is not None:
        raise kind("from a break")


def handled_by_a_caller(x):
    def inner(y):
        with contextlib.suppress(IndexError):
            return fails(y, KeyError) + 1
        return y

    out = []
    for kind in (None, KeyError, IndexError, ValueError):
        try:
            y = inner(x) if kind is None else fails(x * 2, kind)
        except KeyError as error:
            y = x.sin() * len(error.args)
            note("caught", str(error))
            y = y.cos()
        except (IndexError, ValueError):
            y = x * 5
        finally:
            x = x + 1
        out.append(y)
    return out


def raised_again(x):
    def inner(y):
        try:
            return fails(y * 2, ValueError)
        except ValueError:
            note("inner", y)
            y = y + 1
            raise
        finally:
            note("finally", y)

    try:
        return inner(x)
    except ValueError as error:
        return x.sin() * len(str(error))


PROGRAMS = [
    finally_of_each_frame,
    comprehension_in_a_call,
    methods_and_lambdas,
    cells_of_inner_frames,
    deep_recursion,
    breaks_at_every_depth,
    handled_by_a_caller,
    raised_again,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_stacks(program):
    check_pieces(program, *inputs([(3, 4), (5, 4)], grad=program is not deep_recursion))


@jitshape.disable
def failing(x):
    raise KeyError("failing")


def test_a_handler_of_what_the_break_raised_is_compiled():
    def f(x):
        try:
            failing(x)
            y = x
        except KeyError:
            y = (x.sin() * 3).sum(-1)
        return y + 1

    stats = check_pieces(f, *inputs([(3, 4)], grad=False))
    assert stats["graphs"] == 1 and stats["compiles"] == 2 and stats["fallbacks"] == 0
    before, after = (r for r in jitshape.history() if hasattr(r, "kernels"))
    assert not before.kernels and len(after.kernels) == 1
