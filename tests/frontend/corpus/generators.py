# ruff: noqa
"""Generators, delegation, comprehension generators."""

import contextlib

from tests.frontend.corpus.basics import CASES, cases


def count(n):
    for i in range(n):
        yield i
    return "done"


@cases((4,), (0,))
def p_simple(n):
    return list(count(n)), sum(count(n)), [x for x in count(n)], tuple(count(n)), max(count(n + 1))


@cases()
def p_next_and_end():
    g = count(1)
    out = [next(g)]
    try:
        next(g)
    except StopIteration as end:
        out.append(end.value)
    out.append(next(g, "default"))
    return out


@cases()
def p_send():
    def echo():
        got = yield "start"
        while got:
            got = yield got * 2
        return "end"

    g = echo()
    out = []
    try:
        g.send(1)
    except TypeError as error:
        out.append(str(error))
    out += [next(g), g.send(3), g.send("ab")]
    try:
        g.send(None)
    except StopIteration as end:
        out.append(end.value)
    return out


@cases()
def p_throw():
    log = []

    def g():
        while True:
            try:
                yield len(log)
            except ValueError as error:
                log.append(str(error))
            finally:
                log.append("f")

    it = g()
    out = [next(it), it.throw(ValueError("a")), it.throw(ValueError)]
    try:
        it.throw(KeyError("k"))
    except KeyError as error:
        out.append(error.args)
    try:
        next(it)
    except StopIteration:
        out.append("stopped")
    return out, log


@cases()
def p_throw_unstarted():
    g = count(3)
    try:
        g.throw(ValueError("early"))
    except ValueError as error:
        return str(error), list(g)


@cases()
def p_close():
    log = []

    def g(n):
        try:
            for i in range(n):
                yield i
        finally:
            log.append("closed")

    a, b = g(3), g(3)
    next(a)
    a.close()
    b.close()
    a.close()
    return log, list(a), list(b)


@cases()
def p_close_ignored():
    def g():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    it = g()
    next(it)
    try:
        it.close()
    except RuntimeError as error:
        return str(error)


@cases((3,))
def p_yield_from(n):
    log = []

    def inner():
        try:
            got = yield "a"
            log.append(got)
            yield "b"
        except ValueError as error:
            log.append(str(error))
            yield "caught"
        finally:
            log.append("inner closed")
        return "result"

    def outer():
        result = yield from inner()
        log.append(result)
        yield from [1, 2]
        rest = yield from count(n)
        return rest

    it = outer()
    out = [next(it), it.send("sent"), it.throw(ValueError("v"))]
    out += list(it)
    return out, log


@cases()
def p_yield_from_close():
    log = []

    def inner():
        try:
            yield 1
            yield 2
        finally:
            log.append("inner")

    def outer():
        try:
            yield from inner()
        finally:
            log.append("outer")

    it = outer()
    next(it)
    it.close()
    return log


@cases()
def p_yield_from_throw_out():
    def inner():
        try:
            yield 1
        except ValueError:
            return "swallowed"

    def outer():
        got = yield from inner()
        yield got
        try:
            yield from count(2)
        except KeyError:
            yield "outer caught"

    it = outer()
    out = [next(it), it.throw(ValueError), next(it), it.throw(KeyError)]
    return out, list(it)


@cases()
def p_stop_iteration_inside():
    def g():
        yield 1
        next(iter([]))
        yield 2

    out = []
    try:
        for x in g():
            out.append(x)
    except RuntimeError as error:
        out += [str(error), type(error.__cause__).__name__]
    return out


@cases()
def p_interleaved():
    a, b = count(3), count(5)
    return [(x, y) for x, y in zip(a, b)], list(b)


@cases()
def p_infinite():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    g = naturals()
    return [next(g) for _ in range(4)], next(x for x in g if x % 7 == 0)


@cases()
def p_recursive():
    def walk(tree):
        for item in tree:
            if isinstance(item, list):
                yield from walk(item)
            else:
                yield item

    return list(walk([1, [2, [3, 4], 5], [[6]]]))


@cases()
def p_context_manager():
    log = []

    @contextlib.contextmanager
    def manager(name):
        log.append(f"enter {name}")
        try:
            yield name
        except KeyError:
            log.append("swallowed")
        finally:
            log.append(f"exit {name}")

    with manager("a") as a:
        log.append(a)
    with manager("b"):
        raise KeyError
    try:
        with manager("c"):
            raise ValueError("v")
    except ValueError as error:
        log.append(str(error))
    return log


@cases()
def p_handled_inside():
    def g():
        try:
            raise ValueError("inside")
        except ValueError:
            yield 1
            try:
                raise
            except ValueError as error:
                yield str(error)

    try:
        raise KeyError("outside")
    except KeyError:
        it = g()
        out = [next(it)]
        try:
            raise
        except KeyError as error:
            out.append(error.args)
        out.append(next(it))
    return out


@cases()
def p_already_executing():
    def g():
        try:
            next(it)
        except ValueError as error:
            yield str(error)

    it = g()
    return list(it)


@cases()
def p_genexp_scope():
    n = 3
    g = (n * i for i in range(n))
    n = 10
    return list(g)


@cases()
def p_named():
    def f():
        yield 1

    before = f()
    f.__name__, f.__qualname__ = "n", "q"
    after = f()
    f.__name__ = "later"
    return [(g.__name__, g.__qualname__) for g in (before, after, (x for x in ()))]


@cases((0,), (1,))
def p_return_tuple(n):
    def g():
        yield n
        return (n,) * n

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as error:
        return repr(error), error.value, error.args


__all__ = ["CASES"]
