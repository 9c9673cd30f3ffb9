"""Random ops that kernels compute, for `options={"fast_random": True}`.

    t0 = bernoulli.p(x, 0.9)       random 0
-->
    t1 = random_seed(cpu)          random 0
    t2 = random_uniform(t1, 0, [s0, s1], 24);  t0 = (t2 < 0.9) as f32

One seed is drawn a run, where the graph first draws; each op has two streams of its own.  Backward
computes the numbers again from the seed.  They are not eager's, but follow from the generator's
state as those do.  What is not in `WAYS` (integers, permutations) is drawn by ATen as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitshape.ir.graph import Graph, Node, Value, tensor_type
from jitshape.ir.ops.composing import add, cast, finish, mul
from jitshape.ir.ops.streams import BITS
from jitshape.ir.passes import CORE, FUNCTIONAL, graph_pass
from jitshape.ir.rewrite import Rewriter, rewriting


@graph_pass(requires={FUNCTIONAL, CORE})
def fast_random(graph: Graph) -> None:
    with rewriting(graph) as g:
        streams = _Streams(g)
        for node in g.walk():
            way = WAYS.get(node.op)
            results = way(streams, node, *node.args, **node.kwargs) if way else None
            if results is None:
                g.keep(node)
            else:
                g.replace(node, results)


class _Streams:
    """Numbers for one op after the other."""

    def __init__(self, g: Rewriter) -> None:
        self.g = g
        self.seeds: dict[torch.device, Value] = {}
        self.used = 0

    def uniform(self, like: Value, dtype: torch.dtype | None = None) -> Value:
        """Numbers in [0, 1), of the shape of `like` and fine enough for its dtype."""
        type_, g = tensor_type(like), self.g
        if type_.device not in self.seeds:
            seed = self.seeds[type_.device] = g.call("jitshape.random_seed", type_.device)
            seed.node.region = None  # drawn once, also where what it serves is computed again
        size, bits = list(type_.shape), BITS[dtype or type_.dtype]
        self.used += 1
        seed = self.seeds[type_.device]
        return g.call("jitshape.random_uniform", seed, self.used - 1, size, bits)

    def normal(self, like: Value) -> Value:
        """By Box and Muller; at most 5.8 from 0 in f32, 6.7 in f64."""
        wide = torch.float64 if like.type.dtype is torch.float64 else torch.float32
        g, first, second = self.g, self.uniform(like, wide), self.uniform(like, wide)
        log = g.call("aten.log1p.default", g.call("aten.neg.default", first))
        radius = g.call("aten.sqrt.default", mul(g, log, -2))
        return mul(g, radius, g.call("aten.cos.default", mul(g, second, 2 * math.pi)))


def _computed(node: Node) -> bool:
    return tensor_type(node.outs[0]).dtype in BITS


def _less(g: Rewriter, x: Value, limit: Any) -> Value:
    return g.call(f"aten.lt.{'Tensor' if isinstance(limit, Value) else 'Scalar'}", x, limit)


def _rand(s: _Streams, node: Node, *args: Any, **kwargs: Any) -> Value | None:
    return finish(s.g, node, s.uniform(node.outs[0])) if _computed(node) else None


def _randn(s: _Streams, node: Node, *args: Any, **kwargs: Any) -> Value | None:
    return finish(s.g, node, s.normal(node.outs[0])) if _computed(node) else None


def _uniform(
    s: _Streams, node: Node, x: Value, low: Any = 0.0, high: Any = 1.0, **kwargs: Any
) -> Value | None:
    if not _computed(node) or not _are_numbers(low, high):
        return None
    scaled = mul(s.g, s.uniform(node.outs[0]), high - low)
    return finish(s.g, node, add(s.g, scaled, low))


def _normal(
    s: _Streams, node: Node, x: Value, mean: Any = 0.0, std: Any = 1.0, **kwargs: Any
) -> Value | None:
    if not _computed(node) or not _are_numbers(mean, std):
        return None
    return finish(s.g, node, add(s.g, mul(s.g, s.normal(node.outs[0]), std), mean))


def _bernoulli(s: _Streams, node: Node, x: Value, p: Any = None, **kwargs: Any) -> Value | None:
    if not _computed(node):
        return None
    wide = torch.float64 if x.type.dtype is torch.float64 else torch.float32
    limit = x if p is None else p
    return finish(s.g, node, _less(s.g, s.uniform(node.outs[0], wide), limit))


def _dropout(s: _Streams, node: Node, x: Value, p: Any, train: Any) -> Sequence[Value] | None:
    if not _computed(node) or not _are_numbers(p) or train is not True:
        return None
    g = s.g
    kept = _less(g, s.uniform(node.outs[0], torch.float32), 1 - p)
    scaled = mul(g, mul(g, x, cast(g, kept, x.type.dtype)), 0.0 if p == 1 else 1 / (1 - p))
    return [finish(g, node, scaled), finish(g, node, kept, 1)]


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


WAYS: dict[str, Callable[..., Any]] = {
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand,
    "aten.randn.default": _randn,
    "aten.randn_like.default": _randn,
    "aten.uniform.default": _uniform,
    "aten.normal_functional.default": _normal,
    "aten.bernoulli.default": _bernoulli,
    "aten.bernoulli.p": _bernoulli,
    "aten.bernoulli.Tensor": _bernoulli,
    "aten.native_dropout.default": _dropout,
}
