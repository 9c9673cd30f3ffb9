"""Decisions on numbers of run time that sizes settle."""

import pytest
import torch

import jitshape
from jitshape.errors import DataDependent
from jitshape.ir.conditions import compare
from jitshape.ir.shape_env import ShapeEnv


def env_with_sizes():
    env = ShapeEnv()
    return env, env.size_symbol(30), env.size_symbol(4), env.unbacked()


CASES = {
    "no sum is 0": (lambda s, t, u: compare("eq", s + u, 0), False, ["s0 > 0"]),
    "more than": (lambda s, t, u: compare("gt", s + u, 20), True, ["s0 > 20"]),
    "less than": (lambda s, t, u: compare("lt", u + s, t), False, ["s0 >= s1"]),
    "products": (lambda s, t, u: compare("ge", s * u + t, 1), True, ["s1 >= 1"]),
    "greatest": (lambda s, t, u: compare("le", t - u, s), True, ["s1 <= s0"]),
}


@pytest.mark.parametrize("name", CASES)
def test_settled_by_a_fact(name):
    condition, answer, facts = CASES[name]
    env, s, t, u = env_with_sizes()
    assert env.evaluate(condition(s, t, u)) is answer
    assert [str(fact.condition) for fact in env.facts] == facts
    assert not env.asserts
    assert env.evaluate(condition(s, t, u)) is answer


@pytest.mark.parametrize(
    "condition",
    [
        lambda s, t, u: compare("gt", u, 1),
        lambda s, t, u: compare("eq", s - u, 1),
        lambda s, t, u: compare("gt", s + u, 31),
        lambda s, t, u: compare("gt", u * u - u, 1),
        lambda s, t, u: compare("eq", (s + u) // 2, 0),
    ],
)
def test_what_depends_on_data(condition):
    env, s, t, u = env_with_sizes()
    with pytest.raises(DataDependent):
        env.evaluate(condition(s, t, u))
    assert not env.facts


def joined(x, mask):
    places = torch.cat((mask.nonzero()[:, 0], torch.arange(x.shape[0])))
    return x[places] + 1 if places.numel() else x


def test_a_branch_on_a_count_and_a_size_is_no_break():
    jitshape.reset()
    compiled = jitshape.compile(joined, fullgraph=True)
    for n in (5, 6, 9):
        x, mask = torch.randn(n, 3), torch.arange(n) % 2 == 0
        torch.testing.assert_close(compiled(x, mask), joined(x, mask))
    assert jitshape.stats()["compiles"] == 2
