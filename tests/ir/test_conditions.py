"""Answers, facts and implications against Python's own comparisons, on random conditions."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.ir.conditions import BoolExpr, all_of, any_of, compare, implies, negate, reduced
from jitshape.ir.shape_env import ShapeEnv
from tests.ir.expressions import (
    CONCRETE,
    NAMES,
    SYMBOLIC,
    affine,
    build,
    sizes,
    symbols,
    trees,
)

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


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


def test_negation_of_connectives():
    a, b = sizes(2)
    both = all_of((compare("lt", a, b), compare("eq", a, 3)))
    assert str(negate(both)) == "(s0 >= s1) or (s0 != 3)"
    assert negate(negate(both)) == both


def test_nothing_follows_from_a_quotient_by_zero():
    env = ShapeEnv()
    a, b = env.size_symbol(0), env.size_symbol(5)
    assert not implies(compare("eq", a, 0), compare("eq", b // a, 3))


@pytest.mark.parametrize(
    ("op", "make", "text"),
    [
        ("le", lambda a, b: (2 * a, 6), "s0 <= 3"),
        ("lt", lambda a, b: (3 * a, 7), "s0 <= 2"),
        ("gt", lambda a, b: (4 * a, 4 * b + 1), "s0 >= s1 + 1"),
        ("eq", lambda a, b: (2 * a, 2 * b + 4), "s0 == s1 + 2"),
        ("ge", lambda a, b: (a, b), "s0 >= s1"),
    ],
)
def test_a_common_factor_is_dropped(op, make, text):
    assert str(reduced(op, *make(*sizes(2)))) == text


def test_the_truth_of_a_condition_is_not_pythons():
    (a,) = sizes(1)
    with pytest.raises(TypeError, match="asked of a ShapeEnv"):
        bool(compare("eq", a, 3))
