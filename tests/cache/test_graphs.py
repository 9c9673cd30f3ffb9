"""The graph cache: what shares a program, and what must not."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import jitshape
from jitshape.cache.graphs import CompiledGraph, GraphCache
from tests.programs.compare import assert_same


class Scale(nn.Module):
    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.weight, self.by = nn.Parameter(torch.rand(4)), by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * self.weight * self.by


def counts() -> tuple[int, int, int]:
    stats = jitshape.stats()
    return stats["compiles"], stats["graph_hits"], stats["backward_compiles"]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    jitshape.reset()


def test_instances_of_a_class_share_forward_and_backward() -> None:
    x = torch.rand(3, 4)
    for _ in range(4):
        mine, other = Scale(), Scale()
        other.load_state_dict(mine.state_dict())
        got, expected = jitshape.compile(mine)(x), other(x)
        assert_same(expected, got)
        got.sum().backward()
        expected.sum().backward()
        assert_same(other.weight.grad, mine.weight.grad)
    assert counts() == (1, 3, 1)
    assert jitshape.stats()["traces"] == 1 + 3


@pytest.mark.parametrize("inside", [False, True])
def test_a_leaf_that_comes_to_require_grad(inside: bool) -> None:
    """Under no_grad kernels are the same; what calls ATen must hide the call from autograd."""

    def kernels(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad() if inside else nullcontext():
            return (a + b).clip(0)

    def calls(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.no_grad() if inside else nullcontext():
            return torch.sort(a + b)[0]

    for f, compiles in ((kernels, 1), (calls, 1 + inside)):
        jitshape.reset()
        compiled, a, b = jitshape.compile(f), torch.randn(3), torch.randn(3)
        for _ in range(2):
            with nullcontext() if inside else torch.no_grad():
                assert_same(f(a, b), compiled(a, b))
            a.requires_grad_()
        assert jitshape.stats()["compiles"] == compiles


def test_a_constant_in_the_graph_makes_another() -> None:
    x = torch.rand(3, 4)
    for by in (2.0, 3.0, -0.0, 0.0, 2, True):
        model = Scale(by)
        assert_same(model(x), jitshape.compile(model, dynamic=False)(x))
    assert counts()[:2] == (6, 0)


def test_a_guard_on_an_object_alone_makes_an_entry_only() -> None:
    seen: dict = {}

    def f(x: torch.Tensor, name: str) -> torch.Tensor:
        seen[name] = x.mean()
        return x * 2

    compiled, x = jitshape.compile(f), torch.rand(3)
    for name in ("a", "b", "c"):
        assert_same(x * 2, compiled(x, name))
    assert counts()[:2] == (1, 2) and list(seen) == ["a", "b", "c"]


def test_gradients_dtypes_layouts_and_modes_are_told_apart() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + torch.ones(4)).t()

    x = torch.rand(4, 4)
    calls = [x, x.double(), x.t(), x.clone().requires_grad_(), x[:, :1].expand(4, 4)]
    compiled = jitshape.compile(f)
    for call in calls:
        assert_same(f(call), compiled(call))
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(f(x), compiled(x))
    finally:
        torch.set_default_dtype(torch.float32)
    assert counts()[1] == 0


def test_writes_and_views_of_shared_graphs_are_guarded() -> None:
    def make() -> object:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x + y

        return jitshape.compile(f)

    for _ in range(2):
        compiled, x = make(), torch.ones(4)
        assert compiled(torch.ones(4), torch.ones(4)).tolist() == [3.0] * 4
        assert compiled(x, x).tolist() == [4.0] * 4


def test_the_least_recently_used_goes() -> None:
    cache, made = GraphCache(kept=2), CompiledGraph(lambda: None, None, (), ())
    for key in "abac":
        if cache.find(key) is None:
            cache.add(key, made)
    assert [cache.find(key) is made for key in "abc"] == [True, False, True]
    cache.add(None, made)
    assert cache.find(None) is None


def test_a_hundred_instances_are_one_compilation() -> None:
    x = torch.rand(3, 4)
    for _ in range(100):
        model = Scale()
        assert_same(model(x), jitshape.compile(model)(x))
    assert counts() == (1, 99, 0)
