"""What a class holds: attributes found along its bases, guarded where the class can change.

In: classes, as real ones.  Out: the Values of what they hold, unbound or bound.
Invariant: whatever is read from a class that can change is guarded (`TypeAttribute`,
`NoTypeAttribute`); immutable built-in classes need no guard.
"""

from __future__ import annotations

import abc
import ctypes
import types
from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import (
    AMBIENT,
    Ambient,
    Definition,
    NoTypeAttribute,
    SpecialMethods,
)
from jitshape.frontend.sources import Held, TypeAttribute, class_field
from jitshape.frontend.values.base import Value

IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

# What the interpreter, or a method of a built-in type, may look up on a class.
_BUILTINS = (int, float, str, list, tuple, dict, set, type, property, BaseException)
_NOT_METHODS = {"__doc__", "__dict__", "__class__", "__module__", "__name__", "__qualname__"}
_NOT_METHODS |= {name for name in dir(type) if not callable(getattr(type, name, None))}
_MORE = (
    "getattr missing bool enter exit get set delete next index matmul rmatmul call instancecheck"
)
SPECIAL_METHODS = tuple(
    sorted(
        {n for cls in _BUILTINS for n in dir(cls) if n.startswith("__")} - _NOT_METHODS
        | {f"__{name}__" for name in _MORE.split()}
    )
)

DEFINITION = ("__name__", "__qualname__", "__mro__")

MISSING: Any = object()  # where a class holds nothing

AMBIENT["abc_registrations"] = abc.get_cache_token


def class_attribute(cls: type, name: str) -> Any:
    """What the method resolution order holds, unbound; MISSING where nothing does."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


def derives(cls: type, base: type) -> bool:
    """Whether `base` is among the bases of `cls`: `issubclass` would ask code of the user's."""
    return any(each is base for each in cls.__mro__)


def hashes_by_code(cls: type) -> bool:
    """Whether asking for a class in a dict runs code of its metaclass."""
    meta = type(cls)
    return meta is not type and any(
        class_attribute(meta, name) is not class_attribute(type, name)
        for name in ("__hash__", "__eq__")
    )


# Where a type object keeps tp_getattro and tp_setattro, in pointers.
_C_SLOTS = {"__getattribute__": 18, "__setattr__": 19, "__delattr__": 19}


def c_slot(cls: type, name: str) -> int:
    """The C function behind an attribute slot of a class."""
    return ctypes.c_size_t.from_address(id(cls) + tuple.__itemsize__ * _C_SLOTS[name]).value


def name_in_c(cls: type) -> str:
    """How C's messages name a class, tp_name: many that C declares have their module in it."""
    place = id(cls) + tuple.__basicsize__  # the first field behind what all objects have
    return ctypes.c_char_p.from_address(place).value.decode()


def is_generic(cls: type, name: str) -> bool:
    """Whether the class takes the slot from `object`, or from a class of C that has the very
    same function in it."""
    found = class_attribute(cls, name)
    if found is object.__dict__[name]:
        return True
    if type(found) is not WrapperDescriptorType:
        return False
    return c_slot(found.__objclass__, name) == c_slot(object, name)


for _name in _C_SLOTS:
    assert c_slot(dict, _name) == c_slot(object, _name) != c_slot(type, _name), _name
assert (name_in_c(dict), name_in_c(types.SimpleNamespace)) == ("dict", "types.SimpleNamespace")


class Lookup:
    """The part of the machine that asks classes."""

    if TYPE_CHECKING:
        _defined: set[type]
        _generic: dict[tuple[type, str], bool]
        _lookups: dict[tuple[type, str], Value | None]
        _special: set[type]
        call: Any
        guard: Any
        wrap: Any
        wrap_type: Any

    def type_lookup(self, cls: type, name: str) -> Value | None:
        """The attribute of the class and its bases, unbound, guarded."""
        key = (cls, name)
        found = self._lookups.get(key, MISSING)
        if found is MISSING:
            found = self._lookups[key] = self._look_up(cls, name)
        return found

    def _look_up(self, cls: type, name: str) -> Value | None:
        found = class_attribute(cls, name)
        fixed = all(base.__flags__ & IMMUTABLE_TYPE for base in cls.__mro__)
        held = Held(cls, cls.__qualname__)
        if found is MISSING:
            if not fixed:
                self.guard(held, NoTypeAttribute(name))
            return None
        return self.wrap(found, None if fixed else TypeAttribute(held, name))

    def guard_class(self, cls: type, name: str) -> None:
        """The class, if it can change, must go on holding what it holds under `name`."""
        if not cls.__flags__ & IMMUTABLE_TYPE:
            self.type_lookup(cls, name)

    def defines(self, value: Value, name: str) -> bool:
        """Whether the class of the value has such a method, guarded."""
        cls = value.python_type()
        self.guard_class(cls, name)
        return hasattr(cls, name)

    def guard_definition(self, cls: type) -> None:
        """The class, if it can change, must keep its names and its bases."""
        if cls not in self._defined and not cls.__flags__ & IMMUTABLE_TYPE:
            self._defined.add(cls)
            fields = tuple((name, class_field(cls, name)) for name in DEFINITION)
            self.guard(Held(cls, cls.__qualname__), Definition(fields))

    def guard_registrations(self) -> None:
        """No class may be registered with an abstract base class from now on."""
        self.guard(None, Ambient("abc_registrations", abc.get_cache_token()))

    def guard_special_methods(self, cls: type) -> None:
        """For classes that values ask natively which methods they override."""
        if cls not in self._special and not cls.__flags__ & IMMUTABLE_TYPE:
            self._special.add(cls)
            found = [(name, class_attribute(cls, name)) for name in SPECIAL_METHODS]
            present = tuple(pair for pair in found if pair[1] is not MISSING)
            absent = tuple(name for name, method in found if method is MISSING)
            self.guard(Held(cls, cls.__qualname__), SpecialMethods(present, absent))

    def is_generic(self, cls: type, slot: str) -> bool:
        """Whether attributes of instances are read or written as `object` does it; guarded."""
        known = self._generic.get((cls, slot))
        if known is None:
            known = is_generic(cls, slot)
            self._generic[cls, slot] = known
            self.type_lookup(cls, slot)
        return known

    def default_special(self, value: Value, name: str) -> Value | None:
        method = self.type_lookup(value.python_type(), name)
        if method is None or not method.has_get():
            return method
        return method.descr_get(self, value, self.wrap_type(value.python_type()))

    def call_special(self, value: Value, name: str, *args: Value) -> Value | None:
        """Call a dunder method of the value's class; None where there is none."""
        method = value.special(self, name)
        return None if method is None else self.call(method, list(args), {})
