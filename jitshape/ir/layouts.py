"""Strides of results at sizes of 0 and 1, which decide more in eager than in a graph.

A graph has one expression for each stride, right where all sizes are at least 2 (ir/strides.py).
Below that eager's own rules see other things: what has one row is contiguous in every order, and
the stride of a single row, which no guard looks at, is passed on.  Here the rules of ops that look
at strides are run again, at run time, on the sizes and strides of the call.

In: a recorded graph, before functionalization.  Out: its `Layouts`, if some result's strides may
differ then, which gives the exact ones for the inputs of a call.
Invariant: a result that is not among them has the graph's strides at every size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from jitshape.errors import DataDependent
from jitshape.ir.graph import Graph, Node, Value, map_leaves, new_symbols, tensor_type
from jitshape.ir.intervals import INF
from jitshape.ir.ops.families import Pointwise
from jitshape.ir.ops.registry import OPS, OpDef
from jitshape.ir.records.graphs import read_graph, write_graph
from jitshape.ir.records.plain import Unrecordable
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.strides import is_contiguous, row_major
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import TensorType

Strides = tuple[int, ...]
KEPT = 256  # calls whose layouts are remembered
FREE = -1  # the index of what is no input of the whole graph, or needs no look
TURNS = ("aten.t.default", "aten.transpose.int", "aten.permute.default", "aten.detach.default")
STRIDES: Any = TensorType.strides  # the slot


Rows = list[Strides | None]  # of each result; None: the graph's


class Layouts:
    """`graph` holds what the strides of some results come from.  Its inputs with an `index`, their
    place in the whole graph, are given at run time, the others are as the graph says; its
    `outputs` are these results, each in its place.  `copies`: a result may be copied where its
    elements lie in another order."""

    def __init__(self, graph: Graph, copies: bool) -> None:
        self.graph, self.copies = graph, copies
        self.symbols = _symbols(graph)
        self.names = [str(symbol) for symbol in self.symbols]
        self.given = [value for value in graph.inputs if value.index != FREE]
        self.places = [place for place, value in enumerate(graph.outputs) if value is not None]
        self._calls: dict[Any, Rows] = {}
        self._patterns: dict[tuple[int, ...], Sequence[Any] | None] = {}

    @functools.cached_property
    def data(self) -> bytes:
        """The graph as a record."""
        return write_graph(self.graph)

    def small(self) -> list[Size]:
        """The sizes that the graph may be wrong for where they are below 2; an int among them is
        so at every call."""
        found: dict[Size, None] = {}
        for value in (*self.given, *_results(self.graph.nodes)):
            for size in tensor_type(value).shape:
                if value.node is None if type(size) is int else True:
                    if _lowest(self.graph.env, size) < 2:
                        found[size] = None
        return list(found)

    def __call__(
        self,
        results: Sequence[torch.Tensor | None],
        strides: tuple[Strides, ...],
        numbers: tuple[int, ...],
    ) -> list[torch.Tensor | None]:
        """`results`, as far as they are new memory, as eager lays them out where `given` have
        `strides`, and `symbols` these values."""
        known = self._calls.get((strides, numbers))
        if known is None:
            if len(self._calls) >= KEPT:
                self._calls.clear()
            known = self._calls[strides, numbers] = self.exact(strides, numbers)
        return [
            x if row is None or x is None else _laid_out(x, row, self.copies)
            for x, row in zip(results, known)
        ]

    def exact(self, strides: Sequence[Strides], numbers: Sequence[int]) -> Rows:
        """The strides of the results.  Where those given are the graph's, they are found once for
        all sizes above 1."""
        values = dict(zip(self.names, numbers))
        replay = _Replay(self.graph, values)
        usual = all(replay.sizes(tensor_type(v).strides) == s for v, s in zip(self.given, strides))
        if usual and all(number > 0 for number in numbers):
            pattern = tuple(min(number, 2) for number in numbers)
            if pattern not in self._patterns:
                self._patterns[pattern] = self._rows_of(pattern)
            rows = self._patterns[pattern]
            if rows is not None:
                return [None if row is None else row(values) for row in rows]
        return list(replay.run(strides))

    def _rows_of(self, pattern: Sequence[int]) -> list[Any] | None:
        try:
            return _rows_of_pattern(self.data, pattern)
        except Unrecordable:  # a graph with others in it
            return None


def _rows_of_pattern(data: bytes, pattern: Sequence[int]) -> list[Any] | None:
    """Of each result what gives its strides for the values of symbols that are 1 where
    `pattern` says so and larger elsewhere, None if the graph does; None if that depends on more."""
    graph = read_graph(data)
    env = graph.env
    fixed = {}
    for symbol, number in zip(_symbols(graph), pattern):
        assert symbol.symbol is not None
        if number < 2:
            fixed[symbol.symbol.id] = number
        else:
            env.algebra.narrow(symbol, 2, INF)
    asserts = len(env.asserts)
    replay = _PatternReplay(graph, fixed)
    try:
        rows = replay.run([replay.sizes(tensor_type(v).strides) for v in graph.inputs])
    except DataDependent:
        return None
    if env.facts or len(env.asserts) > asserts:
        return None
    own = (replay.sizes(tensor_type(v).strides) for v in graph.outputs if v is not None)
    return [None if row == mine else _evaluated(env, row) for row, mine in zip(rows, own)]


def _evaluated(env: Any, row: Sequence[Size]) -> Callable[[Mapping[str, int]], Strides]:
    return lambda values: tuple(env.algebra.evaluate(size, values) for size in row)


def _symbols(graph: Graph) -> list[IntExpr]:
    """The symbols in a graph, in the order of their names."""
    sizes = (size for size in graph.sizes_used() if type(size) is IntExpr)
    atoms = {atom.name: atom.id for size in sizes for atom in size.symbols()}
    return [graph.env.algebra.atom_expr(atoms[name]) for name in sorted(atoms)]


def layouts_of(graph: Graph) -> Layouts | None:
    """The Layouts of the results of `graph`, as it was recorded."""
    if graph.moved or graph.shown:
        return None
    count = len(graph.outputs) if graph.returned is None else graph.returned
    looser = _Looser(graph)
    wanted = [
        out if isinstance(out, Value) and out.node is not None and looser.is_loose(out) else None
        for out in graph.outputs[:count]
    ]
    if not any(wanted):
        return None
    layouts = Layouts(_part(graph, looser, wanted), not graph.gradients)
    floats = any(symbol.symbol.kind != "sym" for symbol in layouts.symbols if symbol.symbol)
    return None if floats or not layouts.small() else layouts


def _part(graph: Graph, looser: _Looser, wanted: Sequence[Value | None]) -> Graph:
    """A graph of what the strides of `wanted` come from."""
    part = Graph(graph.env)
    copies: dict[Value, Value] = {}

    def copied(leaf: Any) -> Any:
        if type(leaf) is not Value or leaf in copies:
            return copies.get(leaf, leaf) if type(leaf) is Value else leaf
        copy = copies[leaf] = Value(leaf.name, leaf.type, None)
        loose = leaf.node is None and looser.is_loose(leaf)
        copy.index = leaf.index if loose else FREE
        part.inputs.append(copy)
        return copy

    for node in looser.needed(filter(None, wanted)):
        args, kwargs = map_leaves(copied, (node.args, node.kwargs))
        for out in node.outs:
            copies[out] = Value(out.name, out.type, None)
        part.add_node(Node(node.op, args, kwargs), tuple(copies[out] for out in node.outs))
    part.outputs = [None if value is None else copies[value] for value in wanted]
    return part


def _results(nodes: Iterable[Node]) -> Iterator[Value]:
    return (out for node in nodes for out in node.outs if isinstance(out.type, TensorType))


def _lowest(env: Any, size: Size) -> float:
    return size if type(size) is int else env.algebra.bounds(env.simplify(size))[0]


class _Looser:
    """Which values may have other strides than the graph says."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.env = graph, graph.env
        self._loose: dict[Value, bool] = {}
        self._contiguous: dict[Value, bool] = {}  # at every size, whatever strides single rows have
        self._reads: dict[Node, bool] = {}

    def is_loose(self, value: Value) -> bool:
        if value in self._loose:
            return self._loose[value]
        if value.node is None or not self._reads_strides(value.node):
            return self._judge(value)
        for node in self._before(value):  # in program order, however long the chain is
            for out in node.outs:
                self._judge(out)
        return self._loose[value]

    def needed(self, values: Iterable[Value]) -> list[Node]:
        """The nodes by whose rules the strides of `values` come about, in program order."""
        wanted, kept = set(values), []
        for node in reversed(self.graph.nodes):
            if any(out in wanted for out in node.outs):
                kept.append(node)
                wanted.update(x for x in node.inputs() if x.node is not None and self._judge(x))
        return kept[::-1]

    def _before(self, value: Value) -> list[Node]:
        wanted, kept = {value}, []
        for node in reversed(self.graph.nodes):
            if any(out in wanted and out not in self._loose for out in node.outs):
                kept.append(node)
                wanted.update(node.inputs() if self._reads_strides(node) else ())
        return kept[::-1]

    def _judge(self, value: Value) -> bool:
        known = self._loose.get(value)
        if known is None:
            known = self._loose[value] = self._find(value)
            self._contiguous[value] = self._find_contiguous(value)
        return known

    def _find_contiguous(self, value: Value) -> bool:
        if not isinstance(value.type, TensorType) or not self._loose[value]:
            return isinstance(value.type, TensorType) and _is_row_major(value.type)
        if not is_contiguous(value.type.shape, value.type.strides):
            return False
        return value.node is None or all(map(self._is_contiguous, _operands(value.node)))

    def _is_contiguous(self, value: Value) -> bool:
        self._judge(value)
        return self._contiguous[value]

    def _find(self, value: Value) -> bool:
        if not isinstance(value.type, TensorType) or value.type.ndim == 0:
            return False
        if value.node is None:
            return any(_lowest(self.env, size) < 2 for size in value.type.shape)
        node = value.node
        if not self._reads_strides(node):
            return False
        definition = OPS[node.op]
        operands = _operands(node)
        if definition.family == "inplace":
            return self._judge(operands[0])
        if _iterates(definition) and self._same_order(value, operands):
            return False
        if any(map(self._judge, operands)):
            return True
        if node.op in TURNS:
            return False
        return not all(_is_row_major(tensor_type(x)) for x in (value, *operands))

    def _same_order(self, value: Value, operands: Sequence[Value]) -> bool:
        """Whether all operands are contiguous at every size, and of one shape: so is the result."""
        if value.node is None or len(operands) < OPS[value.node.op].block.operands:
            return False
        if not _is_row_major(tensor_type(value)):
            return False
        alike = all(tensor_type(x).shape == tensor_type(value).shape for x in operands)
        return alike and all(map(self._is_contiguous, operands))

    def _reads_strides(self, node: Node) -> bool:
        """Whether the type rule of `node` looks at the strides of an operand."""
        known = self._reads.get(node)
        if known is None:
            known = self._reads[node] = self._try(node)
        return known

    def _try(self, node: Node) -> bool:
        definition = OPS.get(node.op)
        if definition is None or not _has_rule(node, definition):
            return False
        if definition.family in ("pointwise", "inplace", "view"):
            return True
        read: list[None] = []

        def watched(leaf: Any) -> Any:
            if type(leaf) is not Value or not isinstance(leaf.type, TensorType):
                return leaf
            made = Value(leaf.name, _watched(leaf.type, read), leaf.storage)
            made.node, made.index = leaf.node, leaf.index
            return made

        args, kwargs = map_leaves(watched, (node.args, node.kwargs))
        definition.type(self.env, *args, **kwargs)
        return bool(read)


def _operands(node: Node) -> list[Value]:
    return [x for x in node.inputs() if isinstance(x.type, TensorType)]


def _has_rule(node: Node, definition: OpDef) -> bool:
    """Whether the strides of the node's results follow from its operands' types."""
    return hasattr(definition.block, "type") and bool(_operands(node)) and not new_symbols(node)


def _iterates(definition: OpDef) -> bool:
    """Whether the result is laid out by TensorIterator."""
    rule = getattr(definition.block, "type", None)
    return getattr(rule, "__func__", None) is Pointwise.type.__func__  # type: ignore[attr-defined]


def _is_row_major(type_: TensorType) -> bool:
    return type_.strides == row_major(type_.shape)


class _Watched(TensorType):
    """A type that tells when its strides are looked at."""

    __slots__ = ("read",)
    read: list[None]

    @property
    def strides(self) -> tuple[Size, ...]:  # type: ignore[override]
        self.read.append(None)
        return STRIDES.__get__(self)


def _watched(type_: TensorType, read: list[None]) -> _Watched:
    made = object.__new__(_Watched)
    for name in TensorType.__slots__:
        getattr(TensorType, name).__set__(made, getattr(type_, name))
    _Watched.read.__set__(made, read)  # type: ignore[attr-defined]
    return made


class _Replay:
    """The type rules of a graph at the values of its symbols."""

    def __init__(self, graph: Graph, numbers: Mapping[str, int]) -> None:
        self.graph, self.numbers, self.env = graph, numbers, ShapeEnv()
        self.values: dict[Value, Value] = {}

    def size(self, size: Size) -> Any:
        value = self.graph.env.algebra.evaluate(size, self.numbers)
        assert value is not None
        return value

    def sizes(self, sizes: Sequence[Size]) -> tuple[Any, ...]:
        return tuple(map(self.size, sizes))

    def run(self, strides: Sequence[tuple[Size, ...]]) -> list[tuple[Any, ...]]:
        """The strides of the results, where the inputs that are not FREE have `strides`."""
        given = iter(strides)
        for value in self.graph.inputs:
            type_ = tensor_type(value)
            own = self.sizes(type_.strides) if value.index == FREE else next(given)
            self._know(value, replace(type_, shape=self.sizes(type_.shape), strides=own, offset=0))
        for node in self.graph.nodes:
            args, kwargs = map_leaves(self._leaf, (node.args, node.kwargs))
            found = self._types(node, args, kwargs)
            rows = found if isinstance(found, (list, tuple)) else [found]
            for out, type_ in zip(node.outs, rows):
                self._know(out, type_)
        wanted = (value for value in self.graph.outputs if value is not None)
        return [tensor_type(self.values[value]).strides for value in wanted]

    def _types(self, node: Node, args: Any, kwargs: Any) -> Any:
        definition = OPS[node.op]
        try:
            return definition.type(self.env, *args, **kwargs)
        except RuntimeError:
            if definition.family != "view":
                raise
        old = tensor_type(node.outs[0])  # what views at sizes above 1 is a copy here
        shape = self.sizes(old.shape)
        return replace(old, shape=shape, strides=row_major(shape), offset=0)

    def _know(self, value: Value, type_: Any) -> None:
        self.values[value] = Value(value.name, type_, None)

    def _leaf(self, leaf: Any) -> Any:
        if type(leaf) is IntExpr:
            return self.size(leaf)
        return self.values[leaf] if type(leaf) is Value else leaf


class _PatternReplay(_Replay):
    """At symbols, some of which are 0 or 1."""

    def __init__(self, graph: Graph, fixed: Mapping[int, int]) -> None:
        super().__init__(graph, {})
        self.env, self.fixed = graph.env, fixed

    def size(self, size: Size) -> Size:
        return size if type(size) is int else self.env.algebra.substitute(size, self.fixed)


def _laid_out(x: torch.Tensor, strides: Strides, copies: bool) -> torch.Tensor:
    """`x`, new memory of the graph, with other strides."""
    found = x.stride()
    if found == strides:
        return x
    if x.numel() and any(n > 1 and a != b for n, a, b in zip(x.shape, found, strides)):
        if not copies:
            return x
        return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
    with torch.autograd._unsafe_preserve_version_counter(x):
        return x.as_strided_(x.shape, strides)
