"""Graphs among the arguments of a node: the branches of a cond, the body of a loop.

In: nodes that a trace recorded while the program's function ran, taken out of the graph again.
Out: a `Subgraph`, a function of the values and numbers that these nodes use.
Invariant: a subgraph names nothing of the graph around it: what it uses comes as an argument, its
numbers behind its tensors; its ShapeEnv is that graph's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from jitshape.ir.graph import Graph, Node, Storage, Value, map_leaves, new_symbols, tensor_type
from jitshape.ir.symfloat import FloatExpr, symbol_of
from jitshape.ir.symint import IntExpr

Numbers = list[IntExpr | FloatExpr]


def free_values(nodes: Iterable[Node], outputs: Iterable[Value]) -> list[Value]:
    """What `nodes` and `outputs` use and no node makes, in the order of the first use."""
    made: set[Value] = set()
    found: dict[Value, None] = {}
    for node in nodes:
        found.update((value, None) for value in node.inputs() if value not in made)
        made.update(node.outs)
    found.update((value, None) for value in outputs if value not in made)
    return list(found)


def lifted(around: Graph, inputs: Sequence[Value], nodes: Iterable[Node], outputs: Any) -> Graph:
    """A graph of its own, `inputs -> outputs`, with copies of `nodes`; `symbols` are left out."""
    graph = Graph(around.env)
    graph._names = copy.copy(around._names)
    mapped: dict[Value, Value] = {}
    storages: dict[Storage, Storage] = {}

    def storage(value: Value) -> Storage | None:
        if value.storage is None:
            return None
        return storages.setdefault(value.storage, graph.new_storage())

    def leaf(x: Any) -> Any:
        return mapped[x] if isinstance(x, Value) else x

    for value in inputs:
        made = mapped[value] = graph.add_input(value.type, value.name)
        made.storage = storage(value)
    for node in nodes:
        args, kwargs = map_leaves(leaf, (node.args, node.kwargs))
        new = Node(node.op, args, kwargs, node.location)
        new.backward, new.token, new.origin = node.backward, node.token, node.origin
        outs = tuple(Value(out.name, out.type, storage(out)) for out in node.outs)
        mapped.update(zip(node.outs, outs))
        graph.add_node(new, outs)
    graph.outputs = [leaf(x) for x in outputs]
    graph.returned = len(graph.outputs)
    graph.tracking = True  # nothing in it is differentiated
    return graph


def numbers_of(graphs: Iterable[Graph]) -> Numbers:
    """The symbols that `graphs` need, and those that these are known to equal; not those that
    their own nodes tell."""
    found: dict[str, IntExpr | FloatExpr] = {}
    for graph in graphs:
        told = {atom for node in graph.nodes for atom in new_symbols(node)}
        simplify = graph.env.simplify
        for number in graph.sizes_used():
            simpler = simplify(number) if type(number) is IntExpr else number
            for atom in (*number.symbols(), *getattr(simpler, "symbols", tuple)()):
                if atom not in told:
                    found.setdefault(atom.name, symbol_of(graph.env.algebra, atom))
    return list(found.values())


Geometry = list[Any]  # [strides, offset]


def geometry_of(value: Value) -> Geometry:
    """How a subgraph's operand must lie in memory."""
    type_ = tensor_type(value)
    return [list(type_.strides), type_.offset]


def placed(tensor: torch.Tensor, strides: Sequence[int], offset: int) -> torch.Tensor:
    """`tensor`, or a copy of it that lies so."""
    found = tensor.stride()
    same = all(n <= 1 or a == b for n, a, b in zip(tensor.shape, found, strides))
    if same and tensor.storage_offset() == offset:
        return tensor
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides) if n)
    room = torch.empty(offset + max(reach, 0), dtype=tensor.dtype, device=tensor.device)
    return room.as_strided(tensor.shape, strides, offset).copy_(tensor)


def owned(results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results, each in memory that no operand and no other result has."""
    taken = {x.untyped_storage()._cdata for x in operands}
    found: list[torch.Tensor] = []
    for result in results:
        if result.untyped_storage()._cdata in taken:
            result = result.clone(memory_format=torch.preserve_format)
        taken.add(result.untyped_storage()._cdata)
        found.append(result)
    return found
