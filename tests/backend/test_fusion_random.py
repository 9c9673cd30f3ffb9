"""Random graphs of pointwise ops, reductions and views against `ir.evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitshape.ir.types import numel
from tests.backend.graphs import build, call, check, new_env, tensor

pytest.importorskip("jitshape.ir.ops.reductions")

UNARY = ("tanh", "exp", "neg", "sigmoid", "abs", "relu", "sin")
BINARY = ("add.Tensor", "mul.Tensor", "sub.Tensor", "maximum")
REDUCE = ("sum.dim_IntList", "mean.dim")
SIZES = ((2, 3), (1, 1), (0, 3), (3, 0), (4, 17), (1, 33))


def broadcastable(a: Any, b: Any) -> bool:
    """Whether the shapes broadcast without a guard."""
    pairs = zip(reversed(a.type.shape), reversed(b.type.shape))
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def step(data: st.DataObject, g: Any, pool: list[Any], flat: Any) -> Any:
    """One more value computed from those in the pool."""
    x = data.draw(st.sampled_from(pool))
    kind = data.draw(st.sampled_from(("unary", "binary", "binary", "reduce", "view", "turn")))
    shape = x.type.shape
    if kind == "binary":
        y = data.draw(st.sampled_from([v for v in pool if broadcastable(x, v)]))
        return call(g, data.draw(st.sampled_from(BINARY)), x, y)
    if kind == "reduce" and shape:
        dims = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
        op = data.draw(st.sampled_from(REDUCE))
        return call(g, op, x, dims, data.draw(st.booleans()))
    if kind == "view" and numel(shape) == numel(flat):
        return call(g, "view", call(g, "clone", x, memory_format=torch.contiguous_format), flat)
    if kind == "turn" and len(shape) > 1:
        return call(g, "transpose.int", x, -1, -2)
    bounded = call(g, "tanh", x)  # keeps values small
    return call(g, data.draw(st.sampled_from(UNARY)), bounded)


def draw_graph(data: st.DataObject) -> tuple[Any, list[list[torch.Tensor]]]:
    """A random graph, and inputs of several sizes for it."""
    env = new_env()
    b, s = env.size_symbol(2, name="b"), env.size_symbol(32, name="s")
    types = [tensor(b, s, 8), tensor(s, 8), tensor(8), tensor(b, s, 1), tensor(b * s, 8)]

    def body(g: Any, *inputs: Any) -> list[Any]:
        pool = list(inputs)
        for _ in range(data.draw(st.integers(1, 10))):
            pool.append(step(data, g, pool, [b * s, 8]))
        made = pool[len(inputs) :]
        extra = data.draw(st.sets(st.sampled_from(range(len(made))), max_size=2))
        return [made[-1], *(made[i] for i in sorted(extra))]

    graph = build(env, types, body)
    torch.manual_seed(0)
    calls = [
        [torch.randn(n, m, 8), torch.randn(m, 8), torch.randn(8), torch.randn(n, m, 1),
         torch.randn(n * m, 8)]
        for n, m in SIZES
    ]  # fmt: skip
    return graph, calls


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_graphs(data: st.DataObject) -> None:
    graph, calls = draw_graph(data)
    targets = ("interpret", "cpu") if data.draw(st.integers(0, 3)) == 0 else ("interpret",)
    check(graph, calls, targets=targets, tolerance=1e-4)
