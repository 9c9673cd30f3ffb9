"""Iterators of itertools that share what they read: groupby and its groups, tee, pairwise,
compress.

In: values of iterators.  Out: items in the order, and with the calls of keys and selectors, that
the interpreter makes.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

from jitshape.frontend.values.base import Value
from jitshape.frontend.values.iterators import IteratorValue
from jitshape.frontend.values.sequences import TupleValue, same_or_equal

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


class GroupbyIterator(IteratorValue):
    """`groupby`: pairs of a key and a group, which reads from here and ends when this goes on."""

    kind = itertools.groupby

    def __init__(self, iterator: Value, key: Value | None) -> None:
        self.iterator, self.key = iterator, key
        self.target: Value | None = None  # the key of the group given last
        self.current: tuple[Value, Value] | None = None  # key and item that were read last
        self.group: Group | None = None

    def read(self, m: Machine) -> bool:
        """Read one item more; False at the end."""
        item = self.iterator.next(m)
        if item is None:
            return False
        self.current = (item if self.key is None else m.call(self.key, [item], {}), item)
        return True

    def advance(self, m: Machine) -> Value | None:
        self.group = None
        while self.current is None or (
            self.target is not None and same_or_equal(m, self.target, self.current[0])
        ):
            if not self.read(m):
                return None
        self.target = self.current[0]
        self.group = Group(self)
        return TupleValue([self.target, self.group])


class Group(IteratorValue):
    """The items of one key."""

    kind = type(next(itertools.groupby("a"))[1])

    def __init__(self, parent: GroupbyIterator) -> None:
        self.parent, self.target = parent, parent.target
        self.taken = False  # the item that the parent holds was given

    def advance(self, m: Machine) -> Value | None:
        parent = self.parent
        if parent.group is not self:
            return None
        if self.taken and not parent.read(m):
            return None
        assert parent.current is not None and self.target is not None
        key, item = parent.current
        self.taken = False
        if not same_or_equal(m, self.target, key):
            return None
        self.taken = True
        return item


class TeeIterator(IteratorValue):
    """One of those that `tee` gives: `waiting` holds what others have read and this one has not."""

    kind = type(itertools.tee(())[0])

    def __init__(self, iterator: Value, family: list[TeeIterator], waiting: deque) -> None:
        self.iterator, self.family, self.waiting = iterator, family, waiting
        family.append(self)

    def advance(self, m: Machine) -> Value | None:
        if not self.waiting:
            item = self.iterator.next(m)
            if item is None:
                return None
            for member in self.family:
                member.waiting.append(item)
        return self.waiting.popleft()

    def copy(self) -> TeeIterator:
        return TeeIterator(self.iterator, self.family, deque(self.waiting))


class PairwiseIterator(IteratorValue):
    """`pairwise`: each item with the one after it."""

    kind = itertools.pairwise

    def __init__(self, iterator: Value) -> None:
        self.iterator: Value | None = iterator
        self.former: Value | None = None

    def advance(self, m: Machine) -> Value | None:
        if self.iterator is not None and self.former is None:
            self.former = self.iterator.next(m)
            if self.former is None:
                self.iterator = None
        if self.iterator is None:
            return None
        item = self.iterator.next(m)
        if item is None:
            self.iterator = self.former = None
            return None
        pair, self.former = TupleValue([self.former, item]), item  # type: ignore[list-item]
        return pair


class CompressIterator(IteratorValue):
    """`compress`: the items whose selectors are true."""

    kind = itertools.compress

    def __init__(self, items: Value, selectors: Value) -> None:
        self.items, self.selectors = items, selectors

    def advance(self, m: Machine) -> Value | None:
        while True:
            item = self.items.next(m)
            if item is None:
                return None
            selector = self.selectors.next(m)
            if selector is None:
                return None
            if selector.truth(m):
                return item
