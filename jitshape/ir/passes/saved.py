"""Which values forward saves for backward: a minimum cut.

In: the nodes that may run in forward, and the values that backward uses.  Out: the values to save,
in program order.  The network: each value is an edge of its size in bytes; edges without bound
lead from producers to consumers, from the source to what cannot be computed again, and from what
backward uses to the sink.  Every path has a bounded edge, so the cut exists.
Of a checkpointed region everything is computed again but what leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import networkx
from networkx.algorithms.flow import preflow_push

from jitshape.ir.graph import Node, Value
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes.dce import has_effect
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType, numel

_UNKNOWN_SIZE = 4096  # of a size without a hint
_AVOIDED = 1 << 20  # factor: saving an input that is written later fails at backward, as in eager,
# and saving what is checkpointed is what the user does not want


def choose_saved(
    inputs: Sequence[Value],
    nodes: Sequence[Node],
    needed: Sequence[Value],
    mutated: set[Value],
    outputs: Iterable[Value] = (),
) -> list[Value]:
    """The cheapest set of values from which everything in `needed` can be computed cheaply."""
    direct = set(needed)
    leaving = _leaving(nodes, outputs)

    def again(value: Value) -> bool:
        return value.node is not None and value not in leaving and recomputable(value.node)

    network = _network(needed, mutated, direct, again)
    saved: set[Value] = set()
    for component in networkx.weakly_connected_components(network):
        saved |= _cut(network.subgraph(component), direct, again)
    position = {value: index for index, value in enumerate(_in_order(inputs, nodes))}
    return sorted(saved, key=position.__getitem__)


def _leaving(nodes: Sequence[Node], outputs: Iterable[Value]) -> set[Value]:
    """Values of checkpointed regions that others use."""
    found = {value for value in outputs if _region(value) is not None}
    for node in nodes:
        for value in node.inputs():
            if _region(value) not in (None, node.region):
                found.add(value)
    return found


def _region(value: Value) -> int | None:
    return None if value.node is None else value.node.region


def _network(
    needed: Sequence[Value],
    mutated: set[Value],
    direct: set[Value],
    again: Callable[[Value], bool],
) -> networkx.DiGraph:
    """Ends of a value's edge are (value, "in") and (value, "out")."""
    network = networkx.DiGraph()
    todo, seen = list(needed), set(needed)
    while todo:
        value = todo.pop()
        weight = _weight(value, value in direct)
        if value in mutated or (_region(value) is not None and again(value)):
            weight *= _AVOIDED
        network.add_edge((value, "in"), (value, "out"), capacity=weight)
        if value.node is None or not again(value):
            continue
        for source in value.node.inputs():
            network.add_edge((source, "out"), (value, "in"))
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return network


def _cut(
    network: networkx.DiGraph, direct: set[Value], again: Callable[[Value], bool]
) -> set[Value]:
    """The values on the minimum cut of one component."""
    values = {value for value, _ in network}
    fixed = {v for v in values if not again(v)}
    if len(values) == 1:
        return values if fixed else set()
    bounded = networkx.DiGraph(network)
    bounded.add_edges_from(("source", (value, "in")) for value in fixed)
    bounded.add_edges_from(((value, "out"), "sink") for value in values & direct)
    if not fixed:
        return set()
    _, (reached, _) = networkx.minimum_cut(bounded, "source", "sink", flow_func=preflow_push)
    return {v for v in values if (v, "in") in reached and (v, "out") not in reached}


def _weight(value: Value, direct: bool) -> int:
    """Bytes; an input that eager would save too costs next to nothing, since its owner has it.
    A view costs a little more than its base."""
    if not isinstance(value.type, TensorType):
        return 8
    if value.node is None and direct:
        return 1
    size: Size = numel(value.type.shape)
    hint = size if type(size) is int else size.hint  # type: ignore[union-attr]
    count = _UNKNOWN_SIZE if hint is None else max(hint, 1)
    definition = OPS.get(value.node.op) if value.node is not None else None
    view = definition is not None and definition.family == "view"
    return 2 * count * value.type.dtype.itemsize + view


def recomputable(node: Node) -> bool:
    """Whether computing `node` again in backward is cheap, or wanted."""
    definition = OPS.get(node.op)
    if node.region is not None:
        return not has_effect(node)
    if definition is None or node.token is not None:
        return False
    cheap = definition.family in ("pointwise", "view", "factory")
    return cheap or bool(definition.attributes.get("recomputed"))


def _in_order(inputs: Iterable[Value], nodes: Iterable[Node]) -> Iterable[Value]:
    yield from inputs
    for node in nodes:
        yield from node.outs
