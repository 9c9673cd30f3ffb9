"""Allocation plan: which buffer is allocated when, reuses whose memory, and dies where.

In: the steps of a program, each with the values it reads and writes, and the values that must
outlive it.  Out: a `MemoryPlan`.  Invariant: a buffer takes over memory only after the last use
of its previous holder, only of the same dtype, and only where it provably fits at every size;
where its tensor itself is passed on, the layout must be equal.  At the sizes seen no takeover
raises the peak: between two holders a buffer is held for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from jitshape.backend.indexing import is_dense
from jitshape.ir.graph import Value
from jitshape.ir.symint import Algebra, Size, sym_max
from jitshape.ir.types import TensorType, numel

REUSE_WINDOW = 16  # free buffers looked at, the latest first
MOST_WASTE = 2  # times larger than needed a reused buffer may be


@dataclass(frozen=True)
class Step:
    """What a kernel launch or extern call does to memory.  `allocated`: the writes that it is
    given memory for; the other writes are allocated by ATen."""

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    allocated: tuple[Value, ...]


@dataclass(frozen=True)
class MemoryPlan:
    """`reuse`: value -> the dead value whose tensor it takes over.  `frees[i]`: the values whose
    tensors are dropped after step i.  `layout`: the type each allocated tensor is made with."""

    reuse: Mapping[Value, Value]
    frees: tuple[tuple[Value, ...], ...]
    layout: Mapping[Value, TensorType]


def storage_size(algebra: Algebra, type: TensorType) -> Size:
    """Elements between the first and behind the last element of a fresh tensor."""
    if is_dense(algebra, type):
        return numel(type.shape)
    last: Size = 1
    for size, stride in zip(type.shape, type.strides):
        last = last + (size - 1) * stride
    return sym_max(last, 0)


def plan_memory(
    algebra: Algebra,
    steps: Sequence[Step],
    keep: set[Value],
    layout: Mapping[Value, TensorType],
    passed: set[Value],
    enabled: bool,
    released: Collection[Value] = (),
) -> MemoryPlan:
    """The plan for `steps`.  `keep`: outputs; `passed`: values whose tensors themselves are
    passed to ATen or returned, so that their layout counts; `released`: inputs that die with
    their last use."""
    planner = _Planner(algebra, steps, keep, layout, passed, released)
    if not enabled:
        return MemoryPlan({}, ((),) * len(steps), layout)
    return planner.run()


class _Planner:
    def __init__(
        self,
        algebra: Algebra,
        steps: Sequence[Step],
        keep: set[Value],
        layout: Mapping[Value, TensorType],
        passed: set[Value],
        released: Collection[Value],
    ) -> None:
        self.algebra, self.steps, self.keep = algebra, steps, keep
        self.layout, self.passed = layout, passed
        self.last_use: dict[Value, int] = {}
        for i, step in enumerate(steps):
            for value in (*step.reads, *step.writes):
                self.last_use[value] = i
        self.made = {value for step in steps for value in step.writes}
        self.live = self._profile(released)
        self.peak = max(self.live, default=0)
        self.free: list[tuple[Value, TensorType]] = []  # dead values and what their tensors are
        self.tensor: dict[Value, TensorType] = {}
        self.reuse: dict[Value, Value] = {}

    def run(self) -> MemoryPlan:
        frees: list[list[Value]] = []
        for i, step in enumerate(self.steps):
            for value in step.writes:
                self.tensor[value] = self.layout[value]
            for value in step.allocated:
                self._take(value, i)
            dead = self._dying(i, step)
            self.free += [(v, self.tensor[v]) for v in dead]
            frees.append(dead)
        taken = set(self.reuse.values())
        kept = tuple(tuple(v for v in dead if v not in taken) for dead in frees)
        return MemoryPlan(self.reuse, kept, self.layout)

    def _dying(self, i: int, step: Step) -> list[Value]:
        used = dict.fromkeys((*step.reads, *step.writes))
        return [v for v in used if self.last_use[v] == i and v in self.made and v not in self.keep]

    def _profile(self, released: Collection[Value]) -> list[int]:
        """The bytes in use at each step, at the sizes seen, where every tensor dies with its last
        use."""
        change = [0] * (len(self.steps) + 1)
        begin = dict.fromkeys(released, 0)
        for i, step in enumerate(self.steps):
            begin.update((value, i) for value in step.writes if value not in begin)
        for value, start in begin.items():
            type_ = self.layout.get(value, value.type)
            if isinstance(type_, TensorType):
                count = _bytes_seen(self.algebra, type_)
                change[start] += count
                end = len(self.steps)  # a program of constants has no step
                if value not in self.keep:
                    end = min(end, self.last_use.get(value, 0) + 1)
                change[end] -= count
        return list(accumulate(change[:-1]))

    def _hold(self, buffer: tuple[Value, TensorType], value: Value, step: int) -> bool:
        """Note that a buffer waits for `value` and is as large as it is; False where that would
        raise the peak."""
        have = _bytes_seen(self.algebra, buffer[1])
        more = have - _bytes_seen(self.algebra, self.layout[value])
        end = len(self.steps) if value in self.keep else self.last_use[value] + 1
        spans = (self.last_use[buffer[0]] + 1, step, have), (step, end, more)
        if any(max(self.live[a:b], default=0) + n > self.peak for a, b, n in spans if n):
            return False
        for a, b, n in spans:
            self.live[a:b] = [bytes_ + n for bytes_ in self.live[a:b]]
        return True

    def _take(self, value: Value, step: int) -> None:
        wanted = self.layout[value]
        window = self.free[-REUSE_WINDOW:]
        for candidate in reversed(window):
            fits = self._fits(wanted, candidate[1], value in self.passed)
            if fits and self._hold(candidate, value, step):
                self.free.remove(candidate)
                self.reuse[value] = candidate[0]
                self.tensor[value] = candidate[1]
                return

    def _fits(self, wanted: TensorType, free: TensorType, exact: bool) -> bool:
        if wanted.dtype != free.dtype or wanted.device != free.device:
            return False
        if wanted.shape == free.shape and wanted.strides == free.strides:
            return True
        if exact:
            return False
        need, have = (storage_size(self.algebra, t) for t in (wanted, free))
        if need == have:
            return True
        if (type(need) is int and type(have) is not int) or not _is_thrifty(need, have):
            return False
        return self.algebra.static("le", need, have) is True


def _bytes_seen(algebra: Algebra, type_: TensorType) -> int:
    """At the sizes seen; 0 where one is not known."""
    size = storage_size(algebra, type_)
    count = size if type(size) is int else size.hint  # type: ignore[union-attr]
    return max(count or 0, 0) * type_.dtype.itemsize


def _is_thrifty(need: Size, have: Size) -> bool:
    """Whether a buffer is not much larger than needed, at the sizes seen: what is wasted in it
    counts at the program's peak."""
    wanted, found = (size if type(size) is int else size.hint for size in (need, have))
    return wanted is not None and found is not None and found <= MOST_WASTE * wanted


def peak_bytes(
    algebra: Algebra,
    steps: Sequence[Step],
    plan: MemoryPlan,
    size: Callable[[Size], int],
    planned: bool = True,
) -> int:
    """The most bytes that buffers of the program hold at once, at given sizes: with the plan, or
    (not `planned`) with every buffer of its own and kept to the end."""
    live: dict[Value, int] = {}
    peak = 0
    for step, frees in zip(steps, plan.frees):
        for value in step.writes:
            source = plan.reuse.get(value) if planned else None
            if source is not None:
                live[value] = live.pop(source)
            else:
                type_ = plan.layout[value]
                live[value] = max(size(storage_size(algebra, type_)), 0) * type_.dtype.itemsize
        peak = max(peak, sum(live.values()))
        for value in frees if planned else ():
            live.pop(value, None)
    return peak
