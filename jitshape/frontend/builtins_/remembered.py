"""Functions that remember their results: `functools.lru_cache` and `cache`.

In: calls with constant arguments.  Out: what the real function gives, and a guard that it goes on
giving that, unless it is listed as one that reads nothing else.
Invariant: its author says that the result depends on the arguments alone, so the real function is
called while tracing, as the program would call it; but not behind writes of the program, which it
could not see yet, unless it has the result.  Compiled code makes the program's call, which counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import is_none, models
from jitshape.frontend.checks import Remembers, short
from jitshape.frontend.lookup import class_attribute
from jitshape.frontend.remembering import MISSING, Remembering, ask, peek, recount
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.constants import from_python
from jitshape.frontend.values.functions import PURE, BoundMethodValue, call_native
from jitshape.frontend.values.objects import ObjectValue
from jitshape.frontend.values.sequences import is_plain
from jitshape.frontend.values.storage import guard_identity

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(Remembering.__call__)
def call(m: Machine, function: Any, /, *args: Value, **kwargs: Value) -> Value:
    real = function.object
    if real in PURE:
        guard_identity(m, real, function.source)
        return call_native(m, real, list(args), kwargs)
    if real.cache_info().maxsize == 0:
        return m.call(function.getattr(m, "__wrapped__"), list(args), kwargs)
    given = tuple(_known(m, real, a) for a in args)
    named = tuple((name, _known(m, real, a)) for name, a in kwargs.items())
    if not m.effects.empty() and peek(real, given, named) is MISSING:
        raise Break("builtin", f"{real.__name__} remembers results and is called behind writes")
    try:
        result = ask(real, given, named)
    except Exception as error:
        raise Break("raises", f"{real.__name__} raises {type(error).__name__}: {error}") from error
    value = from_python(m, result) if is_plain(result) else m.wrap(result, None)
    if not value.is_constant():
        kind = type(result).__name__
        raise Break("builtin", f"{real.__name__} gives the same {kind} each time, which can change")
    guard_identity(m, real, function.source)
    shown = [*map(short, given), *(f"{key}={short(x)}" for key, x in named)]
    name = f"{real.__name__}({', '.join(shown)})"
    m.guard(None, Remembers(name, result, real, given, named))
    m.effects.count(recount, [m.wrap(real, None), *args], kwargs)
    return value


def _known(m: Machine, real: Any, value: Value) -> Any:
    """The real argument: a constant, or an object that is equal to itself only."""
    value = m.specialised(value)
    if isinstance(value, ObjectValue) and value.source is not None:
        cls = value.python_type()
        if all(class_attribute(cls, name) is vars(object)[name] for name in ("__eq__", "__hash__")):
            m.guard_class(cls, "__eq__")
            m.guard_class(cls, "__hash__")
            guard_identity(m, value.object, value.source)
            return value.object
    if not value.is_constant():
        kind = value.python_type().__name__
        raise Break(
            "builtin",
            f"{real.__name__} remembers results by a {kind}, of which the trace knows no value",
            "call the function that it wraps: its __wrapped__",
        )
    return value.constant()


@models(Remembering.__get__)
def get(m: Machine, function: Value, instance: Value, owner: Value | None = None, /) -> Value:
    return function if is_none(instance) else BoundMethodValue(function, instance)
