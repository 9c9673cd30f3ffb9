"""The algebra against Python's own integers, on random expressions and values."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import (
    Algebra,
    BoolExpr,
    IntExpr,
    Size,
    all_of,
    any_of,
    compare,
    implies,
    negate,
    sym_max,
    sym_min,
)

NAMES = ("a", "b", "c")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
CONSTANTS = st.integers(-9, 9)
SYMBOLIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": sym_max,
    "min": sym_min,
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


@settings(max_examples=150, deadline=None)
@given(trees, st.lists(st.tuples(*[st.integers(-6, 6)] * 3), min_size=1, max_size=8))
def test_values_bounds_and_text_agree_with_python(tree, points):
    try:
        expr = build(tree, symbols(), SYMBOLIC)
    except ZeroDivisionError:
        return
    assert type(expr) is int or isinstance(expr, IntExpr)
    lo, hi = (expr, expr) if type(expr) is int else expr.algebra.bounds(expr)
    for point in points:
        values = dict(zip(NAMES, point))
        try:
            expected = build(tree, values, CONCRETE)
        except ZeroDivisionError:
            continue  # a symbolic divisor is non-zero by assumption
        assert value_of(expr, values) == expected
        assert eval(str(expr), dict(values)) == expected
        assert lo <= expected <= hi


@settings(max_examples=150, deadline=None)
@given(trees, trees, st.sampled_from(COMPARISONS))
def test_static_answers_hold_for_every_value(left, right, op):
    leaves = symbols(-2, 3)
    try:
        a, b = (build(tree, leaves, SYMBOLIC) for tree in (left, right))
    except ZeroDivisionError:
        return
    known = compare(op, a, b)
    if isinstance(known, BoolExpr):
        return
    for point in itertools.product(range(-2, 4), repeat=3):
        values = dict(zip(NAMES, point))
        try:
            x, y = (build(tree, values, CONCRETE) for tree in (left, right))
        except ZeroDivisionError:
            continue
        assert getattr(operator, op)(x, y) is known


small = st.recursive(
    st.one_of(st.sampled_from(NAMES), st.integers(-4, 4), affine),
    lambda inner: st.tuples(st.sampled_from(("+", "-", "*", "//", "%", "max")), inner, inner),
    max_leaves=4,
)
relations = st.tuples(st.sampled_from(COMPARISONS), small, small)
conditions = st.recursive(
    relations,
    lambda inner: st.tuples(st.sampled_from(("and", "or", "not")), inner, inner),
    max_leaves=3,
)


def condition(tree, leaves, operators, relate):
    op, left, right = tree
    if op in COMPARISONS:
        return relate(op, build(left, leaves, operators), build(right, leaves, operators))
    a, b = (condition(part, leaves, operators, relate) for part in (left, right))
    if op == "not":
        return negate(a)
    return all_of((a, b)) if op == "and" else any_of((a, b))


def truth(op: str, a: int, b: int) -> bool:
    return getattr(operator, op)(a, b)


@settings(max_examples=150, deadline=None)
@given(st.lists(conditions, min_size=1, max_size=5), st.tuples(*[st.integers(0, 5)] * 3))
def test_answers_of_an_env_follow_from_its_facts(asked, actual):
    """At this call's values every answer is right; at all others that meet the facts, too."""
    env = ShapeEnv()
    leaves = {n: env.size_symbol(v, name=n) for n, v in zip(NAMES, actual)}
    answered = []
    for tree in asked:
        try:
            right = condition(tree, dict(zip(NAMES, actual)), CONCRETE, truth)
            cond = condition(tree, leaves, SYMBOLIC, compare)
        except ZeroDivisionError:
            continue
        answer = env.evaluate(cond)
        assert answer is right
        answered.append((tree, answer))
    for point in itertools.product(range(4), repeat=3):
        values = dict(zip(NAMES, point))
        try:
            if not all(eval(str(fact), {"max": max}, dict(values)) for fact in env.facts):
                continue
            for tree, answer in answered:
                assert condition(tree, values, CONCRETE, truth) is answer
        except ZeroDivisionError:
            continue


@settings(max_examples=150, deadline=None)
@given(relations, relations)
def test_implication_is_sound(first, second):
    leaves = symbols(-3, 3)
    try:
        a, b = (condition(tree, leaves, SYMBOLIC, compare) for tree in (first, second))
    except ZeroDivisionError:
        return
    if not implies(a, b):
        return
    for point in itertools.product(range(-3, 4), repeat=3):
        values = dict(zip(NAMES, point))
        try:
            if condition(first, values, CONCRETE, truth):
                assert condition(second, values, CONCRETE, truth)
        except ZeroDivisionError:
            continue


@given(st.integers(-10_000, 10_000), st.integers(-3, 2))
def test_round_to_powers_of_ten(n, digits):
    algebra = Algebra()
    rounded = algebra.round(algebra.symbol("n", -1e9), digits)
    assert value_of(rounded, {"n": n}) == round(n, digits)


def sizes(count: int) -> list[IntExpr]:
    algebra = Algebra()
    return [algebra.symbol(f"s{i}") for i in range(count)]


def test_equal_expressions_are_one_object():
    a, b = sizes(2)
    assert (a + b) * (a - b) is a * a - b * b
    assert a + 1 - 1 is a and a - a == 0 and type(a - a) is int
    assert sym_max(a, b) is sym_max(b, a)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda a, b: (a * b) // b, "s0"),
        (lambda a, b: (a * b * 6) // (3 * b), "2*s0"),
        (lambda a, b: (4 * a + 7) // 4, "s0 + 1"),
        (lambda a, b: (2 * a) // 4, "s0 // 2"),
        (lambda a, b: a // 4 // 2, "s0 // 8"),
        (lambda a, b: (8 * a + 3) % 4, "3"),
        (lambda a, b: sym_max(a + 1, 1), "s0 + 1"),
        (lambda a, b: sym_max(sym_max(a, 1), 1), "max(s0, 1)"),
        (
            lambda a, b: (24 * a + 672) * (b // 2016) + 21,
            "24*s0*(s1 // 2016) + 672*(s1 // 2016) + 21",
        ),
        (lambda a, b: 4 - 2 * (2 * (a // 2)), "4 - 4*(s0 // 2)"),
        (lambda a, b: 5 - (a - b) // 3, "5 - ((s0 - s1) // 3)"),
        (lambda a, b: -(a % 3) * (b // 2), "-(s0 % 3)*(s1 // 2)"),
    ],
)
def test_simplified_text(make, text):
    assert str(make(*sizes(2))) == text


def test_a_quotient_of_products_stays_an_integer_expression():
    a, b = sizes(2)
    quotient = ((24 * a + 672) * (b // 2016) + 21) // 22
    for x, y in ((0, 2016), (5, 4032), (1, 1)):
        expected = ((24 * x + 672) * (y // 2016) + 21) // 22
        assert quotient.algebra.evaluate(quotient, {"s0": x, "s1": y}) == expected


def test_division_by_a_literal_zero_raises_as_python_does():
    (a,) = sizes(1)
    with pytest.raises(ZeroDivisionError):
        a // 0
    with pytest.raises(ZeroDivisionError):
        a % 0


def test_a_quotient_by_what_became_zero_is_left_alone():
    env = ShapeEnv()
    a, b = env.size_symbol(0), env.size_symbol(5)
    quotient = b // a
    assert env.specialize(a) == 0
    assert env.simplify(quotient) is quotient and env.actual(quotient) is None
    assert not implies(compare("eq", a, 0), compare("eq", quotient, 3))


def test_negation_of_connectives():
    a, b = sizes(2)
    both = all_of((compare("lt", a, b), compare("eq", a, 3)))
    assert str(negate(both)) == "(s0 >= s1) or (s0 != 3)"
    assert negate(negate(both)) == both


def test_the_truth_of_a_symbolic_size_is_not_pythons():
    (a,) = sizes(1)
    with pytest.raises(TypeError, match="asked of a ShapeEnv"):
        bool(a)
    with pytest.raises(TypeError, match="asked of a ShapeEnv"):
        bool(compare("eq", a, 3))
