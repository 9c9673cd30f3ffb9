"""What Python's functions of numbers make of symbolic ones.

In: calls of int, round, max, math.sqrt and the like.  Out: rules `(m, args) -> Value | None` in
`SYMBOLIC`, None where the function is to be called on the numbers themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.numbers import SYMBOLIC
from jitshape.frontend.torchside.numbers import (
    SymbolicBool,
    SymbolicFloat,
    SymbolicInt,
    SymbolicNumber,
    answer,
    number_value,
)
from jitshape.frontend.values.base import Value
from jitshape.ir import symfloat, torch_numbers
from jitshape.ir.conditions import BoolExpr, compare
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Size, sym_max, sym_min

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


def _rounded(op: str) -> Callable[[Machine, list[Value]], Value | None]:
    """The rule of a function that gives the int near a number."""

    def rule(m: Machine, args: list[Value]) -> Value | None:
        digits = args[1] if op == "round" and len(args) == 2 else None
        if digits is not None:
            return _rounded_to(m, args[0], digits)
        (number,) = args if len(args) == 1 else (None,)
        if isinstance(number, SymbolicBool):
            number = number.as_int(m)
        if isinstance(number, SymbolicInt):
            return number
        if not isinstance(number, SymbolicFloat):
            return None
        expr = number.number.node.expr
        try:
            return number_value(m, number.env, answer(lambda: number.env.round_float(op, expr)))
        except (OverflowError, ValueError) as error:  # no int is near infinity or nan
            m.throw(type(error), str(error))

    return rule


def _rounded_to(m: Machine, number: Value, digits: Value) -> Value | None:
    """`round(number, digits)`"""
    if not digits.is_constant() or not isinstance(number, SymbolicNumber):
        return None
    count = digits.constant()
    if count is not None and type(count) is not int:
        return None
    return number_value(m, number.env, round(number.to_torch(), count))


def _real(op: str, arity: int = 1) -> Callable[[Machine, list[Value]], Value | None]:
    """The rule of a function that gives a float."""

    def rule(m: Machine, args: list[Value]) -> Value | None:
        symbolic = [arg for arg in args if isinstance(arg, SymbolicNumber)]
        if len(args) != arity or not symbolic:
            return None
        numbers = [symbolic[0].operand(m, arg) for arg in args]
        if None in numbers:
            return None
        env = symbolic[0].env
        real = symfloat.apply(op, *map(torch_numbers.from_torch, numbers))
        if isinstance(real, FloatExpr) and env.actual(real) is None and _is_backed(env, real):
            return None  # Python raises, or gives no float: on the numbers themselves
        return number_value(m, env, torch_numbers.to_torch_float(real, env))

    return rule


def _is_backed(env: ShapeEnv, real: FloatExpr) -> bool:
    return all(env.actual(symfloat.symbol_of(env.algebra, a)) is not None for a in real.symbols())


SYMBOLIC.update(
    {
        int: _rounded("trunc"),
        math.trunc: _rounded("trunc"),
        math.floor: _rounded("floor"),
        math.ceil: _rounded("ceil"),
        round: _rounded("round"),
        float: _real("float"),
    }
)


def _absolute(m: Machine, args: list[Value]) -> Value | None:
    (number,) = args if len(args) == 1 else (None,)
    if isinstance(number, SymbolicInt):
        return number_value(m, number.env, abs(number.expr))
    return _real("abs")(m, args) if isinstance(number, SymbolicFloat) else None


def _float_test(op: str, against: Callable[[Any], tuple[Any, Any]]) -> Any:
    """The rule of a predicate on floats that is a comparison."""

    def rule(m: Machine, args: list[Value]) -> Value | None:
        (number,) = args if len(args) == 1 else (None,)
        if not isinstance(number, SymbolicFloat):
            return None
        return SymbolicBool(number.env, BoolExpr(op, against(number.number.node.expr)))

    return rule


def _size_and_infinity(expr: Any) -> tuple[Any, Any]:
    return symfloat.apply("abs", expr), math.inf


def _of_run_time(choose: Callable[[Size, Size], Size]) -> Callable:
    """The rule of min and max for two ints of which only a run can tell the smaller."""

    def rule(m: Machine, args: list[Value]) -> Value | None:
        number = next((a for a in args if isinstance(a, SymbolicInt)), None)
        sizes = [] if number is None else [number.size_of(a) for a in args]
        if number is None or None in sizes or any(a.python_type() is bool for a in args):
            return None
        if number.env.static(compare("lt", *sizes)) is not None:
            return None
        if all(number.env.actual(size) is not None for size in sizes):
            return None
        return number_value(m, number.env, choose(*sizes))

    return rule


SYMBOLIC[max], SYMBOLIC[min] = _of_run_time(sym_max), _of_run_time(sym_min)
SYMBOLIC[abs] = _absolute
SYMBOLIC[math.isnan] = _float_test("ne", lambda expr: (expr, expr))
SYMBOLIC[math.isinf] = _float_test("eq", _size_and_infinity)
SYMBOLIC[math.isfinite] = _float_test("lt", _size_and_infinity)
for _name, _function in symfloat.MATH.items():
    _two = _name in symfloat.BINARY_MATH
    SYMBOLIC[_function] = _real("math_pow" if _name == "pow" else _name, 1 + _two)
