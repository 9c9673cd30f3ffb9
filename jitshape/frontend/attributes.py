"""Attributes and descriptors: what `value.name` means when the value itself has no answer.

In: a Value and a name.  Out: what `object.__getattribute__` and its kin do, or the class's own
methods in their place, run in the machine; the AttributeErrors have CPython's text.
Invariant: as in lookup.py.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.lookup import Lookup
from jitshape.frontend.values.base import Raised, Value

_NO_DICT = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""


class Attributes(Lookup):
    """The part of the machine that reads and writes attributes."""

    if TYPE_CHECKING:
        const: Any
        is_exception: Any
        mutated: Any
        throw: Any

    def attribute(self, value: Value, name: str) -> Value:
        """`value.name` as the program writes it: an AttributeError learns what was asked."""
        try:
            return value.getattr(self, name)
        except Raised as raised:
            if self.is_exception(raised, AttributeError):
                raised.value.asked(self, value, name)
            raise

    def default_getattr(self, value: Value, name: str) -> Value:
        cls = value.python_type()
        if self.is_generic(cls, "__getattribute__"):
            found = self.generic_getattr(value, name)
            if found is not None:
                return found
            return self._missing_attribute(value, name)
        try:
            return self._call_getattribute(value, name)
        except Raised as raised:
            hook = self.type_lookup(cls, "__getattr__")
            if hook is None or not self.is_exception(raised, AttributeError):
                raise
        return self.call(hook, [value, self.const(name)], {})

    def _call_getattribute(self, value: Value, name: str) -> Value:
        method = self.type_lookup(value.python_type(), "__getattribute__")
        return self.call(method, [value, self.const(name)], {})

    def _missing_attribute(self, value: Value, name: str) -> Value:
        """`__getattr__`, or the AttributeError."""
        cls = value.python_type()
        hook = self.type_lookup(cls, "__getattr__")
        if hook is None:
            self.attribute_error(f"'{cls.__name__}' object has no attribute '{name}'", value, name)
        return self.call(hook, [value, self.const(name)], {})

    def attribute_error(self, message: str, value: Value, name: str) -> NoReturn:
        self.throw(AttributeError, message)

    def generic_getattr(self, value: Value, name: str) -> Value | None:
        """`object.__getattribute__`; None instead of AttributeError, unless a descriptor that
        the class has no `__getattr__` for raised it."""
        cls = value.python_type()
        descriptor = self.type_lookup(cls, name)
        if descriptor is not None and descriptor.is_data_descriptor() and descriptor.has_get():
            return self._get_from(descriptor, value, cls)
        attributes = value.attributes(self)
        if attributes is not None:
            found = attributes.get_named(self, name)
            if found is not None:
                return found
        if descriptor is None or not descriptor.has_get():
            return descriptor
        return self._get_from(descriptor, value, cls)

    def _get_from(self, descriptor: Value, value: Value, cls: type) -> Value | None:
        try:
            return descriptor.descr_get(self, value, self.wrap_type(cls))
        except Raised as raised:
            hook = self.type_lookup(cls, "__getattr__")
            if hook is None or not self.is_exception(raised, AttributeError):
                raise
            return None

    def default_setattr(self, value: Value, name: str, item: Value) -> None:
        cls = value.python_type()
        if not self.is_generic(cls, "__setattr__"):
            method = self.type_lookup(cls, "__setattr__")
            self.call(method, [value, self.const(name), item], {})
        else:
            self.generic_setattr(value, name, item)

    def generic_setattr(self, value: Value, name: str, item: Value) -> None:
        """`object.__setattr__`."""
        cls = value.python_type()
        descriptor = self.type_lookup(cls, name)
        if descriptor is not None and self.defines(descriptor, "__set__"):
            descriptor.descr_set(self, value, item)
            return
        attributes = value.attributes(self)
        if attributes is None:
            self._no_such_slot(cls, name, descriptor)
        self.mutated(value)
        attributes.set_named(self, name, item)

    def default_delattr(self, value: Value, name: str) -> None:
        cls = value.python_type()
        if not self.is_generic(cls, "__delattr__"):
            method = self.type_lookup(cls, "__delattr__")
            self.call(method, [value, self.const(name)], {})
        else:
            self.generic_delattr(value, name)

    def generic_delattr(self, value: Value, name: str) -> None:
        """`object.__delattr__`."""
        cls = value.python_type()
        descriptor = self.type_lookup(cls, name)
        if descriptor is not None and self.defines(descriptor, "__delete__"):
            descriptor.descr_delete(self, value)
            return
        attributes = value.attributes(self)
        if attributes is None:
            self._no_such_slot(cls, name, descriptor)
        self.mutated(value)
        if not attributes.delete_named(self, name):
            shown = f"'{cls.__name__}' object has no attribute '{name}'"
            self.throw(AttributeError, shown)

    def _no_such_slot(self, cls: type, name: str, descriptor: Value | None) -> NoReturn:
        if descriptor is not None:
            self.throw(AttributeError, f"'{cls.__name__}' object attribute '{name}' is read-only")
        more = _NO_DICT if self.is_generic(cls, "__setattr__") else ""
        self.throw(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'{more}")

    # ---- descriptors

    def default_descr_get(self, descriptor: Value, instance: Value | None, owner: Value) -> Value:
        method = self.type_lookup(descriptor.python_type(), "__get__")
        bound = instance if instance is not None else self.const(None)
        return self.call(method, [descriptor, bound, owner], {})

    def default_descr_set(self, descriptor: Value, instance: Value, value: Value) -> None:
        method = self.type_lookup(descriptor.python_type(), "__set__")
        self.call(method, [descriptor, instance, value], {})

    def default_descr_delete(self, descriptor: Value, instance: Value) -> None:
        method = self.type_lookup(descriptor.python_type(), "__delete__")
        if method is None:
            self.throw(AttributeError, "__delete__")
        self.call(method, [descriptor, instance], {})
