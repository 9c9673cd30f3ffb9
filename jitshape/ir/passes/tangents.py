"""The backward graph for calls where some outputs got no gradient.

    backward(saved, dy, dz) -> f(saved, dy), g(saved, dy, dz), h(saved, dz)     [dz undefined]
-->
    backward(saved, dy) -> f(saved, dy), g(saved, dy, zeros), None

Eager gives None, not zeros, where no path leads to an output that has a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitshape.ir.graph import Graph, Node, Value, map_leaves
from jitshape.ir.types import TensorType


def copied(graph: Graph) -> Graph:
    """The same graph with nodes and values of its own, in the same ShapeEnv."""
    new = Graph(graph.env, functional=graph.functional, returned=graph.returned)
    new._names, new._storages = graph._names, graph._storages
    mapped: dict[Value, Value] = {}

    def copy_value(value: Value) -> Value:
        made = mapped[value] = Value(value.name, value.type, value.storage)
        made.index, made.requires_grad = value.index, value.requires_grad
        return made

    def leaf(x: Any) -> Any:
        return mapped[x] if isinstance(x, Value) else x

    new.inputs = [copy_value(value) for value in graph.inputs]
    for node in graph.nodes:
        args, kwargs = map_leaves(leaf, (node.args, node.kwargs))
        made = Node(node.op, args, kwargs, node.location)
        made.backward, made.token, made.region = node.backward, node.token, node.region
        made.origin = node.origin
        new.add_node(made, tuple(copy_value(out) for out in node.outs))
    new.outputs = [leaf(x) for x in graph.outputs]
    new.mutations, new.gradients = list(graph.mutations), graph.gradients
    new.owned, new.versions = set(graph.owned), list(graph.versions)
    new.reshaped = list(graph.reshaped)
    new.symbols = list(graph.symbols)
    new.tracking, new.consumed = graph.tracking, graph.consumed
    return new


def with_defined_tangents(backward: Graph, defined: Sequence[bool]) -> Graph:
    """A copy of `backward`, whose last inputs are the tangents, that takes the defined ones."""
    graph = copied(backward)
    if all(defined):
        return graph
    first = len(graph.inputs) - len(defined)
    tangents = graph.inputs[first:]
    reached = {t for t, has in zip(tangents, defined) if has}
    for node in graph.nodes:
        if any(value in reached for value in node.inputs()):
            reached.update(node.outs)
    graph.outputs = [x if x in reached else None for x in graph.outputs]
    missing = [t for t, has in zip(tangents, defined) if not has]
    graph.inputs = graph.inputs[:first] + [t for t, has in zip(tangents, defined) if has]
    for index, value in enumerate(graph.inputs):
        value.index = index
    graph.nodes = [_zeros(value) for value in missing] + graph.nodes
    return graph


def saved_for(backward: Graph, place: int, count: int) -> frozenset[int]:
    """The inputs of `backward` that the gradients of the tangent at `place`, of `count`, need."""
    first = len(backward.inputs) - count
    reached = {backward.inputs[first + place]}
    for node in backward.nodes:
        if any(value in reached for value in node.inputs()):
            reached.update(node.outs)
    needed = {value.node for value in reached} - {None}
    for node in reversed(backward.nodes):
        if node in needed:
            needed.update(value.node for value in node.inputs() if value.node is not None)
    used = {value for node in backward.nodes if node in needed for value in node.inputs()}
    return frozenset(i for i, value in enumerate(backward.inputs[:first]) if value in used)


def _zeros(value: Value) -> Node:
    """The node that makes `value`, so far an input, a tensor of zeros."""
    type_ = value.type
    assert isinstance(type_, TensorType)
    node = Node("aten.full.default", (list(type_.shape), 0), {"dtype": type_.dtype})
    node.backward = True
    node.outs = (value,)
    value.node, value.index = node, 0
    value.type = TensorType(type_.shape, type_.strides, type_.dtype, type_.device)
    return node
