"""Few long rows: a kernel as several, which share each row among programs.

In: a kernel whose grid points each run through long loops.  Out: `Stages`: kernels with one more
grid axis, the parts of a row; each combines its part of some loops into a buffer of partial
results, which the next ones combine.  Before --> after:
    for r < n: t sum= x[r]       -->   at part p:  for r < 1024*l: t sum= x[1024*l*p + r] if < n
    out[0] = t                         partial[p] = t
                                       then        for q < parts: t sum= partial[q];  out[0] = t
Invariant: whether a kernel is split is decided when it runs, by its sizes; `parts` and the
lengths are sizes of the stages, so nothing is compiled for one number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

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
    Statement,
    Store,
    neutral,
    reachable,
    roots,
)
from jitshape.ir.symint import Atom, IntExpr, Size

CHUNK = 1024  # parts are so many elements, times a number that the launcher chooses
MOST_PARTS = 1024


@dataclass(frozen=True)
class Stages:
    """`kernels` in order.  Their tensors are those of the kernel that they stand for, each found
    in `tensors` by its place, and behind them partial results, of `partials`' dtypes, `parts` for
    each of `points` (places from the number of the kernel's tensors on).  Behind its sizes come
    `parts` and, for each of `extents`, how many chunks a part has."""

    kernels: tuple[Kernel, ...]
    tensors: tuple[tuple[int, ...], ...]
    partials: tuple[torch.dtype, ...]
    points: Size
    extents: tuple[Size, ...]


def split(kernel: Kernel) -> Stages | str:
    """The stages of `kernel`, or why it has none."""
    vector = _outer_vector(kernel)
    body = kernel.body if vector is None else vector.body
    loops = [s for s in body if isinstance(s, Loop)]
    reason = _not_split(kernel, loops)
    return reason or _Splitter(kernel, vector, body).stages()


def _outer_vector(kernel: Kernel) -> Loop | None:
    """The loop whose iterations are grid points as well."""
    if len(kernel.body) == 1 and isinstance(kernel.body[0], Loop):
        loop = kernel.body[0]
        if loop.axis.kind == "vector" and not loop.accumulators:
            return loop
    return None


def _not_split(kernel: Kernel, loops: Sequence[Loop]) -> str | None:
    if not any(loop.accumulators for loop in loops):
        return "nothing is reduced"
    everything = list(kernel.statements())
    if any(buffer.role == "scratch" for buffer in kernel.buffers):
        return "it has scratch memory"
    stored = {s.buffer for s in everything if isinstance(s, Store)}
    if any(
        isinstance(x, Load) and x.buffer in stored for s in everything for x in reachable(roots(s))
    ):
        return "it reads what it stores"
    if any(isinstance(x, Prefix) for s in everything for x in reachable(roots(s))):
        return "its totals run along a row"
    accumulators = [acc for s in everything if isinstance(s, Loop) for acc in s.accumulators]
    if any(acc.combine.startswith("arg") for acc in accumulators):
        return "partial results do not have positions"
    grid = {axis.symbol.symbol for axis in kernel.grid}
    outer = {_symbol(loop.axis) for loop in loops}
    if any(isinstance(s, Store) and s.add for s in everything):
        return "it adds to memory"
    for loop in loops:
        extent = loop.axis.extent
        if isinstance(extent, IntExpr) and set(extent.symbols()) & (grid | outer):
            return "the length of a row differs from row to row"
    return None


def _symbol(axis: Axis) -> Atom:
    symbol = axis.symbol.symbol
    assert symbol is not None, axis
    return symbol


class _Splitter:
    def __init__(self, kernel: Kernel, vector: Loop | None, body: Sequence[Statement]) -> None:
        self.kernel, self.vector, self.body = kernel, vector, body
        algebra = (vector or kernel.body[0]).axis.symbol.algebra  # type: ignore[union-attr]
        self.part = algebra.symbol("p")
        self.other_part = algebra.symbol("q")
        self.parts = algebra.symbol("parts", 1, MOST_PARTS)
        self.lengths: dict[Size, IntExpr] = {}
        self.algebra = algebra
        axes = (*kernel.grid, *(() if vector is None else (vector.axis,)))
        self.points: Size = 1
        self.point: Size = 0
        for axis in axes:
            self.points = self.points * axis.extent
            self.point = self.point * axis.extent + axis.symbol
        self.partials: dict[Accumulator, Buffer] = {}
        self.combined: dict[Accumulator, Accumulator] = {}
        self.given = [b for b in kernel.buffers if b.role != "scratch"]

    def stages(self) -> Stages:
        groups = list(_groups(self.body))
        kernels = [self._stage(i, group) for i, group in enumerate(groups)]
        stores = [s for s in self.body if isinstance(s, Store)]
        if stores:
            kernels.append(self._last(len(groups), stores))
        places = {buffer: place for place, buffer in enumerate(self.given)}
        places |= {b: len(self.given) + i for i, b in enumerate(self.partials.values())}
        known = {buffer.name: place for buffer, place in places.items()}
        return Stages(
            tuple(kernels),
            tuple(tuple(known[b.name] for b in kernel.buffers) for kernel in kernels),
            tuple(buffer.dtype for buffer in self.partials.values()),
            self.points,
            tuple(self.lengths),
        )

    def _stage(self, number: int, group: Sequence[Loop]) -> Kernel:
        """One part of the loops of `group`, which need nothing of each other."""
        before = self._combine(group)
        body: list[Statement] = list(before)
        stores: list[Store] = []
        for loop in group:
            made, accumulators = self._part_of(loop)
            body.append(made)
            for old, new in accumulators.items():
                buffer = Buffer(f"partial{len(self.partials)}", old.dtype, "out")
                self.partials[old] = buffer
                stores.append(Store(buffer, self.part * self.points + self.point, Carry(new)))
        return self._kernel(number, [*body, *stores], (Axis(self.part, self.parts),))

    def _last(self, number: int, stores: Sequence[Store]) -> Kernel:
        before = self._combine(stores)
        write = Rewriter({}, None, self.combined)
        return self._kernel(number, [*before, *(write.store(s) for s in stores)], ())

    def _part_of(self, loop: Loop) -> tuple[Loop, dict[Accumulator, Accumulator]]:
        extent = loop.axis.extent
        if extent not in self.lengths:
            self.lengths[extent] = self.algebra.symbol(f"chunks{len(self.lengths)}", 1)
        length = self.lengths[extent] * CHUNK
        at = self.part * length + loop.axis.symbol
        inside = Apply("lt", (IndexValue(at), IndexValue(extent)), torch.bool)
        write = Rewriter({_symbol(loop.axis).id: at}, inside, dict(self.combined))
        body = tuple(write.statement(s) for s in loop.body)
        made = {acc: write.accumulator(acc) for acc in loop.accumulators}
        axis = replace(loop.axis, extent=length)
        return Loop(axis, body, tuple(made.values())), made

    def _combine(self, statements: Iterable[Statement]) -> list[Loop]:
        """A loop over the parts, for what `statements` need of the stages before."""
        wanted = dict.fromkeys(acc for s in statements for acc in _carried(s))
        self.combined = {}
        for acc in wanted:
            if acc in self.partials:
                buffer = replace(self.partials[acc], role="in")
                load = Load(buffer, self.other_part * self.points + self.point)
                self.combined[acc] = Accumulator(acc.name, acc.combine, load, acc.dtype)
        if not self.combined:
            return []
        kind = "vector" if self.vector is None else "serial"
        axis = Axis(self.other_part, self.parts, kind)
        return [Loop(axis, (), tuple(self.combined.values()))]

    def _kernel(self, number: int, body: Sequence[Statement], axes: tuple[Axis, ...]) -> Kernel:
        inner = tuple(body)
        if self.vector is not None:
            inner = (Loop(self.vector.axis, inner),)
        kernel = replace(
            self.kernel,
            name=f"{self.kernel.name}_stage{number}",
            grid=(*axes, *self.kernel.grid),
            body=inner,
            buffers=(),
            sizes=(*self.kernel.sizes, *self._new_sizes()),
        )
        return replace(kernel, buffers=buffers_of(kernel, self.given))

    def _new_sizes(self) -> list[Atom]:
        lengths = [length.symbol for length in self.lengths.values()]
        return [atom for atom in (self.parts.symbol, *lengths) if atom is not None]


def _groups(body: Sequence[Statement]) -> Iterable[list[Loop]]:
    """The loops in order, those that need no results of each other together."""
    group: list[Loop] = []
    for statement in body:
        if not isinstance(statement, Loop):
            continue
        made = {acc for loop in group for acc in loop.accumulators}
        if any(acc in made for acc in _carried(statement)):
            yield group
            group = []
        group.append(statement)
    if group:
        yield group


def _carried(statement: Statement) -> Iterable[Accumulator]:
    """The accumulators whose results the statement, or one inside it, uses."""
    for scalar in reachable(roots(statement)):
        if isinstance(scalar, Carry):
            yield scalar.accumulator
    if isinstance(statement, Loop):
        for inner in statement.body:
            yield from _carried(inner)


def buffers_of(kernel: Kernel, given: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """What `kernel` uses: the buffers `given` in their order, then the others."""
    used: dict[Buffer, None] = {}
    for statement in kernel.statements():
        if isinstance(statement, Store):
            used.setdefault(statement.buffer)
        for scalar in reachable(roots(statement)):
            if isinstance(scalar, Load):
                used.setdefault(scalar.buffer)
    return (*(b for b in given if b in used), *(b for b in used if b not in given))


class Rewriter:
    """Scalars and statements with axes at other places (`moved`, by the axis' id); what touches
    memory there does so where `inside` is true, and adds nothing elsewhere."""

    def __init__(
        self,
        moved: dict[int, Size],
        inside: Scalar | None,
        results: dict[Accumulator, Accumulator],
    ) -> None:
        self.moved, self.inside, self.results = moved, inside, results
        self.known: dict[Scalar, Scalar] = {}

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Store):
            return self.store(statement)
        body = tuple(map(self.statement, statement.body))
        made = tuple(map(self.accumulator, statement.accumulators))
        return Loop(statement.axis, body, made)

    def store(self, store: Store) -> Store:
        mask = self._masked(store.mask)
        index, indirect = self._index(store.index), self._indirect(store.indirect)
        return replace(
            store, index=index, indirect=indirect, mask=mask, value=self.scalar(store.value)
        )

    def accumulator(self, acc: Accumulator) -> Accumulator:
        value = self.scalar(acc.value)
        if self.inside is not None:
            nothing = Literal(neutral(acc.combine, value.dtype), value.dtype)
            value = Apply("where", (self.inside, value, nothing), value.dtype)
        made = self.results[acc] = Accumulator(acc.name, acc.combine, value, acc.dtype)
        return made

    def scalar(self, scalar: Scalar) -> Scalar:
        if scalar not in self.known:
            self.known[scalar] = self._rewritten(scalar)
        return self.known[scalar]

    def _rewritten(self, scalar: Scalar) -> Scalar:
        if isinstance(scalar, Carry):
            return Carry(self.results[scalar.accumulator])
        if isinstance(scalar, IndexValue):
            return IndexValue(self._index(scalar.expr))
        if isinstance(scalar, Apply):
            args = tuple(map(self.scalar, scalar.args))
            return scalar if args == scalar.args else Apply(scalar.op, args, scalar.dtype)
        return self._load(scalar) if isinstance(scalar, Load) else scalar

    def _load(self, load: Load) -> Scalar:
        index, indirect = self._index(load.index), self._indirect(load.indirect)
        mask = None if load.mask is None else self.scalar(load.mask)
        if index == load.index and indirect == load.indirect and mask is load.mask:
            return load  # the same for all parts
        mask, other = self._masked(load.mask), load.other or Literal(0, load.dtype)
        return Load(load.buffer, index, indirect, mask, None if mask is None else other)

    def _masked(self, mask: Scalar | None) -> Scalar | None:
        if mask is None or self.inside is None:
            return self.inside if mask is None else self.scalar(mask)
        return Apply("and", (self.inside, self.scalar(mask)), torch.bool)

    def _index(self, expr: Size) -> Size:
        return expr.algebra.substitute(expr, self.moved) if isinstance(expr, IntExpr) else expr

    def _indirect(
        self, indirect: tuple[tuple[Atom, Scalar], ...]
    ) -> tuple[tuple[Atom, Scalar], ...]:
        return tuple((atom, self.scalar(scalar)) for atom, scalar in indirect)
