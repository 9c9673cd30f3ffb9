"""Protocols: what operators, attributes and calls mean when the value itself has no answer.

In: operands, as Values.  Out: what the interpreter computes, by looking dunder methods up on the
class and running them in the machine; the TypeErrors have CPython's text.
Invariant: whatever is read from a class that can change is guarded (`TypeAttribute`,
`NoTypeAttribute`); immutable built-in classes need no guard.
"""

from __future__ import annotations

import abc
import ctypes
import operator
import sys
from collections.abc import Iterable
from types import FunctionType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.checks import (
    AMBIENT,
    Ambient,
    Definition,
    Distinct,
    NoTypeAttribute,
    SpecialMethods,
)
from jitshape.frontend.sources import Held, TypeAttribute, class_field
from jitshape.frontend.values.base import Raised, Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.frame import Frame

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

_NAMES = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "@": "matmul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "<<": "lshift",
    ">>": "rshift",
    "&": "and",
    "^": "xor",
    "|": "or",
}
FORWARD = {op: f"__{name}__" for op, name in _NAMES.items()}
REFLECTED = {op: f"__r{name}__" for op, name in _NAMES.items()}
INPLACE = {f"{op}=": f"__i{name}__" for op, name in _NAMES.items()}
UNARY = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}
COMPARE = {
    "<": "__lt__",
    "<=": "__le__",
    "==": "__eq__",
    "!=": "__ne__",
    ">": "__gt__",
    ">=": "__ge__",
}
SWAPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
_MISSING: Any = object()
_NO_DICT = " and no __dict__ for setting new attributes" if sys.version_info >= (3, 13) else ""


AMBIENT["abc_registrations"] = abc.get_cache_token


def class_attribute(cls: type, name: str) -> Any:
    """What the method resolution order holds, unbound; _MISSING where nothing does."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, _MISSING)
        if found is not _MISSING:
            return found
    return _MISSING


def derives(cls: type, base: type) -> bool:
    """Whether `base` is among the bases of `cls`: `issubclass` would ask code of the user's."""
    return any(each is base for each in cls.__mro__)


# Where a type object keeps tp_getattro and tp_setattro, in pointers.
_C_SLOTS = {"__getattribute__": 18, "__setattr__": 19, "__delattr__": 19}


def c_slot(cls: type, name: str) -> int:
    """The C function behind an attribute slot of a class."""
    return ctypes.c_size_t.from_address(id(cls) + tuple.__itemsize__ * _C_SLOTS[name]).value


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


class Protocols:
    """The part of the machine that looks up and runs methods.  See values/base.py for the
    meaning of each `default_*`."""

    if TYPE_CHECKING:
        frame: Frame | None
        _defined: set[type]
        _generic: dict[tuple[type, str], bool]
        _lookups: dict[tuple[type, str], Value | None]
        _special: set[type]
        call: Any
        const: Any
        forward: Any
        guard: Any
        is_exception: Any
        mutated: Any
        stop: Any
        throw: Any
        wrap: Any
        wrap_type: Any

    # ---- lookup on the class

    def type_lookup(self, cls: type, name: str) -> Value | None:
        """The attribute of the class and its bases, unbound, guarded."""
        key = (cls, name)
        found = self._lookups.get(key, _MISSING)
        if found is _MISSING:
            found = self._lookups[key] = self._look_up(cls, name)
        return found

    def _look_up(self, cls: type, name: str) -> Value | None:
        found = class_attribute(cls, name)
        fixed = all(base.__flags__ & IMMUTABLE_TYPE for base in cls.__mro__)
        held = Held(cls, cls.__qualname__)
        if found is _MISSING:
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
            present = tuple(pair for pair in found if pair[1] is not _MISSING)
            absent = tuple(name for name, method in found if method is _MISSING)
            self.guard(Held(cls, cls.__qualname__), SpecialMethods(present, absent))

    def default_special(self, value: Value, name: str) -> Value | None:
        method = self.type_lookup(value.python_type(), name)
        if method is None or not method.has_get():
            return method
        return method.descr_get(self, value, self.wrap_type(value.python_type()))

    def call_special(self, value: Value, name: str, *args: Value) -> Value | None:
        """Call a dunder method of the value's class; None where there is none."""
        method = value.special(self, name)
        return None if method is None else self.call(method, list(args), {})

    # ---- operators

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """`a op b` or, for op "+=" and so on, the in-place operation."""
        plain = op
        if len(op) > 1 and op[-1] == "=":
            result = a.binary(self, op, b, False)
            if result is not NotImplemented:
                return result
            plain = op[:-1]
        if self._reflected_first(plain, a, b):
            result = b.binary(self, plain, a, True)
            if result is NotImplemented:
                result = a.binary(self, plain, b, False)
        else:
            result = a.binary(self, plain, b, False)
            if result is NotImplemented:
                result = b.binary(self, plain, a, True)
        if result is NotImplemented:
            left, right = a.python_type().__name__, b.python_type().__name__
            shown = "** or pow()" if op == "**" else op
            self.throw(
                TypeError, f"unsupported operand type(s) for {shown}: '{left}' and '{right}'"
            )
        return result

    def _reflected_first(self, op: str, a: Value, b: Value) -> bool:
        """A right operand of a proper subclass goes first if it has its own method."""
        left, right = a.python_type(), b.python_type()
        if left is right or not derives(right, left):
            return False
        name = REFLECTED[op]
        self.guard_class(left, name)
        self.guard_class(right, name)
        mine = class_attribute(right, name)
        return mine is not _MISSING and mine is not class_attribute(left, name)

    def default_binary(self, value: Value, op: str, other: Value, reflected: bool) -> Any:
        if reflected and value.python_type() is other.python_type():
            return NotImplemented
        names = REFLECTED if reflected else INPLACE if op in INPLACE else FORWARD
        return self._ask(value, names[op], other)

    def _ask(self, value: Value, name: str, other: Value) -> Any:
        """The result of a method that may answer NotImplemented."""
        result = self.call_special(value, name, other)
        if result is None or (result.is_constant() and result.constant() is NotImplemented):
            return NotImplemented
        return result

    def default_unary(self, value: Value, op: str) -> Value:
        result = self.call_special(value, UNARY[op])
        if result is None:
            name = value.python_type().__name__
            self.throw(TypeError, f"bad operand type for unary {op}: '{name}'")
        return result

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """The rich comparison `a op b`."""
        left, right = a.python_type(), b.python_type()
        swapped, result = SWAPPED[op], NotImplemented
        first = left is not right and derives(right, left) and self.defines(b, COMPARE[swapped])
        if first:
            result = b.compare(self, swapped, a)
        if result is NotImplemented:
            result = a.compare(self, op, b)
        if result is NotImplemented and not first:
            result = b.compare(self, swapped, a)
        if result is not NotImplemented:
            return result
        if op in ("==", "!="):
            return self.const(self.identical(a, b) == (op == "=="))
        self.throw(
            TypeError,
            f"'{op}' not supported between instances of '{left.__name__}' and '{right.__name__}'",
        )

    def default_compare(self, value: Value, op: str, other: Value) -> Any:
        cls = value.python_type()
        if class_attribute(cls, COMPARE[op]) is not object.__dict__[COMPARE[op]]:
            return self._ask(value, COMPARE[op], other)
        self.type_lookup(cls, COMPARE[op])
        if op == "!=" and class_attribute(cls, "__eq__") is not object.__dict__["__eq__"]:
            equal = value.compare(self, "==", other)
            return equal if equal is NotImplemented else self.const(not equal.truth(self))
        if op in ("==", "!=") and self.identical(value, other):
            return self.const(op == "==")
        return NotImplemented

    def identical(self, a: Value, b: Value) -> bool:
        """`a is b`."""
        if a is b:
            return True
        if a.is_constant() and b.is_constant():
            return _same_constant(a.constant(), b.constant())
        self.apart(a, b)
        return False

    def is_same(self, a: Value, b: Value) -> bool:
        """`a is b` where the program asks: two symbolic numbers are told apart by their values."""
        if a is not b and a.python_type() is b.python_type():
            a, b = self.specialised(a), self.specialised(b)
        return self.identical(a, b)

    def specialised(self, value: Value) -> Value:
        """A symbolic number as the literal that it is in this call; others as they are."""
        specialize = getattr(value, "specialize", None)
        return value if specialize is None else specialize(self)

    def apart(self, a: Value, b: Value) -> None:
        """Guard that two objects from outside are not one; of different classes they cannot be."""
        if a.source is None or b.source is None or a.python_type() is not b.python_type():
            return
        if a.python_type() in (int, float):  # whoever asks then compares them
            return
        if not (isinstance(a.source, Held) and isinstance(b.source, Held)):
            self.guard(a.source, Distinct(b.source))

    def as_int(self, value: Value) -> int:
        """`operator.index`, as a real number."""
        if value.is_constant():
            try:
                return operator.index(value.constant())
            except TypeError as error:
                self.throw(TypeError, *error.args)
        result = self.call_special(value, "__index__")
        if result is None:
            name = value.python_type().__name__
            self.throw(TypeError, f"'{name}' object cannot be interpreted as an integer")
        if not issubclass(result.python_type(), int):
            name = result.python_type().__name__
            self.throw(TypeError, f"__index__ returned non-int (type {name})")
        return self.as_int(result)

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

    # ---- attributes

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

    def is_generic(self, cls: type, slot: str) -> bool:
        """Whether attributes of instances are read or written as `object` does it; guarded."""
        known = self._generic.get((cls, slot))
        if known is None:
            known = is_generic(cls, slot)
            self._generic[cls, slot] = known
            self.type_lookup(cls, slot)
        return known

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


def _same_constant(a: Any, b: Any) -> bool:
    """Identity of constants.  A literal may stand for an object that an equal guarded one is, and
    small numbers are single objects; text that was put together is a new object each time."""
    return a is b or (type(a) is type(b) is int and a == b and -5 <= a <= 256)


__all__ = ["Protocols", "class_attribute"]
