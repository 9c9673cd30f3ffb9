"""Transposes: tiles of lanes x lanes elements, turned round in registers.

In: a vector loop, one vector of it a grid point, and the plan's `Tile`: a grid axis along which
accesses move by one that are strided in the loop.  Out: for a full tile, whole vectors along that
axis are read, turned and kept on the stack, the body runs once for each step of the axis on what
was kept, and its results go the same way out.  At the edges the loop is written as ever.
Invariant: nothing the kernel stores is read through a tile, and what a tile stores is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitshape.backend.codegen.cpu_memory import memory_kind
from jitshape.backend.codegen.cpu_plan import Turned
from jitshape.backend.codegen.cpu_sizes import atom_id
from jitshape.backend.codegen.exprs import access
from jitshape.backend.codegen.llvm_text import Value
from jitshape.backend.loops import Load, Loop

if TYPE_CHECKING:
    from jitshape.backend.codegen.cpu import Generator


def write_tile(g: Generator, loop: Loop) -> None:
    """One grid point: the tile's steps along its axis, one vector of the loop."""
    tile, lanes = g.plan.tile, g.plan.lanes
    assert tile is not None
    across, extent = atom_id(tile.across), g.size(tile.across.extent)
    low = g.size(tile.axis.symbol) * lanes
    high = low + lanes
    high = high.compare("slt", extent).select(high, extent)
    start, end = g.bounds(loop)
    full = (high - low).compare("eq", lanes) & (end - start).compare("eq", lanes)
    with g.when(full, "tile"), g.preheader():
        _full_tile(g, loop, low, start)
    with g.when(~full, "edge"), g.preheader():
        with g.loop(low, high, 1, str(tile.across.symbol)) as i, g.body(across):
            g.bind(across, i)
            g.vector_loop(loop)


def _full_tile(g: Generator, loop: Loop, low: Value, start: Value) -> None:
    tile, lanes = g.plan.tile, g.plan.lanes
    assert tile is not None
    across, along = atom_id(tile.across), atom_id(loop.axis)
    slots: dict[Turned, str] = {one: _slot(g, one) for one in tile.turned}
    first: dict[Turned, tuple[Value, Value]] = {}
    with g.body(across, along):
        g.bind(across, low)
        g.bind(along, start)
        for one in tile.turned:
            first[one] = g.size(one.index), g.size(access(one.index, along).stride)
        for one in tile.turned:
            if isinstance(one, Load):
                _read(g, one, *first[one], slots[one])
    with g.loop(g.constant("i64", 0), g.constant("i64", lanes), 1, "step") as step:
        with g.body(across, along) as scope:
            g.bind(across, low + step)
            g.bind(along, start)
            scope.lanes, scope.vector_axis = lanes, along
            for one, slot in slots.items():
                g.turned[one] = g.element(slot, memory_kind(one.buffer.dtype), step * lanes)
            g.iteration(loop, [])
            g.turned.clear()
    for one in tile.turned:
        if not isinstance(one, Load):
            _write(g, one, *first[one], slots[one])


def _slot(g: Generator, one: Turned) -> str:
    name, count = g.name(f"tile_{one.buffer.name}"), g.plan.lanes**2
    g.allocas.append(f"  {name} = alloca [{count} x {memory_kind(one.buffer.dtype)}], align 64")
    return name


def _row(g: Generator, base: str, kind: str, first: Value | None, step: Value | int, j: int) -> str:
    offset = g.constant("i64", j * step) if isinstance(step, int) else step * j
    return g.element(base, kind, offset if first is None else first + offset)


def _read(g: Generator, load: Load, first: Value, stride: Value, slot: str) -> None:
    """Vectors along the tile's axis, turned, to the slot."""
    kind, base, lanes = memory_kind(load.dtype), g.buffers[load.buffer], g.plan.lanes
    rows = [g.load(_row(g, base, kind, first, stride, j), kind, lanes) for j in range(lanes)]
    for j, column in enumerate(_turned(rows)):
        g.line(f"store {column}, ptr {_row(g, slot, kind, None, lanes, j)}, align 4")


def _write(g: Generator, store: Turned, first: Value, stride: Value, slot: str) -> None:
    kind, base, lanes = memory_kind(store.buffer.dtype), g.buffers[store.buffer], g.plan.lanes
    rows = [g.load(_row(g, slot, kind, None, lanes, j), kind, lanes) for j in range(lanes)]
    for j, column in enumerate(_turned(rows)):
        g.line(f"store {column}, ptr {_row(g, base, kind, first, stride, j)}, align 1")


def _turned(rows: list[Value]) -> list[Value]:
    """The transposed: in each of log2(lanes) rounds, every row is interleaved with the one half
    of all rows further on."""
    half, lanes = len(rows) // 2, len(rows)
    while lanes > 1:
        pairs = zip(rows[:half], rows[half:])
        rows = [a.interleaved(b, upper) for a, b in pairs for upper in (False, True)]
        lanes //= 2
    return rows
