"""Classes and what is found on them: instantiation, class attributes, descriptors, super.

In: a real class (guarded by identity wherever it was read from).  Out: attributes by the
metaclass protocol, instances by inlining `__new__` and `__init__`.
Invariant: classes are never changed while tracing; what is read from one that can change is
guarded by the machine's `type_lookup`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Is, Missing, NullField
from jitshape.frontend.lookup import IMMUTABLE_TYPE, derives, name_in_c
from jitshape.frontend.sources import (
    Field,
    Held,
    InstanceDict,
    Key,
    Slot,
    Source,
    TypeAttribute,
    class_field,
)
from jitshape.frontend.values.base import Break, Raised, Value, has_finalizer, wraps
from jitshape.frontend.values.constants import CONSTANT_TYPES, from_python
from jitshape.frontend.values.dicts import AttributeDict
from jitshape.frontend.values.functions import (
    HANDLERS,
    PURE_OWNERS,
    BoundMethodValue,
    CallableValue,
    call_native,
)
from jitshape.frontend.values.sequences import SequenceValue, TupleValue, is_plain
from jitshape.frontend.values.storage import ASKED_NATIVELY, PinnedValue, guard_identity, wrap_field

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class ClassValue(PinnedValue, CallableValue):
    """A class that exists."""

    def __repr__(self) -> str:
        return f"ClassValue({self.object.__qualname__})"

    def truth(self, m: Machine) -> bool:
        if type(self.object) is type:
            return True
        return m.default_truth(self)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if type(self.object).__eq__ is type.__eq__:
            return super().compare(m, op, other)
        return m.default_compare(self, op, other)

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        if op == "|" and other.is_constant() and type(self.object).__or__ is type.__or__:
            pair = (self.object, other.constant())
            a, b = reversed(pair) if reflected else pair
            return m.wrap(a | b, None)
        return m.default_binary(self, op, other, reflected)

    # ---- attributes

    def getattr(self, m: Machine, name: str) -> Value:
        """`type.__getattribute__`."""
        meta = type(self.object)
        if meta.__getattribute__ is not type.__getattribute__:
            return m.default_getattr(self, name)
        found = self.lookup(m, name)
        if found is not None:
            return found
        hook = m.type_lookup(meta, "__getattr__")
        if hook is None:
            shown = self.object.__name__
            m.throw(AttributeError, f"type object '{shown}' has no attribute '{name}'")
        return m.call(hook, [self, m.const(name)], {})

    def lookup(self, m: Machine, name: str) -> Value | None:
        meta = type(self.object)
        of_meta = m.type_lookup(meta, name)
        meta_value = m.wrap_type(meta)
        if of_meta is not None and of_meta.has_get() and of_meta.is_data_descriptor():
            return of_meta.descr_get(m, self, meta_value)
        found = m.type_lookup(self.object, name)
        if found is not None:
            return found.descr_get(m, None, self) if found.has_get() else found
        if of_meta is not None and of_meta.has_get():
            return of_meta.descr_get(m, self, meta_value)
        return of_meta

    def setattr(self, m: Machine, name: str, value: Value) -> None:
        raise Break("side_effect", f"{self.object.__qualname__}.{name}: a class attribute is set")

    def delattr(self, m: Machine, name: str) -> None:
        raise Break("side_effect", f"{self.object.__qualname__}.{name} is deleted")

    def getitem(self, m: Machine, key: Value) -> Value:
        """`list[int]` and so on: an alias of constants, or the class's own method."""
        method = self.lookup(m, "__class_getitem__")
        if m.defines(self, "__getitem__"):
            return m.default_getitem(self, key)
        absent = method is None or method.python_type() is type(None)
        if absent and self.object is not type:  # which has an alias, and no such method
            m.throw(TypeError, f"type '{name_in_c(self.object)}' is not subscriptable")
        if self.object.__module__ in ("builtins", "collections", "collections.abc", "typing"):
            if _is_known(key):
                return m.wrap(self.object[_known(key)], None)
        if absent:
            m.stop("builtin", f"type[] of a {key.python_type().__name__}")
        return m.call(method, [key], {})

    def has_get(self) -> bool:
        return False

    # ---- instances

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = HANDLERS.get(self.object)
        if handler is not None:
            return handler(m, args, kwargs)
        if self.object in PURE_OWNERS:
            return call_native(m, self.object, args, kwargs)
        meta = type(self.object)
        if meta.__call__ is not type.__call__:
            return m.call(m.type_lookup(meta, "__call__"), [self, *args], kwargs)
        return self.instantiate(m, args, kwargs)

    def instantiate(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`type.__call__`: `__new__`, then `__init__` if that gave an instance."""
        self._check_abstract(m)
        refuse_finalizer(m, self.object)
        if issubclass(self.object, ASKED_NATIVELY):
            m.guard_special_methods(self.object)
        new = m.type_lookup(self.object, "__new__")
        new = new.descr_get(m, None, self) if new.has_get() else new
        instance = m.call(new, [self, *args], kwargs)
        if not derives(instance.python_type(), self.object):
            return instance
        init = m.type_lookup(instance.python_type(), "__init__")
        result = m.call(init, [instance, *args], kwargs)
        if not (result.is_constant() and result.constant() is None):
            name = result.python_type().__name__
            m.throw(TypeError, f"__init__() should return None, not '{name}'")
        return instance

    def _check_abstract(self, m: Machine) -> None:
        guard_own_entry(m, self.object, "__abstractmethods__")
        if self.object.__flags__ & (1 << 20):  # Py_TPFLAGS_IS_ABSTRACT
            raise Break("abstract_class", f"{self.object.__qualname__} is abstract")


def _is_known(key: Value) -> bool:
    """Whether the parameters of an alias are constants, or lists of them."""
    if isinstance(key, SequenceValue) and key.is_exact():
        return all(map(_is_known, key.items))
    return key.is_constant()


def _known(key: Value) -> Any:
    return key.constant() if key.is_constant() else key.builtin(map(_known, key.items))  # type: ignore[attr-defined]


def refuse_finalizer(m: Machine, cls: type) -> None:
    """What has a `__del__` is made natively, so that it goes when it would."""
    m.guard_class(cls, "__del__")
    if has_finalizer(cls):
        raise Break("finalizer", f"a {cls.__qualname__} is made, whose __del__ runs at its end")


@wraps(type, subclasses=True)
def wrap_class(m: Machine, real: type, source: Source | None) -> Value:
    if real.__mro__ is None:
        raise Break("class_definition", f"{real.__qualname__} is not made yet")
    m.guard_special_methods(type(real))
    m.guard_definition(real)
    return ClassValue(real, guard_identity(m, real, source))


# What `type` keeps in the dict of the class, and what in its struct; other members never change.
_OF_DICT = ("__module__", "__doc__", "__annotations__", "__abstractmethods__", "__type_params__")
_OF_STRUCT = {"__bases__": "__bases__", "__base__": "__bases__"}


def guard_own_entry(m: Machine, cls: type, name: str) -> None:
    """The class itself goes on holding the very object, or nothing, under the name."""
    if cls.__flags__ & IMMUTABLE_TYPE:
        return
    table = InstanceDict(Held(cls, cls.__qualname__))
    if name in vars(cls):
        m.guard(Key(table, name), Is(vars(cls)[name]))
    else:
        m.guard(table, Missing(name))


def guard_type_member(m: Machine, cls: type, name: str) -> None:
    """Guard what a getter of `type` answered, where `guard_definition` does not."""
    if name == "__flags__":
        raise Break("attribute", "type.__flags__ cannot be traced")
    if name in _OF_DICT:
        guard_own_entry(m, cls, name)
    field = _OF_STRUCT.get(name)
    if field is not None and not cls.__flags__ & IMMUTABLE_TYPE:
        held = Held(cls, cls.__qualname__)
        m.guard(Field(held, field), Is(class_field(cls, field)))


# ---- descriptors


class DescriptorValue(PinnedValue, CallableValue):
    """Base of the interpreter's own descriptors found on classes."""


class PropertyValue(DescriptorValue):
    """`property`: the accessors are read-only, so that the object pins them."""

    def accessor(self, m: Machine, name: str, slot: str, instance: Value) -> Value:
        real = getattr(self.object, name)
        if real is None:
            m.throw(AttributeError, self._complaint(m, slot, instance))
        return m.wrap(real, Held(real, f"{real.__qualname__}"))

    def _complaint(self, m: Machine, slot: str, instance: Value) -> str:
        """What the property itself says of another object, as it alone knows its name."""
        stranger = object()
        try:
            getattr(self.object, slot)(stranger, *([None] if slot == "__set__" else []))
        except AttributeError as error:
            shown = f"of {instance.python_type().__qualname__!r} object"
            return str(error).replace("of 'object' object", shown)
        raise AssertionError(f"the property has its {slot}")

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        if instance is None:
            return self
        return m.call(self.accessor(m, "fget", "__get__", instance), [instance], {})

    def descr_set(self, m: Machine, instance: Value, value: Value) -> None:
        m.call(self.accessor(m, "fset", "__set__", instance), [instance, value], {})

    def descr_delete(self, m: Machine, instance: Value) -> None:
        m.call(self.accessor(m, "fdel", "__delete__", instance), [instance], {})

    def getattr(self, m: Machine, name: str) -> Value:
        if name in ("fget", "fset", "fdel"):
            real = getattr(self.object, name)
            return m.wrap(real, None)
        return m.default_getattr(self, name)


TAKEN_OVER = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


class StaticMethodValue(DescriptorValue):
    """`staticmethod`; `function` is what it wraps, whose names and text it has taken over.  One
    that the program made has no object."""

    kind: type = staticmethod
    instance_dict: AttributeDict | None = None

    def __init__(self, object: Any, source: Source | None, function: Value) -> None:
        super().__init__(object, source)
        self.function = function

    def python_type(self) -> type:
        return self.kind

    def is_constant(self) -> bool:
        return self.object is not None

    def children(self) -> Iterable[Value]:
        if self.object is None:
            yield self.function
            if self.instance_dict is not None:
                yield from self.instance_dict.children()

    def has_get(self) -> bool:
        return True

    def attributes(self, m: Machine) -> AttributeDict:
        if self.instance_dict is None:
            if self.object is None:
                self.instance_dict = AttributeDict(self)
                self._take_over(m, self.instance_dict)
            else:
                held = Held(self.object, getattr(self.object, "__qualname__", self.kind.__name__))
                self.instance_dict = AttributeDict.of(m, self, self.object, held)
        return self.instance_dict

    def _take_over(self, m: Machine, attributes: AttributeDict) -> None:
        for name in TAKEN_OVER:
            try:
                attributes.set_named(m, name, m.attribute(self.function, name))
            except Raised as raised:
                if not m.is_exception(raised, AttributeError):
                    raise

    def getattr(self, m: Machine, name: str) -> Value:
        if name in ("__func__", "__wrapped__"):
            return self.function
        return m.default_getattr(self, name)

    def reconstruct(self, e: Emitter) -> None:
        if self.object is not None:
            e.const(self.object)
            return
        e.begin_call()
        e.const(self.kind)
        e.value(self.function)
        e.end_call(1)
        if self.instance_dict is not None:
            e.bind(self)
            self.instance_dict.write_all(e)

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        return self.function

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return m.forward(self, self.function, args, kwargs)


class ClassMethodValue(StaticMethodValue):
    """`classmethod`."""

    kind = classmethod

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        if self.function.has_get() and self.function.is_data_descriptor():
            return self.function.descr_get(m, owner, owner)
        return BoundMethodValue(self.function, owner)


@wraps(property)
def wrap_property(m: Machine, real: property, source: Source | None) -> Value:
    return PropertyValue(real, guard_identity(m, real, source))


@wraps(staticmethod, classmethod)
def wrap_static(m: Machine, real: Any, source: Source | None) -> Value:
    held = guard_identity(m, real, source)
    kind = StaticMethodValue if isinstance(real, staticmethod) else ClassMethodValue
    return kind(real, held, m.wrap(real.__func__, Field(held, "__func__")))


class CachedPropertyValue(DescriptorValue):
    """`functools.cached_property`: a function whose result goes into the instance dict."""

    def has_get(self) -> bool:
        return True

    def is_data_descriptor(self) -> bool:
        return False

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        if instance is None:
            return self
        attributes = instance.attributes(m)
        function = m.wrap(self.object.func, Held(self.object.func, self.object.attrname))
        result = m.call(function, [instance], {})
        attributes.set_named(m, self.object.attrname, result)
        return result


@wraps(functools.cached_property)
def wrap_cached_property(m: Machine, real: Any, source: Source | None) -> Value:
    return CachedPropertyValue(real, guard_identity(m, real, source))


Getter = Callable[["Machine", Value], Value]
GETTERS: dict[Any, Getter] = {}  # by the real descriptor: how its attribute is read
SETTERS: dict[Any, Callable[[Any, Value, Value], None]] = {}
PURE_GETTER_OWNERS: set[type] = {type, types.CodeType, *CONSTANT_TYPES, types.BuiltinFunctionType}
PLACES = {vars(types.CodeType)[f"co_{name}"] for name in ("filename", "firstlineno", "linetable")}
PLACES.add(vars(types.CodeType)["co_lnotab"])


class SlotValue(DescriptorValue):
    """A C getter or member: of `__slots__`, or of the interpreter's structs."""

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        if instance is None:
            return self
        getter = GETTERS.get(self.object)
        if getter is not None:
            return getter(m, instance)
        if self.object.__name__ == "__dict__":
            return instance.attributes(m)
        if isinstance(instance, HasSlots) and self.is_member():
            return instance.get_slot(m, self.object)
        if isinstance(instance, TupleValue) and self.is_member():
            item = instance.member(self.object.__name__)
            if item is not None:
                return item
        if instance.is_constant() and self.object.__objclass__ in PURE_GETTER_OWNERS:
            try:
                result = self.object.__get__(instance.constant())
            except AttributeError as error:
                m.throw(AttributeError, *error.args)
            if self.object in PLACES:
                m.bound_by = "where code stands"
            if self.object.__objclass__ is type:
                guard_type_member(m, instance.constant(), self.object.__name__)
            return from_python(m, result) if is_plain(result) else m.wrap(result, None)
        name = f"{self.object.__objclass__.__name__}.{self.object.__name__}"
        raise Break("attribute", f"{name} cannot be traced")

    def descr_set(self, m: Machine, instance: Value, value: Value) -> None:
        setter = SETTERS.get(self.object)
        if setter is not None:
            setter(m, instance, value)
        elif isinstance(instance, HasSlots) and self.is_member():
            instance.set_slot(m, self.object, value)
        else:
            name = f"{self.object.__objclass__.__name__}.{self.object.__name__}"
            raise Break("attribute", f"{name} is set")

    def is_member(self) -> bool:
        """Whether it reads and writes a place in the object and nothing else."""
        return isinstance(self.object, types.MemberDescriptorType)

    def descr_delete(self, m: Machine, instance: Value) -> None:
        if not isinstance(instance, HasSlots) or not self.is_member():
            raise Break("attribute", f"{self.object.__name__} is deleted")
        if instance.find_slot(m, self.object) is None:
            m.throw(AttributeError, self.object.__name__)
        instance.set_slot(m, self.object, None)


@wraps(types.GetSetDescriptorType, types.MemberDescriptorType)
def wrap_slot(m: Machine, real: Any, source: Source | None) -> Value:
    return SlotValue(real, guard_identity(m, real, source))


class HasSlots(Value):
    """Mixin: an object with `__slots__` members (or members of C structs kept the same way)."""

    slots: dict[Any, Value | None]

    def find_slot(self, m: Machine, member: Any) -> Value | None:
        if member not in self.slots:
            self.slots[member] = self._read_slot(m, member)
        return self.slots[member]

    def get_slot(self, m: Machine, member: Any) -> Value:
        value = self.find_slot(m, member)
        if value is None:
            m.throw(AttributeError, slot_message(self, member))
        return value

    def _read_slot(self, m: Machine, member: Any) -> Value | None:
        if self.source is None:
            return None
        source = Slot(self.source, member.__name__)
        try:
            real = member.__get__(self.object)
        except AttributeError:
            m.guard(source, NullField())
            return None
        return wrap_field(m, self.object, source, real)

    def set_slot(self, m: Machine, member: Any, value: Value | None) -> None:
        m.let_go(self.slots.get(member))
        self.touch(m)
        self.slots[member] = value
        self.stored_slots.add(member)


def slot_message(value: Value, member: Any) -> str:
    cls = value.python_type()
    shown = cls.__name__
    if sys.version_info >= (3, 13) and cls.__module__ not in ("builtins", "__main__"):
        shown = f"{cls.__module__}.{cls.__qualname__}"
    return f"'{shown}' object has no attribute '{member.__name__}'"


class SuperValue(Value):
    """`super(cls, owner)`: attributes from the classes after `cls` in the order of `start`."""

    def __init__(self, cls: type, owner: Value, start: type) -> None:
        self.cls, self.owner, self.start = cls, owner, start

    def __repr__(self) -> str:
        return f"SuperValue({self.cls.__name__}, {self.owner!r})"

    def python_type(self) -> type:
        return super

    def getattr(self, m: Machine, name: str) -> Value:
        order = self.start.__mro__
        for base in order[order.index(self.cls) + 1 :] if name != "__class__" else ():
            if name in base.__dict__:
                fixed = not base.__flags__ & HEAP_TYPE
                source = None if fixed else TypeAttribute(Held(base, base.__qualname__), name)
                return self._bind(m, m.wrap(base.__dict__[name], source))
        if name in ("__thisclass__", "__self__", "__self_class__"):
            parts = {"__thisclass__": self.cls, "__self_class__": self.start}
            return m.wrap_type(parts[name]) if name in parts else self.owner
        if name == "__class__":
            return m.wrap_type(super)
        m.throw(AttributeError, f"'super' object has no attribute '{name}'")

    def _bind(self, m: Machine, found: Value) -> Value:
        if not found.has_get():
            return found
        of_class = isinstance(self.owner, ClassValue) and self.owner.object is self.start
        return found.descr_get(m, None if of_class else self.owner, m.wrap_type(self.start))

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(super)
        e.const(self.cls)
        e.value(self.owner)
        e.end_call(2)


def super_complaint(cls: Value, owner: Value) -> str:
    if sys.version_info < (3, 13):
        return "super(type, obj): obj must be an instance or subtype of type"
    if isinstance(owner, ClassValue):
        shown = f"type {owner.object.__name__}"
    else:
        shown = f"instance of {owner.python_type().__name__}"
    wanted = cls.constant().__name__
    return f"super(type, obj): obj ({shown}) is not an instance or subtype of type ({wanted})."


def make_super(m: Machine, cls: Value, owner: Value) -> Value:
    """`super(cls, owner)` with CPython's check."""
    if isinstance(cls, ClassValue):
        if isinstance(owner, ClassValue) and derives(owner.object, cls.object):
            return SuperValue(cls.object, owner, owner.object)
        if derives(owner.python_type(), cls.object):
            return SuperValue(cls.object, owner, owner.python_type())
    if m.real_class(cls) is None:
        m.throw(TypeError, f"super() argument 1 must be a type, not {cls.python_type().__name__}")
    m.throw(TypeError, super_complaint(cls, owner))
