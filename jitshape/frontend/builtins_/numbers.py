"""Numbers and text: int, float, bool, str, repr, format, abs, round, math, ...

In: values of any kind.  Out: constants folded by the real function; symbolic numbers keep their
meaning where the torch side registered a rule in `SYMBOLIC`, else they specialise.
"""

from __future__ import annotations

import builtins
import cmath
import math
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import models, pure
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.constants import CONSTANT_TYPES, UNARY, fold
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.functions import literal
from jitshape.frontend.values.sequences import ListValue, TupleValue
from jitshape.frontend.values.sets import SetValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

# By the real function: `(m, args) -> Value | None` for calls with a symbolic number among the
# arguments; None: no rule for these arguments, specialise.  Registered by the torch side.
SYMBOLIC: dict[Any, Callable[[Any, list[Value]], Value | None]] = {}


def symbolic(m: Machine, function: Any, args: list[Value]) -> Value | None:
    """The answer of the torch side for a call with symbolic numbers."""
    rule = SYMBOLIC.get(function)
    if rule is None or all(a.is_constant() for a in args):
        return None
    return rule(m, args)


def _is_literal(value: Value) -> bool:
    return value.is_constant() and type(value.constant()) in CONSTANT_TYPES


# Classes without a conversion of their own that have no text to read a number from either.
NO_NUMBERS = {object, NoneType, list, tuple, dict, set, frozenset, slice, range, type}


def _convert(m: Machine, kind: type, dunders: tuple[str, ...], args: tuple[Value, ...]) -> Value:
    """`int(x)`, `float(x)`: symbolic rule, fold, or the object's own method."""
    answer = symbolic(m, kind, list(args))
    if answer is not None:
        return answer
    args = tuple(literal(m, a) for a in args)
    if not args or all(a.is_constant() for a in args):
        return fold(m, kind, *(a.constant() for a in args))
    for name in dunders:
        method = args[0].special(m, name) if len(args) == 1 else None
        if method is not None:
            return _checked(m, kind, name, m.call(method, [], {}))
    shown = {int: "a string, a bytes-like object or a real number"}.get(
        kind, "a string or a real number"
    )
    cls = args[0].python_type()
    name = cls.__name__
    if cls not in NO_NUMBERS:  # text, what derives from it, and what has a buffer
        raise Break("conversion", f"{kind.__name__}() of a {name}")
    m.throw(TypeError, f"{kind.__name__}() argument must be {shown}, not '{name}'")


def _checked(m: Machine, kind: type, name: str, result: Value) -> Value:
    if name == "__index__":
        m.check_index(result)
        return _convert(m, kind, (), (result,))
    if result.python_type() is not kind or name == "__trunc__":
        raise Break("conversion", f"{name} gives a {result.python_type().__name__}")
    return result


@models(int)
def new_int(m: Machine, *args: Value, **kwargs: Value) -> Value:
    if kwargs:
        args = (*args, *kwargs.values())
    return _convert(m, int, ("__int__", "__index__", "__trunc__"), args)


@models(float)
def new_float(m: Machine, *args: Value) -> Value:
    return _convert(m, float, ("__float__", "__index__"), args)


@models(bool)
def new_bool(m: Machine, value: Value | None = None, /) -> Value:
    return m.const(value is not None and value.truth(m))


# ---- text


@models(str)
def new_str(m: Machine, *args: Value, **kwargs: Value) -> Value:
    if not args:
        return m.const("")
    if len(args) > 1 or kwargs:
        return fold(m, str, *(a.constant() for a in args))
    return m.const(text(m, args[0], "__str__"))


@models(repr)
def builtin_repr(m: Machine, value: Value, /) -> Value:
    return m.const(text(m, value, "__repr__"))


def text(m: Machine, value: Value, name: str) -> str:
    """`str(value)` or `repr(value)`."""
    value = literal(m, value)
    function = str if name == "__str__" else repr
    if _is_literal(value) or type(value).__name__ in ("ClassValue", "EnumValue"):
        return fold(m, function, value.constant()).constant()
    show = SHOWN.get(type(value))
    if show is not None and value.inherits("__repr__", "__str__"):
        return show(m, value)
    method = value.special(m, name)
    if method is None:
        raise Break("text", f"{function.__name__}() of a {value.python_type().__name__}")
    result = m.call(method, [], {})
    if not isinstance(result.constant(), str):
        kind = result.python_type().__name__
        m.throw(TypeError, f"{name} returned non-string (type {kind})")
    return result.constant()


def _joined(m: Machine, values: list[Value]) -> str:
    return ", ".join(text(m, v, "__repr__") for v in values)


def _show_tuple(m: Machine, value: Any) -> str:
    comma = "," if value.size() == 1 else ""
    return f"({_joined(m, value.items)}{comma})"


def _show_dict(m: Machine, value: Any) -> str:
    pairs = zip(value.keys_in_order(m), value.values_in_order(m))
    shown = (f"{text(m, k, '__repr__')}: {text(m, v, '__repr__')}" for k, v in pairs)
    return "{" + ", ".join(shown) + "}"


def _show_set(m: Machine, value: Any) -> str:
    name = value.cls.__name__
    if not value.elements:
        return f"{name}()"
    inner = "{" + _joined(m, value.ordered(m)) + "}"
    return inner if value.cls is set else f"{name}({inner})"


SHOWN: dict[type, Callable[[Any, Any], str]] = {
    ListValue: lambda m, v: f"[{_joined(m, v.items)}]",
    TupleValue: _show_tuple,
    DictValue: _show_dict,
    SetValue: _show_set,
}
models(list.__repr__)(lambda m, self, /: m.const(SHOWN[ListValue](m, self)))
models(tuple.__repr__)(lambda m, self, /: m.const(_show_tuple(m, self)))
models(dict.__repr__)(lambda m, self, /: m.const(_show_dict(m, self)))


@models(format)
def builtin_format(m: Machine, value: Value, spec: Value | None = None, /) -> Value:
    value = literal(m, value)
    wanted = "" if spec is None else spec.constant()
    if value.is_constant():
        return fold(m, format, value.constant(), wanted)
    if value.python_type().__format__ is object.__format__:
        if wanted:
            name = value.python_type().__name__
            m.throw(TypeError, f"unsupported format string passed to {name}.__format__")
        return m.const(text(m, value, "__str__"))
    return m.call(value.special(m, "__format__"), [m.const(wanted)], {})


@models(object.__format__)
def object_format(m: Machine, self: Value, spec: Value, /) -> Value:
    return m.const(text(m, self, "__str__"))


@models(str.join)
def str_join(m: Machine, self: Value, iterable: Value, /) -> Value:
    from jitshape.frontend.values.base import unpack

    parts = [literal(m, v) for v in unpack(m, iterable)]
    for index, part in enumerate(parts):
        if not part.is_constant() or not isinstance(part.constant(), str):
            name = part.python_type().__name__
            m.throw(TypeError, f"sequence item {index}: expected str instance, {name} found")
    return fold(m, str.join, self.constant(), [p.constant() for p in parts])


# ---- arithmetic functions


def _by_method(function: Any, name: str, complaint: str) -> None:
    """abs, and the math functions that ask the object first."""

    @models(function)
    def call(m: Machine, value: Value, /) -> Value:
        answer = symbolic(m, function, [value])
        if answer is not None:
            return answer
        value = literal(m, value)
        if value.is_constant():
            return fold(m, function, value.constant())
        method = value.special(m, name)
        if method is None:
            m.throw(TypeError, complaint.format(value.python_type().__name__))
        return m.call(method, [], {})


_by_method(abs, "__abs__", "bad operand type for abs(): '{}'")
_by_method(math.floor, "__floor__", "must be real number, not {}")
_by_method(math.ceil, "__ceil__", "must be real number, not {}")
_by_method(math.trunc, "__trunc__", "type {} doesn't define __trunc__ method")


@models(round)
def builtin_round(m: Machine, number: Value, ndigits: Value | None = None) -> Value:
    args = [number] if ndigits is None else [number, ndigits]
    answer = symbolic(m, round, args)
    if answer is not None:
        return answer
    args = [literal(m, a) for a in args]
    if all(a.is_constant() for a in args):
        return fold(m, round, *(a.constant() for a in args))
    method = args[0].special(m, "__round__")
    if method is None:
        name = args[0].python_type().__name__
        m.throw(TypeError, f"type {name} doesn't define __round__ method")
    return m.call(method, args[1:], {})


@models(divmod)
def builtin_divmod(m: Machine, a: Value, b: Value, /) -> Value:
    if a.is_constant() and b.is_constant():
        return fold(m, divmod, a.constant(), b.constant())
    return TupleValue([m.binary("//", a, b), m.binary("%", a, b)])


@models(pow)
def builtin_pow(m: Machine, base: Value, exp: Value, mod: Value | None = None) -> Value:
    if mod is None:
        return m.binary("**", base, exp)
    return fold(m, pow, *(literal(m, v).constant() for v in (base, exp, mod)))


def _constants_only(function: Any) -> None:
    """A function of numbers: symbolic rule, else on literals."""

    @models(function)
    def call(m: Machine, /, *args: Value, **kwargs: Value) -> Value:
        answer = symbolic(m, function, list(args)) if not kwargs else None
        if answer is not None:
            return answer
        values = [_number(m, a) for a in args]
        return fold(m, function, *values, **{k: _number(m, v) for k, v in kwargs.items()})


def _number(m: Machine, value: Value) -> Any:
    value = literal(m, value)
    if isinstance(value, (ListValue, TupleValue)):
        return [_number(m, v) for v in value.items]
    if value.is_constant():
        return value.constant()
    method = value.special(m, "__float__") or value.special(m, "__index__")
    if method is None:
        m.throw(TypeError, f"must be real number, not {value.python_type().__name__}")
    return _number(m, m.call(method, [], {}))


OWN_METHOD = (math.floor, math.ceil, math.trunc)
for _module in (math, cmath):
    for _function in vars(_module).values():
        if isinstance(_function, type(math.sin)) and _function not in OWN_METHOD:
            _constants_only(_function)

pure(builtins.bin, builtins.oct, builtins.hex, builtins.chr, builtins.ord, builtins.ascii)
pure(complex, bytes, UNARY["-"])
