"""Constructors and methods of list, tuple, dict, set, frozenset, slice and their subclasses.

Handlers get the container as first argument; it is a value with that storage, also where a
subclass calls `super().method(...)`.
"""

from __future__ import annotations

import collections
from collections import OrderedDict, defaultdict
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import NONE, is_none, models
from jitshape.frontend.values.base import Break, Value, unpack
from jitshape.frontend.values.constants import ConstantValue
from jitshape.frontend.values.dicts import DictValue, ViewValue, from_pairs
from jitshape.frontend.values.iterators import DictIterator, ListIterator
from jitshape.frontend.values.sequences import ListValue, TupleValue, same_or_equal
from jitshape.frontend.values.sets import SetValue
from jitshape.frontend.values.slices import SliceValue, make_range

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

# ---- constructors


@models(list)
def new_list(m: Machine, iterable: Value | None = None, /) -> Value:
    return ListValue(unpack(m, iterable) if iterable is not None else ())


@models(tuple)
def new_tuple(m: Machine, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, TupleValue) and iterable.cls is tuple:
        return iterable
    return TupleValue(unpack(m, iterable) if iterable is not None else ())


@models(dict)
def new_dict(m: Machine, other: Value | None = None, /, **items: Value) -> Value:
    result = DictValue()
    fill_dict(m, result, other, items)
    return result


def fill_dict(m: Machine, target: DictValue, other: Value | None, items: dict) -> None:
    """`dict.update(other, **items)`."""
    if other is not None:
        target.update(m, other)
    for name, value in items.items():
        target.store(m, m.const(name), value)


@models(OrderedDict)
def new_ordered_dict(m: Machine, other: Value | None = None, /, **items: Value) -> Value:
    result = DictValue(OrderedDict)
    fill_dict(m, result, other, items)
    return result


@models(defaultdict)
def new_defaultdict(
    m: Machine, factory: Value | None = None, other: Value | None = None, /, **items: Value
) -> Value:
    result = DictValue(defaultdict)
    result.default_factory = factory or NONE
    fill_dict(m, result, other, items)
    return result


@models(set)
def new_set(m: Machine, iterable: Value | None = None, /) -> Value:
    return SetValue.of(m, unpack(m, iterable) if iterable is not None else ())


@models(frozenset)
def new_frozenset(m: Machine, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, SetValue) and iterable.cls is frozenset:
        return iterable
    return SetValue.of(m, unpack(m, iterable) if iterable is not None else (), frozenset)


@models(slice)
def new_slice(m: Machine, *args: Value) -> Value:
    if not 1 <= len(args) <= 3:
        raise Break("builtin_arguments", "slice expects 1 to 3 arguments")
    bounds = [NONE, *args] if len(args) == 1 else list(args)
    return SliceValue(*bounds, *[NONE] * (3 - len(bounds)))


@models(range)
def new_range(m: Machine, *args: Value) -> Value:
    return make_range(m, list(args))


# ---- `__new__` and `__init__` of subclasses


@models(tuple.__new__)
def tuple_new(m: Machine, cls: Value, iterable: Value | None = None, /) -> Value:
    return TupleValue(unpack(m, iterable) if iterable is not None else (), cls.constant())


@models(list.__new__)
def list_new(m: Machine, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return ListValue((), cls.constant())


@models(list.__init__)
def list_init(m: Machine, self: Any, iterable: Value | None = None, /) -> None:
    items = unpack(m, iterable) if iterable is not None else []
    self.change(m)[:] = items


@models(dict.__new__, OrderedDict.__new__, defaultdict.__new__)
def dict_new(m: Machine, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return DictValue(cls.constant())


@models(dict.__init__, OrderedDict.__init__)
def dict_init(m: Machine, self: Any, other: Value | None = None, /, **items: Value) -> None:
    """OrderedDict's goes by `self[key] = value`, as CPython's does."""
    if issubclass(self.cls, OrderedDict) and not self.inherits_store():
        update_by_setitem(m, self, other, items)
    else:
        fill_dict(m, self, other, items)


def update_by_setitem(m: Machine, self: DictValue, other: Value | None, items: dict) -> None:
    """`MutableMapping.update`: a `__setitem__` of the user's class sees every item."""
    pending = new_dict(m, other, **items) if other is not None else new_dict(m, **items)
    for key, value in zip(pending.keys_in_order(m), pending.values_in_order(m)):
        self.setitem(m, key, value)


@models(defaultdict.__init__)
def defaultdict_init(
    m: Machine,
    self: Any,
    factory: Value | None = None,
    other: Value | None = None,
    /,
    **items: Value,
) -> None:
    self.default_factory = factory or NONE
    fill_dict(m, self, other, items)


@models(set.__new__)
def set_new(m: Machine, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return SetValue(cls.constant())


@models(frozenset.__new__)
def frozenset_new(m: Machine, cls: Value, iterable: Value | None = None, /) -> Value:
    return SetValue.of(m, unpack(m, iterable) if iterable is not None else (), cls.constant())


@models(set.__init__)
def set_init(m: Machine, self: Any, iterable: Value | None = None, /) -> None:
    self.replace(m, SetValue.of(m, unpack(m, iterable) if iterable else ()).elements)


# ---- what lists and tuples share


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
    models(dict.__eq__, OrderedDict.__eq__)(_dict_equal)
    models(tuple.__hash__)(_tuple_hash)


def _dict_equal(m: Machine, self: Any, other: Value, /) -> Value:
    result = self.richcompare(m, "==", other)
    return m.const(NotImplemented) if result is NotImplemented else result


def _tuple_hash(m: Machine, self: Any, /) -> Value:
    if not self.is_constant():
        raise Break("hash", "the number hash() gives to objects")
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


# ---- list


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
    return self.change(m).pop(place)


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
    self.change(m).reverse()


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
    items = sort(m, self.items, key, reverse)
    self.change(m)[:] = items


def sort(m: Machine, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """A stable sort by `<` of the keys, which are computed once each, in order."""
    keys = items if is_none(key) else [m.call(key, [x], {}) for x in items]

    def compare(a: int, b: int) -> int:
        return -1 if m.compare("<", keys[a], keys[b]).truth(m) else 0

    backwards = reverse is not None and reverse.truth(m)
    order = sorted(range(len(items)), key=cmp_to_key(compare), reverse=backwards)
    return [items[i] for i in order]


# ---- dict


@models(dict.__len__)
def dict_len(m: Machine, self: Any, /) -> Value:
    return m.const(len(self.load(m)))


@models(dict.__getitem__)
def dict_getitem(m: Machine, self: Any, key: Value, /) -> Value:
    return self.get(m, key)


@models(dict.__setitem__, OrderedDict.__setitem__)
def dict_setitem(m: Machine, self: Any, key: Value, value: Value, /) -> None:
    self.store(m, key, value)


@models(dict.__delitem__, OrderedDict.__delitem__)
def dict_delitem(m: Machine, self: Any, key: Value, /) -> None:
    if self.remove(m, key) is None:
        m.throw(KeyError, key)


@models(dict.__contains__)
def dict_contains(m: Machine, self: Any, key: Value, /) -> Value:
    return m.const(self.lookup(m, key) is not None)


@models(dict.__iter__, OrderedDict.__iter__)
def dict_iter(m: Machine, self: Any, /) -> Value:
    return DictIterator(self, "keys")


@models(dict.__reversed__, OrderedDict.__reversed__)
def dict_reversed(m: Machine, self: Any, /) -> Value:
    return DictIterator(self, "keys", reverse=True)


@models(dict.get)
def dict_get(m: Machine, self: Any, key: Value, default: Value = NONE, /) -> Value:
    return self.lookup(m, key) or default


@models(dict.keys, OrderedDict.keys)
def dict_keys(m: Machine, self: Any, /) -> Value:
    return ViewValue(self, "keys")


@models(dict.values, OrderedDict.values)
def dict_values(m: Machine, self: Any, /) -> Value:
    return ViewValue(self, "values")


@models(dict.items, OrderedDict.items)
def dict_items(m: Machine, self: Any, /) -> Value:
    return ViewValue(self, "items")


@models(dict.update)
def dict_update(m: Machine, self: Any, other: Value | None = None, /, **items: Value) -> None:
    fill_dict(m, self, other, items)


@models(OrderedDict.update)
def ordered_update(m: Machine, self: Any, other: Value | None = None, /, **items: Value) -> None:
    update_by_setitem(m, self, other, items)


@models(dict.pop)
def dict_pop(m: Machine, self: Any, key: Value, default: Value | None = None, /) -> Value:
    value = self.remove(m, key)
    if value is None and default is None:
        m.throw(KeyError, key)
    return value or default


@models(OrderedDict.pop)
def ordered_pop(m: Machine, self: Any, key: Value, default: Value | None = None) -> Value:
    return dict_pop(m, self, key, default)


@models(dict.popitem)
def dict_popitem(m: Machine, self: Any, /) -> Value:
    return _pop_end(m, self, True, "popitem(): dictionary is empty")


@models(OrderedDict.popitem)
def ordered_popitem(m: Machine, self: Any, last: Value | None = None) -> Value:
    at_end = last is None or last.truth(m)
    return _pop_end(m, self, at_end, "dictionary is empty")


def _pop_end(m: Machine, self: DictValue, last: bool, complaint: str) -> Value:
    keys = self.keys_in_order(m)
    if not keys:
        m.throw(KeyError, complaint)
    key = keys[-1 if last else 0]
    return TupleValue((key, self.remove(m, key)))


@models(OrderedDict.move_to_end)
def move_to_end(m: Machine, self: Any, key: Value, last: Value | None = None) -> None:
    value = self.remove(m, key)
    if value is None:
        m.throw(KeyError, key)
    if last is None or last.truth(m):
        self.store(m, key, value)
        return
    rest = list(zip(self.keys_in_order(m), self.values_in_order(m)))
    self.clear(m)
    for old_key, old in ((key, value), *rest):
        self.store(m, old_key, old)


@models(dict.setdefault, OrderedDict.setdefault)
def dict_setdefault(m: Machine, self: Any, key: Value, default: Value = NONE) -> Value:
    value = self.lookup(m, key)
    if value is None:
        self.store(m, key, default)
        return default
    return value


@models(dict.clear, OrderedDict.clear)
def dict_clear(m: Machine, self: Any, /) -> None:
    self.clear(m)


@models(dict.copy)
def dict_copy(m: Machine, self: Any, /) -> Value:
    return self.copy(m)


@models(OrderedDict.copy, OrderedDict.__copy__ if hasattr(OrderedDict, "__copy__") else dict.copy)
def ordered_copy(m: Machine, self: Any, /) -> Value:
    if self.cls is dict:
        return self.copy(m)
    if self.cls is not OrderedDict:
        return m.call(m.wrap_type(self.cls), [self], {})
    return self.copy(m, OrderedDict)


@models(defaultdict.copy, defaultdict.__copy__)
def defaultdict_copy(m: Machine, self: Any, /) -> Value:
    result = self.copy(m, defaultdict)
    result.default_factory = self.default_factory
    return result


@models(defaultdict.__missing__)
def defaultdict_missing(m: Machine, self: Any, key: Value, /) -> Value:
    if is_none(self.default_factory):
        m.throw(KeyError, key)
    value = m.call(self.default_factory, [], {})
    self.setitem(m, key, value)
    return value


@models(dict.fromkeys)
def dict_fromkeys(m: Machine, iterable: Value, value: Value = NONE, /) -> Value:
    return from_pairs(m, [(key, value) for key in unpack(m, iterable)])


@models(dict.__or__, OrderedDict.__or__)
def dict_or(m: Machine, self: Any, other: Value, /) -> Value:
    if not isinstance(other, DictValue):
        return m.const(NotImplemented)
    result = self.copy(m, OrderedDict if issubclass(self.cls, OrderedDict) else dict)
    result.update(m, other)
    return result


def _register_views() -> None:
    for kind in ("keys", "values", "items"):
        view = type(getattr({}, kind)())
        models(view.__iter__)(lambda m, self, /: self.iterate(m))
        models(view.__len__)(lambda m, self, /: self.length(m))
        models(view.__reversed__)(
            lambda m, self, /: DictIterator(self.mapping, self.kind, reverse=True)
        )
    for view in (type({}.keys()), type({}.items())):
        models(view.isdisjoint)(lambda m, self, other, /: set_isdisjoint(m, self.as_set(m), other))


_register_views()

# ---- sets


def elements_of(m: Machine, value: Value) -> dict[Any, Value]:
    return (
        value.elements if isinstance(value, SetValue) else SetValue.of(m, unpack(m, value)).elements
    )


@models(set.add)
def set_add(m: Machine, self: Any, item: Value, /) -> None:
    self.add(m, item)


@models(set.discard)
def set_discard(m: Machine, self: Any, item: Value, /) -> None:
    self.remove(m, item)


@models(set.remove)
def set_remove(m: Machine, self: Any, item: Value, /) -> None:
    if not self.remove(m, item):
        m.throw(KeyError, item)


@models(set.pop)
def set_pop(m: Machine, self: Any, /) -> Value:
    if not self.elements:
        m.throw(KeyError, "pop from an empty set")
    item = self.ordered()[0]
    self.remove(m, item)
    return item


@models(set.clear)
def set_clear(m: Machine, self: Any, /) -> None:
    self.replace(m, {})


@models(set.copy, frozenset.copy)
def set_copy(m: Machine, self: Any, /) -> Value:
    return SetValue(self.builtin, dict(self.elements))


@models(set.__contains__, frozenset.__contains__)
def set_contains(m: Machine, self: Any, item: Value, /) -> Value:
    return m.const(item.hash_key(m) in self.elements)


@models(set.__len__, frozenset.__len__)
def set_len(m: Machine, self: Any, /) -> Value:
    return m.const(len(self.elements))


@models(set.__iter__, frozenset.__iter__)
def set_iter(m: Machine, self: Any, /) -> Value:
    return SetValue(self.cls, self.elements).iterate(m)


@models(set.isdisjoint, frozenset.isdisjoint)
def set_isdisjoint(m: Machine, self: Any, other: Value, /) -> Value:
    return m.const(not self.algebra("&", elements_of(m, other)))


@models(set.issubset, frozenset.issubset)
def set_issubset(m: Machine, self: Any, other: Value, /) -> Value:
    return m.const(self.elements.keys() <= elements_of(m, other).keys())


@models(set.issuperset, frozenset.issuperset)
def set_issuperset(m: Machine, self: Any, other: Value, /) -> Value:
    return m.const(self.elements.keys() >= elements_of(m, other).keys())


def _register_algebra() -> None:
    named = {"union": "|", "intersection": "&", "difference": "-", "symmetric_difference": "^"}
    for name, op in named.items():

        def combine(m: Machine, self: Any, /, *others: Value, _op: str = op) -> Value:
            result = SetValue(self.builtin, dict(self.elements))
            for other in others:
                result.elements = result.algebra(_op, elements_of(m, other))
            return result

        models(getattr(set, name), getattr(frozenset, name))(combine)
    updates = {"update": "|", "intersection_update": "&", "difference_update": "-"}
    for name, op in {**updates, "symmetric_difference_update": "^"}.items():

        def update(m: Machine, self: Any, /, *others: Value, _op: str = op) -> None:
            for other in others:
                self.replace(m, self.algebra(_op, elements_of(m, other)))

        models(getattr(set, name))(update)


_register_algebra()

# ---- namedtuple fields

FIELD_GETTER = type(collections.namedtuple("Pair", "x").x)


def register_namedtuple_fields() -> None:
    """`_tuplegetter` descriptors read an item by its number."""
    from jitshape.frontend.values.base import wraps
    from jitshape.frontend.values.classes import DescriptorValue
    from jitshape.frontend.values.storage import guard_identity

    class FieldValue(DescriptorValue):
        def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
            if instance is None:
                return self
            (index, _doc) = self.object.__reduce__()[1]
            return instance.get(m, ConstantValue(index))

    wraps(FIELD_GETTER)(lambda m, real, source: FieldValue(real, guard_identity(m, real, source)))


register_namedtuple_fields()
