"""Pointwise ops: an output element depends on the elements at the same place only.

Most blocks are their lowering alone and stand in tables by the rule for their output dtype; what
needs more has a class.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from jitshape.ir.graph import Value
from jitshape.ir.ops.families import (
    WIDER,
    elementwise,
    fresh,
    is_tensor,
    pointwise,
    pointwise_table,
    promote,
    to_float,
)

UNARY_FLOAT = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh sigmoid erf erfc reciprocal"
)


def _call(name: str) -> Any:
    return lambda b, *xs: getattr(b, name)(*xs)


pointwise_table({f"aten.{n}.default": _call(n) for n in UNARY_FLOAT.split()}, result="float")
pointwise_table(
    {
        "aten.neg.default": _call("neg"),
        "aten.relu.default": lambda b, x: b.maximum(x, 0),
        "aten.sign.default": _call("sign"),
        "aten.sgn.default": _call("sign"),
        "aten.floor.default": _call("floor"),
        "aten.ceil.default": _call("ceil"),
        "aten.round.default": _call("round"),
        "aten.trunc.default": _call("trunc"),
        "aten.frac.default": lambda b, x: b.sub(x, b.trunc(x)),
        "aten.bitwise_not.default": _call("not_"),
        "aten.nan_to_num.default": lambda b, x, nan=None, posinf=None, neginf=None: _finite(
            b, x, nan, posinf, neginf
        ),
    }
)
pointwise_table(
    {
        "aten.deg2rad.default": lambda b, x: b.mul(x, math.pi / 180),
        "aten.rad2deg.default": lambda b, x: b.mul(x, 180 / math.pi),
        "aten.sinc.default": lambda b, x: _sinc(b, x),
        "aten.special_entr.default": lambda b, x: _entropy(b, x),
    },
    result="float",
)
pointwise_table({"aten.abs.default": _call("abs")}, result="magnitude")
pointwise_table(
    {
        "aten.logical_not.default": lambda b, x: b.logical_not(x),
        "aten.isnan.default": lambda b, x: b.ne(x, x),
        "aten.isinf.default": lambda b, x: b.eq(b.abs(x), math.inf),
        "aten.isposinf.default": lambda b, x: b.eq(x, math.inf),
        "aten.isneginf.default": lambda b, x: b.eq(x, -math.inf),
        "aten.signbit.default": lambda b, x: b.lt(x, 0) if _integral(x) else b.signbit(x),
    },
    result="bool",
)


def _integral(x: Any) -> bool:
    return not x.dtype.is_floating_point


def _sinc(b: Any, x: Any) -> Any:
    angle = b.mul(x, math.pi)
    return b.where(b.eq(x, 0), 1.0, b.div(b.sin(angle), angle))


def _entropy(b: Any, x: Any) -> Any:
    """-x log(x): 0 at 0, -inf below; nan stays."""
    inside = b.where(b.eq(x, 0), 0.0, b.neg(b.mul(x, b.log(x))))
    return b.where(b.lt(x, 0), -math.inf, inside)


@pointwise("aten.angle.default", result="angle")
class Angle:
    """Of a real number: 0 or pi; nan stays."""

    def lower(b, x):
        return b.where(b.ne(x, x), x, b.where(b.lt(x, 0), math.pi, 0.0))

    def samples():
        return [((torch.tensor([math.nan, -1.0, -0.0, 2.0]),), {}), ((torch.arange(-2, 3),), {})]


@pointwise("aten.round.decimals")
class RoundDecimals:
    """To a multiple of a power of ten: the product and the quotient are rounded to the dtype."""

    @classmethod
    def element(cls, b, node, operand):
        (x,), decimals = node.args, node.kwargs["decimals"]
        dtype = x.type.dtype
        compute = WIDER.get(dtype, dtype)
        rounded = lambda y: b.cast(b.cast(y, dtype), compute)  # noqa: E731
        value = b.cast(operand(x), compute)
        ten = rounded(b.scalar(10.0 ** abs(decimals)))
        up, down = (b.mul, b.div) if decimals >= 0 else (b.div, b.mul)
        return b.cast(down(b.round(rounded(up(value, ten))), ten), dtype)

    def samples():
        x = torch.randn(3, 4) * 100
        return [((x,), {"decimals": n}) for n in (0, 2, -1)]


def _finite(b: Any, x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    if _integral(x):
        return x
    top = torch.finfo(x.dtype).max
    x = b.where(b.ne(x, x), 0.0 if nan is None else nan, x)
    x = b.where(b.eq(x, math.inf), top if posinf is None else posinf, x)
    return b.where(b.eq(x, -math.inf), -top if neginf is None else neginf, x)


# ---- arithmetic


def _scaled(b: Any, x: Any, alpha: Any) -> Any:
    return x if type(alpha) in (int, float) and alpha == 1 else b.mul(x, alpha)


def _add(b: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    if x.dtype is torch.bool:
        return b.or_(x, y)
    return b.add(x, _scaled(b, y, alpha))


def _sub(b: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    return b.sub(x, _scaled(b, y, alpha))


def _mul(b: Any, x: Any, y: Any) -> Any:
    return b.and_(x, y) if x.dtype is torch.bool else b.mul(x, y)


def _remainder(b: Any, x: Any, y: Any) -> Any:
    """Python's modulo: the result has the sign of the divisor."""
    if _integral(x):
        return b.mod(x, b.divisor(y))
    rest = b.fmod(x, y)
    wrong = b.and_(b.ne(rest, 0), b.ne(b.lt(rest, 0), b.lt(y, 0)))
    return b.where(wrong, b.add(rest, y), rest)


_POW = _call("pow")
_SCALED = {
    ("aten.add", "Tensor Scalar"): _add,
    ("aten.sub", "Tensor Scalar"): _sub,
    ("aten.rsub", "Tensor Scalar"): lambda b, x, y, alpha=1: _sub(b, y, x, alpha),
}
_BINARY = {
    ("aten.remainder", "Tensor Scalar Scalar_Tensor"): _remainder,
    ("aten.fmod", "Tensor Scalar"): lambda b, x, y: b.fmod(x, b.divisor(y) if _integral(x) else y),
    ("aten.pow", "Tensor_Tensor Tensor_Scalar"): _POW,
    ("aten.bitwise_and", "Tensor Scalar Scalar_Tensor"): _call("and_"),
    ("aten.bitwise_or", "Tensor Scalar Scalar_Tensor"): _call("or_"),
    ("aten.bitwise_xor", "Tensor Scalar Scalar_Tensor"): _call("xor"),
    ("aten.bitwise_left_shift", "Tensor Tensor_Scalar Scalar_Tensor"): _call("shl"),
    ("aten.bitwise_right_shift", "Tensor Tensor_Scalar Scalar_Tensor"): _call("shr"),
    ("aten.maximum", "default"): _call("maximum"),
    ("aten.minimum", "default"): _call("minimum"),
    ("aten.fmax", "default"): _call("fmax"),
    ("aten.fmin", "default"): _call("fmin"),
}
_BINARY_FLOAT = {
    ("aten.atan2", "default"): _call("atan2"),
    ("aten.copysign", "Tensor Scalar"): _call("copysign"),
    ("aten.xlogy", "Tensor Scalar_Other Scalar_Self"): lambda b, x, y: _xlogy(b, x, y),
    ("aten.logaddexp", "default"): lambda b, x, y: _logaddexp(b, x, y),
    ("aten.logaddexp2", "default"): lambda b, x, y: _logaddexp2(b, x, y),
    ("aten.special_xlog1py", "default other_scalar self_scalar"): lambda b, x, y: _xlogy(
        b, x, y, b.log1p
    ),
    ("aten.ldexp", "Tensor"): lambda b, x, y: b.mul(x, b.exp2(y)),
    ("aten.hypot", "default"): lambda b, x, y: b.sqrt(b.add(b.mul(x, x), b.mul(y, y))),
}
_COMPARISON = {
    **{(f"aten.{n}", "Tensor Scalar"): _call(n) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    ("aten.logical_and", "default"): lambda b, x, y: b.logical_and(x, y),
    ("aten.logical_or", "default"): lambda b, x, y: b.logical_or(x, y),
    ("aten.logical_xor", "default"): lambda b, x, y: b.ne(b.ne(x, 0), b.ne(y, 0)),
}


def _overloads(rows: dict[tuple[str, str], Any]) -> dict[str, Any]:
    return {
        f"{name}.{form}": lower for (name, forms), lower in rows.items() for form in forms.split()
    }


def _xlogy(b: Any, x: Any, y: Any, log: Any = None) -> Any:
    product = b.where(b.eq(x, 0), 0.0, b.mul(x, (log or b.log)(y)))
    return b.where(b.ne(y, y), y, product)


def _logaddexp(b: Any, x: Any, y: Any) -> Any:
    top = b.maximum(x, y)
    apart = b.log1p(b.exp(b.neg(b.abs(b.sub(x, y)))))
    return b.where(b.eq(x, y), b.add(x, math.log(2)), b.add(top, apart))


def _logaddexp2(b: Any, x: Any, y: Any) -> Any:
    apart = b.exp2(b.neg(b.abs(b.sub(x, y))))
    both = b.add(b.maximum(x, y), b.mul(b.log1p(apart), 1 / math.log(2)))
    return b.where(b.eq(x, y), b.add(x, 1.0), both)


pointwise_table(_overloads(_SCALED), operands=2, rounds_all=True)
pointwise_table(_overloads({("aten.mul", "Tensor Scalar"): _mul}), operands=2, exact=(1,))
pointwise_table(_overloads(_BINARY), operands=2)
pointwise_table(_overloads(_BINARY_FLOAT), operands=2, result="float")
pointwise_table(_overloads(_COMPARISON), operands=2, result="bool")


@pointwise("aten.pow.Scalar", operands=2)
class PowerOfNumber:
    """The result is contiguous, whatever the exponents' layout."""

    @classmethod
    def type(cls, env, base, exponent):
        return fresh(exponent.type.shape, promote((base, exponent)), exponent.type.device)

    lower = staticmethod(_POW)


@pointwise("aten.div.Tensor", "aten.div.Scalar", operands=2, result="float")
class Div:
    exact = (1,)

    def lower(b, x, y):
        return b.div(x, y)


@pointwise("aten.div.Tensor_mode", "aten.div.Scalar_mode", operands=2)
class DivMode:
    """Without a rounding mode the result is of float type."""

    exact = (1,)

    @classmethod
    def type(cls, env, x, y, rounding_mode=None):
        common = promote((x, y))
        dtype = to_float(common) if rounding_mode is None else common
        return elementwise(env, [t for t in (x, y) if is_tensor(t)], dtype, common)

    @classmethod
    def element(cls, b, node, operand):
        """The quotient that is truncated is one of the dtype: 17.98 in bf16 is 18."""
        half = promote(node.args[:2])
        if node.kwargs.get("rounding_mode") != "trunc" or half not in WIDER:
            return super().element(b, node, operand)
        plain = (int, float, bool)
        x, y = (b.cast(a if type(a) in plain else operand(a), WIDER[half]) for a in node.args)
        quotient = b.cast(b.div(x, y), half)
        return b.cast(b.trunc(b.cast(quotient, WIDER[half])), half)

    def lower(b, x, y, rounding_mode=None):
        return _divide(b, x, y, rounding_mode)


@pointwise("aten.floor_divide.default", "aten.floor_divide.Scalar", operands=2)
class FloorDivide:
    exact = (1,)

    def lower(b, x, y):
        return _divide(b, x, y, "floor")


def _divide(b, x, y, rounding_mode):
    if rounding_mode is None:
        return b.div(x, y)
    if _integral(x):
        y = b.divisor(y)
        if rounding_mode == "floor":
            return b.floordiv(x, y)
        rest = b.fmod(x, y)
        return b.floordiv(b.sub(x, rest), y)
    if rounding_mode == "trunc":
        return b.trunc(b.div(x, y))
    # floor((x - x mod y) / y), as ATen: exact where x / y would round up to an integer
    rest = b.fmod(x, y)
    quotient = b.div(b.sub(x, rest), y)
    below = b.and_(b.ne(rest, 0), b.ne(b.lt(y, 0), b.lt(rest, 0)))
    quotient = b.where(below, b.sub(quotient, 1), quotient)
    nearest = b.floor(quotient)
    nearest = b.where(b.gt(b.sub(quotient, nearest), 0.5), b.add(nearest, 1), nearest)
    nearest = b.where(b.eq(quotient, 0), b.copysign(0.0, b.div(x, y)), nearest)
    return b.where(b.eq(y, 0), b.div(x, y), nearest)


# ---- selection


@pointwise("aten.where.self", operands=3)
class Where:
    """The condition takes part in broadcasting but not in promotion."""

    @classmethod
    def common(cls, condition, x, y, **kwargs):
        return promote((x, y))

    @classmethod
    def type(cls, env, condition, x, y):
        common = promote((x, y))
        return elementwise(env, [t for t in (condition, x, y) if is_tensor(t)], common)

    @classmethod
    def element(cls, b, node, operand):
        out = node.outs[0].type.dtype
        compute = WIDER.get(out, out)
        condition, x, y = (operand(a) if type(a) is Value else a for a in node.args)
        return b.cast(b.where(condition, *(b.cast(b.scalar(v), compute) for v in (x, y))), out)


@pointwise("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", operands=1)
class MaskedFill:
    """The result has the dtype of the first argument, whatever the value's; it is contiguous."""

    stored = (2,)

    @classmethod
    def type(cls, env, x, mask, value):
        row = elementwise(env, [x, mask], x.type.dtype)
        return fresh(row.shape, row.dtype, row.device)

    def lower(b, x, mask, value):
        return b.where(mask, b.cast(b.scalar(value), x.dtype), x)


def _clamp(b, x, low=None, high=None):
    """nan passes; where low > high the result is high."""
    if low is not None:
        x = b.maximum(x, low)
    return x if high is None else b.minimum(x, high)


@functools.cache
def _heeds_nan() -> bool:
    """Whether this torch's clamp gives nan for a single number that is nan; torch 2.11 does not."""
    return bool(torch.zeros(1, dtype=torch.float32, device="cpu").clamp(max=math.nan).isnan())


def _clamp_to_numbers(b, x, low=None, high=None):
    bound = high if low is None else low
    clamped = _clamp(b, x, low, high)
    if None not in (low, high) or _heeds_nan():
        return clamped
    return b.where(b.ne(bound, bound), x, clamped)


pointwise_table(
    {"aten.clamp.default": _clamp_to_numbers, "aten.clamp.Tensor": _clamp},
    operands=3,
    stored=(1, 2),
)
pointwise_table(
    {
        "aten.clamp_min.default": _clamp,
        "aten.clamp_min.Tensor": _clamp,
        "aten.clamp_max.default": lambda b, x, high: _clamp(b, x, None, high),
        "aten.clamp_max.Tensor": lambda b, x, high: _clamp(b, x, None, high),
    },
    operands=2,
    stored=(1,),
)


# ---- of three operands


@pointwise("aten.lerp.Tensor", "aten.lerp.Scalar", operands=3)
class Lerp:
    exact = (2,)

    @classmethod
    def common(cls, x, end, weight, **kwargs):
        return promote((x, end))

    def lower(b, x, end, weight):
        step = b.sub(end, x)
        near = b.add(x, b.mul(weight, step))
        far = b.sub(end, b.mul(step, b.sub(1.0, weight)))
        return b.where(b.lt(b.abs(weight), 0.5), near, far)


def _addcmul(b, x, y, z, value=1):
    value = value if value == 1 else b.cast(b.scalar(value), x.dtype)  # of integers: truncated
    return b.add(x, b.mul(_scaled(b, y, value), z))


def _addcdiv(b, x, y, z, value=1):
    return b.add(x, b.mul(b.div(y, z), value))


pointwise_table(
    {"aten.addcmul.default": _addcmul, "aten.addcdiv.default": _addcdiv},
    operands=3,
)
pointwise_table(
    {"aten.heaviside.default": lambda b, x, y: b.where(b.eq(x, 0), y, b.where(b.gt(x, 0), 1, 0))},
    operands=2,
)


@pointwise("aten.logit.default", result="float")
class Logit:
    def lower(b, x, eps=None):
        if eps is not None:
            one, number = b.const(1.0, torch.float64), isinstance(eps, (int, float))
            highest = 1 - eps if number else b.cast(b.sub(one, b.cast(eps, one.dtype)), x.dtype)
            x = b.minimum(b.maximum(x, eps), highest)
        return b.log(b.div(x, b.sub(1.0, x)))
