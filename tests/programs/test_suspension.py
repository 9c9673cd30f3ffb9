"""Generator and coroutine functions that are compiled themselves: what they give is driven by event
loops and loops of eager code, and runs compiled pieces."""

import asyncio
import contextlib
import gc
import inspect
import sys
import traceback
import types
import weakref

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same, clone, gradients
from tests.programs.pieces import LOG, inputs, note


def talk(call, args, *answers):
    """All that a generator gives when it is answered; an exception is thrown into it."""
    LOG.clear()
    args = clone(args)
    generator = call(*args)
    out = []
    try:
        out.append(next(generator))
        for answer in answers:
            if isinstance(answer, BaseException):
                out.append(generator.throw(answer))
            else:
                out.append(generator.send(answer))
        generator.close()
    except BaseException as error:
        out.append((type(error).__name__, getattr(error, "value", None), str(error)))
    return out, list(LOG), args, gradients([x for x in out if torch.is_tensor(x)], args)


def check_generator(function, *answers, calls=None, breaks=0):
    """Compiled and eager, twice; the second time nothing is compiled.  `breaks` is their number."""
    jitshape.reset()
    compiled = jitshape.compile(function)
    for turn in range(2):
        before = jitshape.stats()["compiles"]
        for args in calls or inputs():
            want, got = talk(function, args, *answers), talk(compiled, args, *answers)
            assert_same(want, got, f"turn {turn}")
    stats = jitshape.stats()
    assert stats["compiles"] == before, [str(r) for r in jitshape.history()]
    assert stats["fallbacks"] == 0, stats["details"]
    assert stats["graph_breaks"] == breaks, stats["details"]
    return stats


def counts(x, n=3):
    while n > 0:
        x = x.sin() + n
        got = yield x
        if got is not None:
            x = x * got
        n -= 1
    return x.sum().detach()


def test_a_generator_runs_compiled_pieces():
    stats = check_generator(counts, None, 2, None, None)
    assert stats["graphs"] > 3


def guarded(x):
    try:
        y = x * 2
        while True:
            try:
                y = y + (yield y)
            except KeyError as error:
                LOG.append((error.args, sys.exception() is error))
                y = (yield y.cos()) or y
                LOG.append(sys.exception() is error)
    except ValueError as error:
        LOG.append(str(error))
        raise RuntimeError("from") from error
    finally:
        LOG.append("finally")


def test_what_is_thrown_arrives_in_the_handlers():
    check_generator(guarded, 1, KeyError("k"), None, 2)
    check_generator(guarded, 1, ValueError("v"))
    check_generator(guarded)  # closed


def test_handlers_stay_around_a_yield_inside_them():
    def inside(x):
        try:
            raise KeyError("first")
        except KeyError as error:
            y = yield x.sin()
            LOG.append(sys.exception() is error)
            try:
                raise ValueError("second")
            except ValueError as second:
                LOG.append(second.__context__ is error)
                yield y
        LOG.append(sys.exception())
        yield x.cos()

    check_generator(inside, 3, None, None, breaks=2)  # `raise` where another one is handled


def delegating(x):
    first = yield from counts(x, 2)
    LOG.append(first.shape)
    yield from [first, first + 1]
    return (yield from ()) or "end"


def test_delegation_to_other_generators():
    check_generator(delegating, None, 2, None, None, None)
    check_generator(delegating, None, KeyError("through"))


def test_closures_cells_and_methods():
    def make(scale):
        total = []

        def accumulate(x, *more, by=1, **named):
            nonlocal scale

            def inner():
                return x * scale + by

            for item in (*more, *named.values()):
                scale += 1
                total.append(scale)
                x = inner() + item
                yield x
            LOG.append(list(total))

        return accumulate

    args = (torch.randn(3), torch.randn(3), torch.randn(3))
    for build in (make,):
        want = list(build(2)(*args, by=3, last=1))
        compiled = jitshape.compile(build(2))
        assert_same(want, list(compiled(*args, by=3, last=1)), "")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
            compiled()


class Base:
    def items(self, x):
        yield x + 1


class Derived(Base):
    @jitshape.compile
    def items(self, x):
        yield from super().items(x)
        yield x.sin()


def test_super_in_a_compiled_generator():
    x = torch.randn(3)
    assert_same([x + 1, x.sin()], list(Derived().items(x)), "")


def with_breaks(x):
    y = x * 2
    note("before")
    got = yield y.sin()

    def inner(z):
        note("inside", z)
        return z.cos()

    y = inner(y) + got
    with contextlib.suppress(KeyError):
        yield y
    return note("end")


def test_breaks_between_suspensions():
    check_generator(with_breaks, 3, KeyError("suppressed"), breaks=3)


def test_a_compiled_generator_as_context_manager():
    @contextlib.contextmanager
    @jitshape.compile
    def doubled(x):
        try:
            yield x * 2
        except KeyError:
            LOG.append("caught")

    LOG.clear()
    with doubled(torch.ones(2)) as y:
        assert y.tolist() == [2, 2]
        raise KeyError
    assert LOG == ["caught"]


# ---- coroutines


async def helper(x, wait):
    y = x.sin()
    if wait:
        await asyncio.sleep(0)
    return y * 2


async def handler(x, wait):
    y = await helper(x, wait)
    z = await helper(y + 1, wait)
    return z.cos() + y


def test_what_does_not_wait_is_one_graph():
    jitshape.reset()
    compiled = jitshape.compile(handler)
    for (x,) in inputs():
        assert_same(asyncio.run(handler(x, False)), asyncio.run(compiled(x, False)), "")
    stats = jitshape.stats()
    assert stats["graph_breaks"] == stats["fallbacks"] == 0
    assert stats["compiles"] == stats["graphs"] == 2  # of one size, then of all


def test_coroutines_wait_in_the_middle():
    compiled = jitshape.compile(handler)
    for (x,) in inputs() * 2:
        assert_same(asyncio.run(handler(x, True)), asyncio.run(compiled(x, True)), "")
    assert jitshape.stats()["fallbacks"] == 0


def test_tasks_run_side_by_side():
    async def several(call):
        return await asyncio.gather(*(call(torch.full((3,), float(i)), True) for i in range(4)))

    want, got = asyncio.run(several(handler)), asyncio.run(several(jitshape.compile(handler)))
    assert_same(want, got, "")


async def limited(x):
    try:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(5)
    except TimeoutError:
        return x.exp()
    return x


async def produced(x, wait):
    for i in (1, 2):
        if wait:
            await asyncio.sleep(0)
        yield x * i


async def consumes(x, wait):
    return [y.sin() async for y in produced(x, wait)]


def test_asynchronous_generators_inside_an_event_loop():
    jitshape.reset()
    compiled, x = jitshape.compile(consumes), torch.randn(3)
    for wait in (False, True):
        assert_same(asyncio.run(consumes(x, wait)), asyncio.run(compiled(x, wait)), "")
        if not wait:
            assert jitshape.stats()["graph_breaks"] == 0
    assert jitshape.stats()["fallbacks"] == 0


def test_cancellation_reaches_the_handlers():
    x = torch.randn(3)
    assert_same(x.exp(), asyncio.run(jitshape.compile(limited)(x)), "")


def test_what_a_call_gives_is_a_real_coroutine():
    compiled = jitshape.compile(handler)
    assert asyncio.iscoroutinefunction(compiled)
    coroutine = compiled(torch.ones(2), True)
    assert type(coroutine) is types.CoroutineType
    assert (coroutine.__name__, coroutine.__qualname__) == ("handler", "handler")
    assert inspect.getcoroutinestate(coroutine) == "CORO_CREATED"
    coroutine.send(None)
    assert inspect.getcoroutinestate(coroutine) == "CORO_SUSPENDED"
    assert coroutine.cr_await.__name__ == "helper"
    coroutine.close()
    generator = jitshape.compile(counts)(torch.ones(2))
    assert type(generator) is types.GeneratorType
    assert generator.__name__ == "counts"


def test_a_coroutine_outlives_the_compiled_function():
    compiled = jitshape.compile(handler)
    x = torch.randn(3)
    coroutine = compiled(x, True)
    coroutine.send(None)
    del compiled
    gc.collect()

    async def rest():
        return await coroutine

    with pytest.raises(RuntimeError, match="already"):
        asyncio.run(rest())
    with pytest.raises(StopIteration) as end:
        while True:
            coroutine.send(None)
    assert_same(asyncio.run(handler(x, False)), end.value.value, "")


def test_what_waits_holds_what_its_frame_would():
    class Marker:
        pass

    @jitshape.compile
    def holds(x, marker):
        yield x + 1
        del marker
        yield x + 2
        x = None
        yield 3

    x, marker = torch.ones(2), Marker()
    seen, tensor = weakref.ref(marker), weakref.ref(x)
    generator = holds(x, marker)
    del marker, x
    next(generator)
    assert seen() is not None
    next(generator)
    assert seen() is None
    assert tensor() is not None
    next(generator)
    assert tensor() is None


def test_tracebacks_show_the_line_that_raised():
    @jitshape.compile
    def fails(x):
        yield x + 1
        raise KeyError("here")

    generator = fails(torch.ones(2))
    next(generator)
    with pytest.raises(KeyError) as caught:
        next(generator)
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert lines[-1] == 'raise KeyError("here")'


def test_asynchronous_generators_run_natively():
    @jitshape.compile
    async def items(x):
        yield x + 1

    async def collect():
        return [item async for item in items(torch.ones(2))]

    (got,) = asyncio.run(collect())
    assert got.tolist() == [2, 2]
