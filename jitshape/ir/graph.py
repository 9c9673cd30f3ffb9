"""The graph: a list of nodes in program order, each an ATen op on values.

Invariants (ir/verify.py checks them): a value is defined before it is used; a node's op is in the
registry or an extern op; `args` and `kwargs` follow the op's schema, with `Value` for tensors,
`Size` for integers, plain Python for the rest, lists for lists.
Before functionalization nodes may mutate and alias: `Value.storage` says which values share
memory.  After it (`Graph.functional`) every node is pure but for random tokens, and writes to
inputs stand in `mutations`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jitshape.ir.symint import Atom
from jitshape.ir.types import ScalarType, TensorType


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Storage:
    """Identity of a piece of memory: values with the same storage alias."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"storage{self.id}"


class Value:
    """A tensor or scalar in the graph."""

    __slots__ = ("index", "name", "node", "requires_grad", "storage", "type")

    def __init__(self, name: str, type: TensorType | ScalarType, storage: Storage | None) -> None:
        self.name, self.type, self.storage = name, type, storage
        self.node: Node | None = None  # None: an input
        self.index = 0  # which output of the node
        self.requires_grad = False

    def __repr__(self) -> str:
        return self.name


def tensor_type(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType), value
    return value.type


class Node:
    """One call of an op: `outs = op(*args, **kwargs)`."""

    __slots__ = (
        "args", "backward", "kwargs", "location", "op", "origin", "outs", "region", "token",
    )  # fmt: skip

    def __init__(
        self, op: str, args: tuple, kwargs: dict[str, Any], location: Location | None = None
    ) -> None:
        self.op, self.args, self.kwargs, self.location = op, args, kwargs, location
        self.outs: tuple[Value, ...] = ()
        self.backward = False  # recorded while autograd ran backward
        self.token: int | None = None  # of a random op: its place in program order
        self.region: int | None = None  # checkpointed: backward computes its values again
        self.origin = ""  # the composite op that it was decomposed from

    @property
    def title(self) -> str:
        """The user's op, for names: "layer_norm"."""
        name = (self.origin or self.op).split(".")[1].strip("_")
        return name.removeprefix("native_")

    def inputs(self) -> Iterator[Value]:
        """The values used, in order of appearance, with repetition."""
        return values_in((self.args, self.kwargs))


def new_symbols(node: Node) -> list[Atom]:
    """The symbols that only the results of `node` tell: item(), sizes that depend on data."""
    found: list[Atom] = []
    for out in node.outs:
        sizes = out.type.shape if isinstance(out.type, TensorType) else (out.type.symbol,)
        found += [atom for s in sizes if (atom := getattr(s, "symbol", None)) is not None]
    if not found:
        return found
    known: set[Atom] = set()

    def note(leaf: Any) -> None:
        if isinstance(leaf, Value) and isinstance(leaf.type, TensorType):
            map_leaves(note, (leaf.type.shape, leaf.type.strides))
        elif not isinstance(leaf, Value) and hasattr(leaf, "symbols"):
            known.update(leaf.symbols())

    map_leaves(note, (node.args, node.kwargs))
    return [atom for atom in dict.fromkeys(found) if atom not in known]


_NESTED = frozenset([tuple, list, dict])


def values_in(tree: Any) -> Iterator[Value]:
    """Every Value in nested tuples, lists and dicts."""
    found: list[Value] = []
    _collect(tree, found)
    return iter(found)


def _collect(tree: Any, found: list[Value]) -> None:
    kind = type(tree)
    if kind is Value:
        found.append(tree)
    elif kind in _NESTED:
        for item in tree.values() if kind is dict else tree:
            kind = type(item)
            if kind is Value:
                found.append(item)
            elif kind in _NESTED:
                _collect(item, found)


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with `fn` applied to everything that is not a tuple, list or dict."""
    kind = type(tree)
    if kind is dict:
        return {key: map_leaves(fn, item) for key, item in tree.items()}
    if kind not in _NESTED:
        return fn(tree)
    items = [map_leaves(fn, item) if type(item) in _NESTED else fn(item) for item in tree]
    return items if kind is list else tuple(items)


@dataclass(frozen=True, slots=True)
class Alias:
    """An output that is a view of graph input `input`, rebuilt by as_strided outside the graph,
    then as `traits` says: conjugated ("conj"), negated ("neg"), no view for eager ("detach",
    "data"), or one that autograd saw or did not see made, other than in the mode of the call
    ("tracked", "untracked")."""

    input: int
    type: TensorType
    requires_grad: bool = False
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputAlias:
    """An output that is a view of output `output` of the same run, rebuilt outside the graph."""

    output: int
    type: TensorType
    requires_grad: bool = False
    traits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mutation:
    """After the run, `inputs[input].copy_(outputs[output])`, where the program wrote to the input
    itself `versions` times."""

    input: int
    output: int
    versions: int = 1


@dataclass(frozen=True, slots=True)
class Reshaped:
    """After the run, `inputs[input]` shows its memory as `outputs[output]`, a view, does; the
    program changed it `times` times.  `output` is None where it changed only views of it."""

    input: int
    output: int | None
    times: int


@dataclass
class Graph:
    """`outputs` holds a Value, a Size, an Alias, an OutputAlias or None in each place.  The user
    gets the first `returned` of them (None: all); those behind feed mutations, output aliases and
    the backward graph.  `symbols` are sizes and float symbols that no input shows: the caller
    passes them as ints and floats behind the inputs.  `owned`: places of outputs that are new
    tensors and no views; `versions`: (place of an output, how often the program wrote to it).
    `tracking`: autograd may be on at the call and some input require grad, but nothing is
    differentiated.  `consumed`: the inputs come in a list, which the program empties, to let go of
    each tensor after its last use.  `moved`: what tensors show after t_, squeeze_ and such, one
    value for each call; `shown`: what inputs show in the end, if that changed them, by their
    index.  `frees`: for each differentiated value a bit set of those whose backward cannot follow
    its own, since both free the same memory.  `notes`: what passes decided, for logs.

    A joint graph also has the gradients: `differentiated` are the values that got one (outputs,
    or inputs as mutated; not outputs that are views of inputs: their gradient flows outside), the
    last inputs are these tangents in the same order, and the `gradients` outputs behind the
    user's are the gradients of the other inputs, one for each, None where there is none.
    """

    env: Any = None  # the ShapeEnv of the sizes
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)
    versions: list[tuple[int, int]] = field(default_factory=list)
    functional: bool = False
    returned: int | None = None
    gradients: int = 0
    differentiated: list[Value] = field(default_factory=list)
    symbols: list[Any] = field(default_factory=list)
    tracking: bool = False
    consumed: bool = False
    moved: list[Value] = field(default_factory=list)
    shown: dict[int, Value] = field(default_factory=dict)
    reshaped: list[Reshaped] = field(default_factory=list)
    frees: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=itertools.count)
    _storages: Iterator[int] = field(default_factory=itertools.count)

    def new_storage(self) -> Storage:
        return Storage(next(self._storages))

    def new_value(
        self, type: TensorType | ScalarType, storage: Storage | None = None, name: str = ""
    ) -> Value:
        """A fresh value; a tensor without `storage` gets one of its own."""
        if storage is None and isinstance(type, TensorType):
            storage = self.new_storage()
        return Value(name or f"t{next(self._names)}", type, storage)

    def add_input(self, type: TensorType | ScalarType, name: str) -> Value:
        value = self.new_value(type, name=name)
        value.index = len(self.inputs)
        self.inputs.append(value)
        return value

    def add_node(self, node: Node, outs: tuple[Value, ...], before: int | None = None) -> Node:
        """Append `node` (or insert it before index `before`) as the producer of `outs`."""
        node.outs = outs
        for index, out in enumerate(outs):
            out.node, out.index = node, index
        self.nodes.insert(len(self.nodes) if before is None else before, node)
        return node

    def to_fx(self) -> Any:
        """The graph as a `torch.fx.GraphModule`, which takes and gives what its program does."""
        from jitshape.interop.fx import to_fx

        return to_fx(self)

    def sizes_used(self) -> list[Any]:
        """Every symbolic size and real in node arguments and types, in order of first use."""
        from jitshape.ir.symfloat import FloatExpr
        from jitshape.ir.symint import IntExpr

        seen: dict[Any, None] = {}

        def note(leaf: Any) -> Any:
            if type(leaf) is IntExpr or type(leaf) is FloatExpr:
                seen.setdefault(leaf)
            return leaf

        def note_type(type_: TensorType | ScalarType) -> None:
            if isinstance(type_, TensorType):
                map_leaves(note, (type_.shape, type_.strides, type_.offset))

        for value in self.inputs:
            note_type(value.type)
        for node in self.nodes:
            map_leaves(note, (node.args, node.kwargs))
            for out in node.outs:
                note_type(out.type)
        map_leaves(note, tuple(self.outputs))
        return list(seen)


class Subgraph:
    """A graph among the arguments of a node (ir/subgraphs.py): `subgraph(*tensors, *numbers)`
    gives its outputs, by the program that is made when it is first called, or else evaluates."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name
        self._make: Callable[[Graph], Callable[..., Any]] | None = None
        self._run: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return self.name

    def served_by(self, make: Callable[[Graph], Callable[..., Any]]) -> None:
        """`make(graph)` gives the program."""
        self._make = make

    def __call__(self, *inputs: Any) -> Any:
        if self._run is None and self._make is not None:
            self._run = self._make(self.graph)
        if self._run is not None:
            return self._run(*inputs)
        from jitshape.ir.evaluate import evaluate

        return evaluate(self.graph, inputs)


def subgraphs_of(node: Node) -> Iterator[Subgraph]:
    """The graphs among its arguments."""
    return (arg for arg in node.args if isinstance(arg, Subgraph))
