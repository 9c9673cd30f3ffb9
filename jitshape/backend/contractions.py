"""Matrix products as the sums they are, for targets that make kernels of them.

In: a functional, decomposed graph.  Out: a copy in which products are sums over products of two
factors, and which nodes these sums are.  Before --> after:
    t = addmm(c, a, b)   -->   t0 = unsqueeze(a, -1) * unsqueeze(b, -3)
                               t1 = sum(t0, [-2]);  t = t1 + c
so that bias, activation and what else follows fuse as behind any reduction, and casts of the
factors as into any reader.  Invariant: factors and results are rounded as the program's tensors
are, whatever shares their kernel.  A product that `left_to_aten` gives a reason for stays a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitshape.ir.graph import Graph, Node, Value, tensor_type
from jitshape.ir.ops.composing import add, mul
from jitshape.ir.passes.tangents import copied
from jitshape.ir.rewrite import Rewriter, rewriting
from jitshape.ir.types import TensorType, contiguous_strides

PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
THINNEST = 16  # rows or columns that a matrix instruction takes at least


@dataclass
class Contractions:
    """`graph` with its products as sums; `sums`: the nodes that these are, each of one of `terms`;
    `factors`: the nodes that read an operand; `log`: which products are calls of ATen, and why."""

    graph: Graph
    sums: set[Node] = field(default_factory=set)
    terms: set[Node] = field(default_factory=set)
    factors: set[Node] = field(default_factory=set)
    log: list[str] = field(default_factory=list)


def contracted(graph: Graph) -> Contractions:
    """The graph itself, where it has no product that kernels compute."""
    found = Contractions(graph)
    reasons = {n.outs[0]: left_to_aten(n) for n in graph.nodes if n.op in PRODUCTS}
    found.log = [f"{out}: a call of ATen: {why}" for out, why in reasons.items() if why]
    if all(reasons.values()):
        return found
    found.graph = copied(graph)
    with rewriting(found.graph) as g:
        for node in g.walk():
            if node.op in PRODUCTS and left_to_aten(node) is None:
                g.replace(node, _sum(g, node, found))
            else:
                g.keep(node)
    return found


def left_to_aten(node: Node) -> str | None:
    """Why a product is not worth a kernel, or none can compute it."""
    out = tensor_type(node.outs[0])
    *_, a, b = node.args[: 3 if node.op in ("aten.addmm.default", "aten.baddbmm.default") else 2]
    if out.dtype not in DTYPES:
        return f"no matrix instructions for {out.dtype}"
    if not all(isinstance(x, (int, float)) for x in _scales(node)):
        return "its scales are known at run time only"
    if out.strides != contiguous_strides(out.shape):
        return "its result is not contiguous"
    sizes = (*out.shape[-2:], tensor_type(a).shape[-1])
    if any(isinstance(size, int) and size < THINNEST for size in sizes):
        return f"{_by(sizes)} is thinner than matrix instructions"
    if any(x.type.dtype is not out.dtype for x in (a, b)):
        return "its operands have another dtype"
    return None


def _by(sizes: Sequence[Any]) -> str:
    return "x".join(map(str, sizes))


def _scales(node: Node) -> tuple[Any, Any]:
    """beta, of what is added; alpha, of the product."""
    if len(node.args) == 2:
        return (1, 1)
    positional = dict(zip(("beta", "alpha"), node.args[3:]))
    given = {"beta": 1, "alpha": 1, **positional, **node.kwargs}
    return given["beta"], given["alpha"]


def _sum(g: Rewriter, node: Node, found: Contractions) -> Value:
    *added, a, b = node.args[: 2 if len(node.args) == 2 else 3]
    beta, alpha = _scales(node)
    left = g.call("aten.unsqueeze.default", _factor(g, a, found), -1)
    right = g.call("aten.unsqueeze.default", _factor(g, b, found), -3)
    term = mul(g, left, right)
    total = g.call("aten.sum.dim_IntList", term, [-2])
    assert term.node is not None and total.node is not None
    found.terms.add(term.node)
    found.factors.add(term.node)
    found.sums.add(total.node)
    if alpha != 1:
        total = mul(g, total, alpha)
    if added and beta != 0:
        total = add(g, total, added[0] if beta == 1 else mul(g, added[0], beta))
    return _rounded(g, total)


def _factor(g: Rewriter, x: Value, found: Contractions) -> Value:
    value = _rounded(g, x)
    if value is not x and value.node is not None:
        found.factors.add(value.node)
    return value


def _rounded(g: Rewriter, x: Value) -> Value:
    """`x` as the program has it, also where it is computed in f32 on the way."""
    type_ = tensor_type(x)
    if type_.dtype is torch.float32:
        return x
    strides = contiguous_strides(type_.shape)
    type_ = TensorType(type_.shape, strides, type_.dtype, type_.device)
    return g.emit("aten._to_copy.default", (x,), {"dtype": type_.dtype}, type_)
