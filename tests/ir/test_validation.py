"""z3 proves what a trace relied on, and finds a guard that is missing."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import jitshape
from jitshape.errors import InternalError, UnsupportedEnvironment
from jitshape.ir.conditions import compare
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import sym_max
from tests.programs.compare import check

pytest.importorskip("z3")
from jitshape.ir.validation import validate


def asked() -> ShapeEnv:
    """Facts of several kinds, and answers that follow from them."""
    env = ShapeEnv()
    a, b, c = env.size_symbol(8), env.size_symbol(4), env.size_symbol(12)
    assert env.evaluate(compare("gt", a, 3)) and env.evaluate(compare("ne", b, 0))
    assert env.evaluate(compare("eq", c, a + b)) and env.evaluate(compare("le", a * b, 40))
    assert env.static(compare("ge", 2 * a - 7, 1)) is True
    assert env.static(compare("ge", c, 5)) is True
    assert env.static(compare("gt", sym_max(a // 2, b), 1)) is True
    return env


def test_everything_relied_on_is_proved():
    outcome = validate(asked())
    assert outcome.proved > 10 and outcome.open == 0


@pytest.mark.parametrize("place", range(len(asked().facts)))
def test_a_removed_guard_is_found(place):
    env = asked()
    del env.facts[place]
    with pytest.raises(InternalError, match="do not imply"):
        validate(env)


def test_asserts_and_declared_ranges_are_premises():
    env = ShapeEnv()
    a, u = env.size_symbol(8), env.unbacked(0, 100)
    env.assume(compare("lt", u, a))
    assert env.static(compare("lt", u, 2 * a)) is not False
    assert env.static(compare("ge", 3 * u, 0)) is True
    assert validate(env).open == 0
    env.asserts.clear()
    with pytest.raises(InternalError, match="do not imply"):
        validate(env)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 9)), min_size=1))
def test_facts_of_random_questions_imply_what_follows(questions):
    env = ShapeEnv()
    sizes = [env.size_symbol(n) for n in (6, 1, 9)]
    for which, factor, bound in questions:
        size, other = sizes[which], sizes[(which + 1) % 3]
        env.evaluate(compare("le", size * factor // 2, bound))
        env.evaluate(compare("eq", size % (factor + 1), other % 2))
    validate(env)


def test_compiles_are_validated_when_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("JITSHAPE_VALIDATE", "1")

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        y = F.linear(a * torch.sigmoid(b), w).reshape(-1, 4)
        return y[: y.shape[0] // 2] if y.shape[0] > 6 else y

    calls = [(torch.randn(n, 2 * m), torch.randn(4, m)) for n, m in ((4, 6), (8, 6), (9, 5))]
    check(f, *calls, dynamic=True)
    counts = jitshape.stats()["details"]["validation"]
    assert counts["proved"] > 10 and counts.get("open", 0) < counts["proved"]


def test_without_z3_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(UnsupportedEnvironment, match="pip install z3-solver"):
        validate(ShapeEnv())
