"""Kernels of running sums and products: a serial loop that reads what it stored a step before.

In: a group that holds one scan.  Out: its `KernelCall`.  The grid runs over the other dimensions.
Invariant: floats run in f64 and are rounded where they are stored, as in ATen.
"""

from __future__ import annotations

import torch

from jitshape.backend.fusion import Axes, Group, own_index
from jitshape.backend.indexing import Index, coefficient
from jitshape.backend.kernels import KernelBuilder, KernelCall
from jitshape.backend.loops import Axis, Buffer, Loop, Scalar, Statement, Store
from jitshape.backend.schedule import Schedule
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symint import IntExpr, Size


def build_scan(plan: Schedule, axes: Axes, group: Group, name: str) -> KernelCall:
    """The kernel of a group that holds one scan."""
    return _ScanBuilder(plan.algebra, axes, group, list(group.units), name).build()


class _ScanBuilder(KernelBuilder):
    def build(self) -> KernelCall:
        self.find_outside()
        (unit,) = self.group.units
        node = unit.node
        index = self.index(0)
        self.extents.update(self.extents_at(0))
        own = own_index(self.algebra, self.space, index, unit)
        at: Index = tuple(self.algebra.substitute(axis, own) for axis in unit.axes)
        dim = OPS[node.op].dimension(*node.args, **node.kwargs)
        along = index[dim] if index else 0
        dtype = unit.value.type.dtype
        wide = torch.float64 if dtype.is_floating_point else dtype
        # half-precision casts are the user's own rounding
        element = self.b.cast(self.b.cast(self.low.element(node.args[0], at), dtype), wide)
        where = self.value_address(unit, 0)
        if type(along) is not IntExpr:
            statements: tuple[Statement, ...] = self._stored(where, element)
            statements += tuple(self.fault_stores())
        else:
            body = self._running(OPS[node.op].combine, along, where, element, wide)
            body += tuple(self.fault_stores())
            statements = (Loop(Axis(along, self.space.dims[dim], "serial"), body),)
        grid = tuple(
            Axis(i, size)
            for i, size in zip(index, self.space.dims)
            if type(i) is IntExpr and i is not along
        )
        return self.finish(grid, statements)

    def _stored(self, where: Size, value: Scalar) -> tuple[Store, ...]:
        buffer = self.buffer(self.stored[0].value)
        return (Store(buffer, where, self.b.cast(value, buffer.dtype)),)

    def _running(
        self, combine: str, along: IntExpr, where: Size, element: Scalar, wide: torch.dtype
    ) -> tuple[Statement, ...]:
        """One step: the total so far, kept in the output if it has the dtype, else in scratch."""
        later = self.b.gt(self.b.index(along), 0)
        total, step = self.buffer(self.stored[0].value), 0
        if total.dtype is wide:
            assert along.symbol is not None
            step = coefficient(self.algebra, where, along.symbol.id)
            assert step is not None
            place, rest = where, ()
        else:
            total = Buffer("total", wide, "scratch", 1)
            self.saved[self.stored[0].value] = total
            place = 0
            rest = self._stored(where, self.b.load(total, 0))
        before = self.b.load(total, place - step, later)
        value = self.b.where(later, self.b.apply(combine, before, element), element)
        return (Store(total, place, self.b.cast(value, wide)), *rest)
