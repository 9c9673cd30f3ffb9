"""`jitshape.compile(...).precompile(...)`: the entry is there before the first call."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import jitshape
from jitshape.errors import GraphBreak
from tests.programs.compare import assert_same


@pytest.fixture(autouse=True)
def _fresh() -> None:
    jitshape.reset()


def test_a_function_is_compiled_and_not_run() -> None:
    seen: list[float] = []

    def f(x: torch.Tensor, by: float = 2.0, *more: torch.Tensor, shift: int = 1) -> torch.Tensor:
        seen.append(by)
        return x * by + shift + sum(more)

    compiled, x = jitshape.compile(f), torch.rand(3)
    for args, kwargs in (((x,), {}), ((x, 3.0, x), {"shift": 4})):
        compiled.precompile(*args, **kwargs)
        before = jitshape.stats()["compiles"]
        assert seen == [] and before > 0
        assert_same(f(*args, **kwargs), compiled(*args, **kwargs))
        assert jitshape.stats()["compiles"] == before
        seen.clear()
    compiled.precompile(x)  # an entry serves it
    assert jitshape.stats()["compiles"] == before
    with pytest.raises(TypeError, match="missing a required argument"):
        compiled.precompile()


def test_modules_methods_and_attributes_of_the_users() -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.GELU()), torch.rand(2, 4)
    compiled = jitshape.compile(model)
    compiled.precompile(x)
    assert jitshape.stats()["compiles"] == 1
    assert_same(model(x), compiled(x))
    assert jitshape.stats()["compiles"] == 1 and "precompile" not in vars(model)

    class Own(nn.Linear):
        def precompile(self) -> str:
            return "mine"

    assert jitshape.compile(Own(2, 2)).precompile() == "mine"


def test_errors_of_the_compiler_are_raised() -> None:
    outside = jitshape.disable(lambda x: x + 1)
    compiled = jitshape.compile(lambda x: outside(x) * 2, fullgraph=True)
    with pytest.raises(GraphBreak):
        compiled.precompile(torch.rand(3))
