"""How a kernel's axes are mapped to a CPU: what is a thread's part, what is in lanes.

In: a `Kernel`, the host's lanes.  Out: a `Plan`, with the same statements under other loops.
Invariant: grid points are independent, so any grid axis may become the vector axis, and a vector
loop without accumulators may be cut into chunks that are grid points.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jitshape.backend import loops
from jitshape.backend.codegen.exprs import access, symbol_ids
from jitshape.backend.loops import Axis, Kernel, Loop, Scalar, Statement, Store, reachable
from jitshape.ir.symint import IntExpr, Size

CHUNK = 2048  # elements of a vector loop that are one grid point
CHUNK_OF_COLUMNS = 128  # the same where a serial loop stands inside
WAYS = 4  # steps of a serial reduction at once
BLOCK = 1024  # steps of a loop whose sum is taken from zero
EXPENSIVE = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh sigmoid erf erfc pow atan2 fmod mod floordiv".split()
)


Turned = loops.Load | Store


@dataclass(frozen=True)
class Tile:
    """The steps of a grid axis `across` that one grid point takes, `lanes` of them; `axis` counts
    tiles in its place.  `turned`: the accesses that are strided along the lanes and move by one
    along `across`."""

    across: Axis
    axis: Axis
    turned: tuple[Turned, ...]


@dataclass(frozen=True)
class Plan:
    """`grid` and `body` to generate; `items` and `work` are the number of grid points and of
    elements; `chunk` is the added axis, `chunk_size` elements each, if there is one."""

    lanes: int
    grid: tuple[Axis, ...]
    body: tuple[Statement, ...]
    items: Size
    work: Size
    chunk: Axis | None = None
    chunk_size: int = 0
    tile: Tile | None = None

    def unroll(self, loop: Loop) -> int:
        """How many vectors the main loop takes at once."""
        scalars = list(reachable(all_roots((loop,))))
        cost = sum(8 if s.op in EXPENSIVE else 1 for s in scalars if isinstance(s, loops.Apply))
        gathers = any(_gathers(s, loop.axis) for s in scalars if isinstance(s, loops.Load))
        positions = any(acc.combine.startswith("arg") for acc in loop.accumulators)
        tile = self.chunk is not None and self.chunk_size == self.lanes
        if gathers or positions or tile:  # 64-bit lanes: twice the registers already
            return 1
        return 4 if cost <= 6 else (2 if cost <= 20 else 1)

    def ways(self, loop: Loop) -> int:
        """How many steps of a serial loop run side by side, each with its own accumulators: as
        many as hide an addition's latency, where the elements themselves cost less than that."""
        short = not isinstance(loop.axis.extent, IntExpr) and loop.axis.extent < 4 * WAYS
        positions = any(acc.combine.startswith("arg") for acc in loop.accumulators)
        if loop.body or not loop.accumulators or short or positions:
            return 1
        scalars = [s for s in reachable(all_roots((loop,))) if isinstance(s, loops.Apply)]
        cost = sum(8 if s.op in EXPENSIVE else 1 for s in scalars)
        return WAYS if cost <= 4 * len(loop.accumulators) <= 16 else 1

    def block(self, loop: Loop, step: int) -> int:
        """Elements of a long loop that are summed before they join the total; 0: all at once."""
        sums = any(a.combine == "sum" and a.dtype.is_floating_point for a in loop.accumulators)
        sums = sums and not loops.running(loop)
        extent = loop.axis.extent
        short = not isinstance(extent, IntExpr) and extent <= BLOCK * step
        return 0 if short or not sums else BLOCK * step


def make_plan(kernel: Kernel, lanes: int) -> Plan:
    grid, body = kernel.grid, tuple(_in_lanes(s) for s in kernel.body)
    if grid and not any(_has_vector(s) for s in body):
        grid, body = _vectorised(kernel)
    items: Size = 1
    for axis in grid:
        items = items * axis.extent
    work = items * _elements(body)
    chunked = _chunked(kernel, grid, body, lanes)
    if chunked is None:
        return Plan(lanes, grid, body, items, work)
    axis, size, place = chunked
    tile = _tile(kernel, body, grid[place], lanes) if place < len(grid) else None
    order = (*grid[:place], axis, *grid[place:])
    if tile is not None:
        order = (*grid[:place], axis, tile.axis, *grid[place + 1 :])
    items = 1
    for one in order:
        items = items * one.extent
    return Plan(lanes, order, body, items, work, axis, size, tile)


def _tile(kernel: Kernel, body: tuple[Statement, ...], across: Axis, lanes: int) -> Tile | None:
    """Tiles along `across`, if there are stores to turn round: vectors are gathered as fast as
    they are turned, but scattered element by element."""
    (loop,) = body
    assert isinstance(loop, Loop)
    stores = [s for s in loop.body if isinstance(s, Store)]
    if len(stores) < len(loop.body):
        return None
    loads = [s for s in reachable(all_roots((loop,))) if isinstance(s, loops.Load)]
    read, written = [s.buffer for s in loads], [s.buffer for s in stores]
    out = [s for s in stores if _turns(s, loop.axis, across) and s.buffer not in read]
    out = [s for s in out if not s.add and written.count(s.buffer) == 1]
    if not out:
        return None
    turned = [s for s in loads if s.buffer not in written and _turns(s, loop.axis, across)]
    turned += out
    symbol = across.symbol.algebra.symbol(f"{across.symbol}_tile")
    assert isinstance(symbol, IntExpr)
    return Tile(across, Axis(symbol, (across.extent + (lanes - 1)) // lanes), tuple(turned))


def _turns(one: Turned, along: Axis, across: Axis) -> bool:
    """Whether an access is strided along one axis and moves by one along the other."""
    if one.mask is not None or one.indirect or one.buffer.role == "scratch":
        return False
    atoms = along.symbol.symbol, across.symbol.symbol
    return [access(one.index, atom.id).kind for atom in atoms if atom] == ["strided", "unit"]


def _in_lanes(statement: Statement) -> Statement:
    """A loop of running sums that moves through memory by one, as a vector loop.  Products of
    floats stay in order: a zero in front keeps what follows from overflowing."""
    if not isinstance(statement, Loop) or not statement.accumulators:
        return statement
    running, axis = loops.running(statement), statement.axis
    if len(running) < len(statement.accumulators):
        return statement
    stores = [s for s in statement.body if isinstance(s, Store)]
    exact = all(a.combine == "sum" or not a.dtype.is_floating_point for a in running)
    atom = axis.symbol.symbol
    if not exact or atom is None or len(stores) < len(statement.body):
        return statement
    if not any(access(s.index, atom.id).kind == "unit" for s in stores):
        return statement
    return Loop(Axis(axis.symbol, axis.extent, "vector"), statement.body, statement.accumulators)


def _vectorised(kernel: Kernel) -> tuple[tuple[Axis, ...], tuple[Statement, ...]]:
    """The innermost grid axis as a vector loop, where something moves along it by one."""
    axis = kernel.grid[-1]
    atom = axis.symbol.symbol
    assert atom is not None
    scalars = list(reachable(all_roots(kernel.body)))
    indices = [s.index for s in scalars if isinstance(s, loops.Load)]
    indices += [s.index for s in kernel.statements() if isinstance(s, Store)]
    kinds = {access(index, atom.id).kind for index in indices}
    scratch = any(b.role == "scratch" for b in kernel.buffers)
    if scratch or "unit" not in kinds:
        return kernel.grid, kernel.body
    return kernel.grid[:-1], (Loop(Axis(axis.symbol, axis.extent, "vector"), kernel.body),)


def _chunked(
    kernel: Kernel, grid: tuple[Axis, ...], body: tuple[Statement, ...], lanes: int
) -> tuple[Axis, int, int] | None:
    """An axis over chunks of the only loop, if its iterations are independent; its place in the
    grid.  Where a strided access steps through memory along an axis of the grid, chunks of one
    vector stand outside that axis, so that the cache lines of one step serve the next ones."""
    if len(body) != 1 or not isinstance(body[0], Loop) or body[0].axis.kind != "vector":
        return None
    loop = body[0]
    scratch = any(b.role == "scratch" for b in kernel.buffers)
    ids = {a.symbol.symbol.id for a in grid if a.symbol.symbol}
    if loop.accumulators or scratch or symbol_ids(loop.axis.extent) & ids:
        return None
    size = CHUNK_OF_COLUMNS if any(isinstance(s, Loop) for s in loop.body) else CHUNK
    place = len(grid)
    across = _across(grid, loop)
    if across is not None:
        size, place = lanes, across
    extent = loop.axis.extent
    if not isinstance(extent, IntExpr) and extent <= size:
        return None
    symbol = loop.axis.symbol.algebra.symbol(f"{loop.axis.symbol}_chunk")
    assert isinstance(symbol, IntExpr)
    return Axis(symbol, (extent + (size - 1)) // size), size, place


def _across(grid: tuple[Axis, ...], loop: Loop) -> int | None:
    """The outermost axis of the grid along which what is strided in `loop` moves by one."""
    along = loop.axis.symbol.symbol
    assert along is not None
    accesses = [s for s in reachable(all_roots((loop,))) if isinstance(s, loops.Load)]
    accesses += [s for s in loop.body if isinstance(s, Store)]
    strided = [
        one.index
        for one in accesses
        if not one.indirect and access(one.index, along.id).kind in ("gather", "strided")
    ]
    for place, axis in enumerate(grid):
        atom = axis.symbol.symbol
        if atom and any(access(index, atom.id).kind == "unit" for index in strided):
            return place
    return None


def _has_vector(statement: Statement) -> bool:
    if isinstance(statement, Store):
        return False
    return statement.axis.kind == "vector" or any(_has_vector(s) for s in statement.body)


def _elements(body: Iterable[Statement]) -> Size:
    total: Size = 0
    for statement in body:
        if isinstance(statement, Loop):
            inside = _elements(statement.body)
            total = total + statement.axis.extent * (inside if inside != 0 else 1)
    return 1 if total == 0 else total


def _gathers(load: loops.Load, axis: Axis) -> bool:
    atom = axis.symbol.symbol
    if atom is None:
        return True
    if load.indirect:
        return any(
            atom.id in symbol_ids(s.index)
            for _, value in load.indirect
            for s in reachable([value])
            if isinstance(s, loops.Load)
        )
    return access(load.index, atom.id).kind in ("gather", "strided")


def all_roots(body: Iterable[Statement]) -> Iterable[Scalar]:
    for statement in body:
        yield from loops.roots(statement)
        if isinstance(statement, Loop):
            yield from all_roots(statement.body)
