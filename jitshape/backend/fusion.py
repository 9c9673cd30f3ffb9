"""What may share a kernel, and why not.

In: groups of units (see schedule.py).  Out: for two groups None or the reason against merging
them.  Invariant: predicates are pure; two groups without a blocker can be computed by one kernel
over the merged space, with no grid point needing a result of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from jitshape.backend.indexing import Index, match_shapes, reshape_index, same_count
from jitshape.backend.lower import family
from jitshape.ir.graph import Node, Value
from jitshape.ir.symint import Algebra, IntExpr, Size

MOST_BUFFERS = 40  # of one kernel
MOST_UNITS = 96
MOST_BESIDE_PRODUCT = 10  # tensors read by a matrix product and what follows in its kernel


@dataclass(frozen=True)
class Space:
    """The elements a kernel runs over; `reduced` says which dimensions it reduces."""

    dims: tuple[Size, ...]
    reduced: tuple[bool, ...]

    @property
    def reduces(self) -> bool:
        return any(self.reduced)

    @property
    def kept(self) -> tuple[Size, ...]:
        return tuple(size for size, gone in zip(self.dims, self.reduced) if not gone)

    def __str__(self) -> str:
        marks = (f"{size}{'*' if gone else ''}" for size, gone in zip(self.dims, self.reduced))
        return f"[{', '.join(marks)}]"


@dataclass(frozen=True, slots=True)
class Read:
    """One element that a unit reads, at an index over the unit's own axes: of `value`, a view of
    `root` or the root itself; `root_index` is None where the root is memory anyway."""

    value: Value
    index: Index
    root: Value
    root_index: Index | None


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a value that is put together: `value`'s element at an index of `space` is the
    whole's at `place(index)`."""

    value: Value
    place: Callable[[Index], Index]
    space: Space
    axes: tuple[Size, ...]
    reads: tuple[Read, ...]
    positions: tuple[Size, ...]


@dataclass(eq=False)
class Unit:
    """One value computed with everything inlined into it; `pieces`: its parts, where each is
    computed by itself."""

    value: Value
    position: int
    space: Space
    axes: tuple[Size, ...]
    reads: tuple[Read, ...]
    positions: tuple[Size, ...]  # expressions used as numbers
    weight: int
    pieces: tuple[Piece, ...] = ()

    @property
    def node(self) -> Node:
        assert self.value.node is not None
        return self.value.node

    @property
    def reduction(self) -> bool:
        return self.space.reduces

    @property
    def alone(self) -> bool:
        """Whether the value needs loops of its own, which nothing else fits into."""
        return bool(self.pieces) or family(self.node) == "scan"


@dataclass(eq=False)
class Group:
    """Units that one kernel computes, in program order; or one extern call."""

    units: list[Unit]
    space: Space
    first: int
    last: int
    extern: Node | None = None
    needs: set[Group] = field(default_factory=set)

    def __str__(self) -> str:
        outs = self.extern.outs if self.extern else [unit.value for unit in self.units]
        return "+".join(map(str, outs))


class Axes:
    """Axis symbols by name, shared by all kernels of a graph."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self._symbols: dict[str, IntExpr] = {}

    def __call__(self, name: str) -> IntExpr:
        if name not in self._symbols:
            self._symbols[name] = self.algebra.symbol(name, 0)
        return self._symbols[name]

    def of(self, prefix: str, shape: tuple[Size, ...]) -> Index:
        """One axis a dimension, 0 for static 1s."""
        return tuple(0 if size == 1 else self(f"{prefix}{d}") for d, size in enumerate(shape))


def extents_of(axes: Index, dims: tuple[Size, ...]) -> dict[int, Size]:
    """The extents of axes, by atom id."""
    pairs = zip(axes, dims)
    return {a.symbol.id: size for a, size in pairs if type(a) is IntExpr and a.symbol}


# ---- places in a space


def is_row(space: Space, unit: Unit) -> bool:
    """Whether the unit's value has one element a row of `space` (a kept index)."""
    if not space.reduces or unit.reduction:
        return True
    return same_count(unit.value.type.shape, space.kept)


def row_index(algebra: Algebra, space: Space, index: Index, shape: tuple[Size, ...]) -> Index:
    """The index into `shape` of the row that `index` of `space` lies in."""
    kept = tuple(i for i, gone in zip(index, space.reduced) if not gone)
    return reshape_index(algebra, kept, space.kept, shape)


def value_index(algebra: Algebra, space: Space, index: Index, unit: Unit) -> Index:
    """The index of the unit's value at `index` of `space`."""
    shape = unit.value.type.shape
    if is_row(space, unit):
        return row_index(algebra, space, index, shape)
    return reshape_index(algebra, index, space.dims, shape)


def own_index(algebra: Algebra, space: Space, index: Index, unit: Unit) -> dict[int, Size]:
    """The unit's own axes (by atom id) at `index` of `space`."""
    if is_row(space, unit) and not unit.reduction:
        own = row_index(algebra, space, index, unit.space.dims)
    else:
        own = reshape_index(algebra, index, space.dims, unit.space.dims)
    pairs = zip(unit.axes, own)
    return {axis.symbol.id: at for axis, at in pairs if type(axis) is IntExpr and axis.symbol}


def unify(algebra: Algebra, a: Space, b: Space) -> Space | str:
    """The coarsest space whose dimensions make up those of both, or why there is none."""
    if a.reduces == b.reduces:
        return _refine(algebra, a, b)
    if b.reduces:
        a, b = b, a
    if same_count(a.dims, b.dims):
        return _refine(algebra, a, Space(b.dims, ()))
    if same_count(a.kept, b.dims):
        kept = _refine(algebra, Space(a.kept, (False,) * len(a.kept)), b)
        return kept if isinstance(kept, str) else _with_kept(algebra, a, kept.dims)
    return f"{a} and {b} have different sizes"


def _refine(algebra: Algebra, a: Space, b: Space) -> Space | str:
    """Common refinement; `b` without flags takes those of `a`."""
    if a == b:
        return a
    reason = f"{a} and {b} do not have the same elements in the same order"
    runs = match_shapes(algebra, a.dims, b.dims)
    if runs is None:
        return reason
    dims: list[Size] = []
    reduced: list[bool] = []
    for mine, theirs in runs:
        if len(mine) > 1 and len(theirs) > 1:
            return reason
        flags = {a.reduced[d] for d in mine} | (
            {b.reduced[d] for d in theirs} if b.reduced else set()
        )
        if len(flags) > 1 and (len(mine) == 1 or b.reduced):
            return f"{a} and {b} reduce other dimensions"
        if len(mine) >= len(theirs):
            pieces = [(a.dims[d], a.reduced[d]) for d in mine]
        else:
            pieces = [(b.dims[d], True in flags) for d in theirs]
        dims += [size for size, _ in pieces]
        reduced += [flag for _, flag in pieces]
    if a.reduces and not any(reduced):
        return f"{a} reduces one element"
    return Space(tuple(dims), tuple(reduced))


def _with_kept(algebra: Algebra, a: Space, kept: tuple[Size, ...]) -> Space | str:
    """`a` with its kept dimensions refined to `kept`."""
    runs = match_shapes(algebra, a.kept, kept)
    if runs is None:
        return f"{a} cannot be split as {list(kept)}"
    places = [d for d, gone in enumerate(a.reduced) if not gone]
    pieces = {places[mine[0]]: [kept[d] for d in theirs] for mine, theirs in runs}
    if any(len(mine) > 1 for mine, _ in runs):
        return a if all(len(theirs) == 1 for _, theirs in runs) else f"{a} cannot be split"
    dims: list[Size] = []
    reduced: list[bool] = []
    for d, (size, gone) in enumerate(zip(a.dims, a.reduced)):
        own = [size] if gone else pieces.get(d, [])
        dims += own
        reduced += [gone] * len(own)
    return Space(tuple(dims), tuple(reduced))


# ---- predicates

Predicate = Callable[["Fusion", Group, Group], "str | None"]


@dataclass
class Fusion:
    """What the predicates look at besides the two groups."""

    algebra: Algebra
    axes: Axes
    sums: Collection[Node] = ()  # that are matrix products


def extern_call(fusion: Fusion, a: Group, b: Group) -> str | None:
    for group in (a, b):
        if group.extern is not None:
            return f"{group.extern.op} is an extern call"
    return None


def own_loops(fusion: Fusion, a: Group, b: Group) -> str | None:
    for unit in (*a.units, *b.units):
        if unit.alone:
            return f"{unit.value} has loops of its own"
    return None


def matrix_product(fusion: Fusion, a: Group, b: Group) -> str | None:
    """A product shares its kernel with what is computed of each of its elements alone."""
    here, there = (next((u for u in g.units if u.node in fusion.sums), None) for g in (a, b))
    if here is None and there is None:
        return None
    if there is not None:
        other = "another one's" if here is not None else "other results'"
        return f"{there.value} is a matrix product, which does not fit into {other} loops"
    space = unify(fusion.algebra, a.space, b.space)
    for unit in b.units:
        if unit.reduction or (isinstance(space, Space) and not is_row(space, unit)):
            return f"{unit.value} is not computed element by element of a matrix product"
    roots = {read.root for group in (a, b) for unit in group.units for read in unit.reads}
    if len(roots) > MOST_BESIDE_PRODUCT:
        return f"more than {MOST_BESIDE_PRODUCT} tensors in one matrix product"
    return None


def too_large(fusion: Fusion, a: Group, b: Group) -> str | None:
    if len(a.units) + len(b.units) > MOST_UNITS:
        return f"more than {MOST_UNITS} values in one kernel"
    roots = {read.root for group in (a, b) for unit in group.units for read in unit.reads}
    if len(roots) > MOST_BUFFERS:
        return f"more than {MOST_BUFFERS} tensors in one kernel"
    return None


def other_device(fusion: Fusion, a: Group, b: Group) -> str | None:
    here, there = (g.units[0].value.type.device for g in (a, b))
    return None if here == there else f"on {here} and {there}"


def other_space(fusion: Fusion, a: Group, b: Group) -> str | None:
    space = unify(fusion.algebra, a.space, b.space)
    return space if isinstance(space, str) else None


def counts_positions(unit: Unit) -> bool:
    """Whether the unit looks for a position along its one reduced dimension."""
    return unit.reduction and unit.node.op.split(".")[1] in ("argmax", "argmin")


def position_split(fusion: Fusion, a: Group, b: Group) -> str | None:
    """An argmax counts along one axis, which a merge must not split."""
    space = unify(fusion.algebra, a.space, b.space)
    for unit in (*a.units, *b.units):
        if counts_positions(unit):
            if not isinstance(space, str) and sum(space.reduced) > 1:
                return f"{unit.value} needs positions along one dimension"
    return None


def other_elements(fusion: Fusion, a: Group, b: Group) -> str | None:
    """`b` must read what `a` computes where it is computed."""
    space = unify(fusion.algebra, a.space, b.space)
    assert isinstance(space, Space)
    made = {unit.value: unit for unit in a.units}
    index = fusion.axes.of("q", space.dims)
    for unit in b.units:
        own: dict[int, Size] | None = None
        for read in unit.reads:
            producer = made.get(read.root)
            if producer is None:
                continue
            if read.root_index is None:
                return f"{unit.value} reads {read.root} through memory"
            own = own if own is not None else own_index(fusion.algebra, space, index, unit)
            at = tuple(fusion.algebra.substitute(i, own) for i in read.root_index)
            if at != value_index(fusion.algebra, space, index, producer):
                return f"{unit.value} reads other elements of {read.root} than are made there"
    return None


def between(fusion: Fusion, a: Group, b: Group) -> str | None:
    """Something needs `a` and is needed by `b`."""
    todo = [g for g in b.needs if g is not a]
    seen: set[Group] = set(todo)
    while todo:
        group = todo.pop()
        if a in group.needs:
            return f"{group.extern.op if group.extern else group} lies between"
        fresh = [g for g in group.needs if g not in seen and g.last > a.first]
        seen.update(fresh)
        todo += fresh
    return None


PREDICATES: tuple[Predicate, ...] = (
    extern_call,
    own_loops,
    matrix_product,
    other_device,
    too_large,
    other_space,
    position_split,
    other_elements,
    between,
)


def blocker(fusion: Fusion, a: Group, b: Group) -> str | None:
    """Why `b`, which comes later and may read `a`, cannot be merged into `a`'s kernel."""
    for predicate in PREDICATES:
        reason = predicate(fusion, a, b)
        if reason is not None:
            return reason
    return None
