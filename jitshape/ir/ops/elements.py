"""Numbers that meet elements of tensors: what an element of the result's dtype holds of them.

In: the arguments of a call of an op.  Out: those that the graph holds.  A divisor or exponent of
integers that C++ refuses is refused here, as kernels do not look at it.
Invariant: kernels compute with signed words.  So the integers that only unsigned words hold, which
C++ takes too, are what the result's dtype makes of them; and a number that an element cannot
hold, where C++ looks (the op's block names the arguments, `stored`), breaks a fact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.conditions import BoolExpr, all_of, any_of, compare
from jitshape.ir.ops.registry import OpDef
from jitshape.ir.symfloat import FloatExpr, apply
from jitshape.ir.symint import IntExpr

DIVISIONS = ("aten.remainder.", "aten.fmod.", "aten.floor_divide.", "aten.div.")
SIGNED_END = 1 << 63  # and twice of it is that of unsigned words


def with_elements(
    env: Any, definition: OpDef, args: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of a call whose first result has elements of `dtype`.  RuntimeError as C++
    raises it."""
    if definition.has("stored"):
        for place in definition.stored:
            if place < len(args):
                _check(env, args[place], dtype)
    if len(args) > 1 and type(args[1]) is IntExpr and _integral(dtype):
        _check_operand(env, definition.name, args[1])
    if not any(map(_only_unsigned, (*args, *kwargs.values()))):
        return args, kwargs
    numbers = {key: _as_element(x, dtype) for key, x in kwargs.items()}
    return [_as_element(x, dtype) for x in args], numbers


def _integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _check_operand(env: Any, name: str, number: IntExpr) -> None:
    """A divisor or exponent of integers, where C++ looks at the number itself."""
    packet = name.rpartition(".")[0].rstrip("_")  # also of the op in place
    divides = f"{packet}.".startswith(DIVISIONS)
    if divides and not env.assume(compare("ne", number, 0), "a divisor"):
        raise RuntimeError("ZeroDivisionError")
    if packet == "aten.pow" and not env.assume(compare("ge", number, 0), "an exponent"):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _only_unsigned(x: Any) -> bool:
    return type(x) is int and x >= SIGNED_END


def _as_element(x: Any, dtype: torch.dtype) -> Any:
    if not _only_unsigned(x) or dtype in (torch.uint64, torch.bool):
        return x
    return float(x) if dtype.is_floating_point or dtype.is_complex else x - 2 * SIGNED_END


def _check(env: Any, x: Any, dtype: torch.dtype) -> None:
    if type(x) is FloatExpr and dtype is not torch.bool:
        return _check_real(env, x, dtype)
    if type(x) is not IntExpr or dtype is torch.bool or not _integral(dtype):
        return None
    info = torch.iinfo(dtype)
    if info.bits == 64:
        return None
    least = info.min or -info.max  # of an unsigned one C++ takes negative numbers
    bounds = compare("ge", x, least), compare("le", x, info.max)
    if not env.assume(all_of(bounds), "an element"):
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")


def _check_real(env: Any, x: FloatExpr, dtype: torch.dtype) -> None:
    """C++ takes what lies between the ends of the dtype; infinities and nan where it has them."""
    if dtype in (torch.float64, torch.complex128) or env.actual(x) is None:
        return
    if _integral(dtype):
        info = torch.iinfo(dtype)
        bounds = BoolExpr("ge", (x, float(info.min))), BoolExpr("le", (x, float(info.max)))
        fits = all(env.evaluate(bound, "an element") for bound in bounds)
    else:
        size = apply("abs", x)
        held = BoolExpr("le", (size, torch.finfo(dtype).max))
        others = BoolExpr("eq", (size, math.inf)), BoolExpr("ne", (x, x))
        fits = env.evaluate(any_of((held, *others)), "an element")
    if not fits:
        raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")
