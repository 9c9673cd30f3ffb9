"""Tuples and lists, subclasses included (namedtuple, torch.Size-like, user lists).

In: values, or a real sequence with its source, read lazily: an item in range needs no guard on
the length, everything else reads the length.  Out: items, new sequences, CPython's errors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Present
from jitshape.frontend.sources import Item, Source
from jitshape.frontend.values.base import Value, builds, unpack, wraps
from jitshape.frontend.values.constants import CONSTANT_TYPES, FRESH, from_python
from jitshape.frontend.values.storage import Storage, guard_type, kept, measured, reaches
from jitshape.frontend.values.unobserved import Unobserved, unread

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class SequenceValue(Storage):
    """What tuples and lists share.  `cells` holds the items; None: not read yet."""

    def __init__(
        self,
        items: Iterable[Value] = (),
        cls: type | None = None,
        object: Any = None,
        source: Source | None = None,
        m: Machine | None = None,
    ) -> None:
        self.cls = cls or self.builtin
        self.object, self.source, self.machine = object, source, m
        self.sized = source is None
        self.cells: list[Value | None] = list(items)
        if source is not None:
            self.cells = [None] * self.builtin.__len__(object)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.cells!r})"

    def read(self, index: int) -> Value:
        """The item in place `index`, in range."""
        value = self.cells[index]
        if value is None:
            real = self.builtin.__getitem__(self.object, index)
            value = self.machine.wrap(real, Item(self.source, index))
            self.cells[index] = value
        elif type(value) is Unobserved:
            value = self.cells[index] = value.observed()
        return value

    def handed_on(self) -> list[Value]:
        """All items, as arguments of a call that need not look at them."""
        for index in range(self.size()):
            if self.cells[index] is None:
                real = self.builtin.__getitem__(self.object, index)
                self.cells[index] = unread(self.machine, real, Item(self.source, index))
        return [value for value in self.cells if value is not None]

    def size(self) -> int:
        """The length; guarded on the first use."""
        if not self.sized:
            self.sized = True
            measured(self.machine, self.source, len(self.cells))
        return len(self.cells)

    def read_all(self) -> list[Value]:
        """All items, in a new list."""
        return [self.read(i) for i in range(self.size())]

    @property
    def items(self) -> list[Value]:
        return self.read_all()

    def children(self) -> Iterable[Value]:
        return kept(self.cells)

    def truth(self, m: Machine) -> bool:
        if not self.inherits("__len__") or hasattr(self.cls, "__bool__"):
            return m.default_truth(self)
        return self.size() > 0

    def length(self, m: Machine) -> Value:
        return m.const(self.size()) if self.inherits("__len__") else m.default_length(self)

    def index_of(self, m: Machine, key: Value, what: str = "") -> int:
        """The place that an index names, negative ones counted from the end."""
        kind = self.builtin.__name__
        if not has_index(m, key):
            name = key.python_type().__name__
            m.throw(TypeError, f"{kind} indices must be integers or slices, not {name}")
        index = m.as_int(key)
        if not 0 <= index < len(self.cells):
            index += self.size() if index < 0 else 0
            if not 0 <= index < self.size():
                m.throw(IndexError, f"{kind} {what}index out of range")
        return index

    def get(self, m: Machine, key: Value) -> Value:
        """`builtin.__getitem__`."""
        from jitshape.frontend.values.slices import SliceValue

        if isinstance(key, SliceValue):
            start, stop, step = key.indices(m, self.size())
            return type(self)([self.read(i) for i in range(start, stop, step)])
        return self.read(self.index_of(m, key))

    def getitem(self, m: Machine, key: Value) -> Value:
        return self.get(m, key) if self.inherits("__getitem__") else m.default_getitem(self, key)

    def iterate(self, m: Machine) -> Value:
        return self.iterator(m) if self.inherits("__iter__") else m.default_iterate(self)

    def holds(self, m: Machine, item: Value) -> bool:
        """`builtin.__contains__`: identity, then ==, item by item."""
        index = 0
        while index < self.size():
            if same_or_equal(m, self.read(index), item):
                return True
            index += 1
        return False

    def contains(self, m: Machine, item: Value) -> Value:
        if not self.inherits("__contains__"):
            return m.default_contains(self, item)
        return m.const(self.holds(m, item))

    def concatenate(self, m: Machine, other: Value) -> Any:
        if not isinstance(other, type(self)):
            return NotImplemented
        return type(self)(self.items + other.items)

    def repeat(self, m: Machine, other: Value) -> Any:
        if not has_index(m, other):
            return NotImplemented
        return type(self)(repeated(m, self.items, m.as_int(other)))

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        if not self.inherits("__add__", "__radd__", "__mul__", "__rmul__"):
            return m.default_binary(self, op, other, reflected)
        if op == "+" and reflected and hasattr(self.cls, "__radd__"):
            mine = isinstance(other, SequenceValue) and other.builtin is self.builtin
            return type(self)(other.items + self.items) if mine else NotImplemented
        if op == "*":
            result = self.repeat(m, other)
            if result is NotImplemented and not m.defines(other, "__rmul__"):
                name = other.python_type().__name__
                m.throw(TypeError, f"can't multiply sequence by non-int of type '{name}'")
            return result
        if op == "+" and not reflected:
            result = self.concatenate(m, other)
            if result is NotImplemented and not m.defines(other, "__radd__"):
                kind, name = self.builtin.__name__, other.python_type().__name__
                m.throw(TypeError, f'can only concatenate {kind} (not "{name}") to {kind}')
            return result
        return NotImplemented

    def richcompare(self, m: Machine, op: str, other: Value) -> Any:
        """`builtin.__lt__` and so on: by the first pair that differs, else by length."""
        if not isinstance(other, type(self)):
            return NotImplemented
        if op in ("==", "!=") and self.builtin is list and self.size() != other.size():
            return m.const(op == "!=")
        for index in range(min(self.size(), other.size())):
            a, b = self.read(index), other.read(index)
            if not same_or_equal(m, a, b):
                return m.const(op == "!=") if op in ("==", "!=") else m.compare(op, a, b)
        return m.compare(op, m.const(self.size()), m.const(other.size()))

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if not self.inherits("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
            return m.default_compare(self, op, other)
        return self.richcompare(m, op, other)

    def iterator(self, m: Machine) -> Value:
        raise NotImplementedError


class TupleValue(SequenceValue):
    """A tuple; instances of a subclass are rebuilt with `tuple.__new__(cls, items)`."""

    builtin = tuple

    def is_constant(self) -> bool:
        if self.cls is not tuple:
            return False
        for index, value in enumerate(self.cells):
            if value is not None and not value.is_constant():
                return False
            real = tuple.__getitem__(self.object, index) if value is None else None
            if not is_plain(real) or (type(real) in NUMBERS and not self.read(index).is_constant()):
                return False  # a number may be a symbol
        return True

    def constant(self) -> Any:
        items = tuple(v.constant() for v in self.items)
        return self.object if self.object is not None else items

    def member(self, name: str) -> Value | None:
        """The item that a class of C with named items (torch.return_types.max) shows under a
        name; None where that is no item."""
        place = named_places(self.cls).get(name)
        return None if place is None else self.read(place)

    def get(self, m: Machine, key: Value) -> Value:
        """All of a tuple is the tuple itself."""
        result = super().get(m, key)
        if key.python_type() is slice and isinstance(result, TupleValue) and self.is_exact():
            return self if result.cells == self.cells else result
        return result

    def concatenate(self, m: Machine, other: Value) -> Any:
        """One of two tuples is the result if the other one is empty."""
        if isinstance(other, TupleValue) and self.is_exact() and other.is_exact():
            if not other.size() or not self.size():
                return self if not other.size() else other
        return super().concatenate(m, other)

    def repeat(self, m: Machine, other: Value) -> Any:
        if self.is_exact() and has_index(m, other) and m.as_int(other) == 1:
            return self
        return super().repeat(m, other)

    def hash_key(self, m: Machine) -> Any:
        if not self.inherits("__hash__", "__eq__"):
            return m.default_hash_key(self)
        return tuple(v.hash_key(m) for v in self.items)

    def iterator(self, m: Machine) -> Value:
        from jitshape.frontend.values.iterators import SequenceIterator

        return SequenceIterator(self.items, type(iter(())))

    def reconstruct(self, e: Emitter) -> None:
        if self.cls is tuple:
            for value in self.handed_on():
                e.value(value)
            e.build("tuple", len(self.cells))
            return
        e.begin_call()
        of_c = has_names(self.cls)
        if not of_c:
            e.const(tuple.__new__)
        e.const(self.cls)
        for value in self.items:
            e.value(value)
        e.build("tuple", len(self.cells))
        e.end_call(1 if of_c else 2)
        e.bind(self)
        fill_attributes(e, self)


class ListValue(SequenceValue):
    """A list; written to by the program only here, never the real one.  `stored`: places
    written; `moved`: items were added, removed or reordered; `tail`: what was appended to an
    existing list whose length nobody asked for, so that it need not be guarded."""

    builtin = list

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stored: set[int] = set()
        self.moved = False
        self.tail: list[Value] = []

    def size(self) -> int:
        length = super().size()
        if self.tail:
            items, self.tail = self.tail, []
            self.cells = [*map(self.read, range(length)), *items]
            self.moved = True
        return len(self.cells)

    def children(self) -> Iterable[Value]:
        return [*super().children(), *self.tail]

    def append(self, m: Machine, item: Value) -> None:
        """`list.append`."""
        if self.sized:
            self.change(m, keeps=True).append(item)
        else:
            self.touch(m)
            self.tail.append(item)

    def change(self, m: Machine, keeps: bool = False) -> list[Value | None]:
        """The storage, for adding, removing, reordering: all is read from here on.  `keeps`: no
        reference to an item goes."""
        if self.source is not None and not self.moved:
            self.read_all()
        if not keeps:
            m.let_go(*self.cells)
        self.moved = True
        self.touch(m)
        return self.cells

    def setitem(self, m: Machine, key: Value, value: Value) -> None:
        if not self.inherits("__setitem__"):
            return m.default_setitem(self, key, value)
        return self.put(m, key, value)

    def put(self, m: Machine, key: Value, value: Value) -> None:
        """`list.__setitem__`."""
        from jitshape.frontend.values.slices import SliceValue

        if not isinstance(key, SliceValue):
            index = self.index_of(m, key, "assignment ")
            if self.source is not None and self.cells[index] is None:
                m.guard(Item(self.source, index), Present())
            m.let_go(self.cells[index])
            self.touch(m)
            self.stored.add(index)
            self.cells[index] = value
            return
        if not m.defines(value, "__iter__"):
            m.throw(TypeError, "can only assign an iterable")
        items = unpack(m, value)
        start, stop, step = key.indices(m, self.size())
        try:
            self.change(m)[slice_of(start, stop, step)] = items
        except ValueError as error:
            m.throw(ValueError, *error.args)

    def delitem(self, m: Machine, key: Value) -> None:
        if not self.inherits("__delitem__"):
            return m.default_delitem(self, key)
        return self.remove_at(m, key)

    def remove_at(self, m: Machine, key: Value) -> None:
        """`list.__delitem__`."""
        from jitshape.frontend.values.slices import SliceValue

        if isinstance(key, SliceValue):
            bounds = key.indices(m, self.size())
            del self.change(m)[slice_of(*bounds)]
        else:
            index = self.index_of(m, key, "assignment ")
            del self.change(m)[index]

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        if op == "+=" and self.inherits("__iadd__"):
            if not m.defines(other, "__iter__"):
                name = other.python_type().__name__
                m.throw(TypeError, f"'{name}' object is not iterable")
            self.extend(m, other)
            return self
        if op == "*=" and self.inherits("__imul__") and has_index(m, other):
            items = repeated(m, self.items, m.as_int(other))
            self.change(m)[:] = items
            return self
        return super().binary(m, op, other, reflected)

    def extend(self, m: Machine, other: Value) -> None:
        """`list.extend`: item by item, so that an error leaves what came before."""
        if isinstance(other, SequenceValue) and other.inherits("__iter__"):
            self.touch(m)
            for item in other.items:
                self.append(m, item)
            return
        iterator = other.iterate(m)
        m.ask_length(other)
        while (item := iterator.next(m)) is not None:
            self.append(m, item)

    def hash_key(self, m: Machine) -> Any:
        if not self.inherits("__hash__"):
            return m.default_hash_key(self)
        m.throw(TypeError, f"unhashable type: '{self.cls.__name__}'")

    def iterator(self, m: Machine) -> Value:
        from jitshape.frontend.values.iterators import ListIterator

        return ListIterator(self)

    def reconstruct(self, e: Emitter) -> None:
        if self.cls is list and not reaches(self, self):
            for value in self.items:
                e.value(value)
            e.build("list", len(self.cells))
            return
        construct(e, list.__new__, self.cls)
        e.bind(self)
        self.emit_contents(e)
        fill_attributes(e, self)

    def emit_contents(self, e: Emitter) -> None:
        """`self[:] = items`, past user methods."""
        e.begin_call()
        e.const(list.__setitem__)
        e.value(self)
        e.const(slice(None))
        for value in self.items:
            e.value(value)
        e.build("tuple", len(self.cells))
        e.end_call(3)
        e.pop()

    def write_back(self, e: Emitter) -> None:
        """Bring the real list to the final items: only items that changed their place, if the
        length stayed, else all."""
        if self.moved:
            self.emit_contents(e)
            return
        for index in sorted(self.stored):
            e.value(self.read(index))
            e.value(self)
            e.const(index)
            e.store_item()
        if self.tail:
            e.begin_call()
            e.const(list.extend)
            e.value(self)
            for value in self.tail:
                e.value(value)
            e.build("tuple", len(self.tail))
            e.end_call(2)
            e.pop()


def has_names(cls: type) -> bool:
    """Whether it is a struct sequence of C: `time.struct_time` and its like."""
    return hasattr(cls, "n_sequence_fields")


@functools.cache
def named_places(cls: type) -> dict[str, int]:
    """The names of the items of a struct sequence: all in order or, where some items have none,
    as an instance tells them; it may hide some of its names from those that count its items."""
    if not has_names(cls):
        return {}
    if not cls.n_unnamed_fields:  # type: ignore[attr-defined]
        return {name: place for place, name in enumerate(cls.__match_args__)}
    sample = cls(range(cls.n_fields))  # type: ignore[attr-defined, call-arg]
    names = [n for n, found in vars(cls).items() if type(found) is MemberDescriptorType]
    places = {name: getattr(sample, name) for name in names}
    return {name: place for name, place in places.items() if place < len(sample)}


def construct(e: Emitter, new: Any, cls: type) -> None:
    """Push `new(cls)`: an empty instance, past the user's __init__."""
    e.begin_call()
    e.const(new)
    e.const(cls)
    e.end_call(1)


def fill_attributes(e: Emitter, value: Storage) -> None:
    """Write the instance attributes of an object that the program made."""
    if value.instance_dict is not None:
        value.instance_dict.write_all(e)


def repeated(m: Machine, items: list[Value], count: int) -> list[Value]:
    """`items * count`, which may be more than there is memory for."""
    try:
        return items * count
    except (MemoryError, OverflowError) as error:
        m.throw(type(error), *error.args)
        raise AssertionError("throw returned") from error


def slice_of(start: int, stop: int, step: int) -> slice:
    """A slice of resolved bounds; a negative stop means "before the first item"."""
    return slice(start, None if stop < 0 else stop, step)


def has_index(m: Machine, value: Value) -> bool:
    return m.defines(value, "__index__")


def same_or_equal(m: Machine, a: Value, b: Value) -> bool:
    """`a is b or a == b`, as containers compare."""
    return a is b or m.identical(a, b) or m.compare("==", a, b).truth(m)


NUMBERS = (int, float, tuple)


def is_plain(real: Any) -> bool:
    """A constant, or a tuple of constants."""
    if type(real) is tuple:
        return all(is_plain(x) for x in real)
    return type(real) in CONSTANT_TYPES


def constant_items(m: Machine, items: Iterable[Any]) -> list[Value]:
    return [from_python(m, x) if is_plain(x) else m.const(x) for x in items]


FRESH[tuple] = lambda m, real: TupleValue(constant_items(m, real))
FRESH[list] = lambda m, real: ListValue(constant_items(m, real))


@wraps(tuple, subclasses=True)
def wrap_tuple(m: Machine, real: tuple, source: Source | None) -> Value:
    return _wrap_sequence(TupleValue, m, real, source)


@wraps(list, subclasses=True)
def wrap_list(m: Machine, real: list, source: Source | None) -> Value:
    return _wrap_sequence(ListValue, m, real, source)


def _wrap_sequence(
    kind: type[SequenceValue], m: Machine, real: Any, source: Source | None
) -> SequenceValue:
    pinned = guard_type(m, real, source)
    value = kind(cls=type(real), object=real, source=pinned, m=m)
    value.sized = value.sized or (kind is TupleValue and source is None)
    return value


builds("tuple")(lambda m, items: TupleValue(items))
builds("list")(lambda m, items: ListValue(items))
