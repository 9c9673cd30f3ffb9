"""The functions of the `builtins` module that ask values: len, isinstance, getattr, sorted, ...

Numbers and text are in numbers.py, iterators in iteration.py.
"""

from __future__ import annotations

import abc
import builtins
import enum
import sys
import types
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.numbers import SYMBOLIC
from jitshape.frontend.builtins_.registry import breaks, is_callable, is_none, models
from jitshape.frontend.builtins_.sequences import sort
from jitshape.frontend.generators import GeneratorValue
from jitshape.frontend.lookup import class_attribute
from jitshape.frontend.sources import Local
from jitshape.frontend.values.base import Break, Cell, Raised, Value, unpack, unpack_sized
from jitshape.frontend.values.classes import ClassValue, make_super
from jitshape.frontend.values.frames import variables
from jitshape.frontend.values.iterators import SentinelIterator
from jitshape.frontend.values.objects import ObjectValue, OpaqueConstant
from jitshape.frontend.values.sequences import ListValue, TupleValue
from jitshape.frontend.values.storage import Storage, guard_identity
from jitshape.frontend.values.unobserved import observed

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(len)
def builtin_len(m: Machine, value: Value, /) -> Value:
    return value.length(m)


@models(type)
def builtin_type(m: Machine, *args: Value, **kwargs: Value) -> Value:
    if len(args) != 1 or kwargs:
        raise Break("class_definition", "a class is made while tracing", "define it outside")
    return args[0].type_value(m)


# ---- isinstance


@models(isinstance)
def builtin_isinstance(m: Machine, value: Value, classes: Value, /) -> Value:
    return m.const(is_instance(m, value, classes))


def is_instance(m: Machine, value: Value, classes: Value) -> bool:
    if isinstance(classes, TupleValue):
        return any(is_instance(m, value, c) for c in classes.items)
    if isinstance(classes, OpaqueConstant) and isinstance(classes.object, types.UnionType):
        return any(is_instance(m, value, m.wrap_type(c)) for c in classes.object.__args__)
    if not isinstance(classes, ClassValue):
        return _other_check(m, value, classes, "__instancecheck__", "isinstance")
    cls, actual = classes.object, value.python_type()
    if actual is cls:
        return True
    check = type(cls).__instancecheck__
    if check is type.__instancecheck__:
        return issubclass(actual, cls) or _pretends(m, value, cls)
    if _pure_abc(cls, check) and _shown_class(m, value) is None:
        return _registered(m, actual, cls)
    method = m.type_lookup(type(cls), "__instancecheck__")
    return m.call(method, [classes, value], {}).truth(m)


def _shown_class(m: Machine, value: Value) -> Value | None:
    """`value.__class__` where the class defines that itself, or attributes are looked up by code
    of the user's."""
    actual = value.python_type()
    if not isinstance(value, ObjectValue):
        return None
    own = class_attribute(actual, "__class__") is not object.__dict__["__class__"]
    if own or not m.is_generic(actual, "__getattribute__"):
        return value.getattr(m, "__class__")
    return None


def _pretends(m: Machine, value: Value, cls: type) -> bool:
    """Whether a proxy shows the class, or one derived from it, as its own."""
    try:
        shown = _shown_class(m, value)
    except Raised as raised:
        if not m.is_exception(raised, AttributeError):
            raise
        return False
    return isinstance(shown, ClassValue) and issubclass(shown.object, cls)


def _pure_abc(cls: type, check: Any) -> bool:
    """Whether the check of an abstract base class looks at classes only, by code that is not the
    user's."""
    if check is not abc.ABCMeta.__instancecheck__ and check is not enum.EnumType.__instancecheck__:
        return False
    hook = getattr(cls, "__subclasshook__", None)
    module = getattr(getattr(hook, "__func__", hook), "__module__", None)
    return module in (None, "collections.abc", "_collections_abc", "contextlib", "numbers", "os")


def _registered(m: Machine, actual: type, cls: type) -> bool:
    """`issubclass`, where `cls` may be an abstract base class.  A virtual subclass stays one, but
    any class may still become one; in another process it may not be one."""
    asked = _asked_of_user(cls) if cls not in actual.__mro__ else None
    if asked is not None:
        m.stop("user_code", f"issubclass asks {asked.__qualname__}.__subclasshook__")
    try:
        found = issubclass(actual, cls)
    except Exception as error:
        m.stop("raises", f"issubclass raises {type(error).__name__}: {error}")
    if not found and isinstance(cls, abc.ABCMeta):
        m.guard_registrations()
    elif found and cls not in actual.__mro__:
        if not (_is_standard(cls) and _is_standard(actual)):
            m.bound_by = "which classes are registered with abstract ones"
    return found


def _asked_of_user(cls: type) -> type | None:
    """The class whose hook, written by the user, may be asked for subclasses of `cls`: an abstract
    class asks those that derive from it, too."""
    waiting, seen = [cls], set()
    while waiting:
        each = waiting.pop()
        if each in seen or not isinstance(each, abc.ABCMeta):
            continue
        seen.add(each)
        hook = each.__subclasshook__
        if not _is_standard(getattr(hook, "__func__", None) or object):
            return each
        waiting += type.__subclasses__(each)
    return None


def _is_standard(cls: Any) -> bool:
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names


def _may_pass_for_class(value: Value, function: str) -> None:
    """C asks what is no class for its `__bases__`, over and over."""
    if not value.is_constant():
        name = value.python_type().__qualname__
        raise Break("builtin", f"{function} of a {name}, which may have bases")


def _other_check(m: Machine, value: Value, classes: Value, name: str, function: str) -> bool:
    method = classes.special(m, name)
    if method is not None:
        return m.call(method, [value], {}).truth(m)
    _may_pass_for_class(classes, function)
    which = "arg 2 must be a type, a tuple of types, or a union"
    if function == "issubclass":
        which = "arg 2 must be a class, a tuple of classes, or a union"
    m.throw(TypeError, f"{function}() {which}")


@models(type.__instancecheck__)
def type_instancecheck(m: Machine, cls: Value, value: Value, /) -> Value:
    real = cls.constant()
    return m.const(issubclass(value.python_type(), real) or _pretends(m, value, real))


@models(issubclass)
def builtin_issubclass(m: Machine, cls: Value, classes: Value, /) -> Value:
    if not isinstance(cls, ClassValue):
        _may_pass_for_class(cls, "issubclass")
        m.throw(TypeError, "issubclass() arg 1 must be a class")
    return m.const(is_subclass(m, cls, classes))


def is_subclass(m: Machine, cls: Any, classes: Value) -> bool:
    if isinstance(classes, TupleValue):
        return any(is_subclass(m, cls, c) for c in classes.items)
    if isinstance(classes, OpaqueConstant) and isinstance(classes.object, types.UnionType):
        return any(is_subclass(m, cls, m.wrap_type(c)) for c in classes.object.__args__)
    if not isinstance(classes, ClassValue):
        return _other_check(m, cls, classes, "__subclasscheck__", "issubclass")
    check = type(classes.object).__subclasscheck__
    if check is type.__subclasscheck__ or check is abc.ABCMeta.__subclasscheck__:
        return _registered(m, cls.object, classes.object)
    method = m.type_lookup(type(classes.object), "__subclasscheck__")
    return m.call(method, [classes, cls], {}).truth(m)


@models(type.__subclasscheck__)
def type_subclasscheck(m: Machine, cls: Value, other: Value, /) -> Value:
    return m.const(issubclass(other.constant(), cls.constant()))


@models(abc.ABCMeta.__instancecheck__)
def abc_instancecheck(m: Machine, cls: Value, value: Value, /) -> Value:
    """Either what the value shows as its class derives from `cls`, or what it is."""
    shown, actual = _shown_class(m, value), value.python_type()
    if shown is not None and not isinstance(shown, ClassValue):
        m.stop("builtin", f"isinstance of a {actual.__qualname__}, whose __class__ is no class")
    kinds = [actual] if shown is None else [shown.object, actual]
    return m.const(any(_registered(m, kind, cls.constant()) for kind in kinds))


@models(abc.ABCMeta.__subclasscheck__)
def abc_subclasscheck(m: Machine, cls: Value, other: Value, /) -> Value:
    return m.const(_registered(m, other.constant(), cls.constant()))


# ---- attributes


def _name(m: Machine, name: Value, function: str) -> str:
    if not (name.is_constant() and isinstance(name.constant(), str)):
        shown = "attribute name must be string"
        m.throw(TypeError, f"{shown}, not '{name.python_type().__name__}'")
    return name.constant()


@models(getattr)
def builtin_getattr(
    m: Machine, value: Value, name: Value, default: Value | None = None, /
) -> Value:
    attribute = _name(m, name, "getattr")
    try:
        return m.attribute(value, attribute)
    except Raised as raised:
        if default is None or not m.is_exception(raised, AttributeError):
            raise
        return default


@models(hasattr)
def builtin_hasattr(m: Machine, value: Value, name: Value, /) -> Value:
    attribute = _name(m, name, "hasattr")
    try:
        value.getattr(m, attribute)
    except Raised as raised:
        if not m.is_exception(raised, AttributeError):
            raise
        return m.const(False)
    return m.const(True)


@models(setattr)
def builtin_setattr(m: Machine, value: Value, name: Value, item: Value, /) -> None:
    value.setattr(m, _name(m, name, "setattr"), item)


@models(delattr)
def builtin_delattr(m: Machine, value: Value, name: Value, /) -> None:
    value.delattr(m, _name(m, name, "delattr"))


@models(callable)
def builtin_callable(m: Machine, value: Value, /) -> Value:
    return m.const(is_callable(value))


@models(vars)
def builtin_vars(m: Machine, value: Value, /) -> Value:
    try:
        return value.getattr(m, "__dict__")
    except Raised as raised:
        if not m.is_exception(raised, AttributeError):
            raise
    m.throw(TypeError, "vars() argument must have __dict__ attribute")


@models(super)
def builtin_super(m: Machine, cls: Value | None = None, owner: Value | None = None, /) -> Value:
    if cls is None:
        cls, owner = _implicit_super(m)
    elif owner is None:
        raise Break("super", "an unbound super object")
    return make_super(m, cls, owner)


def _implicit_super(m: Machine) -> tuple[Value, Value]:
    """`super()`: the class cell and the first argument of the frame that calls it."""
    frame = m.frame
    names = frame.program.slot_names
    if not frame.callee.code.co_argcount:
        m.throw(RuntimeError, "super(): no arguments")
    if "__class__" not in names:
        m.throw(RuntimeError, "super(): __class__ cell not found")
    owner = observed(frame.slots[0])
    name = frame.callee.code.co_varnames[0]
    if isinstance(owner, Cell) and name in frame.callee.code.co_cellvars:
        owner = m.load_cell(owner)
    if owner is None:
        m.throw(RuntimeError, "super(): arg[0] deleted")
    cls = m.load_cell(frame.slots[names.index("__class__")])
    if cls is None:
        m.throw(RuntimeError, "super(): empty __class__ cell")
    if m.real_class(cls) is None:
        kind = cls.python_type().__name__
        m.throw(RuntimeError, f"super(): __class__ is not a type ({kind})")
    return cls, owner


# ---- sequences and iterators


@models(iter)
def builtin_iter(m: Machine, value: Value, sentinel: Value | None = None, /) -> Value:
    if sentinel is not None:
        if not is_callable(value):
            m.throw(TypeError, "iter(v, w): v must be callable")
        return SentinelIterator(value, sentinel)
    return value.iterate(m)


@models(next)
def builtin_next(m: Machine, iterator: Value, default: Value | None = None, /) -> Value:
    if not m.defines(iterator, "__next__"):
        name = iterator.python_type().__name__
        m.throw(TypeError, f"'{name}' object is not an iterator")
    if isinstance(iterator, GeneratorValue) and default is None:  # keeps what a generator returns
        return m.call(iterator.getattr(m, "__next__"), [], {})
    item = iterator.next(m)
    if item is None and default is None:
        m.throw(StopIteration)
    return default if item is None else item


@models(sorted)
def builtin_sorted(
    m: Machine, iterable: Value, /, *, key: Value | None = None, reverse: Value | None = None
) -> Value:
    return ListValue(sort(m, unpack_sized(m, iterable), key, reverse))


@models(any)
def builtin_any(m: Machine, iterable: Value, /) -> Value:
    iterator = iterable.iterate(m)
    while (item := iterator.next(m)) is not None:
        if item.truth(m):
            return m.const(True)
    return m.const(False)


@models(all)
def builtin_all(m: Machine, iterable: Value, /) -> Value:
    iterator = iterable.iterate(m)
    while (item := iterator.next(m)) is not None:
        if not item.truth(m):
            return m.const(False)
    return m.const(True)


@models(sum)
def builtin_sum(m: Machine, iterable: Value, /, start: Value | None = None) -> Value:
    total = m.const(0) if start is None else start
    if total.python_type() is str:
        m.throw(TypeError, "sum() can't sum strings [use ''.join(seq) instead]")
    iterator = iterable.iterate(m)
    while (item := iterator.next(m)) is not None:
        total = m.binary("+", total, item)
    return total


def _decided(m: Machine, args: list[Value]) -> None:
    """Where numbers are never symbolic."""


def _extreme(m: Machine, function: Any, op: str, args: tuple, key: Any, default: Any) -> Value:
    name = function.__name__
    if len(args) > 1 and default is not None:
        shown = f"Cannot specify a default for {name}() with multiple positional arguments"
        m.throw(TypeError, shown)
    items = list(args) if len(args) > 1 else unpack(m, args[0])
    if not items:
        if default is not None:
            return default
        shown = "iterable argument is empty" if _NEW_TEXT else "arg is an empty sequence"
        m.throw(ValueError, f"{name}() {shown}")
    best, best_key = items[0], None
    for item in items:
        item_key = item if is_none(key) else m.call(key, [item], {})
        if best_key is None:
            best, best_key = item, item_key
            continue
        undecided = SYMBOLIC.get(function, _decided)(m, [best, item]) if is_none(key) else None
        if undecided is not None:
            best = best_key = undecided
        elif m.compare(op, item_key, best_key).truth(m):
            best, best_key = item, item_key
    return best


_NEW_TEXT = "iterable" in (min.__doc__ or "") and __import__("sys").version_info >= (3, 12)


@models(min)
def builtin_min(
    m: Machine, *args: Value, key: Value | None = None, default: Value | None = None
) -> Value:
    return _extreme(m, min, "<", args, key, default)


@models(max)
def builtin_max(
    m: Machine, *args: Value, key: Value | None = None, default: Value | None = None
) -> Value:
    return _extreme(m, max, ">", args, key, default)


# ---- identity, names, output


@models(id)
def builtin_id(m: Machine, value: Value, /) -> Value:
    """Of an object that other objects hold, which is the same at each call as a rule."""
    if isinstance(value, Storage) and value.object is not None:
        if value.source is not None and not isinstance(value.source, Local):
            m.bound_by = "the address of an object"
            guard_identity(m, value.object, value.source)
            return m.const(id(value.object))
    raise Break("identity", "id() gives a number that differs at each run", "compare with `is`")


@models(hash)
def builtin_hash(m: Machine, value: Value, /) -> Value:
    hashed = value.hash_key(m)
    if value.is_constant():
        if value.python_type() not in (int, bool, float):
            m.bound_by = "a hash"
        return m.const(hash(value.constant()))
    raise Break("hash", f"hash() of a {type(hashed).__name__}")


@models(print)
def builtin_print(m: Machine, *args: Value, **kwargs: Value) -> None:
    """Printed after the graph, if what is printed is known text or can be rebuilt."""
    if kwargs.keys() - {"sep", "end"} or not all(_printable(a) for a in args):
        raise Break("side_effect", "print() of an object", "print after the compiled function")
    m.mutated()
    m.effects.call(print, list(args), kwargs)


def _printable(value: Value) -> bool:
    return value.is_constant() or value.python_type() in (int, float, bool)


breaks("input_output", "do it outside the compiled function", open, input, builtins.__import__)
breaks("dynamic_code", "call it outside the compiled function", eval, exec, compile)


@models(locals)
def builtin_locals(m: Machine) -> Value:
    return variables(m, m.frame)


@models(globals)
def builtin_globals(m: Machine) -> Value:
    return m.namespace(m.frame.scope)


breaks("frame", "pass the values explicitly", dir)
