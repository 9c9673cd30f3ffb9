"""Facts: what is answered, what is guarded, and that answers follow from what is guarded."""

from __future__ import annotations

import pytest

from jitshape.errors import DataDependent
from jitshape.ir.conditions import BoolExpr, all_of, any_of, compare
from jitshape.ir.facts import describe
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import sym_max


def facts(env: ShapeEnv) -> list[str]:
    return [str(fact) for fact in env.facts]


def test_a_weaker_fact_is_dropped_and_a_known_one_is_not_recorded():
    env = ShapeEnv()
    s = env.size_symbol(5)
    assert env.evaluate(compare("le", s, 64))
    assert env.evaluate(compare("le", s, 32))
    assert env.evaluate(compare("lt", s, 100))
    assert not env.evaluate(compare("gt", 2 * s, 64))
    assert facts(env) == ["s0 <= 32"]


def test_equal_sizes_become_one_symbol():
    env = ShapeEnv()
    a, b = env.size_symbol(7), env.size_symbol(7)
    assert env.equal(a, b)
    assert env.simplify(a + 2 * b) is 3 * a
    assert env.equal(a * 4, b * 4)
    assert facts(env) == ["s0 == s1"]


def test_specialising_replaces_and_drops_what_it_implies():
    env = ShapeEnv()
    a, b = env.size_symbol(3), env.size_symbol(4)
    env.evaluate(compare("lt", a, 10))
    env.evaluate(compare("lt", a, b))
    assert env.specialize(a) == 3
    assert env.simplify(a * b) is 3 * b
    assert facts(env) == ["s0 < s1", "s0 == 3"]
    assert [fact.specialised for fact in env.facts] == [False, True]


def test_a_true_disjunction_stays_whole_and_a_false_one_is_split():
    env = ShapeEnv()
    a, b = env.size_symbol(3), env.size_symbol(4)
    either = any_of([compare("eq", a, 3), compare("eq", b, 5)])
    assert env.evaluate(either)
    assert env.static(either) is True
    assert not env.evaluate(any_of([compare("gt", a, 8), compare("gt", b, 9)]))
    assert facts(env) == ["(s0 == 3) or (s1 == 5)", "s0 <= 8", "s1 <= 9"]
    assert env.evaluate(all_of([compare("ge", a, 1), compare("ge", b, 1)]))
    assert facts(env)[3:] == ["s0 >= 1", "s1 >= 1"]


def test_required_answers_follow_the_actual_value_of_a_size_of_one():
    env = ShapeEnv()
    one = env.size_symbol(1)
    assert env.hint(one) > 1 and env.actual(one) == 1
    assert env.guard_or(compare("eq", one, 1), False) is False
    assert env.guard_or(compare("ne", one, 1), False) is False
    assert env.facts == []
    assert env.broadcast(one, one) is one and env.broadcast(one, 1) is one
    assert env.facts == []
    assert env.broadcast(one, 9) == 9
    assert facts(env) == ["s0 == 1"]


def test_an_optional_answer_is_guarded_only_if_every_hint_pays_for_it():
    env = ShapeEnv()
    always = env.size_symbol(32, seen=(16, 48))
    once = env.size_symbol(32, seen=(16, 40))
    assert env.guard_or(compare("eq", always % 16, 0), False) is True
    assert env.guard_or(compare("eq", once % 16, 0), False) is False
    assert facts(env) == ["s0 % 16 == 0"]
    assert env.static(compare("eq", always % 16, 0)) is True


def test_unbacked_sizes_are_asserted_not_guarded():
    env = ShapeEnv()
    s, u = env.size_symbol(8), env.unbacked()
    with pytest.raises(DataDependent) as raised:
        env.evaluate(compare("le", u, s))
    assert isinstance(raised.value.condition, BoolExpr)
    assert env.guard_or(compare("eq", u, 1), False) is False
    assert env.assume(compare("le", u, s))
    assert env.static(compare("le", u, s + 1)) is True
    assert env.assume(compare("eq", u, s)) and env.simplify(u) is s
    assert not env.assume(compare("gt", s, 8))
    assert [str(fact) for fact in env.asserts] == ["u0 <= s0", "u0 == s0"]


def test_a_product_that_is_not_zero_has_no_zero_factor():
    env = ShapeEnv()
    a, b = env.size_symbol(2), env.size_symbol(3)
    assert env.evaluate(compare("ne", a * b, 0))
    assert env.static(compare("ge", a, 1)) is True
    assert sym_max(b, 1) is b


def test_division_by_the_program_guards_the_divisor():
    env = ShapeEnv()
    b, t, z = env.size_symbol(2), env.size_symbol(3), env.int_symbol(0)
    assert env.floordiv(b * t, b) is t
    assert facts(env) == ["s0 != 0"]
    with pytest.raises(ZeroDivisionError, match="integer division or modulo by zero"):
        env.mod(t, z)
    assert facts(env)[1:] == ["s2 == 0"]


def test_declared_ranges_are_guarded():
    env = ShapeEnv()
    env.size_symbol(8, lo=2, hi=64)
    assert facts(env) == ["s0 >= 2", "s0 <= 64"]
    with pytest.raises(ValueError, match="s1 is 8, outside of"):
        env.size_symbol(8, hi=4)


def test_facts_are_told_in_the_names_of_the_user():
    env = ShapeEnv()
    a, b = env.size_symbol(6), env.size_symbol(7)
    names = {"s0": "x.size(0)", "s1": "len(y)"}
    env.evaluate(any_of([compare("lt", a + 1, b), compare("eq", a % 3, 0)]))
    env.equal(2 * a + 2, 2 * b)
    assert [describe(fact, names) for fact in env.facts] == [
        "(x.size(0) + 1 < len(y)) or (x.size(0) % 3 == 0)",
        "x.size(0) + 1 == len(y)",
    ]


def test_the_time_of_questions_is_counted():
    env = ShapeEnv()
    a, b = env.size_symbol(8), env.size_symbol(5)
    assert env.seconds == 0.0
    for factor in range(2, 300):
        env.evaluate(compare("gt", a * factor, b))
    assert env.seconds > 0.0
