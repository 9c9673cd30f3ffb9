"""Shares equal pure nodes."""

from __future__ import annotations

from typing import Any

from jitshape.ir.graph import Graph, Node, Storage, Value, values_in
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes import DEDUPED, FUNCTIONAL, graph_pass
from jitshape.ir.passes.dce import has_effect
from jitshape.ir.rewrite import rewriting


@graph_pass(requires={FUNCTIONAL}, provides={DEDUPED})
def cse(graph: Graph) -> None:
    """t0 = add(x, y); t1 = add(x, y)  -->  t0 = add(x, y)

    Outputs of the graph that are two tensors for the user stay two: a node whose result is an
    output is shared only with nodes whose result is none.  A forward node never waits for a
    backward one, since the walk meets it first."""
    published = {value.storage for value in values_in(graph.outputs)}
    seen: dict[Any, Node] = {}
    with rewriting(graph) as g:
        for node in g.walk():
            key = _key(node)
            first = seen.get(key) if key is not None else None
            if first is None or (_shown(first, published) and _shown(node, published)):
                if key is not None and first is None:
                    seen[key] = node
                g.keep(node)
            else:
                if _shown(node, published):
                    published.update(out.storage for out in first.outs)
                g.replace(node, first.outs)


def _shown(node: Node, published: set[Storage | None]) -> bool:
    """Whether a result of `node`, or a view of one, may be an output."""
    return any(out.storage in published for out in node.outs)


def _key(node: Node) -> Any:
    """Equal for nodes that compute the same; None for nodes that are not pure."""
    definition = OPS.get(node.op)
    if definition is None or has_effect(node) or definition.family == "random":
        return None
    kwargs = tuple((key, _frozen(node.kwargs[key])) for key in sorted(node.kwargs))
    return node.op, _frozen(node.args), kwargs


def _frozen(leaf: Any) -> Any:
    """Hashable, and distinct for 1, 1.0, True, 0.0 and -0.0."""
    if isinstance(leaf, (tuple, list)):
        return tuple(_frozen(item) for item in leaf)
    if isinstance(leaf, (Value, str)) or leaf is None:
        return leaf
    return type(leaf), repr(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf
