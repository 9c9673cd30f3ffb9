"""Functions, closures, partials, generators, decorators, argument binding."""

# ruff: noqa: F841  (the programs under test)
from __future__ import annotations

import contextvars
import functools
import inspect

import pytest

from tests.frontend.tracing import check

CASES = []


def case(*args):
    def register(function):
        CASES.append(pytest.param(function, args, id=function.__name__))
        return function

    return register


def outer(k=2, *, z=3):
    return k + z


@case(5)
def funcs(x):
    def inner(y, w=x, *a, q=1, **kw):
        return y + w + q + len(a) + len(kw)

    g = functools.partial(inner, 1, q=10)
    cnt = [0]

    def inc():
        nonlocal x
        x += 1
        cnt[0] += 1
        return x

    return (
        inner(1),
        inner(1, 2, 3, q=4, r=5),
        g(),
        g(3),
        inc(),
        inc(),
        cnt,
        outer(),
        outer(1, z=2),
        (lambda *a: a)(1, 2),
        inner.__name__,
        callable(inner),
    )


@case(5)
def argerr(x):
    def f(a, b):
        return a

    return f(x)


@case(3)
def generators(n):
    def g(k):
        for i in range(k):
            r = yield i
        return "done"

    def h():
        x = yield from g(n)
        yield x

    return list(h()), sum(i for i in range(4)), [*g(2)], dict((i, i) for i in range(2))


G = 0


@case(2)
def global_write(n):
    global G
    G = n
    return G


def deco(f):
    @functools.wraps(f)
    def w(*a, **k):
        return f(*a, **k) + 1

    return w


@deco
def decorated(x):
    return x


@case(2)
def wrapped(n):
    @deco
    def loc(x):
        "doc"
        return x * 2

    return decorated(n), loc(n), loc.__name__, loc.__doc__


@case([1, 2])
def star(l):
    def f(*a, **k):
        return a, k

    return f(*l, 3, **{"x": 1}), f(**dict(y=2)), [*l, *l], (*l,), {*l}, max(*l), print


class Signed:
    def method(self, a, b=2, *c, d, **e):
        pass


@case(Signed())
def signatures(x):
    of_function = inspect.signature(outer).parameters
    bound = inspect.signature(x.method).parameters
    kinds = [(k, p.kind.name, p.default is inspect.Parameter.empty) for k, p in bound.items()]
    return list(of_function), kinds, len(bound), "a" in bound, bound["a"].name


VARIABLE = contextvars.ContextVar("variable", default=None)


@case(3)
def context_variables(x):
    first = VARIABLE.get()
    token = VARIABLE.set([x])
    VARIABLE.get().append(x)
    inside = VARIABLE.get()
    VARIABLE.reset(token)
    return first, inside, VARIABLE.get()


@pytest.mark.parametrize(("function", "args"), CASES)
def test_agrees_with_python(function, args):
    check(function, *args)
