"""Functions of builtins and itertools; every TypeError has CPython's text."""

# ruff: noqa: UP031  (the programs under test)
from __future__ import annotations

import collections
import functools
import itertools
import math
import operator

import pytest

from tests.frontend.tracing import check

CASES = []


def case(*args):
    def register(function):
        CASES.append(pytest.param(function, args, id=function.__name__))
        return function

    return register


@case([1, 2, 3], [4, 5])
def iters(a, b):
    return (
        list(zip(a, b)),
        list(map(lambda x, y: x * y, a, b)),
        list(filter(None, [0, 1, 2])),
        list(reversed(a)),
        list(range(10, 0, -3)),
        list(itertools.chain(a, b)),
        list(itertools.islice(itertools.count(5), 2, 8, 2)),
        list(itertools.product(a, b)),
        list(itertools.accumulate(a)),
        list(itertools.repeat(1, 2)),
        any(a),
        all([]),
        functools.reduce(operator.add, a, 10),
        next(iter(a)),
        next(iter([]), None),
        list(itertools.combinations(a, 2)),
        list(itertools.zip_longest(a, b)),
        [x for x in reversed((1, 2))],
        list(itertools.starmap(pow, [(2, 3)])),
        list(itertools.takewhile(lambda x: x < 3, a)),
        list(enumerate(b, 5)),
        dict(zip("ab", a)),
    )


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


@case("a", [1, "x"])
def error_texts(a, l):
    out = []
    for f in (
        lambda: a + 1,
        lambda: 1 + a,
        lambda: l["k"],
        lambda: None.foo,
        lambda: len(3),
        lambda: l(1),
        lambda: [1] + (2,),
        lambda: 3 in 4,
        lambda: iter(3),
        lambda: {} < {},
        lambda: -"a",
        lambda: int([]),
        lambda: "a".foo,
        lambda: [].foo,
        lambda: P.nope,
        lambda: math.nope,
        lambda: sorted([1, "a"]),
        lambda: max([]),
        lambda: range(1.5),
        lambda: {}[[]],
        lambda: next(iter([])),
        lambda: isinstance(1, 2),
        lambda: "%d" % "x",
        lambda: (1, 2)[5],
        lambda: "abc"[9],
        lambda: dict([1]),
        lambda: tuple(5),
        lambda: sum(["a"]),
        lambda: getattr(1, 2),
        lambda: l.remove(99),
        lambda: l.index(99),
        lambda: {}.popitem(),
        lambda: chr(-1),
        lambda: abs("a"),
        lambda: ",".join([1]),
        lambda: 1 / 0,
    ):
        try:
            out.append(f())
        except Exception as e:
            out.append((type(e).__name__, str(e)))
    return out


def renamed(a, b):
    return a


renamed.__qualname__ = "Other.renamed"


@case()
def calls_that_do_not_fit_name_the_function_as_it_is_called():
    def inner(a, b):
        return a

    inner.__qualname__ = "Other.inner"
    texts = []
    for function in (renamed, inner, lambda a, b: a):
        try:
            function(1)
        except TypeError as error:
            texts.append(str(error))
    return texts


@case("abca", [[1, 2], [3]])
def counts(text, lists):
    own, kept = collections.Counter(text), collections.Counter(a=3)
    own.update(["z", "a", 1, True])
    kept.subtract(own)
    return (
        list(own.items()),
        list((own + kept).items()),
        own["missing"],
        sum(own.values()),
        collections.Counter({"a": 2}),
        list(kept.items()),
        list(itertools.chain.from_iterable(lists)),
        dict.fromkeys(lists[0], 4),
    )


SECOND, SWAPPED = operator.itemgetter(1), operator.itemgetter(1, 0)
IMAGINARY = operator.attrgetter("real.imag")


@case([(1, 3), (2, 1)])
def getters_from_outside(pairs):
    return sorted(pairs, key=SECOND), [*map(SWAPPED, pairs)], IMAGINARY(2), SECOND is SWAPPED


@case(frozenset([1, 2]), (1, 2))
def what_never_changes_is_its_own_copy(s, t):
    own = frozenset([len(t)])
    return s.copy() is s, frozenset(s) is s, own.copy() is own, t[:] is t, tuple(t) is t


@pytest.mark.parametrize(("function", "args"), CASES)
def test_agrees_with_python(function, args):
    check(function, *args)
