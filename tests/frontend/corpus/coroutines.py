# ruff: noqa
"""Coroutines and asynchronous generators, driven by hand as an event loop would."""

import types

from tests.frontend.corpus.basics import CASES, cases


@types.coroutine
def pause(value):
    return (yield value)


def run(coroutine, *answers):
    """What it waits for, and its result."""
    out, answers = [], list(answers)
    answer = None
    while True:
        try:
            out.append(coroutine.send(answer))
        except StopIteration as end:
            return out, end.value
        answer = answers.pop(0) if answers else None


@types.coroutine
def bridge(c):
    return (yield from c)


async def double(n):
    return n * 2


class Ready:
    def __await__(self):
        yield from ()
        return "ready"


class Steps:
    def __await__(self):
        got = yield 1
        return got + (yield 2)


class Wraps:
    def __await__(self):
        return double(21).__await__()


class NotIterator:
    def __await__(self):
        return 1


class Coroutine:
    def __await__(self):
        return self.value


class NoExit:
    async def __aenter__(self):
        return 1


class Odd:
    def __aenter__(self):
        return 1

    async def __aexit__(self, *details):
        return None


class Countdown:
    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.n == 0:
            raise StopAsyncIteration
        self.n -= 1
        return await pause(self.n)


class NoNext:
    def __aiter__(self):
        return self


class OddItems:
    def __aiter__(self):
        return self

    def __anext__(self):
        return 5


@cases((3,), (0,))
def p_await(n):
    async def outer():
        a = await double(n)
        b = await double(a)
        return a, b

    return run(outer())


@cases()
def p_suspends():
    async def inner(x):
        got = await pause(x)
        return got, await pause(got * 2)

    async def outer():
        first = await inner(1)
        second = await inner("b")
        return first, second

    return run(outer(), 10, 20, "x", "y")


@cases()
def p_throw_and_close():
    log = []

    async def inner():
        try:
            await pause(1)
        except KeyError as error:
            log.append(("key", error.args))
            await pause(2)
        finally:
            log.append("finally")

    async def outer():
        try:
            await inner()
        except GeneratorExit:
            log.append("exit")
            raise

    a = outer()
    log.append(a.send(None))
    log.append(a.throw(KeyError("k")))
    a.close()
    b = outer()
    b.close()
    try:
        b.send(None)
    except RuntimeError as error:
        log.append(str(error))
    return log


@cases()
def p_states():
    async def f():
        return await pause(1)

    c = f()
    out = [c.cr_running, c.cr_await is None, c.__name__, type(c).__name__]
    c.send(None)
    out += [c.cr_await is None, type(c.cr_await).__name__]
    try:
        c.send(4)
    except StopIteration as end:
        out.append(end.value)
    for complaint in (lambda: c.send(None), lambda: iter(f.__code__ and c), lambda: next(c)):
        try:
            complaint()
        except (RuntimeError, TypeError) as error:
            out.append((type(error).__name__, str(error)))
    return out


@cases()
def p_await_methods():
    async def f():
        return await Ready(), await Steps(), await Wraps()

    return run(f(), 5, 6)


@cases()
def p_await_errors():
    async def f(x):
        await x

    out = []
    inner = double(1)
    wrong = Coroutine()
    wrong.value = inner
    for x in (1, NotIterator(), wrong, [2]):
        try:
            run(f(x))
        except TypeError as error:
            out.append(str(error))
    inner.close()
    return out


@cases()
def p_raises_stop():
    async def f():
        raise StopIteration(3)

    try:
        run(f())
    except RuntimeError as error:
        return str(error), repr(error.__cause__)


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    async def __aenter__(self):
        self.log.append(await pause("enter"))
        return self

    async def __aexit__(self, kind, error, traceback):
        self.log.append((kind and kind.__name__, await pause("exit")))
        return self.swallow


@cases((False,), (True,))
def p_async_with(fails):
    log = []

    async def f():
        async with Manager(log, swallow=True) as m, Manager(log):
            log.append(m.swallow)
            if fails:
                raise KeyError("inside")
        return "end"

    return run(f(), 1, 2, 3, 4), log


@cases()
def p_async_with_errors():
    async def f(manager):
        async with manager:
            pass

    out = []
    for manager in (1, NoExit(), Odd()):
        try:
            run(f(manager))
        except TypeError as error:
            out.append(str(error))
    return out


@cases((0,), (3,))
def p_async_generator(n):
    async def items():
        for i in range(n):
            got = await pause(i)
            yield i, got

    async def f():
        out = []
        async for item in items():
            out.append(item)
        else:
            out.append("else")
        return out, [i async for i, _ in items()], {i: g async for i, g in items() if i}

    return run(f(), *"abcdefghi")


@cases()
def p_async_iterator():
    async def f():
        out = []
        async for item in Countdown(3):
            if item == "skip":
                continue
            out.append(item)
        return out

    return run(f(), "a", "skip", "c")


@cases()
def p_async_for_errors():
    async def f(x):
        async for item in x:
            pass

    out = []
    for x in (1, NoNext(), OddItems()):
        try:
            run(f(x))
        except TypeError as error:
            out.append((str(error), repr(error.__cause__)))
    return out


@cases()
def p_asend_athrow_aclose():
    log = []

    async def g():
        try:
            got = yield 1
            while True:
                try:
                    got = yield got
                except ValueError as error:
                    log.append(str(error))
                    got = "caught"
        finally:
            log.append(await pause("closing"))

    async def f():
        a = g()
        out = [await a.asend(None), await a.asend(5), await a.athrow(ValueError("v"))]
        await a.aclose()
        await a.aclose()
        try:
            await a.asend(1)
        except StopAsyncIteration:
            out.append("end")
        return out

    return run(f(), "closed"), log


@cases()
def p_async_generator_complaints():
    async def ignores():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    async def stops():
        yield 1
        raise StopAsyncIteration

    async def f():
        out = []
        a = ignores()
        await a.__anext__()
        try:
            await a.aclose()
        except RuntimeError as error:
            out.append(str(error))
        b = stops()
        await b.__anext__()
        try:
            await b.__anext__()
        except RuntimeError as error:
            out.append((str(error), repr(error.__cause__)))
        c = stops()
        step = c.asend(None)
        await step
        try:
            await step
        except RuntimeError as error:
            out.append(str(error))
        return out

    return run(f())


@cases()
def p_running_already():
    async def g():
        await pause(1)
        yield 2

    a = g()
    first, second = a.asend(None), a.asend(None)
    out = [first.send(None)]
    try:
        second.send(None)
    except RuntimeError as error:
        out.append(str(error))
    try:
        first.send("x")
    except StopIteration as end:
        out.append(end.value)
    second.close()
    return out


@cases()
def p_delegates_to_coroutine():
    def plain(c):
        yield from c

    async def f():
        return await bridge(double(4))

    c = double(1)
    try:
        list(plain(c))
    except TypeError as error:
        text = str(error)
    c.close()
    return run(f()), text
