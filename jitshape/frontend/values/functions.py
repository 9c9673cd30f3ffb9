"""Callables: Python functions, bound methods, partials, C functions.

In: a real callable with its source (guarded by identity, and by its code pointer once it is
run), or the parts of a function that the program made.  Out: inlined calls; C functions go to
the handler in builtins_/ or, on constants, to the real function if the tables call it pure.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Is, MethodIs, NullField, TypeIs
from jitshape.frontend.sources import Field, Getter, Held, InstanceDict, Item, Local, Source
from jitshape.frontend.values.base import Break, Value, builds, wraps
from jitshape.frontend.values.dicts import AttributeDict, DictValue, Entry
from jitshape.frontend.values.sequences import TupleValue
from jitshape.frontend.values.storage import (
    PinnedValue,
    guard_identity,
    guard_type,
    name_of,
    wrap_field,
)

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.frame import Callee
    from jitshape.frontend.machine import Machine

# The parts of a function that programs read as attributes and may set on one they made.
TEXT_FIELDS = ("__name__", "__qualname__", "__module__", "__doc__")
PART_FIELDS = (
    "__defaults__",
    "__kwdefaults__",
    "__annotations__",
    "__closure__",
    "__type_params__",
)


READ_ONLY = ("__closure__", "__globals__", "__builtins__")
TYPES: dict[str, tuple[type, ...]] = {  # others are errors
    "__name__": (str,),
    "__qualname__": (str,),
    "__defaults__": (tuple, type(None)),
    "__kwdefaults__": (dict, type(None)),
    "__annotations__": (dict, type(None)),
    "__type_params__": (tuple,),
}


class CallableValue(Value):
    """What callables share: true, compared and hashed by identity."""

    def truth(self, m: Machine) -> bool:
        return True

    def hash_key(self, m: Machine) -> Any:
        return self.constant() if self.is_constant() else self

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if op in ("==", "!=") and m.identical(self, other):
            return m.const(op == "==")
        return NotImplemented  # perhaps the other side knows better


class FunctionValue(CallableValue):
    """A Python function: `object` is the real one, None if the program made it.  `parts` holds
    what was read of it or set on it, by attribute name.  A `pinned` one is known by identity;
    one that each call of the program makes anew is known by its code, and by the parts read."""

    def __init__(
        self,
        code: types.CodeType,
        globals: dict[str, Any],
        parts: dict[str, Value],
        object: types.FunctionType | None = None,
        source: Source | None = None,
    ) -> None:
        self.code, self.globals, self.parts = code, globals, parts
        self.object, self.source = object, source
        self.pinned = isinstance(source, Held)
        self.dictionary: AttributeDict | None = None
        self.written: set[str] = set()  # parts that MAKE_FUNCTION does not give
        self._callee: Callee | None = None

    def __repr__(self) -> str:
        return f"FunctionValue({self.code.co_qualname})"

    def python_type(self) -> type:
        return types.FunctionType

    def is_constant(self) -> bool:
        return self.pinned

    def constant(self) -> Any:
        return self.object

    def seen_again(self, m: Machine, source: Source) -> None:
        if self.pinned:
            guard_identity(m, self.object, source)
        else:
            super().seen_again(m, source)

    def children(self) -> Iterable[Value]:
        return self.parts.values() if self.object is None else ()

    def complete(self, name: str, value: Value) -> None:
        """SET_FUNCTION_ATTRIBUTE: a part of a function that nothing refers to yet."""
        self.parts[part_name(name)] = annotations_dict(value) if "annotations" in name else value

    # ---- running it

    def callee(self, m: Machine) -> Callee:
        """What the machine runs; reads and guards the code, defaults and closure once."""
        if self._callee is None:
            from jitshape.frontend.frame import Callee

            if self.pinned:
                m.guard(Field(self.source, "__code__"), Is(self.code))
            self._callee = Callee(
                self.code,
                self.globals,
                self.code.co_qualname,
                tuple(self._items(m, "__defaults__")),
                self._keyword_defaults(m),
                tuple(self._items(m, "__closure__")),
                self,
            )
        return self._callee

    def _items(self, m: Machine, name: str) -> list[Any]:
        part = self.part(m, name)
        return part.items if isinstance(part, TupleValue) else []

    def _keyword_defaults(self, m: Machine) -> dict[str, Value] | None:
        part = self.part(m, "__kwdefaults__")
        if not isinstance(part, DictValue):
            return None
        keys = [key.constant() for key in part.keys_in_order(m)]
        return dict(zip(keys, part.values_in_order(m)))

    def part(self, m: Machine, name: str) -> Value:
        """`__defaults__` and so on; of a real function read on first use."""
        value = self.parts.get(name)
        if value is None:
            value = self.parts[name] = self._read_part(m, name)
        return value

    def _read_part(self, m: Machine, name: str) -> Value:
        if self.object is None:
            empty = {"__type_params__": TupleValue, "__annotations__": DictValue}
            return empty[name]() if name in empty else m.const(None)
        real = getattr(self.object, name)
        if name == "__annotations__":  # made when they are first asked for
            return m.wrap(real, Getter(self.source, name))
        if name == "__type_params__":
            return m.wrap(real, None)
        source = Field(self.source, name)
        if real is None:
            m.guard(source, NullField())
            return m.const(None)
        if name == "__closure__":  # read-only: it comes with the function
            return TupleValue([m.cell(c, self._cell(source, i)) for i, c in enumerate(real)])
        return m.wrap(real, source)

    def _cell(self, closure: Source, index: int) -> Source:
        if not self.pinned:
            return Item(closure, index)
        return Held(self.object.__closure__[index], self.code.co_freevars[index])

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = HANDLERS.get(self.object) if self.pinned else None
        if handler is not None:
            return handler(m, args, kwargs)
        return m.inline(self, args, kwargs)

    def hands_on(self) -> bool:
        return type(self) is FunctionValue and not (self.pinned and self.object in HANDLERS)

    # ---- attributes

    def attributes(self, m: Machine) -> AttributeDict:
        if self.dictionary is None:
            real = None if self.object is None else vars(self.object)
            source = None if self.object is None else InstanceDict(self.source)
            self.dictionary = AttributeDict(self, real, source)
        return self.dictionary

    def getattr(self, m: Machine, name: str) -> Value:
        if name in PART_FIELDS:
            return self.part(m, name)
        if name in TEXT_FIELDS:
            return self._text(m, name)
        if name == "__code__":
            return m.wrap(self.code, None)
        if name == "__globals__":
            return m.wrap(self.globals, Held(self.globals, "globals()"))
        return m.default_getattr(self, name)

    def _text(self, m: Machine, name: str) -> Value:
        if name in self.parts:
            return self.parts[name]
        if self.object is not None:
            real = getattr(self.object, name)
            self.parts[name] = wrap_field(m, self.object, Field(self.source, name), real)
            return self.parts[name]
        code = self.code
        made = {
            "__name__": code.co_name,
            "__qualname__": code.co_qualname,
            "__module__": self.globals.get("__name__"),
            "__doc__": _docstring(code),
        }
        return m.const(made[name])

    def setattr(self, m: Machine, name: str, value: Value) -> None:
        if name in READ_ONLY:
            m.throw(AttributeError, "readonly attribute")
        if name in TEXT_FIELDS or name in PART_FIELDS:
            wanted = TYPES.get(name)
            if wanted is not None and value.python_type() not in wanted:
                raise Break("side_effect", f"{name} of a function is set to what it cannot be")
            if self.object is not None:
                raise Break("side_effect", f"{name} of a function that exists outside is set")
            m.mutated(self)
            self.parts[name] = value
            self.written.add(name)
            self._callee = None
        else:
            m.default_setattr(self, name, value)

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        return self if instance is None else BoundMethodValue(self, instance)

    # ---- leaving the trace

    def reconstruct(self, e: Emitter) -> None:
        parts = self.parts
        e.begin_call()
        e.const(types.FunctionType)
        e.const(self.code)
        e.const(self.globals)
        e.const(self.code.co_name)
        for name in ("__defaults__", "__closure__"):
            value = parts.get(name)
            if value is None or value.is_constant():
                e.const(None if value is None else value.constant())
            else:
                e.value(value)
        e.end_call(5)
        e.bind(self)
        for name, value in self.parts.items():
            if name in ("__kwdefaults__", "__annotations__") or name in self.written:
                e.value(value)
                e.value(self)
                e.store_attr(name)
        if self.dictionary is not None:
            self.dictionary.write_all(e)


def _docstring(code: types.CodeType) -> Any:
    consts = code.co_consts
    return consts[0] if consts and isinstance(consts[0], str) else None


@wraps(types.FunctionType)
def wrap_function(m: Machine, real: types.FunctionType, source: Source | None) -> Value:
    if is_made_by_each_call(real, source):
        held = guard_code(m, real, source)
    else:
        held = guard_identity(m, real, source)
    return FunctionValue(real.__code__, real.__globals__, {}, real, held)


def is_made_by_each_call(real: Any, source: Source | None) -> bool:
    """Whether it is a nested function that was given to the call, so that the next call is
    likely to bring another one with the same code."""
    code = getattr(real, "__code__", None)
    return code is not None and "<locals>" in code.co_qualname and is_given(source)


def guard_part(m: Machine, function: types.FunctionType, field: Field) -> None:
    """A field of a function whose value counts as a whole."""
    real = getattr(function, field.name)
    m.guard(field, NullField() if real is None else Is(real))


def guard_code(m: Machine, real: types.FunctionType, source: Source) -> Source:
    """Guard what a function made of the same code by another call shares with this one."""
    m.guard(source, TypeIs(types.FunctionType))
    m.guard(Field(source, "__code__"), Is(real.__code__))
    m.guard(Field(source, "__globals__"), Is(real.__globals__))
    return source


def is_given(source: Source | None) -> bool:
    """Whether the path starts at an argument."""
    while source is not None and not isinstance(source, (Local, Held)):
        source = source.base  # type: ignore[attr-defined]
    return isinstance(source, Local)


def part_name(name: str) -> str:
    return name if name.startswith("__") else f"__{name}__"


def annotations_dict(value: Value) -> Value:
    """MAKE_FUNCTION gets annotations as a dict or as a flat tuple of names and values."""
    if not isinstance(value, TupleValue):
        return value
    flat, result = value.items, DictValue()
    for name, annotation in zip(flat[::2], flat[1::2]):
        result.entries[name.constant()] = Entry(name, annotation)
    return result


@builds("function")
def make_function(
    m: Machine,
    code: types.CodeType,
    globals: dict[str, Any],
    qualname: str,
    defaults: Value | None,
    kwdefaults: Value | None,
    annotations: Value | None,
    closure: Value | None,
) -> Value:
    """MAKE_FUNCTION."""
    annotations = None if annotations is None else annotations_dict(annotations)
    named = {
        "__defaults__": defaults,
        "__kwdefaults__": kwdefaults,
        "__annotations__": annotations,
        "__closure__": closure,
    }
    return FunctionValue(code, globals, {k: v for k, v in named.items() if v is not None})


@wraps(types.CellType)
def wrap_cell(m: Machine, real: types.CellType, source: Source | None) -> Value:
    return m.cell(real, source or Held(real, "a closure cell"))


class BoundMethodValue(CallableValue):
    """A callable with its first argument: of a Python function a method, of a C one a builtin."""

    def __init__(self, function: Value, owner: Value, source: Source | None = None) -> None:
        self.function, self.owner, self.source = function, owner, source

    def __repr__(self) -> str:
        return f"BoundMethodValue({self.function!r}, {self.owner!r})"

    def python_type(self) -> type:
        if isinstance(self.function, BuiltinValue):
            return METHOD_TYPES.get(type(self.function.object), types.MethodType)
        return types.MethodType

    def children(self) -> Iterable[Value]:
        return (self.function, self.owner)

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return m.forward(self, self.function, [self.owner, *args], kwargs)

    def hands_on(self) -> bool:
        return type(self) is BoundMethodValue and self.function.hands_on()

    def getattr(self, m: Machine, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__" and self.python_type() is types.MethodType:
            return self.function
        if name in ("__class__", "__call__"):
            return m.default_getattr(self, name)
        return self.function.getattr(m, name)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if op not in ("==", "!=") or not isinstance(other, BoundMethodValue):
            return NotImplemented
        same = m.identical(self.owner, other.owner) and m.identical(self.function, other.function)
        return m.const(same == (op == "=="))

    def hash_key(self, m: Machine) -> Any:
        return ("method", self.function.hash_key(m), id(self.owner))

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        return self

    def has_get(self) -> bool:
        return False

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        if self.python_type() is types.MethodType:
            e.const(types.MethodType)
            e.value(self.function)
            e.value(self.owner)
        else:  # past what the owner itself calls by that name
            real = self.function.constant()
            e.const(real.__get__)
            if isinstance(real, types.ClassMethodDescriptorType):
                e.const(None)
                e.value(self.owner)
            else:
                e.value(self.owner)
                e.const(self.owner.python_type())
        e.end_call(2)


builds("method")(lambda m, function, owner: BoundMethodValue(function, owner))


@wraps(types.MethodType)
def wrap_method(m: Machine, real: types.MethodType, source: Source | None) -> Value:
    held = guard_type(m, real, source)
    function = m.wrap(real.__func__, Field(held, "__func__"))
    return BoundMethodValue(function, m.wrap(real.__self__, Field(held, "__self__")), source)


# ---- C functions

Handler = Callable[["Machine", list[Value], dict[str, Value]], Value]
HANDLERS: dict[Any, Handler] = {}  # by the real callable: how it is modelled
PURE: set[Any] = set()  # callables without effects, that read nothing but constants
PURE_OWNERS: set[type] = {int, float, complex, bool, str, bytes, type(None), range, slice}
BREAKS: dict[Any, tuple[str, str]] = {}  # callable -> (kind, remedy)

BUILTIN_TYPES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
)
METHOD_TYPES: dict[type, type] = {
    types.MethodDescriptorType: types.BuiltinMethodType,
    types.WrapperDescriptorType: types.MethodWrapperType,
    types.ClassMethodDescriptorType: types.BuiltinMethodType,
}


def is_pure(real: Any) -> bool:
    """Whether the real callable may run on constants while tracing."""
    try:
        if real in PURE:
            return True
    except TypeError:
        return False
    owner = getattr(real, "__objclass__", None) or getattr(real, "__self__", None)
    if owner is None and not isinstance(real, types.MethodWrapperType):  # no method of None's
        return isinstance(real, type) and real in PURE_OWNERS
    return (owner if issubclass(type(owner), type) else type(owner)) in PURE_OWNERS


class BuiltinValue(PinnedValue, CallableValue):
    """A function written in C."""

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.object, METHODS_OF_C):
            check_receiver(m, self.object, args)
        return call_native(m, self.object, args, kwargs)

    def getattr(self, m: Machine, name: str) -> Value:
        if name in (*TEXT_FIELDS, "__self__", "__objclass__", "__text_signature__"):
            if hasattr(self.object, name):
                return m.const(getattr(self.object, name))
        return m.default_getattr(self, name)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        """Two methods of one object are equal; no code of the program's runs."""
        if op in ("==", "!=") and isinstance(other, BuiltinValue):
            return m.const((self.object == other.object) == (op == "=="))
        return super().compare(m, op, other)

    def has_get(self) -> bool:
        return not isinstance(self.object, (types.BuiltinFunctionType, types.MethodWrapperType))

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        if isinstance(self.object, types.ClassMethodDescriptorType):
            return BoundMethodValue(self, owner)
        return self if instance is None else BoundMethodValue(self, instance)


METHODS_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType)


def check_receiver(m: Machine, real: Any, args: list[Value]) -> None:
    """A method of a class of C is called with an instance of that class."""
    owner, name = real.__objclass__, real.__name__
    slot = isinstance(real, types.WrapperDescriptorType)
    if not args and slot:
        m.throw(TypeError, f"descriptor '{name}' of '{owner.__name__}' object needs an argument")
    if not args:
        m.throw(TypeError, f"unbound method {owner.__name__}.{name}() needs an argument")
    given = args[0].python_type()
    if issubclass(given, owner):
        return
    shown = f"descriptor '{name}' requires a '{owner.__name__}' object but received a"
    if not slot:
        shown = f"descriptor '{name}' for '{owner.__name__}' objects doesn't apply to a"
    m.throw(TypeError, f"{shown} '{given.__name__}'" + ("" if slot else " object"))


def call_native(m: Machine, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a C function or a class of C: as its handler says, or for real if that is pure."""
    from jitshape.frontend.values.constants import fold

    try:
        handler = HANDLERS.get(real)
    except TypeError:  # a method of an unhashable object
        handler = None
    if handler is not None:
        return handler(m, args, kwargs)
    if real in BREAKS:
        kind, remedy = BREAKS[real]
        raise Break(kind, f"{name_of(real)} is called", remedy)
    if is_pure(real):
        args = [literal(m, a) for a in args]
        kwargs = {k: literal(m, v) for k, v in kwargs.items()}
        if all(a.is_constant() for a in (*args, *kwargs.values())):
            named = {k: v.constant() for k, v in kwargs.items()}
            return fold(m, real, *(a.constant() for a in args), **named)
    raise Break("builtin", f"{qualified(real)} cannot be traced with these arguments")


def literal(m: Machine, value: Value) -> Value:
    """A symbolic number as the literal that it specialises to; others as they are."""
    return m.specialised(value)


def qualified(real: Any) -> str:
    owner = getattr(real, "__objclass__", None) or getattr(real, "__module__", None)
    prefix = getattr(owner, "__name__", owner)
    return f"{prefix}.{real.__name__}" if prefix else getattr(real, "__name__", repr(real))


@wraps(*BUILTIN_TYPES)
def wrap_builtin(m: Machine, real: Any, source: Source | None) -> Value:
    owner = getattr(real, "__self__", None)
    bound = isinstance(real, (types.BuiltinMethodType, types.MethodWrapperType))
    if bound and owner is not None and not issubclass(type(owner), types.ModuleType):
        return _wrap_bound_builtin(m, real, owner, source)
    guard_identity(m, real, source)
    return BuiltinValue(real, source)


def _wrap_bound_builtin(m: Machine, real: Any, owner: Any, source: Source | None) -> Value:
    """`dict.fromkeys`, `object.__new__`: held, with the class it is bound to.  `[].append`: each
    call brings another one, which is known by its method and by the object it is bound to."""
    unbound = getattr(type(owner), real.__name__, None)
    if issubclass(type(owner), type) or unbound is None or not isinstance(unbound, BUILTIN_TYPES):
        return BuiltinValue(real, guard_identity(m, real, source))
    if source is None or not isinstance(real, types.BuiltinMethodType):
        held = guard_identity(m, real, source)
        return BoundMethodValue(m.wrap(unbound, None), m.wrap(owner, None), held)
    held = guard_type(m, real, source)
    m.guard(held, MethodIs(real))
    return BoundMethodValue(m.wrap(unbound, None), m.wrap(owner, Field(held, "__self__")), held)
