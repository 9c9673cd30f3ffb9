"""Iterators made while tracing: one class per way of advancing.

In: values of what is iterated.  Out: `next` gives the next item or None at the end.
Invariant: an iterator advances only in `next`, after `m.mutated()`; it looks at its underlying
container when it advances, not when it was made, and notices changes as CPython does.
Generators belong to the machine.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jitshape.frontend.values.base import CLOCK, Break, Restart, Value
from jitshape.frontend.values.constants import ConstantValue, from_python
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine
    from jitshape.frontend.values.slices import RangeValue


# ---- called by compiled code


def iterator_at(make: Any, items: list, index: int) -> Iterator:
    """A list's iterator (`make` is iter or reversed) that is about to give item `index`."""
    iterator = make(items)
    iterator.__setstate__(index)
    return iterator


def advanced_iterator(make: Any, items: Any, passed: int) -> Iterator:
    """An iterator that has given `passed` items, or was asked that often."""
    iterator = make(items)
    for _ in range(passed):
        next(iterator, None)
    return iterator


def strict_zip(*iterators: Iterator) -> zip:
    return zip(*iterators, strict=True)


# ---- values


class IteratorValue(Value):
    """Base: an iterator is its own iterator, true, hashed by identity."""

    kind: type = object

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        value = super().__new__(cls)
        value.made_at = CLOCK.step()
        return value

    def python_type(self) -> type:
        return self.kind

    def truth(self, m: Machine) -> bool:
        return True

    def iterate(self, m: Machine) -> Value:
        return self

    def next(self, m: Machine) -> Value | None:
        m.mutated(self)
        return self.advance(m)

    def advance(self, m: Machine) -> Value | None:
        raise NotImplementedError

    def hash_key(self, m: Machine) -> Any:
        return self

    def rebuild(self) -> tuple[Any, list[Value]]:
        """A real callable and arguments that make the iterator as it stands."""
        self.cannot_leave(f"a {self.kind.__name__} cannot leave the compiled code")

    def children(self) -> Iterable[Value]:
        try:
            return self.rebuild()[1]
        except (Break, Restart):
            return ()

    def reconstruct(self, e: Emitter) -> None:
        function, args = self.rebuild()
        e.begin_call()
        e.const(function)
        for value in args:
            e.value(value)
        e.end_call(len(args))


class SequenceIterator(IteratorValue):
    """Over items that cannot change: of a tuple, a string, precomputed results."""

    def __init__(self, items: Iterable[Value], kind: type) -> None:
        self.rest, self.kind = list(reversed(list(items))), kind

    def advance(self, m: Machine) -> Value | None:
        return self.rest.pop() if self.rest else None

    def rebuild(self) -> tuple[Any, list[Value]]:
        if self.kind is not type(iter(())):
            return super().rebuild()
        return iter, [TupleValue(reversed(self.rest))]


RANGE_ITERATORS = (type(iter(range(0))), type(iter(range(1 << 70))))


class PureIterator(IteratorValue):
    """A real iterator over constants that the trace made for itself (ranges, count)."""

    def __init__(self, real: Iterator, rebuild: Any = None) -> None:
        self.real, self.kind = real, type(real)

    def advance(self, m: Machine) -> Value | None:
        for item in self.real:
            return from_python(m, item)
        return None

    def rebuild(self) -> tuple[Any, list[Value]]:
        if self.kind in RANGE_ITERATORS:
            _function, args = self.real.__reduce__()[:2]
            (real,) = args
            left = real[len(real) - self.real.__length_hint__() :]
            bounds = [ConstantValue(x) for x in (left.start, left.stop, left.step)]
            from jitshape.frontend.values.slices import RangeValue

            return iter, [RangeValue(*bounds)]
        return super().rebuild()


class MovedRangeIterator(IteratorValue):
    """Over `count` numbers from a symbolic start on."""

    kind = RANGE_ITERATORS[0]

    def __init__(self, range: RangeValue, count: int) -> None:
        self.range, self.start, self.left = range, range.start, count

    def advance(self, m: Machine) -> Value | None:
        if not self.left:
            return None
        self.left -= 1
        item, self.start = self.start, m.binary("+", self.start, self.range.step)
        return item

    def rebuild(self) -> tuple[Any, list[Value]]:
        return iter, [type(self.range)(self.start, self.range.stop, self.range.step)]


class ListIterator(IteratorValue):
    """Over a list that may change meanwhile; `step` -1: reversed(list)."""

    def __init__(self, items: ListValue, step: int = 1) -> None:
        self.items: ListValue | None = items
        self.step = step
        self.index = 0 if step > 0 else items.size() - 1
        self.kind = type(iter([])) if step > 0 else type(reversed([]))

    def advance(self, m: Machine) -> Value | None:
        if self.items is None or not 0 <= self.index < self.items.size():
            self.items = None
            return None
        item = self.items.read(self.index)
        self.index += self.step
        return item

    def rebuild(self) -> tuple[Any, list[Value]]:
        make = iter if self.step > 0 else reversed
        if self.items is None:
            return make, [ListValue()]
        return iterator_at, [ConstantValue(make), self.items, ConstantValue(self.index)]


class DictIterator(IteratorValue):
    """Over keys, values or items of a dict; a change of size is an error."""

    KINDS = {
        "keys": type(iter({}.keys())),
        "values": type(iter({}.values())),
        "items": type(iter({}.items())),
    }

    def __init__(self, mapping: DictValue, view: str, reverse: bool = False) -> None:
        self.mapping, self.view = mapping, view
        self.kind = self.KINDS[view]
        if issubclass(mapping.cls, OrderedDict):
            self.kind = type(iter(OrderedDict()))
        self.reverse = reverse
        self.order: list[Any] | None = None
        self.position, self.changes, self.length = 0, 0, 0

    def advance(self, m: Machine) -> Value | None:
        entries = self.mapping.load(m)
        if self.order is None:
            self.order = list(reversed(entries) if self.reverse else entries)
            self.changes, self.length = self.mapping.changes, len(entries)
        if self.position < 0:
            return None
        if self.mapping.changes != self.changes:
            self._complain(m, len(entries))
        if self.position >= len(self.order):
            self.position = -1
            return None
        hashed = self.order[self.position]
        self.position += 1
        return self._shown(m, hashed)

    def _complain(self, m: Machine, length: int) -> None:
        ordered = issubclass(self.mapping.cls, OrderedDict)
        what = "OrderedDict" if ordered else "dictionary"
        at_end = self.position >= len(self.order)
        if length != self.length:
            self.position = -1
            change = "mutated" if ordered else "changed size"
            m.throw(RuntimeError, f"{what} {change} during iteration")
        if not at_end:
            self.position = -1
            m.throw(RuntimeError, f"{what} keys changed during iteration")

    def _shown(self, m: Machine, hashed: Any) -> Value:
        if self.view == "keys":
            return self.mapping.entries[hashed].key
        entry = self.mapping.find(m, hashed)
        return entry.value if self.view == "values" else TupleValue((entry.key, entry.value))

    def rebuild(self) -> tuple[Any, list[Value]]:
        from jitshape.frontend.values.dicts import ViewValue

        if self.order is not None and self.mapping.changes != self.changes:
            return super().rebuild()
        passed = len(self.order or ()) + 1 if self.position < 0 else self.position
        make = ConstantValue(reversed if self.reverse else iter)
        return advanced_iterator, [make, ViewValue(self.mapping, self.view), ConstantValue(passed)]


class EnumerateIterator(IteratorValue):
    kind = enumerate

    def __init__(self, source: Value, start: Value) -> None:
        self.iterator, self.count = source, start

    def advance(self, m: Machine) -> Value | None:
        item = self.iterator.next(m)
        if item is None:
            return None
        count = self.count
        self.count = m.binary("+", count, ConstantValue(1))
        return TupleValue((count, item))

    def rebuild(self) -> tuple[Any, list[Value]]:
        return enumerate, [self.iterator, self.count]


class ZipIterator(IteratorValue):
    kind = zip

    def __init__(self, iterators: list[Value], strict: bool = False) -> None:
        self.iterators, self.strict = iterators, strict

    def advance(self, m: Machine) -> Value | None:
        items: list[Value] = []
        for index, iterator in enumerate(self.iterators):
            item = iterator.next(m)
            if item is None:
                if self.strict:
                    self._check(m, index)
                return None
            items.append(item)
        return TupleValue(items) if items else None

    def _check(self, m: Machine, index: int) -> None:
        def complain(place: int, what: str) -> None:
            others = f"s 1-{place}" if place > 1 else " 1"
            m.throw(ValueError, f"zip() argument {place + 1} is {what} than argument{others}")

        if index:
            complain(index, "shorter")
        for place, iterator in enumerate(self.iterators[1:], 1):
            if iterator.next(m) is not None:
                complain(place, "longer")

    def rebuild(self) -> tuple[Any, list[Value]]:
        return strict_zip if self.strict else zip, list(self.iterators)


class MapIterator(IteratorValue):
    kind = map

    def __init__(self, function: Value, iterators: list[Value]) -> None:
        self.function, self.iterators = function, iterators

    def advance(self, m: Machine) -> Value | None:
        items: list[Value] = []
        for iterator in self.iterators:
            item = iterator.next(m)
            if item is None:
                return None
            items.append(item)
        return m.call(self.function, items, {})

    def rebuild(self) -> tuple[Any, list[Value]]:
        return map, [self.function, *self.iterators]


class StarmapIterator(MapIterator):
    kind = itertools.starmap

    def advance(self, m: Machine) -> Value | None:
        from jitshape.frontend.values.base import unpack

        item = self.iterators[0].next(m)
        return None if item is None else m.call(self.function, unpack(m, item), {})

    def rebuild(self) -> tuple[Any, list[Value]]:
        return itertools.starmap, [self.function, *self.iterators]


class FilterIterator(IteratorValue):
    """filter, filterfalse: `wanted` is the truth of what passes."""

    def __init__(self, function: Value, iterator: Value, wanted: bool = True) -> None:
        self.function, self.iterator, self.wanted = function, iterator, wanted
        self.kind = filter if wanted else itertools.filterfalse

    def advance(self, m: Machine) -> Value | None:
        identity = self.function.is_constant() and self.function.constant() in (None, bool)
        while (item := self.iterator.next(m)) is not None:
            result = item if identity else m.call(self.function, [item], {})
            if result.truth(m) == self.wanted:
                return item
        return None

    def rebuild(self) -> tuple[Any, list[Value]]:
        return self.kind, [self.function, self.iterator]


class WhileIterator(IteratorValue):
    """takewhile and dropwhile."""

    def __init__(self, kind: type, function: Value, iterator: Value) -> None:
        self.kind, self.function, self.iterator = kind, function, iterator
        self.done = False  # takewhile: ended; dropwhile: the first item has passed

    def advance(self, m: Machine) -> Value | None:
        if self.kind is itertools.takewhile:
            item = None if self.done else self.iterator.next(m)
            if item is None or not m.call(self.function, [item], {}).truth(m):
                self.done = self.done or item is not None
                return None
            return item
        while (item := self.iterator.next(m)) is not None:
            if self.done or not m.call(self.function, [item], {}).truth(m):
                self.done = True
                return item
        return None


class ChainIterator(IteratorValue):
    """chain: `outer` iterates the iterables."""

    kind = itertools.chain

    def __init__(self, outer: Value) -> None:
        self.outer: Value = outer
        self.inner: Value | None = None

    def advance(self, m: Machine) -> Value | None:
        while True:
            if self.inner is None:
                iterable = self.outer.next(m)
                if iterable is None:
                    return None
                self.inner = iterable.iterate(m)
            item = self.inner.next(m)
            if item is not None:
                return item
            self.inner = None


class IsliceIterator(IteratorValue):
    kind = itertools.islice

    def __init__(self, iterator: Value, bounds: slice) -> None:
        self.iterator = iterator
        self.position, self.stop = 0, bounds.stop
        self.upcoming, self.step = bounds.start or 0, bounds.step or 1

    def advance(self, m: Machine) -> Value | None:
        if self.stop is not None and self.upcoming >= self.stop:
            while self.position < self.stop:
                self.position += 1
                if self.iterator.next(m) is None:
                    break
            self.position = self.stop
            return None
        while True:
            item = self.iterator.next(m)
            if item is None:
                self.stop = 0
                return None
            self.position += 1
            if self.position > self.upcoming:
                self.upcoming += self.step
                return item


class RepeatIterator(IteratorValue):
    kind = itertools.repeat

    def __init__(self, item: Value, times: int | None) -> None:
        self.item, self.times = item, times

    def advance(self, m: Machine) -> Value | None:
        if self.times is None:
            return self.item
        if self.times <= 0:
            return None
        self.times -= 1
        return self.item

    def rebuild(self) -> tuple[Any, list[Value]]:
        count = [] if self.times is None else [ConstantValue(self.times)]
        return itertools.repeat, [self.item, *count]


class CountIterator(IteratorValue):
    kind = itertools.count

    def __init__(self, start: Value, step: Value) -> None:
        self.count, self.step = start, step

    def advance(self, m: Machine) -> Value | None:
        count = self.count
        self.count = m.binary("+", count, self.step)
        return count

    def rebuild(self) -> tuple[Any, list[Value]]:
        return itertools.count, [self.count, self.step]


class CycleIterator(IteratorValue):
    kind = itertools.cycle

    def __init__(self, iterator: Value) -> None:
        self.iterator: Value | None = iterator
        self.saved: list[Value] = []
        self.position = 0

    def advance(self, m: Machine) -> Value | None:
        if self.iterator is not None:
            item = self.iterator.next(m)
            if item is not None:
                self.saved.append(item)
                return item
            self.iterator = None
        if not self.saved:
            return None
        item = self.saved[self.position % len(self.saved)]
        self.position += 1
        return item


class AccumulateIterator(IteratorValue):
    kind = itertools.accumulate

    def __init__(self, iterator: Value, function: Value | None, initial: Value | None) -> None:
        self.iterator, self.function = iterator, function
        self.initial, self.total = initial, None

    def advance(self, m: Machine) -> Value | None:
        if self.total is None and self.initial is not None:
            self.total = self.initial
            return self.total
        item = self.iterator.next(m)
        if item is None:
            return None
        if self.total is None:
            self.total = item
        elif self.function is None:
            self.total = m.binary("+", self.total, item)
        else:
            self.total = m.call(self.function, [self.total, item], {})
        return self.total


class SentinelIterator(IteratorValue):
    """`iter(function, sentinel)`."""

    kind = type(iter(int, 1))

    def __init__(self, function: Value, sentinel: Value) -> None:
        self.function: Value | None = function
        self.sentinel = sentinel

    def advance(self, m: Machine) -> Value | None:
        from jitshape.frontend.values.sequences import same_or_equal

        if self.function is None:
            return None
        item = m.call(self.function, [], {})
        if same_or_equal(m, item, self.sentinel):
            self.function = None
            return None
        return item


class GetitemIterator(IteratorValue):
    """Over an object that has `__getitem__` only: 0, 1, 2, ... until IndexError."""

    kind = type(iter(type("Old", (), {"__getitem__": lambda self, i: i})()))

    def __init__(self, sequence: Value, step: int = 1, start: int = 0) -> None:
        self.sequence: Value | None = sequence
        self.index, self.step = start, step
        self.kind = type(self).kind if step > 0 else reversed

    def advance(self, m: Machine) -> Value | None:
        from jitshape.frontend.values.base import Raised

        if self.sequence is None or self.index < 0:
            return None
        try:
            item = self.sequence.getitem(m, ConstantValue(self.index))
        except Raised as raised:
            if issubclass(raised.value.python_type(), (IndexError, StopIteration)):
                self.sequence = None
                return None
            raise
        self.index += self.step
        return item
