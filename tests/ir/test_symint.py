"""The algebra against Python's own integers, on random expressions and values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import Algebra, IntExpr, sym_max
from tests.ir.expressions import CONCRETE, NAMES, SYMBOLIC, build, sizes, symbols, trees, value_of


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


@given(st.integers(-10_000, 10_000), st.integers(-3, 2))
def test_round_to_powers_of_ten(n, digits):
    algebra = Algebra()
    rounded = algebra.round(algebra.symbol("n", -1e9), digits)
    assert value_of(rounded, {"n": n}) == round(n, digits)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda a, b: a & 7, "s0 % 8"),
        (lambda a, b: (a + 7) & ~7, "s0 - ((s0 + 7) % 8) + 7"),
        (lambda a, b: (8 * a) & ~7, "8*s0"),
        (lambda a, b: a & a | 0, "s0"),
        (lambda a, b: a ^ -1, "-s0 - 1"),
        (lambda a, b: b & a, "s0 & s1"),
        (lambda a, b: 3 << a, "3*(1 << s0)"),
        (lambda a, b: a << 3, "8*s0"),
        (lambda a, b: (a * 4) >> 2, "s0"),
        (lambda a, b: (b << a) >> a, "s1"),
        (lambda a, b: divmod(7 * a, 7), "(s0, 0)"),
        (lambda a, b: (+a) ** 3 // (a * a), "s0"),
    ],
)
def test_simplified_bits(make, text):
    assert str(make(*sizes(2))) == text


def test_ranges_of_bits():
    algebra = Algebra()
    a, b = algebra.symbol("a", 0, 5), algebra.symbol("b", 2, 9)
    assert isinstance(a, IntExpr) and isinstance(b, IntExpr)
    assert algebra.bounds(a & b) == (0, 5)
    assert algebra.bounds(a | b) == (2, 15)
    assert algebra.bounds(a ^ b) == (0, 15)
    assert algebra.bounds(1 << a) == (1, 32)
    assert algebra.static("gt", 1 << b, 3) is True


def test_what_64_bits_cannot_hold_is_not_plain():
    algebra = Algebra()
    a, b = algebra.symbol("a", hint=2**40), algebra.symbol("b", hint=3)
    assert (a * b).is_plain and not (a * a).is_plain  # type: ignore[union-attr]
    assert not (a & b).is_plain and not (a * 2**30).is_plain  # type: ignore[union-attr]
    assert not (a * a // b).is_plain  # type: ignore[union-attr]


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


def test_the_truth_of_a_symbolic_size_is_not_pythons():
    (a,) = sizes(1)
    with pytest.raises(TypeError, match="asked of a ShapeEnv"):
        bool(a)
