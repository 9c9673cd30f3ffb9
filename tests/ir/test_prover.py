"""The second prover: what it answers is right at every value in range, and what it must answer."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import jitshape
from jitshape.ir.conditions import compare
from jitshape.ir.knowledge import COMPARE
from jitshape.ir.prover import Prover
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import Algebra, sym_max, sym_min
from tests.ir.expressions import CONCRETE, NAMES, SYMBOLIC, build, trees, value_of

LEAST, MOST = -3, 6

# (s, t) -> the sides and the comparison; s and t are sizes, t is at least 1.
ALWAYS = {
    "quotient and remainder": lambda s, t: (s // 4 * 4 + s % 4, "eq", s),
    "two halves": lambda s, t: ((s + 1) // 2 + s // 2, "eq", s),
    "a nest of quotients": lambda s, t: (s // 2 // 4, "eq", s // 8),
    "a chain of remainders": lambda s, t: ((s % 12 + 2 * (s % 6)) % 6, "eq", 3 * s % 6),
    "rounded down": lambda s, t: (s // 4 * 4, "le", s),
    "rounded up": lambda s, t: (-(-s // 4) * 4, "ge", s),
    "padding": lambda s, t: ((s + 7) // 8 * 8 - s, "lt", 8),
    "neighbours": lambda s, t: ((s + 3) // 4, "le", s // 4 + 1),
    "a symbolic divisor": lambda s, t: (s // t * t, "le", s),
    "less than the divisor": lambda s, t: (s % t, "lt", t),
    "minimum and maximum": lambda s, t: (sym_min(s, t) + sym_max(s, t), "eq", s + t),
    "steps of maxima": lambda s, t: (sym_max(s, 4) - sym_max(s, 3), "le", 1),
    "unlike pairs": lambda s, t: (sym_min(s, 16), "le", sym_max(s, 3)),
    "never": lambda s, t: (s // 4 * 4, "ne", s + 1),
    "a window of windows": lambda s, t: ((s - 3) // 2 // 2, "eq", (s - 3) // 4),
    "a square": lambda s, t: (s * s + 1, "ge", 2 * s),
}


@pytest.mark.parametrize("name", ALWAYS)
def test_what_always_holds_is_no_fact(name) -> None:
    env = ShapeEnv()
    a, op, b = ALWAYS[name](env.size_symbol(8), env.size_symbol(5, lo=1))
    before = list(env.facts)
    assert env.evaluate(compare(op, a, b)) is True
    assert env.facts == before


def test_what_depends_on_the_call_is_one_fact() -> None:
    env = ShapeEnv()
    s, t = env.size_symbol(8), env.size_symbol(6)
    assert env.evaluate(compare("eq", (s + 1) // 2 * 2 * t, s * t))
    assert [str(fact) for fact in env.facts] == ["2*s1*((s0 + 1) // 2) == s0*s1"]
    assert env.prover.counts() == {"asked": 1}


@seed(0)
@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(trees, trees, st.sampled_from(sorted(COMPARE)), st.booleans())
def test_answers_hold_at_every_value(left, right, op, known) -> None:
    algebra = Algebra()
    symbols = {name: algebra.symbol(name, LEAST, MOST) for name in NAMES}
    if known:
        algebra.learn("le", symbols["a"] + symbols["b"], 4)
        algebra.learn("ne", symbols["c"], 2)
    prover = Prover(algebra)
    prover.left = 0.0  # without sympy, which takes too long for a test
    try:
        a, b = (build(tree, symbols, SYMBOLIC) for tree in (left, right))
        answer = prover.decide(op, a, b)
    except ZeroDivisionError:
        return
    if answer is None:
        return
    for row in itertools.product(range(LEAST, MOST + 1), repeat=len(NAMES)):
        values = dict(zip(NAMES, row))
        if known and (values["a"] + values["b"] > 4 or values["c"] == 2):
            continue
        try:
            sides = [build(tree, values, CONCRETE) for tree in (left, right)]
        except (ZeroDivisionError, ValueError):
            continue
        assert [value_of(side, values) for side in (a, b)] == sides
        assert COMPARE[op](*sides) is answer, values


def test_sympy_is_loaded_only_for_products() -> None:
    code = """
import sys
from jitshape.ir.conditions import compare
from jitshape.ir.shape_env import ShapeEnv
env = ShapeEnv()
s, t = env.size_symbol(8), env.size_symbol(5)
env.evaluate(compare("le", s // 4 * 4, s)), env.evaluate(compare("eq", s * t, 40))
print("sympy" in sys.modules)
print(env.evaluate(compare("ge", s * s + t * t, 2 * s * t)), "sympy" in sys.modules)
print(env.prover.counts())
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert output.splitlines() == [
        "False",
        "True True",
        "{'asked': 3, 'proved': 2, 'factored': 1}",
    ]


@pytest.mark.parametrize("sizes", [(8, 6), (12, 3)])
def test_a_reshape_through_halves_compiles_once(sizes) -> None:
    def f(x, y):
        return x.reshape(y.shape) + y

    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for n, m in (sizes, (10, 5), (4, 7)):
        x, y = torch.randn(m, (n + 1) // 2, 2), torch.randn(m, n)
        assert torch.equal(compiled(x, y), f(x, y))
    assert jitshape.stats()["compiles"] == 1
