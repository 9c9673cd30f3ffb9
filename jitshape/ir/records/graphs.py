"""Graphs as records.

In: a functional graph with its ShapeEnv.  Out: bytes, and from them an equal graph, with values,
storages and sizes of its own.
Invariant: values are numbered in the order of their definition, storages in that of their first
use; what an argument holds that is no value of the program's text raises Unrecordable.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import msgspec

from jitshape.ir.graph import (
    Alias,
    Graph,
    Location,
    Mutation,
    Node,
    OutputAlias,
    Reshaped,
    Storage,
    Value,
)
from jitshape.ir.records import sizes
from jitshape.ir.records.plain import Record, Tree, Unreadable, Unrecordable, tree
from jitshape.ir.records.sizes import SizesReader, SizesRecord, write_sizes
from jitshape.ir.types import ScalarType, TensorType


class ValueRecord(Record):
    name: str
    type: Tree
    storage: int | None
    requires_grad: bool
    index: int


class NodeRecord(Record):
    op: str
    args: Tree
    kwargs: Tree
    outs: list[ValueRecord]
    location: Tree
    marks: tuple[bool, int | None, int | None, str]  # backward, token, region, origin


class GraphRecord(Record):
    sizes: SizesRecord | None
    inputs: list[ValueRecord]
    nodes: list[NodeRecord]
    outputs: Tree
    mutations: list[Mutation]
    owned: list[int]
    versions: list[tuple[int, int]]
    counts: tuple[int | None, int]  # returned, gradients
    flags: tuple[bool, bool, bool]  # functional, tracking, consumed
    symbols: Tree
    reshaped: list[Reshaped]
    named: int  # names that were given, so far


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GraphRecord)


def write_graph(graph: Graph) -> bytes:
    """Raises Unrecordable."""
    try:
        return _encoder.encode(_Writer().graph(graph))
    except OverflowError as error:  # a bound of an integer beyond 64 bits
        raise Unrecordable(f"a graph: {error}") from error


def read_graph(data: bytes) -> Graph:
    """Raises Unreadable."""
    try:
        record = _decoder.decode(data)
        return _Reader(record).graph(record)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"a graph: {error}") from error


class _Writer:
    def __init__(self) -> None:
        self.values: dict[Value, int] = {}
        self.storages: dict[Storage, int] = {}

    def graph(self, graph: Graph) -> GraphRecord:
        env = graph.env
        return GraphRecord(
            None if env is None else write_sizes(env),
            [self.defined(value) for value in graph.inputs],
            [self.node(node) for node in graph.nodes],
            self.tree(list(graph.outputs)),
            graph.mutations,
            sorted(graph.owned),
            graph.versions,
            (graph.returned, graph.gradients),
            (graph.functional, graph.tracking, graph.consumed),
            self.tree(list(graph.symbols)),
            graph.reshaped,
            next(copy.copy(graph._names)),
        )

    def tree(self, x: Any) -> Tree:
        return tree(x, self.leaf)

    def leaf(self, x: Any) -> Tree:
        kind = type(x)
        if kind is Value:
            return ["value", self.values[x]]
        if kind is TensorType:
            return ["tensor", *map(self.tree, (x.shape, x.strides, x.dtype, x.device, x.offset))]
        if kind is ScalarType:
            return ["scalar", self.tree(x.dtype), self.tree(x.symbol)]
        if kind is Alias:
            return ["alias", x.input, self.leaf(x.type), x.requires_grad, list(x.traits)]
        if kind is OutputAlias:
            return ["output_alias", x.output, self.leaf(x.type), x.requires_grad, list(x.traits)]
        return sizes.leaf(x)

    def defined(self, value: Value) -> ValueRecord:
        self.values[value] = len(self.values)
        storage = value.storage
        if storage is not None:
            storage = self.storages.setdefault(storage, len(self.storages))
        type_ = self.leaf(value.type)
        return ValueRecord(value.name, type_, storage, value.requires_grad, value.index)

    def node(self, node: Node) -> NodeRecord:
        where = None if node.location is None else sizes.line(node.location)
        args, kwargs = self.tree(node.args), self.tree(node.kwargs)
        outs = [self.defined(out) for out in node.outs]
        marks = node.backward, node.token, node.region, node.origin
        return NodeRecord(node.op, args, kwargs, outs, where, marks)


class _Reader(SizesReader):
    def __init__(self, record: GraphRecord) -> None:
        self.values: list[Value] = []
        self.storages: dict[int, Storage] = {}
        if record.sizes is not None:
            super().__init__(record.sizes)

    def graph(self, record: GraphRecord) -> Graph:
        graph = Graph(None if record.sizes is None else self.env)
        graph.inputs = [self.defined(value) for value in record.inputs]
        for row in record.nodes:
            location = None if row.location is None else Location(*row.location)
            node = Node(row.op, self.read(row.args), self.read(row.kwargs), location)
            node.backward, node.token, node.region, node.origin = row.marks
            graph.add_node(node, tuple(self.defined(out) for out in row.outs))
        graph.outputs = self.read(record.outputs)
        graph.mutations, graph.reshaped = record.mutations, record.reshaped
        graph.owned, graph.versions = set(record.owned), record.versions
        graph.returned, graph.gradients = record.counts
        graph.functional, graph.tracking, graph.consumed = record.flags
        graph.symbols = self.read(record.symbols)
        graph._names = itertools.count(record.named)
        graph._storages = itertools.count(len(self.storages))
        return graph

    def defined(self, record: ValueRecord) -> Value:
        storage = None
        if record.storage is not None:
            storage = self.storages.setdefault(record.storage, Storage(record.storage))
        value = Value(record.name, self.read(record.type), storage)
        value.index, value.requires_grad = record.index, record.requires_grad
        self.values.append(value)
        return value

    def read_value(self, number: int) -> Value:
        return self.values[number]

    def read_tensor(self, shape: Tree, strides: Tree, dtype: Tree, device: Tree, offset: Tree):
        parts = map(self.read, (shape, strides, dtype, device, offset))
        return TensorType(*parts)

    def read_scalar(self, dtype: Tree, symbol: Tree) -> ScalarType:
        return ScalarType(self.read(dtype), self.read(symbol))

    def read_alias(self, input: int, type_: Tree, requires_grad: bool, traits: list[str]) -> Alias:
        return Alias(input, self.read(type_), requires_grad, tuple(traits))

    def read_output_alias(
        self, output: int, type_: Tree, requires_grad: bool, traits: list[str]
    ) -> OutputAlias:
        return OutputAlias(output, self.read(type_), requires_grad, tuple(traits))
