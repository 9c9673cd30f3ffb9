"""Registration of handlers for C callables.

`@models(real, ...)` registers a handler `(m, *args, **kwargs) -> Value | None` (None stands for
the program's None).  Calls that do not fit its signature become a break, so that the real
function complains in its own words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ClassMethodDescriptorType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.constants import ConstantValue
from jitshape.frontend.values.functions import BREAKS, HANDLERS, PURE, Handler, qualified

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

NONE = ConstantValue(None)


def models(*reals: Any) -> Callable[[Callable], Callable]:
    """Register the decorated function as the handler of these callables."""

    def register(handler: Callable) -> Callable:
        for real in reals:
            HANDLERS[real] = adapted = adapt(handler, real)
            owner = getattr(real, "__self__", None)
            descriptor = vars(owner).get(real.__name__) if isinstance(owner, type) else None
            if type(descriptor) is ClassMethodDescriptorType:  # what an attribute of a class is
                HANDLERS[descriptor] = _of_class(owner, adapted)
        return handler

    return register


def _of_class(owner: type, handler: Handler) -> Handler:
    """A class method's handler, which gets the class first: that of `owner` itself."""

    def handle(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args[0].is_constant() or args[0].constant() is not owner:
            raise Break("builtin", f"a class method of {owner.__name__} is called on another class")
        return handler(m, args[1:], kwargs)

    return handle


def adapt(handler: Callable, real: Any) -> Handler:
    """A handler in the form of the table."""
    parameters = list(inspect.signature(handler).parameters.values())[1:]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in positional)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    most = None if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(positional)
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)

    def call(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        count = len(args)
        wrong = (most is not None and count > most) or (
            kwargs and not any_name and not named.issuperset(kwargs)
        )
        missing = sum(p.name in kwargs for p in positional[count:]) + count < least
        if wrong or missing:
            raise Break("builtin_arguments", f"{qualified(real)} does not take these arguments")
        result = handler(m, *args, **kwargs)
        return NONE if result is None else result

    return call


def pure(*reals: Any) -> None:
    """These callables read nothing but their arguments: run on constants while tracing."""
    PURE.update(reals)


def breaks(kind: str, remedy: str, *reals: Any) -> None:
    """Calls of these end the graph."""
    for real in reals:
        BREAKS[real] = (kind, remedy)


def is_none(value: Value | None) -> bool:
    return value is None or (value.is_constant() and value.constant() is None)


def absent_or(value: Value | None, default: Any) -> Any:
    """A constant argument, or the default where it was not given."""
    return default if value is None else value.constant()


def is_callable(value: Value) -> bool:
    """`callable(value)`: the class has `__call__`."""
    return any("__call__" in vars(base) for base in value.python_type().__mro__)
