"""Constructors and methods of dict, OrderedDict, defaultdict, their subclasses and views.

Handlers get the mapping as first argument; it is a value with that storage, also where a
subclass calls `super().method(...)`.
"""

from __future__ import annotations

from _collections import _count_elements  # type: ignore[attr-defined]
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import NONE, is_none, models
from jitshape.frontend.builtins_.sets import set_isdisjoint
from jitshape.frontend.values.base import Break, Value, unpack
from jitshape.frontend.values.dicts import DictValue, ViewValue, from_pairs
from jitshape.frontend.values.iterators import DictIterator
from jitshape.frontend.values.sequences import TupleValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


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


@models(_count_elements)
def count_elements(m: Machine, mapping: Value, iterable: Value, /) -> None:
    """How a Counter counts: past `get` and `__setitem__` unless a subclass has its own."""
    own = isinstance(mapping, DictValue) and mapping.inherits_store()
    get = m.type_lookup(mapping.python_type(), "get") if own else None
    if get is None or not get.is_constant() or get.constant() is not dict.get:
        raise Break("builtin", f"a {mapping.python_type().__name__} counts by code of its own")
    counted: Any = mapping
    iterator = iterable.iterate(m)
    while (item := iterator.next(m)) is not None:
        former = counted.lookup(m, item)
        more = m.const(1) if former is None else m.binary("+", former, m.const(1))
        counted.store(m, item, more)


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


@models(dict.__eq__, OrderedDict.__eq__)
def dict_equal(m: Machine, self: Any, other: Value, /) -> Value:
    result = self.richcompare(m, "==", other)
    return m.const(NotImplemented) if result is NotImplemented else result


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
