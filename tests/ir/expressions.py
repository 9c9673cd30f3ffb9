"""Random expressions of sizes as trees, built over symbols and over Python's integers."""

from __future__ import annotations

import operator

from hypothesis import strategies as st

from jitshape.ir.symint import Algebra, IntExpr, Size, sym_max, sym_min


def rounded(a: Size, digits: int) -> Size:
    return a.algebra.round(a, digits) if isinstance(a, IntExpr) else round(a, digits)


NAMES = ("a", "b", "c")
CONSTANTS = st.integers(-9, 9)
SYMBOLIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": sym_max,
    "min": sym_min,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": lambda a, b: a << (b % 4),
    ">>": lambda a, b: a >> (b % 4),
    "apart": lambda a, b: abs(a - b),
    "~": lambda a, b: ~a + b,
    "square": lambda a, b: a**2 - b,
    "tens": lambda a, b: rounded(a, -1) + b,
}
CONCRETE = {**SYMBOLIC, "max": max, "min": min}
affine = st.tuples(
    st.just("+"), st.tuples(st.just("*"), st.sampled_from(NAMES), CONSTANTS), CONSTANTS
)
trees = st.recursive(
    st.one_of(st.sampled_from(NAMES), CONSTANTS, affine),
    lambda inner: st.tuples(st.sampled_from(sorted(SYMBOLIC)), inner, inner),
    max_leaves=7,
)


def build(tree, leaves, operators):
    if isinstance(tree, tuple):
        op, left, right = tree
        return operators[op](build(left, leaves, operators), build(right, leaves, operators))
    return leaves[tree] if isinstance(tree, str) else tree


def symbols(lo=-6, hi=6) -> dict[str, Size]:
    algebra = Algebra()
    return {name: algebra.symbol(name, lo, hi) for name in NAMES}


def value_of(a: Size, values: dict[str, int]) -> int | None:
    return a if type(a) is int else a.algebra.evaluate(a, values)


def sizes(count: int) -> list[IntExpr]:
    algebra = Algebra()
    return [algebra.symbol(f"s{i}") for i in range(count)]
