"""How a kernel's axes are mapped to Triton programs: what is in lanes of a tile, what is a loop.

In: a `Kernel`.  Out: a `Plan`: groups of lanes (the dimensions of a program's tile), the statements
left, and facts about sizes that the launcher asks for.
Invariant: grid points are independent, so any of them may share a program; the lanes of a loop are
its iterations, which must be independent too (a loop that reads what it stores runs step by step).

A tile has up to three dimensions: y and x over grid points, r over the iterations of a loop.  With
all extents of r known to be small, one block covers a row (*persistent*) and all loops over r share
it; otherwise each loop walks its row in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jitshape.backend import loops
from jitshape.backend.codegen.exprs import access, symbol_ids
from jitshape.backend.loops import (
    Axis,
    Buffer,
    Kernel,
    Load,
    Loop,
    Scalar,
    Statement,
    Store,
    reachable,
)
from jitshape.ir.symint import IntExpr, Size

LONGEST_BLOCK = 16384  # elements of a row that one block may cover
TILE = 1024  # elements of a pointwise program's tile
SQUARE = 32  # the longer side of a tile that is read along both sides
ALIGNMENT = 16
TYPICAL = 256  # a size without a hint


@dataclass(frozen=True)
class Lanes:
    """Axes spread over one dimension of the tile, the last moving fastest."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def extent(self) -> Size:
        product: Size = 1
        for axis in self.axes:
            product = product * axis.extent
        return product

    @property
    def block(self) -> str:
        return f"{self.name.upper()}BLOCK"


@dataclass(frozen=True)
class Plan:
    """`lanes`: y and x of a program; `spread`: the loops whose iterations are lanes of r;
    `dims`: names of the tile's dimensions; `halves`: full tiles get code without masks."""

    lanes: tuple[Lanes, ...]
    body: tuple[Statement, ...]
    spread: frozenset[Loop]
    dims: tuple[str, ...]
    persistent: bool
    halves: bool
    scratch: tuple[Buffer, ...]  # those that need memory
    points: Size
    row_first: bool  # neighbouring lanes of r are neighbours in memory
    turned: bool  # of y and x: some access moves by one along x, another along y

    @property
    def longest_row(self) -> int:
        """The most iterations a spread loop may have, where that is known."""
        bounds = [upper_bound(loop.axis.extent) for loop in self.spread]
        return int(max(bounds, default=1)) if self.persistent else 0


def make_plan(kernel: Kernel) -> Plan:
    grid, body = kernel.grid, kernel.body
    vector = _lone_vector(kernel)
    if vector is not None:
        body = vector.body
        lanes = [Lanes("y", grid), Lanes("x", (vector.axis,))]
    spread = frozenset(loop for loop, _ in nested_loops(body) if _spreads(loop))
    if vector is None:
        lanes = [Lanes("x", grid)] if spread else [Lanes("y", grid[:-1]), Lanes("x", grid[-1:])]
    kept = tuple(group for group in lanes if group.axes)
    if not kept and not spread:
        kept = (Lanes("x", ()),)
    persistent = all(upper_bound(loop.axis.extent) <= LONGEST_BLOCK for loop in spread)
    points: Size = 1
    for group in kept:
        points = points * group.extent
    dims = (*(group.name for group in kept), *(("r",) if spread else ()))
    halves = len(kept) == 1 and bool(kept[0].axes) and not any(isinstance(s, Loop) for s in body)
    return Plan(
        kept,
        body,
        spread,
        dims,
        persistent,
        halves,
        _scratch_in_memory(kernel, body),
        points,
        _row_first(kernel, kept, spread),
        _turned(kernel, kept),
    )


def upper_bound(size: Size) -> float:
    return size.algebra.bounds(size)[1] if isinstance(size, IntExpr) else size


def lower_bound(size: Size) -> float:
    return size.algebra.bounds(size)[0] if isinstance(size, IntExpr) else size


def typical(size: Size) -> int:
    """A likely value, for choices that only cost time."""
    if not isinstance(size, IntExpr):
        return size
    hint = size.hint
    return TYPICAL if hint is None else hint


def axis_id(axis: Axis) -> int:
    atom = axis.symbol.symbol
    assert atom is not None, f"axis {axis.symbol} is not a symbol"
    return atom.id


# ---- statements


def nested_loops(
    body: Iterable[Statement], outer: tuple[Loop, ...] = ()
) -> Iterator[tuple[Loop, tuple[Loop, ...]]]:
    """Every loop, and the loops round it."""
    for statement in body:
        if isinstance(statement, Loop):
            yield statement, outer
            yield from nested_loops(statement.body, (*outer, statement))


def stores(
    body: Iterable[Statement], outer: tuple[Loop, ...] = ()
) -> Iterator[tuple[Store, tuple[Loop, ...]]]:
    for statement in body:
        if isinstance(statement, Store):
            yield statement, outer
        else:
            yield from stores(statement.body, (*outer, statement))


def loads(body: Iterable[Statement], outer: tuple[Loop, ...] = ()) -> Iterator[tuple[Load, tuple]]:
    """Every load, in each nest of loops it is used in."""
    for statement in body:
        inside = (*outer, statement) if isinstance(statement, Loop) else outer
        for scalar in reachable(loops.roots(statement)):
            if isinstance(scalar, Load):
                yield scalar, inside
        if isinstance(statement, Loop):
            yield from loads(statement.body, inside)


def _lone_vector(kernel: Kernel) -> Loop | None:
    """The only statement, if it is a vector loop whose iterations can be grid points."""
    if len(kernel.body) != 1 or not isinstance(kernel.body[0], Loop):
        return None
    loop = kernel.body[0]
    grid = {axis_id(axis) for axis in kernel.grid}
    private = any(b.role == "scratch" for b in kernel.buffers)
    if loop.axis.kind != "vector" or loop.accumulators or private or _reads_own_stores(loop):
        return None
    return None if symbol_ids(loop.axis.extent) & grid else loop


def _spreads(loop: Loop) -> bool:
    inner = any(isinstance(s, Loop) for s in loop.body)
    return not inner and not loops.running(loop) and not _reads_own_stores(loop)


def _reads_own_stores(loop: Loop) -> bool:
    stored = {store.buffer for store, _ in stores((loop,))}
    return any(load.buffer in stored for load, _ in loads((loop,)))


def _turned(kernel: Kernel, lanes: tuple[Lanes, ...]) -> bool:
    if len(lanes) < 2:
        return False
    across, along = (axis_id(group.axes[-1]) for group in lanes)
    indices = _indices(kernel)
    turned = any(access(i, across).kind == "unit" and along in symbol_ids(i) for i in indices)
    return turned and any(access(i, along).kind == "unit" for i in indices)


def _indices(kernel: Kernel) -> list[Size]:
    indices = [load.index for load, _ in loads(kernel.body)]
    return indices + [store.index for store, _ in stores(kernel.body)]


def _row_first(kernel: Kernel, lanes: Iterable[Lanes], spread: Iterable[Loop]) -> bool:
    """Whether more accesses move by one along the rows than along x."""
    rows = {axis_id(loop.axis) for loop in spread}
    columns = {axis_id(axis) for group in lanes for axis in group.axes[-1:] if group.name == "x"}
    score = 0
    for index in _indices(kernel):
        ids = symbol_ids(index)
        if ids & rows:
            score += any(access(index, id).kind == "unit" for id in ids & rows)
            score -= any(access(index, id).kind == "unit" for id in ids & columns)
    return score >= 0


# ---- stores whose value is at hand


def forwarded(
    store: Store, made_in: tuple[Loop, ...], load: Load, used_in: tuple[Loop, ...]
) -> dict[int, Size] | None:
    """What the axes of the loops round `store` stand for when `load` reads what it stored:
    t[i] = f(i) ... t[n - 1 - j]  -->  {i: n - 1 - j}.  None: not known."""
    if store.mask is not None or store.indirect or store.add or load.indirect:
        return None
    if load.mask is not None:
        return None
    if len(made_in) == len(used_in):
        pairs = list(zip(made_in, used_in))
        if all(a.axis.extent == b.axis.extent for a, b in pairs):
            renamed: dict[int, Size] = {axis_id(a.axis): b.axis.symbol for a, b in pairs}
            if _substituted(store.index, renamed) == load.index:
                changed = (a.axis.symbol is not b.axis.symbol for a, b in pairs)
                return {id: renamed[id] for id, moved in zip(renamed, changed) if moved}
    whole_row = len(made_in) == 1 and store.index is made_in[0].axis.symbol
    if store.buffer.role == "scratch" and whole_row:
        return {axis_id(made_in[0].axis): load.index}
    return None


def _substituted(expr: Size, replace: dict[int, Size]) -> Size:
    return expr.algebra.substitute(expr, replace) if isinstance(expr, IntExpr) else expr


def computable_again(value: Scalar, stored: set[Buffer]) -> bool:
    """Whether `value` is the same when computed later: it reads nothing that is overwritten."""
    return not any(isinstance(s, Load) and s.buffer in stored for s in reachable([value]))


def _scratch_in_memory(kernel: Kernel, body: tuple[Statement, ...]) -> tuple[Buffer, ...]:
    """Scratch that some load cannot do without."""
    stored = {store.buffer for store, _ in stores(body)}
    needed: dict[Buffer, None] = {}
    for load, used_in in loads(body):
        if load.buffer.role == "scratch":
            made = [(s, outer) for s, outer in stores(body) if s.buffer is load.buffer]
            if len(made) != 1 or forwarded(*made[0], load, used_in) is None:
                needed.setdefault(load.buffer)
            elif not computable_again(made[0][0].value, stored) or _carries_inside(made[0]):
                needed.setdefault(load.buffer)
    return tuple(needed)


def _carries_inside(made: tuple[Store, tuple[Loop, ...]]) -> bool:
    """Whether the stored value uses a result that exists only inside the loops round it."""
    store, outer = made
    inner = {acc for loop, _ in nested_loops(outer[:1]) for acc in loop.accumulators}
    inner -= {acc for loop in outer[:1] for acc in loop.accumulators}
    used = (s.accumulator for s in reachable([store.value]) if isinstance(s, loops.Carry))
    return any(acc in inner for acc in used)


# ---- blocks


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def blocks_on_gpu(plan: Plan) -> tuple[dict[str, int], int]:
    """Block sizes, and the number of warps."""
    names = [group.name for group in plan.lanes]
    sizes: dict[str, int] = {}
    if "r" not in plan.dims:
        fast = min(TILE, max(16, power_of_two(typical(plan.lanes[-1].extent))))
        fast = min(fast, SQUARE) if plan.turned else fast
        sizes["x"] = TILE if names == ["x"] else fast
        if "y" in names:
            sizes["y"] = TILE // fast
        return _named(sizes), 4
    if plan.persistent:
        row = power_of_two(plan.longest_row)
        sizes["r"] = row
        sizes["x"] = max(1, TILE // row) if plan.row_first else max(16, min(128, TILE // row))
        elements = row * sizes["x"]
    elif plan.row_first:
        sizes |= {"r": 2048, "x": 1}
        elements = 2048
    else:
        sizes |= {"r": 32, "x": 64}
        elements = 2048
    sizes = {name: size for name, size in sizes.items() if name in plan.dims}
    if "y" in names:
        sizes["y"] = 1
    return _named(sizes), min(16, max(4, power_of_two(elements) // 512))


def _named(sizes: dict[str, int]) -> dict[str, int]:
    return {f"{name.upper()}BLOCK": size for name, size in sizes.items()}
