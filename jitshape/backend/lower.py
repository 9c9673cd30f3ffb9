"""Lowering: each value becomes a function from an index tuple to a scalar.

In: values of a functional, decomposed graph.  Out: scalars of loop IR.  A `Lowering` belongs to
one kernel; its `leaf` says which values are read from buffers or accumulators there, everything
else is expanded in place: views compose index maps, pointwise ops inline, data movement becomes
masked and indirect loads.  Invariant: nothing outside a value's shape is ever read, even where
the result of the read would be unused (masks travel down to the loads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from jitshape.backend.builder import HALF, Builder, compute_dtype
from jitshape.backend.indexing import Index, broadcast_index, reshape_index
from jitshape.backend.loops import Apply, Scalar
from jitshape.backend.movement import MOVEMENT
from jitshape.errors import InternalError
from jitshape.ir.conditions import compare
from jitshape.ir.graph import Node, Value, map_leaves, tensor_type
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Algebra, IntExpr, Size
from jitshape.ir.types import ScalarType, TensorType

Leaf = Callable[[Value, Index, Scalar | None], Scalar | None]
ROUNDING = frozenset({"aten._to_copy.default", "prims.convert_element_type.default"})


RESHAPES = frozenset(
    f"aten.{name}.default" for name in ("view", "_unsafe_view", "_reshape_alias", "reshape")
)


TURNS = frozenset(("aten.permute.default", "aten.transpose.int", "aten.t.default"))


ARITHMETIC = frozenset(
    getattr(torch, name)
    for name in "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split()
)


def family(node: Node) -> str:
    """The family of the node's op; an op without a block, a view as another dtype, or what a
    block leaves to ATen, is an extern call."""
    definition = OPS.get(node.op)
    if definition is None:
        return "extern"
    left_to_aten = definition.left_to_aten_rule
    if left_to_aten is not None and left_to_aten(*node.args):
        return "extern"
    if definition.family == "view":
        other = definition.is_run or node.outs[0].type.dtype != view_source(node).type.dtype
        return "extern" if other else "view"
    if definition.family == "extern":
        return "extern"
    for values in (node.outs, node.inputs()):
        for value in values:
            if value.type.dtype not in ARITHMETIC:
                return "extern"
    return definition.family


def _has_arithmetic(value: Value) -> bool:
    return value.type.dtype in ARITHMETIC


def is_view_op(value: Value) -> bool:
    """Whether an op of the view family gave the value, seen or computed."""
    return value.node is not None and value.node.op in OPS and OPS[value.node.op].family == "view"


def is_view(value: Value) -> bool:
    return value.node is not None and is_view_op(value) and family(value.node) == "view"


def view_source(node: Node) -> Value:
    """The tensor that a view node looks at."""
    definition = OPS[node.op]
    return definition.alias(node.args) if definition.has("alias") else node.args[0]


def root(value: Value) -> Value:
    """The value whose memory `value` lies in: behind all views."""
    while is_view(value):
        assert value.node is not None
        value = view_source(value.node)
    return value


def is_turned(value: Value) -> bool:
    """Whether views between `value` and its root change the order of dimensions."""
    while is_view(value):
        assert value.node is not None
        if value.node.op in TURNS:
            return True
        value = view_source(value.node)
    return False


def has_index_map(value: Value) -> bool:
    """Whether all views between `value` and its root say where their elements lie; the others
    can only be read in memory."""
    while is_view(value):
        assert value.node is not None
        if value.node.op not in RESHAPES and not OPS[value.node.op].has("index"):
            return False
        value = view_source(value.node)
    return True


def can_inline(value: Value) -> bool:
    """Whether the value can be computed element by element."""
    node = value.node
    if node is None:
        return False
    kind, block = family(node), OPS.get(node.op)
    if node.op in MOVEMENT:
        return _has_arithmetic(node.outs[0]) and not _masks(node)
    if kind == "index":
        return OPS[node.op].has("source")
    if kind == "factory":
        return block is not None and (block.has("at") or bool(block.uninitialised))
    return kind == "pointwise"


def _masks(node: Node) -> bool:
    """Whether an index op takes boolean masks, so that its size depends on data."""
    if not node.op.endswith("index.Tensor"):
        return False
    places = (place for place in node.args[1] if place is not None)
    return any(place.type.dtype in (torch.bool, torch.uint8) for place in places)


def argument_dtype(value: Value | FloatExpr) -> torch.dtype:
    """How a kernel is passed a number: a real of sizes as a double."""
    return torch.float64 if isinstance(value, FloatExpr) else value.type.dtype


# Stands for the buffer in which a kernel notes a fault: an index out of range.
FAULT = Value("fault", TensorType((1,), (1,), torch.int32), None)


class Lowering:
    """Expands values into scalars for one kernel."""

    def __init__(self, builder: Builder, leaf: Leaf, extents: Mapping[int, Size]) -> None:
        self.b, self.leaf, self.extents = builder, leaf, extents
        self.algebra: Algebra = builder.algebra
        self._memo: dict[tuple[Value, Index, Scalar | None], Scalar] = {}
        self._arguments: dict[Value | FloatExpr, int] = {}

    @property
    def arguments(self) -> tuple[Value | FloatExpr, ...]:
        """The scalar values and reals used, in the order of `Kernel.scalars`."""
        return tuple(self._arguments)

    def element(self, value: Value, index: Index, mask: Scalar | None = None) -> Scalar:
        """The element of `value` at `index`; anything where `mask` is false."""
        key = (value, index, mask)
        found = self._memo.get(key)
        if found is None:
            found = self.leaf(value, index, mask)
            if found is None:
                found = self._expand(value, index, mask)
            self._memo[key] = found
        return found

    def scalar_argument(self, value: Value | FloatExpr) -> Scalar:
        """A Python number computed or passed at run time."""
        position = self._arguments.setdefault(value, len(self._arguments))
        return self.b.argument(position, argument_dtype(value))

    # ---- expansion by family

    def _expand(self, value: Value, index: Index, mask: Scalar | None) -> Scalar:
        node = value.node
        if node is None:
            raise InternalError("lower", KeyError(f"input {value} is not available here"))
        kind = family(node)
        if 0 in tensor_type(value).shape:  # nobody reads it
            return self.b.const(0, compute_dtype(value.type.dtype))
        if kind == "view":
            return self._view(node, index, mask)
        if kind == "pointwise":
            return self._pointwise(node, value, index, mask)
        reader = Reader(self, mask, tensor_type(value))
        args, kwargs = map_leaves(reader.number, (node.args, node.kwargs))
        if node.op in MOVEMENT:
            scalar = MOVEMENT[node.op](reader, index, *args, **kwargs)
        elif kind == "factory":
            scalar = self._made(node, index, args, kwargs)
        else:
            scalar = OPS[node.op].source(self.b, index, reader.at, *args, **kwargs)
        return self.b.cast(scalar, compute_dtype(value.type.dtype))

    def _made(self, node: Node, index: Index, args: tuple, kwargs: dict[str, Any]) -> Scalar:
        """An element of a new tensor, rounded to it; 0 where it is uninitialised."""
        block = OPS[node.op]
        if block.uninitialised:
            return self.b.scalar(0)
        made = block.at(self.b, index, *args, **kwargs)
        return self.b.cast(made, tensor_type(node.outs[0]).dtype)

    def _view(self, node: Node, index: Index, mask: Scalar | None) -> Scalar:
        source = view_source(node)
        if node.op in RESHAPES:
            shape = node.outs[0].type.shape
            inner = reshape_index(self.algebra, index, shape, source.type.shape, self.extents)
        else:
            inner = OPS[node.op].index(self.b, index, *node.args, **node.kwargs)
        return self.element(source, tuple(inner), mask)

    def _pointwise(self, node: Node, value: Value, index: Index, mask: Scalar | None) -> Scalar:
        def operand(x: Value | FloatExpr) -> Scalar:
            if isinstance(x, FloatExpr) or isinstance(x.type, ScalarType):
                return self.scalar_argument(x)
            return self.element(x, broadcast_index(index, x.type.shape), mask)

        before = self.b.divisors
        self.b.divisors = []
        result = OPS[node.op].element(self.b, node, operand)
        self._check_divisors(tensor_type(value), mask)
        self.b.divisors = before
        if isinstance(result, tuple):
            result = result[value.index]
        return self._widened(result, node, value.type.dtype)

    def _check_divisors(self, out: TensorType, mask: Scalar | None) -> None:
        """A division of integers by zero is a fault."""
        for divisor in self.b.divisors if out.device.type == "cpu" else ():
            zero = self.b.eq(divisor, 0)
            self.b.faults.setdefault(zero if mask is None else self.b.logical_and(mask, zero))

    def _widened(self, result: Scalar, node: Node, dtype: torch.dtype) -> Scalar:
        """The result in its compute dtype, rounded to f16 or bf16 where eager's is."""
        if not rounds(node) and isinstance(result, Apply) and result.op == "cast":
            if result.dtype is dtype and dtype in HALF:
                result = result.args[0]
        return self.b.cast(result, compute_dtype(dtype))


def rounds(node: Node) -> bool:
    """Whether eager rounds the result to its dtype: that of an op of the program, but not of a
    step of one.  What a kernel computes does not depend on what is fused into it, therefore."""
    origin = OPS.get(node.origin)
    return node.op in ROUNDING or not node.origin or (origin is not None and origin.mutates)


class Reader:
    """What a data movement rule sees of the kernel: the Builder, and elements of its operands."""

    def __init__(self, lowering: Lowering, mask: Scalar | None, out: TensorType) -> None:
        self.lowering, self.mask, self.out = lowering, mask, out
        self.b, self.algebra = lowering.b, lowering.algebra

    def at(self, value: Value, index: Index, where: Scalar | None = None) -> Scalar:
        """The element of `value` at `index`, read only where `where` holds."""
        mask = self.mask if where is None else self._both(self.mask, where)
        for inside in self._range_checks(value, index):
            if self.out.device.type == "cpu":
                self.b.faults.setdefault(self._both(mask, self.b.logical_not(inside)))
            mask = self._both(mask, inside)
        return self.lowering.element(value, index, mask)

    def _both(self, a: Scalar | None, b: Scalar) -> Scalar:
        return b if a is None else self.b.logical_and(a, b)

    def _range_checks(self, value: Value, index: Index) -> Iterator[Scalar]:
        """An index that the graph computes and that is out of range reads nothing, and is a
        fault."""
        b = self.b
        for at, size in zip(index, tensor_type(value).shape):
            if at in b.unchecked:
                b.unchecked.discard(at)
                if self._is_within(at, size):
                    continue
            elif at in b.inside or type(at) is not IntExpr or not b.bindings(at):
                continue
            yield b.logical_and(b.ge(b.index(at), 0), b.lt(b.index(at), b.index(size)))

    def _is_within(self, at: Size, size: Size) -> bool:
        """Whether an index is in range at every call."""
        if isinstance(at, IntExpr) and at.symbol is not None:
            if self.lowering.extents.get(at.symbol.id) is size:
                return True
        return compare("ge", at, 0) is True and compare("lt", at, size) is True

    def number(self, x: Any) -> Any:
        """A number computed at run time becomes a scalar; other arguments stay."""
        if isinstance(x, FloatExpr) or (isinstance(x, Value) and isinstance(x.type, ScalarType)):
            return self.lowering.scalar_argument(x)
        return x

    def broadcast(self, value: Value, index: Index) -> Scalar:
        """The element of an operand that is broadcast to the result."""
        return self.at(value, broadcast_index(index, value.type.shape))
