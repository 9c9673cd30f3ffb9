"""When two kernels are the same: layers of a model need the code of one only.

In: a kernel.  Out: a hashable key.  Invariant: kernels of one algebra with equal keys compute the
same from their parameters, taken in order; names and origins do not count.
"""

from __future__ import annotations

from collections.abc import Hashable

from jitshape.backend.loops import (
    Accumulator,
    Apply,
    Axis,
    Buffer,
    Carry,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Loop,
    Prefix,
    Scalar,
    SizeArgument,
    Statement,
    Store,
    running,
)


def kernel_key(kernel: Kernel) -> Hashable:
    """Equal for kernels that differ in names only."""
    numbering = _Numbering()
    buffers = tuple(numbering.buffer(buffer) for buffer in kernel.buffers)
    grid = tuple(_axis(axis) for axis in kernel.grid)
    body = tuple(numbering.statement(statement) for statement in kernel.body)
    rows, facts = tuple(numbering.rows), (kernel.facts, kernel.contraction)
    return (buffers, grid, body, rows, kernel.sizes, kernel.scalars, facts)


def _axis(axis: Axis) -> Hashable:
    return axis.symbol, axis.extent, axis.kind


class _Numbering:
    """Numbers scalars in the order they are met, and writes a row for each."""

    def __init__(self) -> None:
        self.rows: list[Hashable] = []
        self._numbers: dict[Scalar | Accumulator | Buffer, int] = {}

    def buffer(self, buffer: Buffer) -> Hashable:
        self._numbers[buffer] = len(self._numbers)
        return buffer.dtype, buffer.role, buffer.extent

    def statement(self, statement: Statement) -> Hashable:
        if isinstance(statement, Loop):
            early = running(statement)
            first = tuple(self._accumulator(a) for a in statement.accumulators if a in early)
            body = tuple(self.statement(inner) for inner in statement.body)
            rest = tuple(self._accumulator(a) for a in statement.accumulators if a not in early)
            return "loop", _axis(statement.axis), first, body, rest
        mask = None if statement.mask is None else self.scalar(statement.mask)
        return ("store", *self._access(statement), self.scalar(statement.value), mask,
                statement.add)  # fmt: skip

    def _accumulator(self, acc: Accumulator) -> Hashable:
        row = acc.combine, acc.dtype, self.scalar(acc.value)
        self._numbers[acc] = len(self._numbers)
        return row

    def _access(self, access: Store | Load) -> tuple[Hashable, ...]:
        indirect = tuple((atom, self.scalar(scalar)) for atom, scalar in access.indirect)
        return self._numbers[access.buffer], access.index, indirect

    def scalar(self, scalar: Scalar) -> int:
        """The number of `scalar`, whose operands get theirs first."""
        todo = [scalar]
        while todo:
            one = todo[-1]
            missing = [x for x in one.operands() if x not in self._numbers]
            if one not in self._numbers and missing:
                todo += missing
                continue
            todo.pop()
            if one not in self._numbers:
                self.rows.append(self._row(one))
                self._numbers[one] = len(self._numbers)
        return self._numbers[scalar]

    def _row(self, scalar: Scalar) -> Hashable:
        return (type(scalar), scalar.dtype, *_ROWS[type(scalar)](self, scalar))

    def _load(self, load: Load) -> tuple[Hashable, ...]:
        mask = None if load.mask is None else self._numbers[load.mask]
        other = None if load.other is None else repr(load.other.value)
        return (*self._access(load), mask, other)


_ROWS = {
    Literal: lambda n, x: (repr(x.value),),
    IndexValue: lambda n, x: (x.expr,),
    SizeArgument: lambda n, x: (x.position,),
    Load: _Numbering._load,
    Apply: lambda n, x: (x.op, *(n._numbers[arg] for arg in x.args)),
    Carry: lambda n, x: (n._numbers[x.accumulator],),
    Prefix: lambda n, x: (n._numbers[x.accumulator],),
}
