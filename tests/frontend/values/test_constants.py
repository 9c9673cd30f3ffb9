"""Constants: operators, text, folding of pure functions."""

# ruff: noqa: UP031, UP032  (the programs under test)
from __future__ import annotations

import math

import pytest

from tests.frontend.tracing import check

CASES = []


def case(*args):
    def register(function):
        CASES.append(pytest.param(function, args, id=function.__name__))
        return function

    return register


@case(1, 2)
def basic(a, b):
    c = [a, b]
    c.append(a + b)
    return c, {"x": c, 1: (a, b)}


@case("hello world", 3)
def strs(s, n):
    return (
        s.upper(),
        s.split(),
        f"{s!r:>20} {n:03d} {n}",
        "%s-%d" % (s, n),
        "{} {x}".format(s, x=n),
        ",".join(["a", s]),
        s[1:3],
        s * 2,
        "lo" in s,
        s.replace("l", "L"),
        [c for c in s if c in "aeiou"],
        str([1, "a", (2,)]),
        repr({"a": [1]}),
    )


@case(7, 2.5)
def nums(a, b):
    return (
        a // 2,
        a % 3,
        -a,
        ~a,
        a**2,
        a / 2,
        divmod(a, 3),
        abs(-b),
        round(b),
        int("12"),
        float(a),
        bool(a),
        math.sqrt(a),
        math.floor(b),
        max(a, b),
        min([a, b]),
        sum([a, b], 1),
        pow(a, 2, 5),
        a < b,
        hex(a),
        (a).bit_length(),
        b.is_integer(),
        math.pi,
    )


@pytest.mark.parametrize(("function", "args"), CASES)
def test_agrees_with_python(function, args):
    check(function, *args)
