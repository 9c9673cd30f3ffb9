"""Constructors and methods of set, frozenset and their subclasses.

Handlers get the set as first argument; it is a value with that storage, also where a subclass
calls `super().method(...)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import models
from jitshape.frontend.values.base import Value, unpack
from jitshape.frontend.values.sets import SetValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(set)
def new_set(m: Machine, iterable: Value | None = None, /) -> Value:
    return SetValue.of(m, unpack(m, iterable) if iterable is not None else ())


@models(frozenset)
def new_frozenset(m: Machine, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, SetValue) and iterable.cls is frozenset:
        return iterable
    return SetValue.of(m, unpack(m, iterable) if iterable is not None else (), frozenset)


@models(set.__new__)
def set_new(m: Machine, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return SetValue(cls.constant())


@models(frozenset.__new__)
def frozenset_new(m: Machine, cls: Value, iterable: Value | None = None, /) -> Value:
    return SetValue.of(m, unpack(m, iterable) if iterable is not None else (), cls.constant())


@models(set.__init__)
def set_init(m: Machine, self: Any, iterable: Value | None = None, /) -> None:
    self.replace(m, SetValue.of(m, unpack(m, iterable) if iterable else ()).elements)


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
    item = self.ordered(m)[0]
    self.remove(m, item)
    return item


@models(set.clear)
def set_clear(m: Machine, self: Any, /) -> None:
    m.let_go(*self.elements.values())
    self.replace(m, {})


@models(set.copy, frozenset.copy)
def set_copy(m: Machine, self: Any, /) -> Value:
    if self.cls is frozenset:
        return self
    return SetValue(self.builtin, dict(self.elements))


@models(set.__contains__, frozenset.__contains__)
def set_contains(m: Machine, self: Any, item: Value, /) -> Value:
    return m.const(self.asked_for(m, item) in self.elements)


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
