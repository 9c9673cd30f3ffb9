"""Generators that live across breaks and beyond calls: real ones, where the program left them."""

import contextlib
import inspect
import sys

import pytest
import torch

import jitshape
from tests.programs.pieces import LOG, check_pieces, inputs, note


@contextlib.contextmanager
def managed(name):
    LOG.append(("open", name))
    try:
        yield name * 2
    except KeyError as error:
        LOG.append(("caught", str(error)))
    finally:
        LOG.append(("close", name))


def in_a_manager(x):
    with managed("a") as name:
        y = x * len(name)
        note(name)
        y = y.sin()
    return y


def in_nested_managers(x):
    def inner(y):
        with managed("b"):
            note("b")
            raise KeyError("inside")
        return y * 2

    with managed("a"), torch.no_grad(), contextlib.ExitStack() as stack:
        stack.enter_context(managed("c"))
        y = inner(x) if note("a") > 5 else inner(x * 2)
        y = x.cos() if y is None else y
    return y * x


def talks(x):
    try:
        sent = yield x
        LOG.append(sent)
        yield from (x * i for i in (2, 3))
    except ValueError as error:
        LOG.append(str(error))
        yield x - 1
    return "end"


def send_and_throw(x):
    g = talks(x)
    first = next(g)
    note(inspect.getgeneratorstate(g))
    second = g.send(5)
    third = next(g)
    note("three")
    return first, second, third, g.throw(ValueError("thrown")), list(g)


def closed_later(x):
    g = talks(x)
    next(g)
    note("open")
    g.close()
    return x * len(list(g))


def handles_while_it_waits(x):
    def numbers():
        try:
            raise KeyError("k")
        except KeyError as error:
            yield x
            yield x * len(error.args), str(sys.exception())

    g = numbers()
    first = next(g)
    note(str(sys.exception()))
    return first, next(g), sys.exception() is None


def shares_cells(x):
    total = x.sum()

    def numbers():
        nonlocal total
        for i in range(4):
            total = total + i
            yield total

    g = numbers()
    next(g)
    total = total * 2
    note("shared")
    return next(g), total, list(g), total


class Base:
    def items(self, x):
        yield x


class Derived(Base):
    def items(self, x):
        yield from super().items(x)
        yield x + 1


def of_methods(x):
    g = Derived().items(x)
    first = next(g)
    note("method")
    return first, list(g)


def not_started(x):
    g = talks(x)
    note("made")
    return next(g), g.send("sent")


def expressions(x):
    g = (x * i for i in range(4))
    next(g)
    note("alive")
    return list(zip(g, "ab")), note("still"), list(g)


PROGRAMS = [
    in_a_manager,
    in_nested_managers,
    send_and_throw,
    closed_later,
    handles_while_it_waits,
    shares_cells,
    not_started,
    of_methods,
    expressions,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_generators(program):
    check_pieces(program, *inputs([(3, 4), (5, 4)], grad=program is in_a_manager))


def test_the_body_of_a_manager_is_captured():
    stats = check_pieces(in_a_manager, *inputs([(3, 4)], grad=False))
    assert stats["graph_breaks"] == 2  # at the call, and where the real generator goes on


def test_a_generator_that_is_returned_is_where_it_was_left():
    def f(x):
        g = talks(x)
        next(g)
        return g, talks(x)

    jitshape.reset()
    compiled, x = jitshape.compile(f), torch.ones(3)
    for _ in range(2):
        LOG.clear()
        waiting, fresh = compiled(x)
        assert inspect.getgeneratorstate(waiting) == inspect.GEN_SUSPENDED
        assert inspect.getgeneratorstate(fresh) == inspect.GEN_CREATED
        assert waiting.__name__ == waiting.__qualname__ == "talks"
        lines = inspect.getsourcelines(talks)
        assert lines[0][waiting.gi_frame.f_lineno - lines[1]].strip() == "sent = yield x"
        assert waiting.gi_frame.f_locals == {"x": x} and next(fresh) is x
        torch.testing.assert_close(waiting.send("hello"), x * 2)
        assert LOG == ["hello"] and isinstance(waiting.gi_yieldfrom, type(waiting))
        waiting.close()
        assert waiting.gi_frame is None
    assert jitshape.stats()["fallbacks"] == 0 and jitshape.stats()["graph_breaks"] == 0
