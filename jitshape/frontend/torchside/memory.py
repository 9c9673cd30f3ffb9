"""Guards on which inputs share memory, where the graph relies on it.

In: the graph's inputs, what the optimized graph writes of them, and what it returns as views of
them.  Out: guards.  A written input must overlap no other input, but for those that
shared its memory while tracing, which must go on doing so.  Without writes and views nothing is
demanded: two inputs may be one tensor or not.  State of modules overlaps other state only where
its owner ties it, which the trace saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jitshape.frontend.checks import Guard, NoOverlap, SharesStorage
from jitshape.frontend.dynamic import held_by_module
from jitshape.frontend.sources import Held
from jitshape.ir.graph import Alias, Mutation

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
    done: set[int] = set()
    for storage in (s for s in by_storage if s in written):
        done.add(storage)
        apart = [e for s, group in by_storage.items() if s not in done for e in group]
        apart = [e for e in apart if not isinstance(e.source, Held)]  # constants of the trace
        for entry in by_storage[storage]:
            for other in apart:
                if not (held_by_module(entry.source) and held_by_module(other.source)):
                    yield Guard(entry.source, NoOverlap(other.source))


def _storage(entry: GraphInput) -> int:
    return entry.real.untyped_storage()._cdata
