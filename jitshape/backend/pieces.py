"""Kernels of a value that is put together from others: one for each part, which writes its own
elements and asks nowhere which part an element comes from.

In: a group that holds one such unit.  Out: its `KernelCall`s; the first makes the memory.
Invariant: the parts fill the value, and no two write one element.
"""

from __future__ import annotations

from dataclasses import replace

from jitshape.backend.fusion import Axes, Group, Piece, Unit
from jitshape.backend.indexing import address
from jitshape.backend.kernels import KernelBuilder, KernelCall
from jitshape.backend.loops import Scalar
from jitshape.backend.schedule import Schedule
from jitshape.ir.graph import tensor_type
from jitshape.ir.symint import Size


def build_pieces(plan: Schedule, axes: Axes, group: Group, name: str) -> list[KernelCall]:
    """The kernels of a group that holds one unit made of pieces."""
    (unit,) = group.units
    calls: list[KernelCall] = []
    for number, piece in enumerate(unit.pieces):
        part = replace(
            unit, space=piece.space, axes=piece.axes, reads=piece.reads, positions=piece.positions
        )
        own = Group([part], piece.space, group.first, group.last)
        call = _PieceBuilder(plan.algebra, axes, own, [part], f"{name}_{number}").of(piece)
        calls.append(replace(call, outputs=()) if calls else call)
    return calls


class _PieceBuilder(KernelBuilder):
    piece: Piece

    def of(self, piece: Piece) -> KernelCall:
        self.piece = piece
        return self.build()

    def value_address(self, unit: Unit, phase: int) -> Size:
        at = self.piece.place(self.index(phase))
        type_ = tensor_type(unit.value)
        return address(self.algebra, type_, at, type_)

    def value_at(self, unit: Unit, phase: int) -> Scalar:
        return self.low.element(self.piece.value, self.index(phase))
