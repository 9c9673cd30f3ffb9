"""Splits a joint graph into a forward and a backward graph.

    joint(x, w, tangent) -> y, grad_x, grad_w
-->
    forward(x, w) -> y, saved...        backward(saved..., tangent) -> grad_x, grad_w

What depends on a tangent belongs to backward; the rest may run in forward, or again in backward.
Which values are saved is a minimum cut by bytes: a value is split into an edge of its size, and
computing it again is free where that is cheap (pointwise ops, views, constants) and forbidden
elsewhere.  What eager's autograd would save is one of the cuts, so memory is at most eager's.
Invariant: both graphs are functional; random ops run in forward only, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from jitshape.ir.graph import (
    Alias,
    Graph,
    Mutation,
    Node,
    OutputAlias,
    Reshaped,
    Storage,
    Value,
    map_leaves,
    new_symbols,
    values_in,
)
from jitshape.ir.passes.dce import has_effect
from jitshape.ir.passes.saved import choose_saved
from jitshape.ir.raising import may_fail
from jitshape.ir.symfloat import FloatExpr, symbol_of
from jitshape.ir.symint import Atom, IntExpr, Size
from jitshape.ir.types import TensorType


@dataclass(frozen=True)
class Split:
    """`forward.outputs` are the `kept` outputs of the joint graph (None for an alias), `saved`
    tensors, `sizes` ints, and the geometry of each alias.  `backward` takes the saved tensors,
    the tangents and (as its `symbols`) the sizes, and returns a gradient for each input."""

    forward: Graph
    backward: Graph
    kept: int
    saved: int
    sizes: int
    tangents: tuple[int, ...]  # of each tangent, the place of its output
    aliases: tuple[tuple[int, Alias | OutputAlias], ...]  # by place in the outputs
    mutations: tuple[Mutation, ...]
    reshaped: tuple[Reshaped, ...] = ()


def partition(graph: Graph) -> Split:
    """Split the functional joint graph `graph`."""
    count = len(graph.inputs) - len(graph.differentiated)
    primals, tangents = graph.inputs[:count], graph.inputs[count:]
    returned = graph.returned or 0
    gradients = graph.outputs[returned : returned + graph.gradients]
    kept = graph.outputs[:returned] + graph.outputs[returned + graph.gradients :]
    mutations = tuple(_shifted(m, returned, graph.gradients) for m in graph.mutations)

    late = _dependents(graph.nodes, tangents)
    early = [node for node in graph.nodes if node not in late]
    mutated = {graph.inputs[m.input] for m in mutations}
    needed = _needed_late(graph.nodes, late, tangents, gradients)
    saved = choose_saved(primals, early, needed, mutated, values_in(kept))

    backward = _backward_graph(graph, saved, tangents, gradients)
    aliases = tuple(
        (place, _moved(output, returned, graph.gradients))
        for place, output in enumerate(kept)
        if isinstance(output, (Alias, OutputAlias))
    )
    forward = Graph(graph.env, list(primals), functional=True, returned=len(kept))
    forward._names, forward._storages = graph._names, graph._storages
    forward.symbols = list(graph.symbols)
    geometry = [s for _, a in aliases for s in (*a.type.shape, *a.type.strides, a.type.offset)]
    plain = [None if isinstance(o, (Alias, OutputAlias)) else o for o in kept]
    forward.outputs = plain + saved + list(backward.symbols) + geometry
    moved = {place: place - graph.gradients * (place >= returned) for place, _ in graph.versions}
    forward.versions = [
        (moved[place], n) for place, n in graph.versions if plain[moved[place]] is not None
    ]
    forward.owned = {p - graph.gradients * (p >= returned) for p in graph.owned}
    forward.nodes = _live(early, values_in(forward.outputs))
    places = tuple(_place(kept, value) for value in graph.differentiated)
    reshaped = tuple(
        r if r.output is None else replace(r, output=r.output - graph.gradients)
        for r in graph.reshaped
    )
    counts = len(kept), len(saved), len(backward.symbols)
    return Split(forward, backward, *counts, places, aliases, mutations, reshaped)


def _shifted(mutation: Mutation, returned: int, gradients: int) -> Mutation:
    """The mutation, after the gradients left the outputs."""
    place = mutation.output
    return replace(mutation, output=place - gradients if place >= returned else place)


def _moved(alias: Alias | OutputAlias, returned: int, gradients: int) -> Alias | OutputAlias:
    if isinstance(alias, OutputAlias) and alias.output >= returned:
        return replace(alias, output=alias.output - gradients)
    return alias


def _place(outputs: list, value: Value) -> int:
    return next(place for place, output in enumerate(outputs) if output is value)


def _dependents(nodes: list[Node], sources: Iterable[Value]) -> set[Node]:
    reached = set(sources)
    found: set[Node] = set()
    for node in nodes:
        if any(value in reached for value in node.inputs()):
            found.add(node)
            reached.update(node.outs)
    return found


def _needed_late(
    nodes: list[Node], late: set[Node], tangents: list[Value], gradients: list
) -> list[Value]:
    """Values from before that backward uses, in order of use."""
    produced = {out for node in late for out in node.outs} | set(tangents)
    used = [v for node in nodes if node in late for v in node.inputs()]
    used += values_in(gradients)
    return [v for v in dict.fromkeys(used) if v not in produced]


def _live(nodes: list[Node], wanted: Iterable[Value]) -> list[Node]:
    """Of `nodes` those that `wanted` needs, and those that must run anyway."""
    needed = set(wanted)
    kept = []
    for node in reversed(nodes):
        if has_effect(node) or may_fail(node) or any(out in needed for out in node.outs):
            needed.update(node.inputs())
            kept.append(node)
    return kept[::-1]


# ---- the backward graph


def _backward_graph(
    graph: Graph, saved: list[Value], tangents: list[Value], gradients: list
) -> Graph:
    backward = Graph(graph.env, functional=True)
    backward._names, backward._storages = graph._names, graph._storages
    copies: dict[Value, Value] = {}
    storages: dict[Storage, Storage] = {}

    def copy(value: Value) -> Value:
        storage = value.storage
        if storage is not None:
            storage = storages.setdefault(storage, backward.new_storage())
        copied = copies[value] = Value(value.name, value.type, storage)
        copied.requires_grad = value.requires_grad
        return copied

    for index, value in enumerate([*saved, *tangents]):
        if value in copies:
            continue
        copy(value).index = index
        backward.inputs.append(copies[value])

    def copied_leaf(leaf: object) -> object:
        return copies[leaf] if isinstance(leaf, Value) else leaf

    known = set(saved) | set(tangents)
    needed = _until(graph.nodes, known, values_in(gradients))
    for node in _just_in_time(needed, _dependents(needed, tangents)):
        args, kwargs = map_leaves(copied_leaf, (node.args, node.kwargs))
        clone = Node(node.op, args, kwargs, node.location)
        clone.backward, clone.token, clone.region = True, node.token, node.region
        backward.add_node(clone, tuple(copy(out) for out in node.outs))
    backward.outputs = map_leaves(copied_leaf, gradients)
    backward.returned = len(gradients)
    backward.symbols = unbound_symbols(backward)
    return backward


def _until(nodes: list[Node], known: set[Value], wanted: Iterable[Value]) -> list[Node]:
    """The nodes that compute `wanted` from `known`."""
    needed = {value for value in wanted if value not in known}
    kept = []
    for node in reversed(nodes):
        if any(out in needed for out in node.outs):
            assert node.token is None or node.backward, f"{node.op} would run twice"
            needed.update(value for value in node.inputs() if value not in known)
            kept.append(node)
    return kept[::-1]


def _just_in_time(nodes: list[Node], late: set[Node]) -> list[Node]:
    """`nodes` in an order in which what is computed again stands before its first use."""
    position = {node: index for index, node in enumerate(nodes)}
    ordered: dict[Node, None] = {}
    for node in nodes:
        if node in late:
            todo, missing = [node], set()
            while todo:
                for value in todo.pop().inputs():
                    source = value.node
                    if source in position and source not in ordered and source not in missing:
                        missing.add(source)
                        todo.append(source)
            ordered.update(dict.fromkeys(sorted(missing, key=position.__getitem__)))
            ordered[node] = None
    ordered.update(dict.fromkeys(nodes))
    return list(ordered)


def unbound_symbols(graph: Graph) -> list[Size | FloatExpr]:
    """Symbols in `graph` that are no plain size, stride or offset of an input, and that no result
    tells; also those that show only once what is known of the sizes has been put in."""
    env = graph.env
    told = {atom for node in graph.nodes for atom in new_symbols(node)}
    missing: dict[Size | FloatExpr, None] = {}
    for known in (lambda size: size, env.simplify):
        bound = told | set(_bound_by_inputs(graph, known))
        for size in graph.sizes_used():
            used = size if isinstance(size, FloatExpr) else known(size)
            for atom in () if isinstance(used, int) else used.symbols():
                if atom not in bound:
                    missing.setdefault(symbol_of(env.algebra, atom))
    return list(missing)


def _bound_by_inputs(graph: Graph, known: Callable[[Size], Size]) -> Iterator[Atom]:
    for value in graph.inputs:
        if isinstance(value.type, TensorType):
            for size in map(known, (*value.type.shape, *value.type.strides, value.type.offset)):
                if type(size) is IntExpr and size.symbol is not None:
                    yield size.symbol
