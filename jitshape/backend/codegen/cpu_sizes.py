"""Scopes of the CPU generator, and integer expressions written in them.

In: sizes over axes and size parameters.  Out: i64 values, uniform (`size`) or, along the vector
axis or lanes of an indirect index, vectors (`index_vector`).
Invariant: a value is written where it dominates every use: in the body of the innermost loop it
depends on, or, if a further loop is open there, in that loop's preheader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from jitshape.backend.codegen.cpu_ops import ELEMENT, cast, integer_floordiv, integer_mod
from jitshape.backend.codegen.exprs import emit, symbol_ids
from jitshape.backend.codegen.llvm_text import Function, Region, Value
from jitshape.backend.loops import Accumulator, Axis, Kernel, Loop, Scalar, SizeArgument
from jitshape.ir.symint import Atom, IntExpr, Size


def atom_id(axis: Axis) -> int:
    atom = axis.symbol.symbol
    assert atom is not None, f"axis {axis.symbol} is not a symbol"
    return atom.id


class Scope:
    """A region with the values written there.  `lanes` > 0 inside a vector loop."""

    def __init__(self, region: Region, outer: Scope | None, is_body: bool) -> None:
        self.region, self.is_body = region, is_body
        self.lanes = outer.lanes if outer else 0
        self.vector_axis: int | None = outer.vector_axis if outer else None
        self.mask: Value | None = outer.mask if outer else None
        self.values: dict[Scalar, Value] = {}
        self.volatile: dict[Scalar, Value] = {}
        self.sizes: dict[Size, Value] = {}
        self.spreads: dict[tuple[str, int], Value] = {}


class SizeWriter(Function):
    """A function with nested scopes and the kernel's sizes and scalars at hand."""

    def __init__(self, kernel: Kernel, declarations: set[str]) -> None:
        super().__init__(declarations)
        self.kernel = kernel
        self.scopes = [Scope(self.region, None, True)]
        self.level_of: dict[int | Accumulator, int] = {}
        self.symbols: dict[int, Value] = {}
        loops = [s.axis for s in kernel.statements() if isinstance(s, Loop)]
        self.axis_ids = {atom_id(axis) for axis in (*kernel.grid, *loops)}
        self.grid_ids = frozenset(atom_id(axis) for axis in kernel.grid)

    def read_parameters(self) -> None:
        for position, atom in enumerate(self.kernel.sizes):
            pointer = self.element("%sizes", "i64", self.constant("i64", position))
            self.symbols[atom.id] = self.load(pointer, "i64", hint=atom.name)

    def argument(self, scalar: SizeArgument) -> Value:
        given = self.kernel.scalars[scalar.position]
        kind = "double" if given.is_floating_point else "i64"
        pointer = self.element("%scalars", kind, self.constant("i64", scalar.position))
        wide = torch.float64 if given.is_floating_point else torch.int64
        return cast(self.load(pointer, kind, hint="a"), wide, scalar.dtype)

    def typed_constant(self, value: float | int | bool, dtype: torch.dtype) -> Value:
        exact = torch.tensor(value, dtype=dtype)
        number = exact.view(torch.int16) if dtype == torch.bfloat16 else exact
        return self.constant(ELEMENT[dtype], number.item())

    # ---- scopes

    @property
    def scope(self) -> Scope:
        return self.scopes[self.level]

    @contextmanager
    def preheader(self) -> Iterator[None]:
        """A scope for what a loop needs: its region stands here, the loop follows behind it."""
        region = Region()
        self.region.parts.append(region)
        self.scopes.append(Scope(region, self.scope, False))
        self.level += 1
        yield
        self.scopes.pop()
        self.level -= 1

    @contextmanager
    def body(self, *axes: int) -> Iterator[Scope]:
        """The scope of a loop's body, where the axes have values."""
        region, outer = Region(), self.region
        outer.parts.append(region)
        self.scopes.append(Scope(region, self.scope, True))
        self.level += 1
        self.region = region
        for axis in axes:
            self.level_of[axis] = self.level
        yield self.scope
        self.scopes.pop()
        self.level -= 1
        self.region = outer

    @contextmanager
    def at(self, level: int) -> Iterator[None]:
        """Write in the scope `level`."""
        saved = self.level, self.region
        if level != self.level:
            self.level, self.region = level, self.scopes[level].region
        yield
        self.level, self.region = saved

    def home(self, level: int) -> int:
        """The scope for a value whose operands exist from `level` on."""
        return level + 1 if level < self.level and self.scopes[level].is_body else level

    def bind(self, axis: int, value: Value) -> None:
        value.level = self.level
        self.symbols[axis] = value

    def spread(self, value: Value, lanes: int) -> Value:
        """Uniform to vector, once, as far out as the value exists."""
        level = self.home(min(value.level, self.level))
        key = value.text, lanes
        found = self.scopes[level].spreads.get(key)
        if found is None:
            with self.at(level):
                found = self.scopes[level].spreads[key] = super().spread(value, lanes)
        return found

    # ---- integer expressions

    def axes_in(self, expr: Size) -> frozenset[int]:
        return frozenset(id for id in symbol_ids(expr) if id in self.axis_ids)

    def size(self, expr: Size) -> Value:
        """`expr` as a uniform i64: its terms by loop, each added where the loop's axis is known."""
        if not isinstance(expr, IntExpr):
            return self.constant("i64", int(expr))
        for scope in reversed(self.scopes[: self.level + 1]):
            if expr in scope.sizes:
                return scope.sizes[expr]
        by_level: dict[int, list] = {}
        for term in expr.terms:
            part = expr.algebra._make((term,))
            level = max((self.level_of[id] for id in self.axes_in(part)), default=0)
            by_level.setdefault(level, []).append(term)
        level = self.home(max(by_level))
        inner = by_level.pop(max(by_level))
        outer = [term for terms in by_level.values() for term in terms]
        with self.at(level):
            value = emit(expr.algebra._make(tuple(sorted(inner))), _Sizes(self, {}))
            if outer:
                value = self.size(expr.algebra._make(tuple(sorted(outer)))) + value
            self.scope.sizes[expr] = value
        return value

    def index_vector(self, expr: Size, bound: dict[int, Value]) -> Value:
        """`expr` as i64; a vector if it mentions the vector axis or a vector in `bound`."""
        ids = symbol_ids(expr)
        if not bound and self.scope.vector_axis not in ids:
            return self.size(expr)
        return emit(expr, _Sizes(self, bound, self.scope.vector_axis))

    def index_at_lane_0(self, expr: Size, bound: dict[int, Value]) -> Value:
        """`expr` for the first lane."""
        return emit(expr, _Sizes(self, bound, None)) if bound else self.size(expr)

    def lane_positions(self) -> Value:
        """The vector axis in every lane."""
        axis, lanes = self.scope.vector_axis, self.scope.lanes
        assert axis is not None
        base = self.symbols[axis]
        level = self.home(base.level)
        found = self.scopes[level].spreads.get(("iota", lanes))
        if found is None:
            with self.at(level):
                found = self.broadcast(base, lanes) + self.iota("i64", lanes)
                self.scopes[level].spreads["iota", lanes] = found
        return found


class _Sizes:
    """`exprs.Target`: LLVM values; symbols bound by the caller come first."""

    def __init__(
        self, f: SizeWriter, bound: dict[int, Value], lane_axis: int | None = None
    ) -> None:
        self.f, self.bound, self.lane_axis = f, bound, lane_axis

    def integer(self, value: int) -> Value:
        return self.f.constant("i64", value)

    def symbol(self, atom: Atom) -> Value:
        if atom.id in self.bound:
            return self.bound[atom.id]
        if atom.id == self.lane_axis:
            return self.f.lane_positions()
        return self.f.symbols[atom.id]

    def add(self, a: Value, b: Value) -> Value:
        return a + b

    def mul(self, a: Value, b: Value) -> Value:
        return a * b

    def divide(self, kind: str, a: Value, b: Value, unsigned: bool) -> Value:
        if unsigned:  # of two axes or sizes: the divisor's zero is no grid point
            return a.integer(
                "udiv" if kind == "floordiv" else "urem", b.compare("eq", 0).select(1, b)
            )
        function = integer_floordiv if kind == "floordiv" else integer_mod
        return function(torch.int64, a, b)

    def extreme(self, kind: str, a: Value, b: Value) -> Value:
        return a.compare("sgt" if kind == "max" else "slt", b).select(a, b)
