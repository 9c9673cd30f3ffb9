"""Instances of classes written in Python, enum members, modules, and objects of C.

In: a real object (its class is guarded, attributes one by one as they are read), or a class to
make a fresh instance of.  Out: attributes and slots as values; writes through effects.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import LITERALS, Equals, Is
from jitshape.frontend.lookup import class_attribute
from jitshape.frontend.sources import Held, InstanceDict, Key, Source
from jitshape.frontend.values.base import Value, has_finalizer, wraps
from jitshape.frontend.values.classes import HEAP_TYPE, HasSlots
from jitshape.frontend.values.constants import (
    BINARY,
    COMPARE,
    UNARY,
    ConstantValue,
    fold,
)
from jitshape.frontend.values.dicts import AttributeDict, DictValue
from jitshape.frontend.values.sequences import fill_attributes
from jitshape.frontend.values.storage import (
    PinnedValue,
    Storage,
    guard_identity,
    guard_type,
    kept,
    real_instance_dict,
)

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class ObjectValue(Storage, HasSlots):
    """An instance of a class whose storage is attributes and slots only."""

    def __init__(self, cls: type, object: Any = None, source: Source | None = None) -> None:
        self.cls, self.object, self.source = cls, object, source
        self.slots: dict[Any, Value | None] = {}
        self.stored_slots: set[Any] = set()
        self.finalized = has_finalizer(cls)

    def __repr__(self) -> str:
        return f"ObjectValue({self.cls.__qualname__})"

    def children(self) -> Iterable[Value]:
        yield from kept(self.slots.values())
        if self.instance_dict is not None:
            yield from self.instance_dict.children()

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(object.__new__)
        e.const(self.cls)
        e.end_call(1)
        e.bind(self)
        self.write_back(e)
        fill_attributes(e, self)

    def write_back(self, e: Emitter) -> None:
        for member in sorted(self.stored_slots, key=lambda d: d.__name__):
            value = self.slots[member]
            e.begin_call()
            e.const(member.__set__ if value is not None else member.__delete__)
            e.value(self)
            if value is not None:
                e.value(value)
            e.end_call(1 if value is None else 2)
            e.pop()


class OpaqueValue(Storage):
    """An object of a class of C that no value models: passed on, and asked by the protocols."""

    def __init__(self, object: Any, source: Source | None) -> None:
        self.cls, self.object, self.source = type(object), object, source
        self.builtin = type(object)

    def __repr__(self) -> str:
        return f"OpaqueValue({self.cls.__qualname__})"

    def attributes(self, m: Machine) -> AttributeDict | None:
        try:
            return super().attributes(m)
        except TypeError:
            return None


def is_plain_layout(cls: type) -> bool:
    """Whether instances have attributes and slots only: no storage of a class of C."""
    if not cls.__flags__ & HEAP_TYPE:
        return cls is object or cls is types.SimpleNamespace
    members = sum(
        isinstance(d, types.MemberDescriptorType)
        for base in cls.__mro__
        if base.__flags__ & HEAP_TYPE
        for d in vars(base).values()
    )
    pointer = tuple.__itemsize__
    extra = pointer * (members + (cls.__weakrefoffset__ > 0) + (cls.__dictoffset__ > 0))
    solid = all(base is object or base.__flags__ & HEAP_TYPE for base in cls.__mro__)
    return solid and cls.__basicsize__ <= object.__basicsize__ + extra


@wraps(object, subclasses=True)
def wrap_object(m: Machine, real: Any, source: Source | None) -> Value:
    if is_plain_layout(type(real)):
        return ObjectValue(type(real), real, guard_type(m, real, source))
    return OpaqueValue(real, guard_type(m, real, source))


class EnumValue(ConstantValue):
    """A member of an enum: a constant with attributes of its own."""

    remembered = True
    instance_dict: AttributeDict | None = None

    def __repr__(self) -> str:
        return f"EnumValue({self.object!s})"

    def attributes(self, m: Machine) -> AttributeDict:
        if self.instance_dict is None:
            held = InstanceDict(Held(self.object, str(self.object)))
            self.instance_dict = AttributeDict(self, vars(self.object), held)
        return self.instance_dict

    def trusts(self, name: str) -> bool:
        """Whether the method is the enum module's or a built-in type's, so that it is pure."""
        found = getattr(type(self.object), name, None)
        return getattr(found, "__module__", "enum") == "enum"

    def getattr(self, m: Machine, name: str) -> Value:
        if name in ("name", "value") and self._plain(name):
            name = f"_{name}_"
        if name in ("_name_", "_value_"):
            found = getattr(self.object, name)
            check = Equals(found) if type(found) in LITERALS else Is(found)
            m.guard(Key(InstanceDict(Held(self.object, str(self.object))), name), check)
            return m.const(found)
        return m.default_getattr(self, name)

    def _plain(self, name: str) -> bool:
        for base in type(self.object).__mro__:
            if name in vars(base):
                return base.__module__ == "enum"
        return False

    def truth(self, m: Machine) -> bool:
        return bool(self.object) if self.trusts("__bool__") else m.default_truth(self)

    def unary(self, m: Machine, op: str) -> Value:
        dunder = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}[op]
        if hasattr(self.object, dunder) and self.trusts(dunder):
            return fold(m, UNARY[op], self.object)
        return m.default_unary(self, op)

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        function = BINARY.get(op)
        if function is None or not is_known(other):
            return (
                NotImplemented if function is None else m.default_binary(self, op, other, reflected)
            )
        pair = (other.constant(), self.object) if reflected else (self.object, other.constant())
        return fold(m, function, *pair)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if is_known(other) and self.trusts("__eq__") and self.trusts("__lt__"):
            return fold(m, COMPARE[op], self.object, other.constant())
        return m.default_compare(self, op, other)

    def hash_key(self, m: Machine) -> Any:
        return self.object if self.trusts("__hash__") else m.default_hash_key(self)


def is_known(value: Value) -> bool:
    return isinstance(value, ConstantValue)


@wraps(enum.Enum, subclasses=True)
def wrap_enum(m: Machine, real: enum.Enum, source: Source | None) -> Value:
    if not vars(real).keys() >= {"_name_", "_value_", "__objclass__"}:  # still being made
        return wrap_object(m, real, source)
    m.guard_special_methods(type(real))
    return EnumValue(real, guard_identity(m, real, source))


MODULE_GETTER = types.ModuleType.__dict__["__getattribute__"]


class ModuleValue(PinnedValue):
    """A module: attributes are read from its dict."""

    def __init__(self, object: types.ModuleType, source: Source) -> None:
        super().__init__(object, source)
        self.dictionary: DictValue | None = None

    def __repr__(self) -> str:
        return f"ModuleValue({self.object.__name__})"

    def attributes(self, m: Machine) -> DictValue:
        if self.dictionary is None:
            self.dictionary = AttributeDict.of(m, self, self.object, self.source)
        return self.dictionary

    def getattr(self, m: Machine, name: str) -> Value:
        cls = type(self.object)
        if class_attribute(cls, "__getattribute__") is not MODULE_GETTER:
            return m.default_getattr(self, name)
        if cls is not types.ModuleType or name.startswith("__"):
            m.guard_class(cls, "__getattribute__")
            found = m.generic_getattr(self, name)
        else:
            found = self.attributes(m).get_named(m, name)
        return found if found is not None else self._missing(m, name)

    def _missing(self, m: Machine, name: str) -> Value:
        hook = m.type_lookup(type(self.object), "__getattr__")
        if hook is not None:
            return m.call(hook, [self, m.const(name)], {})
        function = self.attributes(m).get_named(m, "__getattr__")
        if function is not None:
            return m.call(function, [m.const(name)], {})
        shown = real_instance_dict(self.object).get("__name__")
        module = "module" if shown is None else f"module '{shown}'"
        m.throw(AttributeError, f"{module} has no attribute '{name}'")

    def hash_key(self, m: Machine) -> Any:
        return self.object

    def truth(self, m: Machine) -> bool:
        return True


@wraps(types.ModuleType, subclasses=True)
def wrap_module(m: Machine, real: types.ModuleType, source: Source | None) -> Value:
    return ModuleValue(real, guard_identity(m, real, source))


@wraps(types.CodeType, types.GenericAlias, type(Callable[[], None]), types.UnionType)
def wrap_immutable(m: Machine, real: Any, source: Source | None) -> Value:
    return OpaqueConstant(real, guard_identity(m, real, source))


class OpaqueConstant(ConstantValue):
    """An immutable object known by identity whose methods the protocols find."""

    remembered = True

    def getattr(self, m: Machine, name: str) -> Value:
        """An alias has parts of its own; what else it shows is its class's."""
        if name in ALIAS_PARTS and isinstance(self.object, (types.GenericAlias, types.UnionType)):
            found = m.generic_getattr(self, name)
            if found is not None:
                return found
        return m.default_getattr(self, name)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if other.is_constant() and op in ("==", "!="):
            return fold(m, COMPARE[op], self.object, other.constant())
        return NotImplemented


ALIAS_PARTS = ("__origin__", "__args__", "__parameters__", "__unpacked__", "__class__")
