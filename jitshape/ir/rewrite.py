"""Rewriting a graph: emit nodes with their types inferred, replace uses.

In: a graph and a place in it.  Out: new nodes at that place, whose types come from the ops' type
rules.  Invariant: a node emitted while another is rewritten has that node's location, `backward`
flag and random token, so that logs, the joint split and the order of randomness survive rewrites.

A pass that changes many nodes builds the new node list in one walk:

    with rewriting(graph) as g:
        for node in g.walk():
            if not (keep := ...): g.replace(node, g.call("aten.mul.Tensor", ...))
            else: g.keep(node)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from jitshape.errors import InternalError
from jitshape.ir.graph import Graph, Node, Value, map_leaves
from jitshape.ir.ops.registry import OPS
from jitshape.ir.printer import excerpt
from jitshape.ir.types import ScalarType, TensorType

MISSING = TensorType((0,), (1,), torch.bool)  # of an output that the call does not have


class Rewriter:
    """Rebuilds the node list of `graph` front to back.  Values replaced earlier are substituted
    in everything kept or emitted later."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.env = graph, graph.env
        self._todo, graph.nodes = graph.nodes, []
        self._current: Node | None = None
        self._replaced: dict[Value, Any] = {}

    # ---- the walk

    def walk(self) -> Iterator[Node]:
        """Each node of the graph; what is kept or emitted meanwhile becomes its new content."""
        for node in self._todo:
            self._current = node
            node.args = self.resolve(node.args)
            node.kwargs = self.resolve(node.kwargs)
            yield node
        self._current = None

    def keep(self, node: Node) -> None:
        """Take `node` over as it is."""
        self.graph.nodes.append(node)

    def replace(self, node: Node, results: Any) -> None:
        """Let `results` (a value, or one for each output; None for an unused one) stand for the
        outputs of `node`, which is dropped."""
        outs = results if isinstance(results, (tuple, list)) else (results,)
        for old, new in zip(node.outs, outs, strict=True):
            self.substitute(old, new)

    def substitute(self, old: Value, new: Any) -> None:
        """Use `new` for `old` from here on."""
        if new is None or old is new:
            return
        if isinstance(new, Value):
            new.requires_grad = new.requires_grad or old.requires_grad
        self._replaced[old] = new

    def resolve(self, tree: Any) -> Any:
        """`tree` with replaced values substituted."""
        return map_leaves(self._resolve_leaf, tree) if self._replaced else tree

    def _resolve_leaf(self, leaf: Any) -> Any:
        while isinstance(leaf, Value) and leaf in self._replaced:
            leaf = self._replaced[leaf]
        return leaf

    def finish(self) -> None:
        self.graph.outputs = self.resolve(self.graph.outputs)
        self.graph.differentiated = self.resolve(self.graph.differentiated)

    # ---- emission

    def call(self, op: str, *args: Any, **kwargs: Any) -> Any:
        """Emit `op(*args, **kwargs)` and return its value, or the list of its values."""
        full = op if op.count(".") == 2 else f"{op}.default"
        definition = OPS.get(full)
        if definition is None:
            raise InternalError("rewrite", KeyError(f"no block for {full}"), self.excerpt())
        types = definition.type(self.env, *args, **kwargs)
        return self.emit(full, args, kwargs, types)

    def emit(self, op: str, args: tuple, kwargs: dict[str, Any], types: Any) -> Any:
        """Emit a node with the given output type(s); views share the storage of their source."""
        node = Node(op, args, kwargs)
        if self._current is not None:
            current = self._current
            node.location, node.backward = current.location, current.backward
            node.region = current.region
            node.origin = current.origin or current.op
            definition = OPS.get(op)
            if definition is not None and definition.family == "random":
                node.token = self._current.token
        single = isinstance(types, (TensorType, ScalarType))
        rows = [types] if single else list(types or [])
        storage = shared_storage(node)
        values = tuple(self.graph.new_value(type_ or MISSING, storage) for type_ in rows)
        node.outs = values
        self.graph.add_node(node, values)
        return values[0] if single else values

    def excerpt(self) -> str:
        return excerpt(self.graph, self._current)


def shared_storage(node: Node) -> Any:
    """The storage that the outputs of a view share with its source; None for other ops."""
    definition = OPS.get(node.op)
    if definition is None or definition.family not in ("view", "inplace"):
        return None
    source = definition.alias(node.args) if definition.has("alias") else node.args[0]
    return source.storage


@contextmanager
def rewriting(graph: Graph) -> Iterator[Rewriter]:
    """A Rewriter whose substitutions reach the graph's outputs at the end."""
    rewriter = Rewriter(graph)
    yield rewriter
    rewriter.finish()
