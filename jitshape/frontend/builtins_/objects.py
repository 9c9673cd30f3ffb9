"""Methods of `object` and `type`, and the attributes that the interpreter's structs show."""

from __future__ import annotations

import builtins
import collections
import contextvars
import functools
import gc
import re
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jitshape.frontend.builtins_.mappings  # noqa: F401  (the handlers of dict methods)
from jitshape.frontend.builtins_.registry import is_none, models
from jitshape.frontend.lookup import c_slot
from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Break, Value, wraps
from jitshape.frontend.values.classes import (
    GETTERS,
    SETTERS,
    ClassMethodValue,
    ClassValue,
    DescriptorValue,
    PropertyValue,
    StaticMethodValue,
    refuse_finalizer,
)
from jitshape.frontend.values.functions import (
    HANDLERS,
    BoundMethodValue,
    FunctionValue,
    Handler,
)
from jitshape.frontend.values.objects import ObjectValue, is_plain_layout
from jitshape.frontend.values.storage import PinnedValue, guard_identity

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(object)
def new_plain_object(m: Machine) -> Value:
    return ObjectValue(object)


@models(object.__new__)
def object_new(m: Machine, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    real = cls.constant()
    if args or kwargs:
        if real.__new__ is not object.__new__:
            m.throw(
                TypeError, "object.__new__() takes exactly one argument (the type to instantiate)"
            )
        if real.__init__ is object.__init__:
            m.throw(TypeError, f"{real.__name__}() takes no arguments")
    refuse_finalizer(m, real)
    if not is_plain_layout(real):
        raise Break("builtin", f"a {real.__qualname__} is made by C code")
    return ObjectValue(real)


@models(object.__init__)
def object_init(m: Machine, self: Value, /, *args: Value, **kwargs: Value) -> None:
    cls = self.python_type()
    if args or kwargs:
        if cls.__init__ is not object.__init__:
            shown = "object.__init__() takes exactly one argument (the instance to initialize)"
            m.throw(TypeError, shown)
        if cls.__new__ is object.__new__:
            shown = f"{cls.__name__}.__init__() takes exactly one argument"
            m.throw(TypeError, f"{shown} (the instance to initialize)")


@models(object.__init_subclass__)
def object_init_subclass(m: Machine, /, *args: Value) -> None:
    return None


MODULES = (builtins, types, collections, functools, contextvars, threading, re, weakref)
OWN_ACCESS = (type, super, types.ModuleType, types.MethodType)


def generic(name: str) -> list[Any]:
    """`__getattribute__` and so on of `object` and of the classes of C that fill the slot with
    the same function."""
    named = {k: v for module in MODULES for k, v in vars(module).items()}
    made = (iter([]), iter(()), iter({}), (x for x in ()), {}.keys(), {}.values(), {}.items())
    classes = [c for c in named.values() if isinstance(c, type)] + [type(x) for x in made]
    return [
        vars(cls)[name]
        for cls in classes
        if name in vars(cls)
        and cls not in OWN_ACCESS
        and c_slot(cls, name) == c_slot(object, name)
        and isinstance(vars(cls)[name], types.WrapperDescriptorType)
    ]


@models(*generic("__getattribute__"))
def object_getattribute(m: Machine, self: Value, name: Value, /) -> Value:
    if isinstance(self, (ClassValue, FunctionValue)):
        return self.getattr(m, name.constant())
    found = m.generic_getattr(self, name.constant())
    if found is None:
        shown = f"'{self.python_type().__name__}' object has no attribute '{name.constant()}'"
        m.throw(AttributeError, shown)
    return found


@models(type.__getattribute__)
def type_getattribute(m: Machine, self: Any, name: Value, /) -> Value:
    found = self.lookup(m, name.constant())
    if found is None:
        shown = f"type object '{self.object.__name__}' has no attribute '{name.constant()}'"
        m.throw(AttributeError, shown)
    return found


@models(types.ModuleType.__getattribute__)
def module_getattribute(m: Machine, self: Any, name: Value, /) -> Value:
    return self.getattr(m, name.constant())


@models(*generic("__setattr__"))
def object_setattr(m: Machine, self: Value, name: Value, value: Value, /) -> None:
    m.generic_setattr(self, name.constant(), value)


@models(*generic("__delattr__"))
def object_delattr(m: Machine, self: Value, name: Value, /) -> None:
    m.generic_delattr(self, name.constant())


@models(object.__eq__)
def object_eq(m: Machine, self: Value, other: Value, /) -> Value:
    return m.const(True if m.identical(self, other) else NotImplemented)


@models(object.__ne__)
def object_ne(m: Machine, self: Value, other: Value, /) -> Value:
    result = m.call(self.special(m, "__eq__"), [other], {})
    if result.is_constant() and result.constant() is NotImplemented:
        return result
    return m.const(not result.truth(m))


@models(object.__lt__, object.__le__, object.__gt__, object.__ge__)
def object_order(m: Machine, self: Value, other: Value, /) -> Value:
    return m.const(NotImplemented)


@models(object.__hash__)
def object_hash(m: Machine, self: Value, /) -> Value:
    raise Break("identity", "the number hash() gives to an object differs at each run")


@models(object.__repr__)
def object_repr(m: Machine, self: Value, /) -> Value:
    raise Break("identity", "repr() shows the address of an object")


@models(object.__str__)
def object_str(m: Machine, self: Value, /) -> Value:
    from jitshape.frontend.builtins_.numbers import text

    return m.const(text(m, self, "__repr__"))


@models(type.__call__)
def type_call(m: Machine, cls: Any, /, *args: Value, **kwargs: Value) -> Value:
    return cls.instantiate(m, list(args), kwargs)


@models(type.mro)
def type_mro(m: Machine, cls: Any, /) -> Value:
    try:
        order = type.mro(cls.object)
    except TypeError as error:
        m.throw(TypeError, *error.args)
    return m.new_list([m.wrap_type(base) for base in order])


# ---- descriptors made or called by the program


@models(property.__get__, staticmethod.__get__, classmethod.__get__, types.FunctionType.__get__)
def descriptor_get(m: Machine, self: Value, instance: Value, owner: Any = None, /) -> Value:
    where = None if is_none(instance) else instance
    owner = owner if owner is not None else instance.type_value(m)
    if isinstance(self, (DescriptorValue, FunctionValue)):
        return self.descr_get(m, where, owner)
    return self if where is None else _as_property(m, self).descr_get(m, where, owner)


def _as_property(m: Machine, value: Value) -> PropertyValue:
    """What a subclass of `property` is besides an object of its class."""
    real = getattr(value, "object", None)
    if not isinstance(real, property):
        name = value.python_type().__qualname__
        raise Break("builtin", f"a {name} is called as what it is derived from")
    return PropertyValue(real, guard_identity(m, real, value.source))


def _accessor(name: str) -> Callable[[Machine, Value], Value]:
    return lambda m, value: _as_property(m, value).getattr(m, name)


for _name in ("fget", "fset", "fdel"):
    GETTERS[vars(property)[_name]] = _accessor(_name)


@models(types.MethodType)
def new_method(m: Machine, function: Value, owner: Value, /) -> Value:
    return BoundMethodValue(function, owner)


@models(staticmethod)
def new_staticmethod(m: Machine, function: Value, /) -> Value:
    return StaticMethodValue(None, None, function)


@models(classmethod)
def new_classmethod(m: Machine, function: Value, /) -> Value:
    return ClassMethodValue(None, None, function)


# ---- attributes of the interpreter's structs


def _set_class(m: Machine, value: Value, cls: Value) -> None:
    raise Break("side_effect", "__class__ of an object is set")


def _class_dict(m: Machine, value: Value) -> Value:
    """A view that no other read of it gives; to set an attribute of the class is a break."""
    if not isinstance(value, ClassValue):
        raise Break("class_dict", f"the __dict__ of a {value.python_type().__name__} is read")
    return wrap_proxy(m, type.__dict__["__dict__"].__get__(value.object), None)


GETTERS[object.__dict__["__class__"]] = lambda m, value: value.type_value(m)
SETTERS[object.__dict__["__class__"]] = _set_class
GETTERS[type.__dict__["__dict__"]] = _class_dict


class ProxyValue(PinnedValue):
    """A `mappingproxy`: what it is asked, it asks the dict behind it, whose Value may change."""

    def __init__(self, real: types.MappingProxyType, source: Source, mapping: Value) -> None:
        super().__init__(real, source)
        self.mapping = mapping

    def is_constant(self) -> bool:
        return False

    def truth(self, m: Machine) -> bool:
        return self.mapping.truth(m)

    def length(self, m: Machine) -> Value:
        return self.mapping.length(m)

    def contains(self, m: Machine, item: Value) -> Value:
        return self.mapping.contains(m, item)

    def getitem(self, m: Machine, key: Value) -> Value:
        return self.mapping.getitem(m, key)

    def setitem(self, m: Machine, key: Value, value: Value) -> None:
        m.throw(TypeError, "'mappingproxy' object does not support item assignment")

    def delitem(self, m: Machine, key: Value) -> None:
        m.throw(TypeError, "'mappingproxy' object does not support item deletion")

    def iterate(self, m: Machine) -> Value:
        return self.mapping.iterate(m)

    def compare(self, m: Machine, op: str, other: Value) -> Value:
        return m.compare(op, self.mapping, other)


@wraps(types.MappingProxyType)
def wrap_proxy(m: Machine, real: types.MappingProxyType, source: Source | None) -> ProxyValue:
    """Pinned, and with it the dict behind it, which is what is read and guarded."""
    held = guard_identity(m, real, source)
    (behind,) = gc.get_referents(real)
    if not isinstance(behind, dict):
        raise Break("mapping", f"a mappingproxy of a {type(behind).__name__}")
    return ProxyValue(real, held, m.wrap(behind, Held(behind, held.text)))


def _register_proxy() -> None:
    for name in ("keys", "values", "items", "get", "copy", "__reversed__"):
        HANDLERS[getattr(types.MappingProxyType, name)] = _asking(name)
    for name in ("__getitem__", "__contains__", "__len__", "__iter__"):
        HANDLERS[getattr(types.MappingProxyType, name)] = _asking(name)


def _asking(name: str) -> Handler:
    """A method of a proxy: that of the dict, found on its class."""

    def handler(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        proxy: Any = args[0]
        return m.call(proxy.mapping.getattr(m, name), args[1:], kwargs)

    return handler


_register_proxy()
