"""Lists, tuples, dicts, sets and their subclasses: contents, order, aliasing, errors."""

# ruff: noqa: RUF005  (the programs under test)
from __future__ import annotations

import collections
import copy
import dataclasses
import os
import sys
import time

import pytest

from tests.frontend.tracing import check

CASES = []


def case(*args):
    def register(function):
        CASES.append(pytest.param(function, args, id=function.__name__))
        return function

    return register


@case(time.gmtime(0), os.terminal_size((80, 24)), os.stat("/"))
def struct_sequences(t, size, stat):
    year, *rest = t
    seen = year, t.tm_year, t.tm_isdst, t[1], rest, size.columns, size.lines, len(size), size[::-1]
    of_sys = sys.flags.optimize, sys.version_info.minor, sys.hash_info.width
    return seen, of_sys, stat.st_mode, stat[0]


@case([1, 2], {"a": 1})
def containers(l, d):
    l.append(3)
    d["z"] = l
    l[0] = 7
    x = [i * 2 for i in l if i > 1]
    return sorted(x, key=lambda v: -v), sum(l), max(l), list(enumerate(l)), dict(d)


@case([3, 1, 2])
def lists(l):
    m = l
    m.sort()
    l.insert(0, 9)
    l.reverse()
    a = l.pop()
    b = l.pop(0)
    l.extend((5, 6))
    l.extend(x for x in [8])
    del l[0]
    l[1:2] = [10, 11, 12]
    return (
        l,
        m is l,
        a,
        b,
        l.index(5),
        l.count(5),
        5 in l,
        l + [1],
        l * 2,
        l == [1],
        l < [100],
        l[::-1],
        l[1:3],
        l[-1],
    )


@case({"a": 1, "b": 2})
def dicts(d):
    d["c"] = 3
    x = d.pop("a")
    d.setdefault("q", []).append(1)
    d.update(z=1)
    d |= {"k": 2}
    e = {**d, "a": 5}
    r = [k for k in d]
    del d["b"]
    return (
        x,
        d.get("nope"),
        d.get("c", 9),
        e,
        r,
        list(d.items()),
        list(d.values()),
        "c" in d,
        len(d),
        d == {"c": 3},
        list(reversed(d)),
    )


@case({"a": 1})
def keyerr(d):
    return d["b"]


@case([1])
def indexerr(l):
    return l[5]


@case([1])
def unhash(l):
    return {l: 1}


@case({"a": 1, "b": 2})
def mutiter(d):
    for k in d:
        d[k + "x"] = 1


@case((1, 2, 3))
def tuples(t):
    a, *b = t
    return (
        a,
        b,
        t + (1,),
        t * 2,
        t[1:],
        t.index(2),
        hash(t),
        t < (1, 3),
        len(t),
        (1, 2) in {(1, 2): 1},
        {t: 1}[(1, 2, 3)],
    )


NT = collections.namedtuple("NT", "a b")


@dataclasses.dataclass
class D:
    a: int
    b: list = dataclasses.field(default_factory=list)

    def s(self):
        return self.a


@case(NT(1, 2))
def namedtuples_and_dataclasses(n):
    m = NT(3, b=4)
    d = D(1)
    d.b.append(2)
    d2 = D(a=5)
    return n.a, n.b, m, n._fields, a_(*n), d, d2, d == D(1, [2]), d.s()


def a_(a, b):
    return a - b


@case(
    {3, 1},
)
def sets(s):
    t = {1, 2, 3}
    t.add(9)
    t.discard(1)
    return (
        t | {5},
        t & {2},
        t - {2},
        t ^ {2, 100},
        2 in t,
        len(t),
        frozenset(t),
        sorted(t),
        t == {2, 3, 9},
        t > {2},
        {x for x in [1, 1]},
    )


@case(collections.OrderedDict(a=1, b=2))
def ordered_dicts(o):
    o.move_to_end("a")
    o["c"] = 3
    p = collections.OrderedDict(o)
    d = collections.defaultdict(list)
    d["x"].append(1)
    return list(o), p, d, o.popitem(), o.popitem(last=False)


class MO(collections.OrderedDict):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.__post_init__()

    def __post_init__(self):
        for k, v in list(self.items()):
            setattr(self, k, v)

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def __setitem__(self, k, v):
        super().__setitem__(k, v)
        super().__setattr__(k, v)

    def __setattr__(self, k, v):
        if k in self.keys() and v is not None:
            super().__setitem__(k, v)
        super().__setattr__(k, v)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@case(1)
def dict_subclass(x):
    m = MO(a=x, b=[2])
    m.a = 5
    m["c"] = 3
    return m, m[0], m["b"], m.c, list(m), len(m)


class ML(list):
    def total(self):
        return sum(self)


@case(ML([1, 2]))
def list_subclass(l):
    l.append(4)
    l.tag = "q"
    n = ML([1])
    n.tag = 3
    return l.total(), n, l.tag, isinstance(l, list), type(l).__name__, l + [1]


@case([1])
def alias(l):
    a = {"l": l}
    a["l"].append(2)
    b = a["l"]
    c = [l, l]
    c[0].append(3)
    c.append(c)
    return b is l, len(c), c[2] is c, l


@case(3)
def copies(n):
    a = [1, [2]]
    b = copy.copy(a)
    c = copy.deepcopy({"a": a, "b": a})
    return b[1] is a[1], c["a"] is c["b"], c["a"] is a, c


@pytest.mark.parametrize(("function", "args"), CASES)
def test_agrees_with_python(function, args):
    check(function, *args)
