"""The graph cache: entries whose traces end in the same graph share its compiled program.

In: a recorded graph with the facts that hold of its sizes.  Out: `graph_key`, equal for graphs
that compile to the same program, and `GraphCache`, which keeps the programs used last.
Instances of one class, and recompiles that only a guard on a Python object made, end here.
Invariant: whatever a compile reads of a graph is part of its key; what has no value to compare
has no key, and is compiled each time.  Of the sizes that a call has (the hints) code for the CPU
only needs the order of magnitude: they decide what is saved for backward and whose memory is
taken over, never what is computed, and so the first call's choice serves for the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from jitshape.ir.facts import assumption
from jitshape.ir.graph import Graph, Node, Subgraph, Value
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr
from jitshape.ir.types import TensorType

KEPT = 128
MAGNITUDE = 16  # bits of sizes that are alike
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """`run(*inputs)` gives the outputs; it writes to the inputs `written` (by their places), and
    returns views of the inputs `viewed`."""

    run: Callable[..., Any]
    program: Any
    written: tuple[int, ...]
    viewed: tuple[int, ...]
    key: str = ""
    kept: bool = False  # in the store, under the key


class GraphCache:
    """The compiled graphs used last, by key."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self._graphs: OrderedDict[Hashable, CompiledGraph] = OrderedDict()

    def find(self, key: Hashable | None) -> CompiledGraph | None:
        if key is None or key not in self._graphs:
            return None
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def add(self, key: Hashable | None, graph: CompiledGraph | None) -> None:
        if key is not None and graph is not None:
            self._graphs[key] = graph
            while len(self._graphs) > self.kept:
                self._graphs.popitem(last=False)

    def clear(self) -> None:
        self._graphs.clear()


class _NoKey(Exception):
    """Something in the graph has no value to compare."""


def graph_key(graph: Graph, *settings: Hashable) -> Hashable | None:
    """What a compile of `graph` depends on, `settings` included; None: not to be shared."""
    try:
        return (settings, torch.get_default_dtype(), _Keys(graph, "triton" in settings).key())
    except _NoKey:
        return None


class _Keys:
    """Numbers the values of one graph in the order of their definition."""

    def __init__(self, graph: Graph, tiled: bool) -> None:
        self.graph = graph
        self.numbers: dict[Any, int] = {}
        self.with_gradients = bool(graph.gradients)
        types = [value.type for value in graph.inputs]
        self.tiled = tiled or any(
            isinstance(t, TensorType) and t.device.type != "cpu" for t in types
        )

    def key(self) -> Hashable:
        graph = self.graph
        inputs = tuple(self.defined(value) for value in graph.inputs)
        nodes = tuple(map(self.node, graph.nodes))
        outputs = tuple(map(self.leaf, graph.outputs))
        tracked = tuple(map(self.leaf, graph.differentiated))
        counts = (graph.returned, graph.gradients, graph.tracking, graph.frees)
        moved = (*map(self.leaf, graph.moved), *graph.shown, *map(self.leaf, graph.shown.values()))
        symbols = tuple(map(str, graph.symbols))
        return inputs, nodes, outputs, tracked, counts, moved, symbols, self.facts()

    def facts(self) -> Hashable:
        """All that is known of sizes, and what choices are made by."""
        env = self.graph.env
        rows = [
            (s.name, env.algebra.bounds(s.expr), self.hint(s.expr)) for s in env.symbols.values()
        ]
        asserts = tuple(assumption(fact) for fact in env.asserts)
        return tuple(rows), tuple(str(fact.condition) for fact in env.facts), asserts

    def hint(self, size: IntExpr) -> int | None:
        """Of a size: Triton's tiles are chosen by it; else whether it exists while tracing, and
        how near its products come to the limits of 64 bits."""
        hint = size.hint
        return hint if hint is None or self.tiled else abs(hint).bit_length() // MAGNITUDE

    def number(self, thing: Any) -> int:
        return self.numbers.setdefault(thing, len(self.numbers))

    def defined(self, value: Value) -> Hashable:
        grad = value.requires_grad if self.with_gradients else None
        storage = None if value.storage is None else self.number(value.storage)
        return self.number(value), storage, grad, self.type(value.type)

    def type(self, type_: Any) -> Hashable:
        if not isinstance(type_, TensorType):
            return type_.dtype
        sizes = (*type_.shape, *type_.strides, type_.offset)
        return tuple(map(str, sizes)), type_.ndim, type_.dtype, type_.device

    def node(self, node: Node) -> Hashable:
        args, kwargs = self.leaf(node.args), self.leaf(node.kwargs)
        outs = tuple(map(self.defined, node.outs))
        marks = node.token, node.backward, node.region, str(node.location)
        return node.op, args, kwargs, outs, *marks

    def leaf(self, x: Any) -> Hashable:
        if isinstance(x, Value):
            return "value", self.number(x)
        if isinstance(x, (IntExpr, FloatExpr)):
            return "number", str(x)
        if isinstance(x, (float, complex)):
            return type(x), repr(x)
        if isinstance(x, (list, tuple)):
            return type(x), tuple(map(self.leaf, x))
        if isinstance(x, Subgraph):
            return Subgraph, _Keys(x.graph, self.tiled).key()
        if isinstance(x, dict):
            return dict, tuple((name, self.leaf(item)) for name, item in x.items())
        if type(x) in _PLAIN:
            return type(x), x
        raise _NoKey(type(x).__name__)
