"""Functions of other standard modules: operator, copy, os, typing, collections, contextlib."""

from __future__ import annotations

import collections
import copy
import gc
import inspect
import operator
import os
import sys
import time
import types
import typing
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.functions import builtin_getattr
from jitshape.frontend.builtins_.registry import NONE, breaks, is_none, models, pure
from jitshape.frontend.checks import Remembers
from jitshape.frontend.sources import Field, Held, Key, Source
from jitshape.frontend.values.base import Break, Value, wraps
from jitshape.frontend.values.classes import ClassValue
from jitshape.frontend.values.constants import ConstantValue, fold
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.frames import frame_above
from jitshape.frontend.values.functions import (
    BoundMethodValue,
    CallableValue,
    FunctionValue,
    guard_part,
)
from jitshape.frontend.values.sequences import ListValue, TupleValue
from jitshape.frontend.values.sets import SetValue
from jitshape.frontend.values.storage import guard_identity

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

# ---- operator

_BINARY = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "lshift": "<<",
    "rshift": ">>",
    "and_": "&",
    "or_": "|",
    "xor": "^",
}
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}


def _register_operators() -> None:
    for name, op in _BINARY.items():
        inplace = "i" + name.rstrip("_")
        models(getattr(operator, name))(lambda m, a, b, /, op=op: m.binary(op, a, b))
        models(getattr(operator, inplace))(lambda m, a, b, /, op=op: m.binary(f"{op}=", a, b))
    for name, op in _COMPARE.items():
        models(getattr(operator, name))(lambda m, a, b, /, op=op: m.compare(op, a, b))
    for name, op in {"neg": "-", "pos": "+", "invert": "~"}.items():
        models(getattr(operator, name))(lambda m, a, /, op=op: a.unary(m, op))
    models(operator.concat)(lambda m, a, b, /: m.binary("+", a, b))
    models(operator.getitem)(lambda m, a, b, /: a.getitem(m, b))
    models(operator.setitem)(lambda m, a, b, c, /: a.setitem(m, b, c))
    models(operator.delitem)(lambda m, a, b, /: a.delitem(m, b))
    models(operator.contains)(lambda m, a, b, /: a.contains(m, b))
    models(operator.not_)(lambda m, a, /: m.const(not a.truth(m)))
    models(operator.truth)(lambda m, a, /: m.const(a.truth(m)))
    models(operator.is_)(lambda m, a, b, /: m.const(m.is_same(a, b)))
    models(operator.is_not)(lambda m, a, b, /: m.const(not m.is_same(a, b)))
    models(operator.index)(lambda m, a, /: m.const(m.as_int(a)))


_register_operators()


class GetterValue(CallableValue):
    """`operator.itemgetter`, `attrgetter`: `read` gives what one name or index names."""

    def __init__(self, kind: Any, wanted: list[Value], source: Source | None = None) -> None:
        self.kind, self.wanted, self.source = kind, wanted, source

    def python_type(self) -> type:
        return self.kind

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            raise Break("builtin_arguments", f"{self.kind.__name__} expected 1 argument")
        results = [self._read(m, args[0], name) for name in self.wanted]
        return results[0] if len(results) == 1 else TupleValue(results)

    def _read(self, m: Machine, value: Value, name: Value) -> Value:
        if self.kind is operator.itemgetter:
            return value.getitem(m, name)
        for part in name.constant().split("."):
            value = value.getattr(m, part)
        return value

    def reconstruct(self, e: Any) -> None:
        e.begin_call()
        e.const(self.kind)
        for value in self.wanted:
            e.value(value)
        e.end_call(len(self.wanted))


@wraps(operator.itemgetter, operator.attrgetter)
def wrap_getter(m: Machine, real: Any, source: Source | None) -> Value:
    """One that exists never changes: what it names is what it was made with."""
    held = guard_identity(m, real, source)
    kind, names = real.__reduce__()
    return GetterValue(kind, [m.wrap(name, Held(name, held.text)) for name in names], held)


@models(operator.itemgetter)
def new_itemgetter(m: Machine, first: Value, /, *rest: Value) -> Value:
    return GetterValue(operator.itemgetter, [first, *rest])


@models(operator.attrgetter)
def new_attrgetter(m: Machine, first: Value, /, *rest: Value) -> Value:
    return GetterValue(operator.attrgetter, [first, *rest])


# ---- copy


@models(copy.copy)
def shallow_copy(m: Machine, value: Value, /) -> Value:
    if _immutable(value):
        return value
    if isinstance(value, (ListValue, DictValue, SetValue)) and value.is_exact():
        return m.call(value.getattr(m, "copy"), [], {})
    method = value.special(m, "__copy__")
    if method is None:
        raise Break("copy", f"copy.copy of a {value.python_type().__name__}")
    return m.call(method, [], {})


def _immutable(value: Value) -> bool:
    return value.is_constant() or (isinstance(value, TupleValue) and value.is_exact())


@models(copy.deepcopy)
def deep_copy(m: Machine, value: Value, memo: Value | None = None, /) -> Value:
    if not is_none(memo):
        raise Break("copy", "copy.deepcopy with a memo")
    return _deep(m, value, {})


def _deep(m: Machine, value: Value, done: dict[int, Value]) -> Value:
    if id(value) in done:
        return done[id(value)]
    if value.is_constant():
        return value
    if isinstance(value, ListValue) and value.is_exact():
        result: Any = ListValue()
        done[id(value)] = result
        result.cells.extend(_deep(m, x, done) for x in value.items)
        return result
    if isinstance(value, DictValue) and value.cls in (dict, collections.OrderedDict):
        result = done[id(value)] = DictValue(value.cls)
        for key, item in zip(value.keys_in_order(m), value.values_in_order(m)):
            result.store(m, _deep(m, key, done), _deep(m, item, done))
        return result
    if isinstance(value, TupleValue) and value.is_exact():
        return done.setdefault(id(value), TupleValue([_deep(m, x, done) for x in value.items]))
    raise Break("copy", f"copy.deepcopy of a {value.python_type().__name__}")


# ---- small functions


@models(typing.cast)
def cast(m: Machine, typ: Value, val: Value) -> Value:
    return val


@models(sys.intern)
def intern(m: Machine, text: Value, /) -> Value:
    return text


@models(sys.exc_info)
def exc_info(m: Machine) -> Value:
    handled = _handled(m)
    if is_none(handled):
        return TupleValue([NONE, NONE, NONE])
    return TupleValue([handled.type_value(m), handled, handled.traceback or NONE])


@models(sys._getframe)
def getframe(m: Machine, depth: Value = NONE, /) -> Value:
    return frame_above(m, 0 if is_none(depth) else m.as_int(depth))


@models(sys.exception)
def exception(m: Machine) -> Value:
    return _handled(m)


def _handled(m: Machine) -> Value:
    handled = m.handling.current()
    if handled is None and m.caller_handles():
        raise Break("exception", "an exception that the caller handles is read")
    return handled or NONE


@models(sys.getrecursionlimit)
def recursion_limit(m: Machine) -> Value:
    limit = m.recursion_limit  # not that of a trace
    name = "sys.getrecursionlimit()"
    m.guard(None, Remembers(name, limit, sys.getrecursionlimit, (), ()))
    return ConstantValue(limit)


@models(inspect.signature)
def signature(m: Machine, obj: Value, **options: Value) -> Value:
    """Of a callable that exists; all that it is made of is read here, so that it is guarded."""
    own = _attribute(m, obj, "__signature__")
    if isinstance(obj, FunctionValue) and not is_none(own) and not options:
        return own
    real = signed(m, obj) if is_none(own) else None
    if real is None or not all(v.is_constant() for v in options.values()):
        raise Break("signature", f"inspect.signature of {obj.python_type().__name__}")

    def made() -> inspect.Signature:
        found = inspect.signature(real, **{k: v.constant() for k, v in options.items()})
        m.settled.update(map(id, _parts(found)))
        return found

    return fold(m, made)


def _parts(made: inspect.Signature) -> list[Any]:
    """A signature does not change; nor does what it is made of, which the trace holds with it."""
    return [made, *gc.get_referents(made.parameters), *made.parameters.values()]


def signed(m: Machine, value: Value) -> Any:
    """A real object with the same signature, or None."""
    if isinstance(value, BoundMethodValue):
        function = signed(m, value.function)
        return None if function is None else types.MethodType(function, None.__class__)
    if isinstance(value, FunctionValue):
        return _signed_function(m, value)
    if isinstance(value, ClassValue):
        return _signed_class(m, value)
    return value.constant() if value.python_type() is types.BuiltinFunctionType else None


def _signed_function(m: Machine, value: FunctionValue) -> Any:
    wrapped, text = (_attribute(m, value, name) for name in ("__wrapped__", "__text_signature__"))
    if value.object is None or not is_none(text):
        return None
    if not is_none(wrapped) and (
        not is_none(_attribute(m, wrapped, "__signature__")) or signed(m, wrapped) is None
    ):
        return None
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        guard_part(m, value.object, Field(value.source, name))
    for name in ("__kwdefaults__", "__annotations__"):
        part = value.part(m, name)
        if isinstance(part, DictValue):
            part.keys_in_order(m)
            for key, real in getattr(value.object, name).items():
                guard_identity(m, real, Key(part.source, key))
    return value.object


def _signed_class(m: Machine, value: ClassValue) -> Any:
    """Classes are called by `type`; their signature is that of what the call looks up."""
    cls = value.constant()
    makers = [m.attribute(value, name) for name in ("__new__", "__init__")]
    known = all(signed(m, x) for x in makers if isinstance(x, FunctionValue))
    return cls if known and type(cls) is type else None


def _attribute(m: Machine, value: Value, name: str) -> Value:
    return builtin_getattr(m, value, m.const(name), NONE)


def _register_kinds() -> None:
    kinds = {
        inspect.isfunction: types.FunctionType,
        inspect.ismethod: types.MethodType,
        inspect.isclass: type,
        inspect.isbuiltin: types.BuiltinFunctionType,
    }
    for function, kind in kinds.items():
        models(function)(lambda m, x, /, kind=kind: m.const(issubclass(x.python_type(), kind)))


_register_kinds()
pure(os.path.join, os.path.basename, os.path.dirname, os.path.splitext, os.fspath)
breaks("input_output", "read the clock outside", time.time, time.perf_counter, time.monotonic)
breaks("input_output", "do it outside the compiled function", time.sleep, os.getpid, os.getcwd)
# It is to hear of every line from here on: the whole function runs natively.
breaks("trace_function", "set it outside the compiled function", sys.settrace, sys.setprofile)
