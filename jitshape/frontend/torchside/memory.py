"""Guards on which inputs share memory, where the graph relies on it.

In: the graph's inputs, what the optimized graph writes of them, and what it returns as views of
them.  Out: guards.  A written input must overlap no other input, but for those that
shared its memory while tracing, which must go on doing so.  Without writes and views nothing is
demanded: two inputs may be one tensor or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from jitshape.frontend.checks import Apart, Guard, NoOverlap, SharesStorage
from jitshape.frontend.sources import Held

MOST_PAIRS = 32  # that have a guard each

if TYPE_CHECKING:
    from jitshape.frontend.torchside.tracer import GraphInput


def memory_guards(
    inputs: Sequence[GraphInput], writes: Sequence[int], views: Sequence[int]
) -> Iterator[Guard]:
    """For a graph with these inputs, in order, writes to some of them and views of some, each by
    its place."""
    by_storage: dict[int, list[GraphInput]] = {}
    for entry in inputs:
        by_storage.setdefault(_storage(entry), []).append(entry)
    written = {_storage(inputs[place]) for place in writes}
    viewed = {_storage(inputs[place]) for place in views}
    for storage, (first, *others) in by_storage.items():
        if storage in written or storage in viewed:
            for other in others:
                yield Guard(other.source, SharesStorage(first.source))
    yield from _apart(by_storage, written)


def _apart(by_storage: Mapping[int, Sequence[GraphInput]], written: set[int]) -> Iterator[Guard]:
    """A guard for each pair, or one for all where these are many.  Constants of the trace, which
    the entry holds, overlap nothing."""
    order = sorted(by_storage, key=lambda storage: storage not in written)
    rows = [(e.source, place) for place, s in enumerate(order) for e in by_storage[s]]
    rows = [(source, group) for source, group in rows if not isinstance(source, Held)]
    count = sum(order[group] in written for _, group in rows)
    if count * len(rows) > MOST_PAIRS:
        (first, *others), groups = [source for source, _ in rows], tuple(g for _, g in rows)
        if count and len(set(groups)) > 1:
            yield Guard(first, Apart(tuple(others), count, groups))
        return
    for place, (source, group) in enumerate(rows[:count]):
        for other, other_group in rows[place + 1 :]:
            if group != other_group:
                yield Guard(source, NoOverlap(other))


def _storage(entry: GraphInput) -> int:
    return entry.real.untyped_storage()._cdata
