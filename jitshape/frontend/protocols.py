"""Protocols: what truth, size, iteration, subscripts and calls mean when the value itself has no
answer.

In: operands, as Values.  Out: what the interpreter computes, by looking dunder methods up on the
class (lookup.py) and running them in the machine; the TypeErrors have CPython's text.  Operators
stand in operators.py, attributes in attributes.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.attributes import Attributes
from jitshape.frontend.lookup import class_attribute
from jitshape.frontend.operators import Operators
from jitshape.frontend.values.base import Raised, Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter


class SequenceIterator(Value):
    """The iterator of an object that has `__getitem__` only."""

    def __init__(self, sequence: Value) -> None:
        self.sequence: Value | None = sequence
        self.index = 0

    def python_type(self) -> type:
        return type(iter(_OnlyGetitem()))

    def iterate(self, m: Any) -> Value:
        return self

    def next(self, m: Any) -> Value | None:
        if self.sequence is None:
            return None
        m.mutated(self)
        try:
            item = self.sequence.getitem(m, m.const(self.index))
        except Raised as raised:
            if not issubclass(raised.value.python_type(), (IndexError, StopIteration)):
                raise
            self.sequence = None
            return None
        self.index += 1
        return item

    def children(self) -> Iterable[Value]:
        return () if self.sequence is None else (self.sequence,)

    def reconstruct(self, e: Emitter) -> None:
        from jitshape.frontend.values.iterators import iterator_at

        e.begin_call()
        e.const(iterator_at)
        e.const(iter)
        if self.sequence is None:
            e.const(_OnlyGetitem())
        else:
            e.value(self.sequence)
        e.const(self.index)
        e.end_call(3)


class _OnlyGetitem:
    def __getitem__(self, index: int) -> Any:
        raise IndexError


class Protocols(Operators, Attributes):
    """The part of the machine that looks up and runs methods.  See values/base.py for the
    meaning of each `default_*`."""

    if TYPE_CHECKING:
        forward: Any

    # ---- truth, size, membership, hash

    def default_truth(self, value: Value) -> bool:
        result = self.call_special(value, "__bool__")
        if result is not None:
            if result.python_type() is not bool:
                name = result.python_type().__name__
                self.throw(TypeError, f"__bool__ should return bool, returned {name}")
            return result.truth(self)
        if self.type_lookup(value.python_type(), "__len__") is None:
            return True
        return self.default_length(value).truth(self)

    def default_length(self, value: Value) -> Value:
        result = self.call_special(value, "__len__")
        if result is None:
            self.throw(TypeError, f"object of type '{value.python_type().__name__}' has no len()")
        if issubclass(result.python_type(), int) and not result.is_constant():
            return result
        length = self.as_int(result)
        if length < 0:
            self.throw(ValueError, "__len__() should return >= 0")
        return self.const(length)

    def ask_length(self, value: Value) -> None:
        """Run what `operator.length_hint` runs of an object's own."""
        cls = value.python_type()
        asked = (class_attribute(cls, name) for name in ("__len__", "__length_hint__"))
        if not any(type(found) is FunctionType for found in asked):
            return  # what C answers has no effects
        try:
            if self.type_lookup(cls, "__len__") is not None:
                self.default_length(value)
                return
            hint = self.call_special(value, "__length_hint__")
        except Raised as raised:
            if not self.is_exception(raised, TypeError):
                raise
            return
        if hint is not None and not (hint.is_constant() and hint.constant() is NotImplemented):
            if self.as_int(hint) < 0:
                self.throw(ValueError, "__length_hint__() should return >= 0")

    def default_contains(self, value: Value, item: Value) -> Value:
        method = value.special(self, "__contains__")
        if method is not None and not _is_none(method):
            return self.const(self.call(method, [item], {}).truth(self))
        if method is not None or not self.iterable(value):
            name = value.python_type().__name__
            self.throw(TypeError, f"argument of type '{name}' is not iterable")
        iterator = value.iterate(self)
        while (other := iterator.next(self)) is not None:
            if self.identical(other, item) or self.compare("==", other, item).truth(self):
                return self.const(True)
        return self.const(False)

    def default_hash_key(self, value: Value) -> Any:
        cls = value.python_type()
        hasher = class_attribute(cls, "__hash__")
        if hasher is None:
            self.throw(TypeError, f"unhashable type: '{cls.__name__}'")
        if (
            hasher is object.__dict__["__hash__"]
            and class_attribute(cls, "__eq__") is object.__dict__["__eq__"]
        ):
            self.type_lookup(cls, "__hash__")
            return value
        return self.stop("user_hash", f"{cls.__name__} defines its own __hash__ or __eq__")

    # ---- iteration

    def iterable(self, value: Value) -> bool:
        cls = value.python_type()
        return self.type_lookup(cls, "__iter__") is not None or (
            self.type_lookup(cls, "__getitem__") is not None
        )

    def default_iterate(self, value: Value) -> Value:
        cls = value.python_type()
        method = value.special(self, "__iter__")
        if method is None and self.type_lookup(cls, "__getitem__") is not None:
            return SequenceIterator(value)
        if method is None or _is_none(method):
            self.throw(TypeError, f"'{cls.__name__}' object is not iterable")
        iterator = self.call(method, [], {})
        if not self.defines(iterator, "__next__"):
            name = iterator.python_type().__name__
            self.throw(TypeError, f"iter() returned non-iterator of type '{name}'")
        return iterator

    def default_next(self, value: Value) -> Value | None:
        method = value.special(self, "__next__")
        if method is None:
            self.throw(TypeError, f"'{value.python_type().__name__}' object is not an iterator")
        try:
            return self.call(method, [], {})
        except Raised as raised:
            if self.is_exception(raised, StopIteration):
                return None
            raise

    def items_of(self, value: Value) -> list[Value]:
        """All items of an iterable."""
        iterator, items = value.iterate(self), []
        while (item := iterator.next(self)) is not None:
            items.append(item)
        return items

    def pairs_of(self, mapping: Value) -> list[tuple[Value, Value]]:
        """Keys and values of a mapping."""
        keys = self.items_of(self.call(mapping.getattr(self, "keys"), [], {}))
        return [(key, mapping.getitem(self, key)) for key in keys]

    # ---- subscripts

    def default_getitem(self, value: Value, key: Value) -> Value:
        result = self.call_special(value, "__getitem__", key)
        if result is None:
            self._not_subscriptable(value, "is not subscriptable")
        return result

    def default_setitem(self, value: Value, key: Value, item: Value) -> None:
        if self.call_special(value, "__setitem__", key, item) is None:
            self._not_subscriptable(value, "does not support item assignment")

    def default_delitem(self, value: Value, key: Value) -> None:
        if self.call_special(value, "__delitem__", key) is None:
            lacks = self.defines(value, "__getitem__") and not self.defines(value, "__setitem__")
            doing = "doesn't support" if lacks else "does not support"
            self._not_subscriptable(value, f"{doing} item deletion")

    def _not_subscriptable(self, value: Value, what: str) -> NoReturn:
        self.throw(TypeError, f"'{value.python_type().__name__}' object {what}")

    # ---- classes and calls

    def real_class(self, value: Value) -> type | None:
        """The class that a value is, or None if it is no class."""
        return value.object if issubclass(value.python_type(), type) else None

    def function_name(self, function: Value) -> str:
        """How errors of calls name a callable: `module.qualname()`."""
        try:
            qualname = function.getattr(self, "__qualname__")
            module = function.getattr(self, "__module__")
        except Raised:
            return f"{function.python_type().__name__} object"
        if module.is_constant() and module.constant() not in (None, "builtins"):
            return f"{module.constant()}.{qualname.constant()}()"
        return f"{qualname.constant()}()"

    def default_call(self, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = value.special(self, "__call__")
        if method is None:
            self.throw(TypeError, f"'{value.python_type().__name__}' object is not callable")
        return self.forward(value, method, args, kwargs)


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.constant() is None
