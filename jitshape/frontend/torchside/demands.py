"""torch._check and its kin: what a program demands of its numbers.

In: the arguments of such a call.  Out: nothing; the ShapeEnv knows the condition from here on: as a
guard, or as a run-time assert on what exists only when the graph runs.  A demand that this call
does not meet ends the graph, so that torch raises its own error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.builtins_.registry import NONE, is_none
from jitshape.frontend.torchside.numbers import SymbolicBool, SymbolicInt
from jitshape.frontend.values.base import Break, Value

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

Rule = Callable[..., Value | None]
DEMANDS: dict[Any, Rule] = {}  # None: the function itself is called


def demanded(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Any:
    """The answer of a rule for `function`; None: there is none for these arguments."""
    rule = DEMANDS.get(function) if isinstance(function, FunctionType) else None
    if rule is None:
        return None
    try:
        bound = inspect.signature(rule).bind(m, *args, **kwargs)
    except TypeError:  # torch complains in its own words
        return None
    return rule(*bound.args, **bound.kwargs)


def _demand(m: Machine, condition: Value) -> Value | None:
    if isinstance(condition, SymbolicBool):
        met = condition.env.assume(condition.condition, "torch._check")
    elif condition.is_constant() and type(condition.constant()) is bool:
        met = condition.constant()
    else:
        return None
    if not met:
        raise Break("raises", "a condition given to torch._check does not hold")
    return NONE


def _check(m: Machine, cond: Value, message: Value | None = None) -> Value | None:
    return _demand(m, cond)


def _check_is_size(
    m: Machine, i: Value, message: Value | None = None, *, max: Value | None = None
) -> Value | None:
    if not isinstance(i, SymbolicInt):
        return None
    answer = _demand(m, m.compare(">=", i, m.const(0)))
    return answer if answer is None or is_none(max) else _demand(m, m.compare("<=", i, max))


_CHECKS = (
    torch._check,
    torch._check_index,
    torch._check_value,
    torch._check_type,
    torch._check_not_implemented,
)
DEMANDS.update(dict.fromkeys(_CHECKS, _check))
DEMANDS[torch._check_is_size] = _check_is_size
