"""Removes nodes whose results nobody uses."""

from __future__ import annotations

from jitshape.ir.graph import Graph, Node, new_symbols, values_in
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes import graph_pass
from jitshape.ir.raising import may_fail


@graph_pass()
def dce(graph: Graph) -> None:
    """t0 = exp(x); t1 = add(x, y); return t1  -->  t1 = add(x, y); return t1

    Random ops stay, since eager advances the generator too; so do ops that write or that exist
    for an effect (no output), those whose result tells a size, and those that eager may refuse
    when it sees the values."""
    needed = set(values_in(graph.outputs)) | set(graph.differentiated)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if has_effect(node) or may_fail(node) or any(out in needed for out in node.outs):
            needed.update(node.inputs())
            kept.append(node)
    graph.nodes = kept[::-1]


def has_effect(node: Node) -> bool:
    """Whether `node` must run even if its results are not used."""
    definition = OPS.get(node.op)
    writes = definition is not None and (definition.mutates or definition.has("writes"))
    if node.token is not None or not node.outs or writes:
        return True
    if definition is None or definition.family == "extern":
        return bool(new_symbols(node))
    return any(atom.hint is None for atom in new_symbols(node))  # a mask's count, of run time
