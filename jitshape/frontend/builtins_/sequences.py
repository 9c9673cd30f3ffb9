"""Constructors and methods of list, tuple, slice, range, their subclasses and named tuples.

Handlers get the sequence as first argument; it is a value with that storage, also where a
subclass calls `super().method(...)`.
"""

from __future__ import annotations

import collections
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import NONE, is_none, models
from jitshape.frontend.values.base import Break, Value, unpack_sized, wraps
from jitshape.frontend.values.classes import DescriptorValue
from jitshape.frontend.values.constants import ConstantValue
from jitshape.frontend.values.iterators import ListIterator
from jitshape.frontend.values.sequences import ListValue, TupleValue, same_or_equal
from jitshape.frontend.values.slices import SliceValue, make_range
from jitshape.frontend.values.storage import guard_identity

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(list)
def new_list(m: Machine, iterable: Value | None = None, /) -> Value:
    return ListValue(unpack_sized(m, iterable) if iterable is not None else ())


@models(tuple)
def new_tuple(m: Machine, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, TupleValue) and iterable.cls is tuple:
        return iterable
    return TupleValue(unpack_sized(m, iterable) if iterable is not None else ())


@models(slice)
def new_slice(m: Machine, *args: Value) -> Value:
    if not 1 <= len(args) <= 3:
        raise Break("builtin_arguments", "slice expects 1 to 3 arguments")
    bounds = [NONE, *args] if len(args) == 1 else list(args)
    return SliceValue(*bounds, *[NONE] * (3 - len(bounds)))


@models(range)
def new_range(m: Machine, *args: Value) -> Value:
    return make_range(m, list(args))


@models(tuple.__new__)
def tuple_new(m: Machine, cls: Value, iterable: Value | None = None, /) -> Value:
    return TupleValue(unpack_sized(m, iterable) if iterable is not None else (), cls.constant())


@models(list.__new__)
def list_new(m: Machine, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return ListValue((), cls.constant())


@models(list.__init__)
def list_init(m: Machine, self: Any, iterable: Value | None = None, /) -> None:
    items = unpack_sized(m, iterable) if iterable is not None else []
    self.change(m)[:] = items


@models(list.__len__, tuple.__len__)
def sequence_len(m: Machine, self: Any, /) -> Value:
    return m.const(self.size())


@models(list.__getitem__, tuple.__getitem__)
def sequence_getitem(m: Machine, self: Any, key: Value, /) -> Value:
    return self.get(m, key)


@models(list.__iter__, tuple.__iter__)
def sequence_iter(m: Machine, self: Any, /) -> Value:
    return self.iterator(m)


@models(list.__contains__, tuple.__contains__)
def sequence_contains(m: Machine, self: Any, item: Value, /) -> Value:
    return m.const(self.holds(m, item))


@models(list.index, tuple.index)
def sequence_index(
    m: Machine, self: Any, item: Value, start: Value | None = None, stop: Value | None = None, /
) -> Value:
    begin, end, _ = slice(
        m.as_int(start) if start else None, m.as_int(stop) if stop else None
    ).indices(self.size())
    for index in range(begin, end):
        if index >= self.size():  # a comparison made it shorter
            break
        if same_or_equal(m, self.read(index), item):
            return m.const(index)
    if self.builtin is tuple:
        m.throw(ValueError, "tuple.index(x): x not in tuple")
    shown = m.call(m.const(repr), [item], {}).constant()
    m.throw(ValueError, f"{shown} is not in list")


@models(list.count, tuple.count)
def sequence_count(m: Machine, self: Any, item: Value, /) -> Value:
    return m.const(sum(same_or_equal(m, x, item) for x in self.items))


def _register_comparisons() -> None:
    names = {"__lt__": "<", "__le__": "<=", "__eq__": "==", "__ne__": "!=", "__gt__": ">"}
    for name, op in {**names, "__ge__": ">="}.items():

        def compare(m: Machine, self: Any, other: Value, /, _op: str = op) -> Value:
            result = self.richcompare(m, _op, other)
            return m.const(NotImplemented) if result is NotImplemented else result

        for kind in (list, tuple):
            models(getattr(kind, name))(compare)
    models(tuple.__hash__)(_tuple_hash)


def _tuple_hash(m: Machine, self: Any, /) -> Value:
    if not self.is_constant():
        raise Break("hash", "the number hash() gives to objects")
    m.bound_by = "a hash"
    return m.const(hash(self.constant()))


_register_comparisons()


@models(list.__add__, tuple.__add__)
def sequence_add(m: Machine, self: Any, other: Value, /) -> Value:
    return _or_complain(m, self, other, self.concatenate(m, other))


@models(list.__mul__, tuple.__mul__, list.__rmul__, tuple.__rmul__)
def sequence_mul(m: Machine, self: Any, other: Value, /) -> Value:
    result = self.repeat(m, other)
    return m.const(NotImplemented) if result is NotImplemented else result


def _or_complain(m: Machine, self: Any, other: Value, result: Any) -> Value:
    if result is NotImplemented:
        kind, name = self.builtin.__name__, other.python_type().__name__
        m.throw(TypeError, f'can only concatenate {kind} (not "{name}") to {kind}')
    return result


@models(list.append)
def list_append(m: Machine, self: Any, item: Value, /) -> None:
    self.append(m, item)


@models(list.extend)
def list_extend(m: Machine, self: Any, iterable: Value, /) -> None:
    self.extend(m, iterable)


@models(list.insert)
def list_insert(m: Machine, self: Any, index: Value, item: Value, /) -> None:
    place = m.as_int(index)
    self.change(m).insert(place, item)


@models(list.pop)
def list_pop(m: Machine, self: Any, index: Value | None = None, /) -> Value:
    if not self.size():
        m.throw(IndexError, "pop from empty list")
    place = -1 if index is None else m.as_int(index)
    if not -self.size() <= place < self.size():
        m.throw(IndexError, "pop index out of range")
    return self.change(m, keeps=True).pop(place)


@models(list.remove)
def list_remove(m: Machine, self: Any, item: Value, /) -> None:
    for index in range(self.size()):
        if same_or_equal(m, self.read(index), item):
            del self.change(m)[index]
            return
    m.throw(ValueError, "list.remove(x): x not in list")


@models(list.clear)
def list_clear(m: Machine, self: Any, /) -> None:
    self.change(m).clear()


@models(list.copy)
def list_copy(m: Machine, self: Any, /) -> Value:
    return ListValue(self.items)


@models(list.reverse)
def list_reverse(m: Machine, self: Any, /) -> None:
    self.change(m, keeps=True).reverse()


@models(list.__reversed__)
def list_reversed(m: Machine, self: Any, /) -> Value:
    return ListIterator(self, -1)


@models(list.__setitem__)
def list_setitem(m: Machine, self: Any, key: Value, item: Value, /) -> None:
    self.put(m, key, item)


@models(list.__delitem__)
def list_delitem(m: Machine, self: Any, key: Value, /) -> None:
    self.remove_at(m, key)


@models(list.sort)
def list_sort(
    m: Machine, self: Any, /, *, key: Value | None = None, reverse: Value | None = None
) -> None:
    """The list is empty while keys and comparisons run, and must not be changed by them."""
    items = list(self.items)
    self.change(m, keeps=True).clear()
    noted, m.changed_late = m.changed_late, []
    try:
        items = sort(m, items, key, reverse)
    finally:
        changed, m.changed_late = m.changed_late, noted
        if noted is not None:
            noted.extend(changed)
        self.cells[:] = items
    if any(value is self for value in changed):
        m.throw(ValueError, "list modified during sort")


def sort(m: Machine, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """A stable sort by `<` of the keys, which are computed once each, in order."""
    keys = items if is_none(key) else [m.call(key, [x], {}) for x in items]

    def compare(a: int, b: int) -> int:
        return -1 if m.compare("<", keys[a], keys[b]).truth(m) else 0

    backwards = reverse is not None and reverse.truth(m)
    order = sorted(range(len(items)), key=cmp_to_key(compare), reverse=backwards)
    return [items[i] for i in order]


FIELD_GETTER = type(collections.namedtuple("Pair", "x").x)


class FieldValue(DescriptorValue):
    """A `_tuplegetter`: it reads an item by its number."""

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        if instance is None:
            return self
        (index, _doc) = self.object.__reduce__()[1]
        return instance.get(m, ConstantValue(index))


@wraps(FIELD_GETTER)
def wrap_field(m: Machine, real: Any, source: Any) -> Value:
    return FieldValue(real, guard_identity(m, real, source))
