"""From a group of units to a kernel: axes, loops, accumulators, stores.

In: a group, and which of its values are stored.  Out: a `KernelCall`: the `Kernel` and the values
that are its arguments.  Invariant: the kernel computes each stored value once at every index.

The grid runs over the kept dimensions.  A reduction that needs another one's result starts a new
*phase*: one more nest of loops over the reduced dimensions.  Adjacent dimensions are one axis
where every access allows it; the vector axis is the one with most unit-stride accesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from jitshape.backend.builder import Builder, compute_dtype
from jitshape.backend.fusion import (
    Axes,
    Group,
    Space,
    Unit,
    extents_of,
    is_row,
    own_index,
    value_index,
)
from jitshape.backend.indexing import Index, address, coefficient
from jitshape.backend.loops import (
    Accumulator,
    Axis,
    Buffer,
    Carry,
    IndexValue,
    Kernel,
    Load,
    Loop,
    Scalar,
    Statement,
    Store,
    roots,
)
from jitshape.backend.lower import FAULT, Lowering, argument_dtype, is_view, root, rounds
from jitshape.backend.schedule import DEAR, Schedule, operand_index
from jitshape.ir.graph import Node, Value, tensor_type
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size
from jitshape.ir.types import numel


@dataclass(frozen=True)
class KernelCall:
    """A kernel with its arguments: values for `Kernel.buffers` (scratch left out) and
    `Kernel.scalars`."""

    kernel: Kernel
    buffers: tuple[Value, ...]
    scalars: tuple[Value | FloatExpr, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True)
class Run:
    """Adjacent dimensions made one axis, whose symbol is that of the last of them."""

    dims: tuple[int, ...]
    extent: Size
    vector: bool = False


def build_kernel(plan: Schedule, axes: Axes, group: Group, name: str) -> KernelCall:
    """The kernel of `group`."""
    stored = [unit for unit in group.units if unit.value in plan.stored]
    sums = (unit.node for unit in group.units if unit.node in plan.sums)
    product = next((tensor_type(node.outs[0]).dtype for node in sums if node is not None), None)
    return KernelBuilder(plan.algebra, axes, group, stored, name, product).build()


class KernelBuilder:
    def __init__(
        self,
        algebra: Algebra,
        axes: Axes,
        group: Group,
        stored: list[Unit],
        name: str,
        contraction: torch.dtype | None = None,
    ) -> None:
        self.algebra, self.axes, self.group, self.name = algebra, axes, group, name
        self.contraction = contraction
        self.space: Space = group.space
        self.stored = stored
        self.units = {unit.value: unit for unit in group.units}
        self.b = Builder(algebra)
        self.extents: dict[int, Size] = {}
        self.low = Lowering(self.b, self.leaf, self.extents)
        self.buffers: dict[Value, Buffer] = {}
        self.written = {unit.value for unit in stored}
        self.finished: dict[Value, Scalar] = {}
        self.saved: dict[Value, Buffer] = {}
        self.saved_phase: dict[Value, int] = {}
        self.phase = 0
        self._outside: set[Value] = set()
        self.depth = {unit.value: 0 for unit in group.units}
        self._measure_depths()

    # ---- phases

    def _measure_depths(self) -> None:
        """How many nests of loops must have run before a value is known."""
        for unit in self.group.units:
            depth = self._operand_depth(unit)
            self.depth[unit.value] = depth + 1 if unit.reduction else depth

    def _operand_depth(self, unit: Unit) -> int:
        return max((self.depth.get(read.root, 0) for read in unit.reads), default=0)

    def _save_dear_values(self) -> None:
        """Keep what later phases need again in the row that is stored, or in scratch."""
        needed: dict[Value, set[int]] = {unit.value: set() for unit in self.group.units}
        for unit in reversed(self.group.units):
            phases = needed[unit.value]
            depth = self.depth[unit.value]
            if unit.reduction:
                phases = {self._operand_depth(unit)}
            elif unit in self.stored:
                phases.add(depth)
            row = is_row(self.space, unit)
            if not row and unit.weight >= DEAR and phases and max(phases) > min(phases):
                self.saved_phase[unit.value] = min(phases)
                self.saved[unit.value] = self._row_buffer(unit)
                phases = {min(phases)}
            for read in unit.reads:
                if read.root in needed:
                    needed[read.root] |= phases

    def _row_buffer(self, unit: Unit) -> Buffer:
        if unit in self.stored:
            return self.buffer(unit.value)
        dtype = compute_dtype(unit.value.type.dtype)
        extent = numel(tuple(s for s, gone in zip(self.space.dims, self.space.reduced) if gone))
        return Buffer(f"row_{unit.value.name}", dtype, "scratch", extent)

    # ---- indices

    def index(self, phase: int) -> Index:
        """The point of the space at the axes of a phase."""
        return tuple(
            0
            if size == 1 and not (gone and self._lone)
            else self.axes(f"r{phase}_{d}" if gone else f"i{d}")
            for d, (size, gone) in enumerate(zip(self.space.dims, self.space.reduced))
        )

    @property
    def _lone(self) -> bool:
        """Whether all reduced dimensions have one element: one of them must stay an axis."""
        return all(s == 1 for s, gone in zip(self.space.dims, self.space.reduced) if gone)

    def value_address(self, unit: Unit, phase: int) -> Size:
        at = value_index(self.algebra, self.space, self.index(phase), unit)
        type_ = tensor_type(unit.value)
        return address(self.algebra, type_, at, type_)

    def row_position(self, phase: int) -> Size:
        """The position within the row, counted over the reduced dimensions."""
        total: Size = 0
        for i, size, gone in zip(self.index(phase), self.space.dims, self.space.reduced):
            total = total * size + i if gone else total
        return total

    # ---- axes

    def _accesses(self) -> tuple[list[Size], list[Size]]:
        """The addresses of all accesses, and the index expressions used as numbers."""
        addresses = [self.value_address(unit, 0) for unit in self.stored]
        positions: list[Size] = []
        index = self.index(0)
        for unit in self.group.units:
            own = own_index(self.algebra, self.space, index, unit)
            for read in unit.reads:
                if read.root not in self.units:
                    at = tuple(self.algebra.substitute(i, own) for i in read.index)
                    addresses.append(self._read_address(read.value, at))
            positions += [self.algebra.substitute(p, own) for p in unit.positions]
        return addresses, positions

    def _read_address(self, value: Value, index: Index) -> Size:
        """Where an element of a value in memory, or of a view of it, lies."""
        return address(self.algebra, tensor_type(value), index, tensor_type(root(value)))

    def _runs(self) -> tuple[list[Run], list[Run]]:
        """Axes of the grid (or kept vector axis) and of the reduced loops."""
        addresses, positions = self._accesses()
        index = self.index(0)
        sides: list[list[Run]] = []
        for side in (False, True):
            dims = [
                d
                for d, gone in enumerate(self.space.reduced)
                if gone is side and type(index[d]) is IntExpr
            ]
            sides.append(self._collapse(dims, index, [*addresses, *positions]))
        vector = max(
            [*sides[0], *sides[1]],
            key=lambda run: self._vector_score(run, index, addresses),
            default=None,
        )
        marked = [[Run(r.dims, r.extent, r is vector) for r in side] for side in sides]
        return marked[0], marked[1]

    def _collapse(self, dims: Sequence[int], index: Index, exprs: list[Size]) -> list[Run]:
        runs: list[Run] = []
        for d in reversed(dims):
            if runs and all(self._joins(index, d, runs[0], expr) for expr in exprs):
                runs[0] = Run((d, *runs[0].dims), runs[0].extent * self.space.dims[d])
            else:
                runs.insert(0, Run((d,), self.space.dims[d]))
        return runs

    def _joins(self, index: Index, d: int, run: Run, expr: Size) -> bool:
        """Whether stepping dimension `d` equals stepping through all of `run`."""
        outer = self._coefficient(expr, index[d])
        inner = self._coefficient(expr, index[run.dims[-1]])
        return outer is not None and inner is not None and outer == inner * run.extent

    def _coefficient(self, expr: Size, axis: Size) -> Size | None:
        assert isinstance(axis, IntExpr) and axis.symbol is not None
        return coefficient(self.algebra, expr, axis.symbol.id)

    def _vector_score(self, run: Run, index: Index, addresses: list[Size]) -> tuple[int, int, int]:
        steps = [self._coefficient(a, index[run.dims[-1]]) for a in addresses]
        good = sum(2 if step == 1 else 1 if step == 0 else -2 for step in steps)
        long = 0 if type(run.extent) is int and run.extent < 8 else 1
        return (good if long else min(good, 0), long, run.dims[-1])

    def _placing(self, kept: list[Run], gone: list[Run], phases: int) -> dict[int, Size]:
        """Dimensions that have become part of a later one's axis stand still."""
        still: dict[int, Size] = {}
        for phase in range(phases):
            index = self.index(phase)
            for run in (*kept, *gone):
                for d in run.dims[:-1]:
                    axis = index[d]
                    assert isinstance(axis, IntExpr) and axis.symbol is not None
                    still[axis.symbol.id] = 0
        return still

    # ---- scalars

    def buffer(self, value: Value) -> Buffer:
        """The kernel's buffer of a value in memory."""
        if value not in self.buffers:
            role = "out" if value in self.written else "in"
            self.buffers[value] = Buffer(value.name, value.type.dtype, role)
        return self.buffers[value]

    def leaf(self, value: Value, index: Index, mask: Scalar | None) -> Scalar | None:
        source = root(value)
        unit = self.units.get(source)
        if unit is None:
            if source.node is None or source in self._outside:
                return self.b.load(self.buffer(source), self._read_address(value, index), mask)
            return None
        if is_view(value):
            return None
        if unit.reduction:
            return self.finished[value]
        if value in self.saved and self.phase > self.saved_phase[value]:
            return self._load_saved(unit)
        return None

    def _load_saved(self, unit: Unit) -> Scalar:
        scratch = self.saved[unit.value].role == "scratch"
        at = self.row_position(self.phase) if scratch else self.value_address(unit, self.phase)
        return self.b.load(self.saved[unit.value], at)

    def value_at(self, unit: Unit, phase: int) -> Scalar:
        at = value_index(self.algebra, self.space, self.index(phase), unit)
        return self.low.element(unit.value, at)

    # ---- statements

    def find_outside(self) -> None:
        """What the kernel reads that is made by others."""
        reads = {read.root for unit in self.group.units for read in unit.reads}
        self._outside = reads - self.units.keys()

    def extents_at(self, phase: int) -> dict[int, Size]:
        return extents_of(self.index(phase), self.space.dims)

    def build(self) -> KernelCall:
        self.find_outside()
        phases = 1 + max(self.depth.values())
        kept, gone = self._runs()
        still = self._placing(kept, gone, phases)
        self.b.place = lambda expr: self.algebra.substitute(expr, still) if still else expr
        if any(run.vector for run in gone) and any(run.dims for run in kept):
            self._save_dear_values()
        body: list[Statement] = []
        for phase in range(phases):
            self.phase = phase
            self.extents.update(self.extents_at(phase))
            body += self._row_stores(phase) + self.fault_stores()
            body += self._phase_loops(phase, gone)
        index = self.index(0)
        grid = tuple(Axis(_expr(index[run.dims[-1]]), run.extent) for run in kept if not run.vector)
        for run in kept:
            if run.vector:
                axis = Axis(_expr(index[run.dims[-1]]), run.extent, "vector")
                body = [Loop(axis, tuple(body))]
        return self.finish(grid, tuple(body))

    def _row_stores(self, phase: int) -> list[Statement]:
        return [
            self._store(self.buffer(unit.value), self.value_address(unit, phase), unit, phase)
            for unit in self.stored
            if is_row(self.space, unit) and self.depth[unit.value] == phase
        ]

    def _store(self, buffer: Buffer, at: Size, unit: Unit, phase: int) -> Store:
        value = self.b.cast(self.value_at(unit, phase), buffer.dtype)
        return Store(buffer, self.b.place(at), value)

    def fault_stores(self) -> list[Statement]:
        """Notes of the faults that what was lowered since the last call may show."""
        if not self.b.faults:
            return []
        buffer = self.buffers.setdefault(FAULT, Buffer(FAULT.name, FAULT.type.dtype, "inout"))
        one = self.b.const(1, buffer.dtype)
        stores = [Store(buffer, 0, one, mask=fault) for fault in self.b.faults]
        self.b.faults.clear()
        return list(stores)

    def _phase_loops(self, phase: int, gone: list[Run]) -> list[Statement]:
        """One nest of loops over the reduced dimensions: what this phase stores and reduces."""
        statements: list[Statement] = []
        reductions: list[Unit] = []
        for unit in self.group.units:
            if unit.reduction:
                if self._operand_depth(unit) == phase:
                    reductions.append(unit)
                continue
            if is_row(self.space, unit):
                continue
            if unit in self.stored and self.depth[unit.value] == phase:
                at = self.value_address(unit, phase)
                statements.append(self._store(self.buffer(unit.value), at, unit, phase))
            elif self.saved_phase.get(unit.value) == phase and unit not in self.stored:
                at = self.row_position(phase)
                statements.append(self._store(self.saved[unit.value], at, unit, phase))
        accumulators = [self._accumulator(unit, phase) for unit in reductions]
        statements += self.fault_stores()
        if not statements and not accumulators:
            return []
        loop, results = self._nest(phase, gone, statements, accumulators)
        for unit, result in zip(reductions, results):
            self.finished[unit.value] = self._result(unit, Carry(result))
        return [loop]

    def _accumulator(self, unit: Unit, phase: int) -> Accumulator:
        node, block = unit.node, OPS[unit.node.op].block
        own = own_index(self.algebra, self.space, self.index(phase), unit)
        at = tuple(self.algebra.substitute(axis, own) for axis in unit.axes)
        operand = operand_index(self.algebra, node, unit.space, at)
        dtype = block.accumulate(node)
        element = self.b.cast(self.low.element(node.args[0], operand), dtype)
        value = block.prepare(self.b, element, *node.args[1:], **node.kwargs)
        result = value.dtype if not block.reduce.startswith("arg") else unit.value.type.dtype
        return Accumulator(f"{unit.value}", block.reduce, value, result)

    def _nest(
        self,
        phase: int,
        gone: list[Run],
        statements: list[Statement],
        accumulators: list[Accumulator],
    ) -> tuple[Loop, list[Accumulator]]:
        """Loops over the reduced axes; the outer ones combine the results of the inner ones."""
        index = self.index(phase)
        loop: Loop | None = None
        for run in reversed(self._vector_last(gone)):
            body = tuple(statements) if loop is None else (loop,)
            if loop is not None:
                accumulators = [
                    Accumulator(acc.name, acc.combine, Carry(acc), acc.dtype)
                    for acc in accumulators
                ]
            kind = "vector" if run.vector else "serial"
            axis = Axis(_expr(index[run.dims[-1]]), run.extent, kind)
            loop = Loop(axis, body, tuple(accumulators))
        assert loop is not None
        return loop, accumulators

    @staticmethod
    def _vector_last(gone: list[Run]) -> list[Run]:
        """The vector axis is innermost."""
        return sorted(gone, key=lambda run: run.vector)

    def _result(self, unit: Unit, carry: Scalar) -> Scalar:
        """The value of a reduction from its combined elements."""
        node, block = unit.node, OPS[unit.node.op]
        count = numel(tuple(s for s, r in zip(unit.space.dims, unit.space.reduced) if r))
        result = block.finish(self.b, carry, count, *node.args[1:], **node.kwargs)
        dtype = unit.value.type.dtype
        result = self.b.cast(result, dtype) if rounds(node) else result
        return self.b.cast(result, compute_dtype(dtype))

    def finish(self, grid: tuple[Axis, ...], body: tuple[Statement, ...]) -> KernelCall:
        used = _Used(grid, body)
        values = [v for v, buffer in self.buffers.items() if buffer in used.buffers]
        values.sort(key=lambda v: v in self.written)
        scratch = [s for s in self.saved.values() if s.role == "scratch" and s in used.buffers]
        kernel = Kernel(
            self.name,
            grid,
            body,
            (*(self.buffers[v] for v in values), *scratch),
            used.sizes(self.algebra),
            tuple(map(argument_dtype, self.low.arguments)),
            origin=origins(self.group.units),
            contraction=self.contraction,
        )
        outputs = tuple(unit.value for unit in self.stored)
        return KernelCall(kernel, tuple(values), self.low.arguments, outputs)


class _Used:
    """The buffers and index expressions that statements use."""

    def __init__(self, grid: Iterable[Axis], body: Iterable[Statement]) -> None:
        self.buffers: dict[Buffer, None] = {}
        self.exprs: dict[Size, None] = {}
        self.bound: set[Atom] = set()
        self._seen: set[Scalar] = set()
        for axis in grid:
            self._axis(axis)
        for statement in body:
            self._statement(statement)

    def _axis(self, axis: Axis) -> None:
        assert axis.symbol.symbol is not None
        self.bound.add(axis.symbol.symbol)
        self.exprs.setdefault(axis.extent)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            self._axis(statement.axis)
            for inner in statement.body:
                self._statement(inner)
        else:
            self._access(statement)
        for scalar in roots(statement):
            self._scalar(scalar)

    def _access(self, access: Store | Load) -> None:
        self.buffers.setdefault(access.buffer)
        self.exprs.setdefault(access.index)
        self.exprs.setdefault(access.buffer.extent)
        self.bound |= {atom for atom, _ in access.indirect}

    def _scalar(self, scalar: Scalar) -> None:
        todo = [scalar]
        while todo:
            one = todo.pop()
            if one in self._seen:
                continue
            self._seen.add(one)
            if isinstance(one, Load):
                self._access(one)
            elif isinstance(one, IndexValue):
                self.exprs.setdefault(one.expr)
            todo += one.operands()

    def sizes(self, algebra: Algebra) -> tuple[Atom, ...]:
        atoms = {atom: None for expr in self.exprs for atom in algebra.leaves(expr)}
        return tuple(sorted(set(atoms) - self.bound, key=lambda atom: atom.id))


def origins(units: Iterable[Unit]) -> tuple[str, ...]:
    """The ops behind a kernel with the user's lines, in program order."""
    lines: dict[str, None] = {}
    for unit in units:
        for node in inlined(unit):
            where = f"  {node.location}" if node.location else ""
            lines.setdefault(f"{node.title}{where}")
    return tuple(lines)


def inlined(unit: Unit) -> list[Node]:
    """The nodes computed for a unit, operands first."""
    stop = {read.root for read in unit.reads}
    order: dict[Node, None] = {}
    todo: list[tuple[Node, bool]] = [(unit.node, False)]
    while todo:
        node, done = todo.pop()
        if done:
            order.setdefault(node)
        elif node not in order:
            todo.append((node, True))
            for value in node.inputs():
                if value.node is not None and root(value) not in stop:
                    todo.append((value.node, False))
    return [node for node in order if node.op in OPS and OPS[node.op].family != "view"]


def _expr(axis: Size) -> IntExpr:
    assert isinstance(axis, IntExpr)
    return axis
