"""Running sums along the lanes.

In: a vector loop whose body uses the `Prefix` of its accumulators.  Out: for each vector the
running totals inside it, in log2(lanes) rounds, joined to the total of all vectors before, which
costs one combination a vector where a serial loop waits for one an element.
Invariant: lanes behind the end hold the neutral element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitshape.backend.codegen.cpu_ops import COMBINE, cast
from jitshape.backend.codegen.cpu_reduce import Running
from jitshape.backend.codegen.cpu_sizes import atom_id
from jitshape.backend.codegen.llvm_text import Value
from jitshape.backend.loops import Loop, neutral

if TYPE_CHECKING:
    from jitshape.backend.codegen.cpu import Generator


def write_scan(g: Generator, loop: Loop) -> None:
    """The whole loop: full vectors, then one with a mask."""
    lanes = g.plan.lanes
    low, high = g.constant("i64", 0), g.size(loop.axis.extent)
    totals = [Running(g, acc, 0) for acc in loop.accumulators]
    with g.when(low.compare("slt", high), "some"), g.preheader():
        middle = high.integer("udiv", lanes) * lanes
        for start, end, tail in ((low, middle, False), (middle, high, True)):
            g.forget_memory()
            with g.loop(start, end, lanes, str(loop.axis.symbol)) as i:
                _vector(g, loop, i, high if tail else None, totals)
    g.finish(totals)


def _vector(g: Generator, loop: Loop, i: Value, end: Value | None, totals: list[Running]) -> None:
    """One vector from position `i` on; masked, if `end` is given."""
    id, lanes = atom_id(loop.axis), g.plan.lanes
    with g.body(id) as scope:
        g.bind(id, i)
        scope.lanes, scope.vector_axis = lanes, id
        if end is not None:
            scope.mask = g.iota("i32", lanes).compare("slt", (end - i).convert("trunc", "i32"))
        for total in totals:
            _join(g, total)
        g.block(loop.body)
        g.forget_memory()


def _join(g: Generator, total: Running) -> None:
    acc, lanes = total.accumulator, g.plan.lanes
    fill = g.typed_constant(neutral(acc.combine, total.dtype), total.dtype)
    inside = g.broadcast(cast(g.scalar(acc.value), acc.value.dtype, total.dtype), lanes)
    if g.scope.mask is not None:
        inside = g.scope.mask.select(inside, fill)
    combine, distance = COMBINE[acc.combine], 1
    while distance < lanes:
        inside = combine(total.dtype, inside, inside.shifted(distance, fill))
        distance *= 2
    before = total.states[0].get()
    g.hold_prefix(acc, combine(total.dtype, before, inside))
    total.states[0].set(combine(total.dtype, before, inside.extract(lanes - 1)))
