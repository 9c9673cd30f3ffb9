"""The order of kernels and extern calls: as in the program, but what releases memory goes first.

In: groups with their needs, and what each reads and makes in memory.  Out: the groups in an order
that respects the needs.  A group that reads the last of more bytes than it makes, such as the sum
that gives a bias its gradient, runs as soon as it can: the tensor it reads would otherwise stay
through the calls between.
Invariant: the bytes, which come from the sizes seen, decide the order alone.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jitshape.backend.fusion import Group
from jitshape.ir.graph import Value
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType, numel

_UNKNOWN = 4096  # elements of a tensor whose size is not known


@dataclass(frozen=True)
class Traffic:
    """`reads`: the values in memory that a group reads and that die with their last reader;
    `makes`: those that it makes."""

    reads: Mapping[Group, Sequence[Value]]
    makes: Mapping[Group, Sequence[Value]]


def in_order(groups: Sequence[Group], traffic: Traffic) -> list[Group]:
    """Topological, otherwise as in the program (by the last unit)."""
    waiting = {group: len(group.needs) for group in groups}
    readers: dict[Group, list[Group]] = defaultdict(list)
    for group in groups:
        for need in group.needs:
            readers[need].append(group)
    ready = [(g.last, i, g) for i, g in enumerate(groups) if not waiting[g]]
    heapq.heapify(ready)
    release = _Releasing(groups, traffic)
    order: dict[Group, None] = {}
    while ready:
        group = release.best(waiting)
        if group is None:
            _, _, group = heapq.heappop(ready)
        if group in order:
            continue
        order[group] = None
        release.ran(group)
        for reader in readers[group]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (reader.last, -len(order), reader))
    assert len(order) == len(groups), "cyclic groups"
    return list(order)


class _Releasing:
    """Which groups leave less memory in use than they find."""

    def __init__(self, groups: Sequence[Group], traffic: Traffic) -> None:
        self.traffic = traffic
        self.left = Counter(value for group in groups for value in traffic.reads[group])
        self.readers: dict[Value, list[Group]] = defaultdict(list)
        for group in groups:
            for value in traffic.reads[group]:
                self.readers[value].append(group)
        self.last: dict[Group, None] = {}  # readers that are some value's last
        self.done: set[Group] = set()
        self.bytes = {v: _bytes(v) for v in self.left}
        for value, count in self.left.items():
            if count == 1:
                self.last[self.readers[value][0]] = None

    def best(self, waiting: Mapping[Group, int]) -> Group | None:
        """The first of those that are ready."""
        found = [group for group in self.last if not waiting[group] and self._releases(group)]
        return min(found, key=lambda group: group.last, default=None)

    def _releases(self, group: Group) -> bool:
        released = sum(self.bytes[v] for v in self.traffic.reads[group] if self.left[v] == 1)
        return released > sum(map(_bytes, self.traffic.makes[group]))

    def ran(self, group: Group) -> None:
        self.done.add(group)
        self.last.pop(group, None)
        for value in self.traffic.reads[group]:
            self.left[value] -= 1
            if self.left[value] == 1:
                left = next(reader for reader in self.readers[value] if reader not in self.done)
                self.last[left] = None


def _bytes(value: Value) -> int:
    if not isinstance(value.type, TensorType):
        return 0
    count: Size | int | None = numel(value.type.shape)
    count = count if type(count) is int else count.hint  # type: ignore[union-attr]
    return (_UNKNOWN if count is None else max(count, 0)) * value.type.dtype.itemsize
