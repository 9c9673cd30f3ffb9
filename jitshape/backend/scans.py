"""Kernels of running sums and products: a serial loop that stores what an accumulator holds.

In: a group that holds one scan.  Out: its `KernelCall`.  The grid runs over the other dimensions.
Invariant: floats run in f64 and are rounded where they are stored, as in ATen.
"""

from __future__ import annotations

import torch

from jitshape.backend.fusion import Axes, Group, own_index
from jitshape.backend.indexing import Index
from jitshape.backend.kernels import KernelBuilder, KernelCall
from jitshape.backend.loops import Accumulator, Axis, Loop, Prefix, Scalar, Statement, Store
from jitshape.backend.schedule import Schedule
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symint import IntExpr, Size

REDUCE = {"add": "sum", "mul": "prod"}
"""The accumulator's name of the op that joins the total and an element."""


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
            body, total = self._running(OPS[node.op].combine, where, element, wide)
            body += tuple(self.fault_stores())
            statements = (Loop(Axis(along, self.space.dims[dim], "serial"), body, (total,)),)
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
        self, combine: str, where: Size, element: Scalar, wide: torch.dtype
    ) -> tuple[tuple[Statement, ...], Accumulator]:
        total = Accumulator(f"{self.stored[0].value}_total", REDUCE[combine], element, wide)
        return self._stored(where, Prefix(total)), total
