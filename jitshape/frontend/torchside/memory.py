"""Guards on which inputs share memory, where the graph relies on it.

In: the graph's inputs, what the optimized graph writes of them, and what it returns as views of
them.  Out: guards.  A written input must overlap no other input, but for those that
shared its memory while tracing, which must go on doing so.  Without writes and views nothing is
demanded: two inputs may be one tensor or not.  State of modules overlaps other state only where
its owner ties it, which the trace saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jitshape.frontend.checks import Apart, Guard, NoOverlap, SharesStorage
from jitshape.frontend.dynamic import held_by_module
from jitshape.frontend.sources import Held, Source
from jitshape.ir.graph import Alias, Mutation

MOST_PAIRS = 16  # that have a guard each

if TYPE_CHECKING:
    from jitshape.frontend.torchside.tracer import GraphInput


def memory_guards(
    inputs: Sequence[GraphInput], mutations: Sequence[Mutation], aliases: Sequence[Alias]
) -> Iterator[Guard]:
    """For a graph with these inputs, in order, writes to them and views of them."""
    by_storage: dict[int, list[GraphInput]] = {}
    for entry in inputs:
        by_storage.setdefault(_storage(entry), []).append(entry)
    written = {_storage(inputs[m.input]) for m in mutations}
    viewed = {_storage(inputs[a.input]) for a in aliases}
    for storage, (first, *others) in by_storage.items():
        if storage in written or storage in viewed:
            for other in others:
                yield Guard(other.source, SharesStorage(first.source))
    yield from _apart(by_storage, written)


def _apart(by_storage: Mapping[int, Sequence[GraphInput]], written: set[int]) -> Iterator[Guard]:
    """A guard for each pair, or one for all where these are many."""
    done: set[int] = set()
    pairs: list[tuple[Source, Source]] = []
    for storage in (s for s in by_storage if s in written):
        done.add(storage)
        others = [e for s, group in by_storage.items() if s not in done for e in group]
        others = [e for e in others if not isinstance(e.source, Held)]  # constants of the trace
        pairs += (
            (entry.source, other.source)
            for entry in by_storage[storage]
            for other in others
            if not (held_by_module(entry.source) and held_by_module(other.source))
        )
    if len(pairs) <= MOST_PAIRS:
        yield from (Guard(source, NoOverlap(other)) for source, other in pairs)
        return
    concerned = {source for pair in pairs for source in pair}
    order = sorted(by_storage, key=lambda storage: storage not in written)
    rows = [(e.source, i) for i, s in enumerate(order) for e in by_storage[s]]
    rows = [(source, group) for source, group in rows if source in concerned]
    count = sum(order[group] in written for _, group in rows)
    (first, *others), groups = [source for source, _ in rows], tuple(g for _, g in rows)
    yield Guard(first, Apart(tuple(others), count, groups))


def _storage(entry: GraphInput) -> int:
    return entry.real.untyped_storage()._cdata
