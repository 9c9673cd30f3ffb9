"""Hand-written graphs for the tests of printer, verifier, evaluator and passes."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.graph import Graph, Location, Node, Value
from jitshape.ir.symint import Algebra, Size
from jitshape.ir.types import ScalarType, TensorType, contiguous_strides


def tensor(
    *shape: Size, strides: tuple[Size, ...] | None = None, dtype: torch.dtype = torch.float32
) -> TensorType:
    return TensorType(shape, strides or contiguous_strides(shape), dtype)


def node(
    graph: Graph,
    op: str,
    args: tuple,
    type_: TensorType | ScalarType | tuple,
    location: Location | None = None,
    alias: Value | None = None,
    **kwargs: Any,
) -> Any:
    """Append a node with the given output type(s); `alias` shares its storage."""
    types = type_ if isinstance(type_, tuple) else (type_,)
    outs = tuple(graph.new_value(t, alias.storage if alias else None) for t in types)
    graph.add_node(Node(op, args, kwargs, location), outs)
    return outs if isinstance(type_, tuple) else outs[0]


def linear_graph() -> Graph:
    """gelu(x @ w.T + b), with a symbolic batch."""
    algebra = Algebra()
    s0 = algebra.symbol("s0", hint=5)
    graph = Graph()
    x = graph.add_input(tensor(s0, 128), "x")
    w = graph.add_input(tensor(256, 128), "w")
    b = graph.add_input(tensor(256), "b")
    here = Location(__file__, 1, "forward")
    wt = node(graph, "aten.t.default", (w,), tensor(128, 256, strides=(1, 128)), here, w)
    h = node(graph, "aten.addmm.default", (b, x, wt), tensor(s0, 256), here)
    y = node(graph, "aten.gelu.default", (h,), tensor(s0, 256), approximate="tanh")
    v = node(graph, "aten.view.default", (y, [s0 * 2, 128]), tensor(s0 * 2, 128), alias=y)
    graph.outputs = [v, s0 + 1, None]
    graph.functional = True
    return graph
