"""Coroutines and asynchronous generators with tensors, driven from compiled code and beyond it."""

import asyncio
import sys
import types
import warnings

import torch

import jitshape
from tests.programs.pieces import LOG, check_pieces, inputs, note


@types.coroutine
def pause(value):
    return (yield value)


def drive(coroutine, answer):
    """As an event loop: each thing it waits for is answered."""
    waited = []
    try:
        while True:
            waited.append(coroutine.send(answer if waited else None))
    except StopIteration as end:
        return end.value, len(waited)


async def scaled(x, by):
    return x * by


async def products(x, n):
    for i in range(1, n + 1):
        yield await scaled(x, i)


def awaits(x):
    async def outer():
        y = await scaled(x, 2)
        z = await pause(y)
        return y.sin() + z

    return drive(outer(), x)


def collects(x):
    async def outer():
        total = x
        async for item in products(x, 3):
            total = total + item.cos()
        return [y async for y in products(total, 2)]

    return drive(outer(), None)


class Doubling:
    async def __aenter__(self):
        return 2

    async def __aexit__(self, kind, error, traceback):
        LOG.append(kind and kind.__name__)
        return True


def manages(x):
    async def outer():
        async with Doubling() as by:
            y = x * by
            raise KeyError("inside")
        return y.exp()

    return drive(outer(), None)


def test_what_is_awaited_inside_is_in_the_graph():
    for program in (awaits, collects):
        stats = check_pieces(program, *inputs(), breaks=0)
        assert stats["graph_breaks"] == 0


def test_handlers_and_managers_of_coroutines_run_once():
    check_pieces(manages, *inputs(), breaks=0)


def breaks_inside(x):
    async def outer():
        y = await scaled(x, 2)
        note("inside")
        return y.sin()

    return drive(outer(), None)


def test_a_break_inside_a_coroutine_is_outside_of_it():
    check_pieces(breaks_inside, *inputs())


def given_away(x):
    async def later():
        y = x.sin()
        return await scaled(y, 3)

    return later()


def suspended(x):
    async def later():
        y = x.sin()
        z = await pause(1)
        return y + z

    coroutine = later()
    coroutine.send(None)
    return coroutine


def test_coroutines_that_leave_are_real_ones_at_the_same_place():
    compiled = jitshape.compile(given_away)
    for (x,) in inputs():
        coroutine = compiled(x)
        assert isinstance(coroutine, types.CoroutineType)
        assert coroutine.__qualname__ == "given_away.<locals>.later"
        assert torch.allclose(asyncio.run(coroutine), x.sin() * 3)
    compiled = jitshape.compile(suspended)
    for (x,) in inputs():
        coroutine = compiled(x)
        assert torch.allclose(drive_on(coroutine, x), x.sin() + x)


def drive_on(coroutine, answer):
    try:
        coroutine.send(answer)
    except StopIteration as end:
        return end.value


def drops(x):
    scaled(x, 2)
    return x + 1


def test_a_coroutine_that_nobody_awaits_is_warned_about():
    compiled = jitshape.compile(drops)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled(torch.ones(2))
        assert ["scaled" in str(w.message) for w in caught] == [True]


def test_coroutines_remember_where_they_were_made():
    compiled = jitshape.compile(given_away)
    x = torch.ones(2)
    for depth in (0, 1, 0):
        sys.set_coroutine_origin_tracking_depth(depth)
        try:
            want, got = given_away(x), compiled(x)
        finally:
            sys.set_coroutine_origin_tracking_depth(0)
        assert want.cr_origin == got.cr_origin
        want.close(), got.close()
