"""Instances, properties, slots, super, enums, with, exceptions."""

# ruff: noqa: F841, B904  (the programs under test)
from __future__ import annotations

import contextlib
import enum
import functools

import pytest

from tests.frontend.tracing import check

CASES = []


def case(*args):
    def register(function):
        CASES.append(pytest.param(function, args, id=function.__name__))
        return function

    return register


class P:
    cls_attr = [1]
    count = 0

    def __init__(self, x, y=2):
        self.x = x
        self.y = y

    def m(self, k):
        return self.x + k

    @property
    def total(self):
        return self.x + self.y

    @total.setter
    def total(self, v):
        self.x = v - self.y

    @staticmethod
    def s(a):
        return a * 2

    @classmethod
    def c(cls, a):
        return cls(a)

    def __eq__(self, o):
        return isinstance(o, P) and self.x == o.x

    __hash__ = None

    def __add__(self, o):
        return P(self.x + (o.x if isinstance(o, P) else o))

    def __radd__(self, o):
        return P(o + self.x)

    def __len__(self):
        return self.x

    def __getitem__(self, i):
        return self.x * i

    def __contains__(self, i):
        return i == self.x

    def __call__(self, q):
        return self.x * q

    def __repr__(self):
        return f"P({self.x})"

    def __bool__(self):
        return self.x > 0

    def __iter__(self):
        yield self.x
        yield self.y

    def __enter__(self):
        self.x += 1
        return self

    def __exit__(self, *a):
        self.x += 100
        return True


class Q(P):
    __slots__ = ("sl",)

    def __init__(self, x):
        super().__init__(x, 3)
        self.sl = x

    def m(self, k):
        return super().m(k) * 10

    @functools.cached_property
    def cp(self):
        return self.x * 7


@case(P(3), Q(4))
def objs(p, q):
    n = P(1)
    n.z = [p]
    p.x += 1
    q.sl = 9
    p.total = 20
    r = Q.c(7)
    return (
        n,
        n.z[0] is p,
        p.m(1),
        q.m(1),
        p.total,
        P.s(4),
        r,
        p == q,
        p + 1,
        1 + p,
        len(p),
        p[3],
        p.x in p,
        p(2),
        repr(p),
        bool(p),
        list(p),
        q.sl,
        q.cp,
        q.cp,
        getattr(p, "nope", 5),
        hasattr(p, "x"),
        vars(n) == {"x": 1},
        isinstance(q, P),
        type(q) is Q,
        issubclass(Q, P),
        P.cls_attr,
        type(p).__name__,
        q.__class__.__name__,
    )


@case(P(3))
def attrerr(p):
    return p.nope


@case(P(3))
def withs(p):
    with p as k:
        raise ValueError("x")
    return p.x


@case()
def exceptions():
    try:
        raise ValueError("a", 1)
    except (KeyError, ValueError) as e:
        r = [str(e), repr(e), e.args, type(e).__name__]
    try:
        try:
            {}["k"]
        except KeyError as e:
            raise RuntimeError("w") from e
    except RuntimeError as e:
        r.append((repr(e.__cause__), e.__context__ is e.__cause__, e.__suppress_context__))
    try:
        [].pop()
    except IndexError as e:
        r.append(str(e))
    try:
        int("x")
    except ValueError as e:
        r.append(str(e))
    return r


class MyErr(ValueError):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


@case(3)
def userexc(c):
    raise MyErr(c)


@case()
def chain():
    try:
        raise KeyError("k")
    except KeyError:
        raise ValueError("v")


class Color(enum.Enum):
    R = 1
    G = 2

    @property
    def nice(self):
        return self.name.lower()


class F(enum.IntFlag):
    A = 1
    B = 2


@case(Color.R)
def enums(c):
    return (
        c is Color.R,
        c.name,
        c.value,
        Color(2),
        Color["G"],
        c.nice,
        c == Color.G,
        {c: 1}[Color.R],
        F.A | F.B,
        isinstance(c, Color),
        c in (Color.R,),
    )


@contextlib.contextmanager
def cm(l):
    l.append("in")
    try:
        yield 5
    finally:
        l.append("out")


@case([])
def context_managers(l):
    with cm(l) as x:
        l.append(x)
    with contextlib.nullcontext(3) as q:
        l.append(q)
    return l


@pytest.mark.parametrize(("function", "args"), CASES)
def test_agrees_with_python(function, args):
    check(function, *args)
