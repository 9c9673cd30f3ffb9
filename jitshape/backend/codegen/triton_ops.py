"""Every scalar op of the loop IR as Triton text.

In: an op's name, the dtype it works in, and the texts of operands of that dtype.  Out: the text of
the result, of the same dtype (b1 for comparisons and predicates).
Invariant: an operand may be a bare number only where `takes_numbers` says so; Triton then gives it
the other operand's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

NAMES = {
    torch.float64: "tl.float64",
    torch.float32: "tl.float32",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
HALF = (torch.float16, torch.bfloat16)
UNSIGNED = (torch.uint8, torch.bool)

Op = Callable[..., str]


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """`text`, which must be a block or scalar and no number, converted."""
    if source == target:
        return text
    if source in HALF or target in HALF:
        single = text if source == torch.float32 else f"{text}.to(tl.float32)"
        return single if target == torch.float32 else cast_single(single, target)
    return cast_single(text, target, source)


def cast_single(text: str, target: torch.dtype, source: torch.dtype = torch.float32) -> str:
    if target == torch.bool:
        return f"({text} != 0)"
    narrow = not target.is_floating_point and target not in (torch.int64, torch.int32)
    if source.is_floating_point and narrow:
        return f"{text}.to(tl.int32).to({NAMES[target]})"
    return f"{text}.to({NAMES[target]})"


def number(value: float | int | bool, dtype: torch.dtype) -> str:
    """A literal, exact in `dtype`."""
    exact = torch.tensor(value, dtype=dtype).item()
    if isinstance(exact, float) and not math.isfinite(exact):
        return f'float("{exact}")'
    if isinstance(exact, float):
        short = f"{value!r}" if isinstance(value, float) else repr(float(value))
        exact = float(short) if torch.tensor(float(short), dtype=dtype).item() == exact else exact
    return repr(exact)


def takes_numbers(op: str) -> bool:
    """Whether one operand of `op` may be a number."""
    return op in _WITH_NUMBERS


def _width(dtype: torch.dtype) -> int:
    return dtype.itemsize * 8


def _infix(sign: str) -> Op:
    return lambda dtype, a, b: f"({a} {sign} {b})"


def _call(function: str) -> Op:
    return lambda dtype, *args: f"{function}({', '.join(args)})"


def _same(dtype: torch.dtype, a: str) -> str:
    return a


def _never(dtype: torch.dtype, a: str) -> str:
    return f"({a} != {a})"


def _by_class(floats: Op, integers: Op, b1: Op | None = None, u8: Op | None = None) -> Op:
    def op(dtype: torch.dtype, *args: str) -> str:
        if dtype == torch.bool and b1 is not None:
            return b1(dtype, *args)
        if dtype in UNSIGNED and u8 is not None:
            return u8(dtype, *args)
        return (floats if dtype.is_floating_point else integers)(dtype, *args)

    return op


def _by_width(single: Op, double: Op) -> Op:
    return lambda dtype, *args: (double if dtype == torch.float64 else single)(dtype, *args)


def _sized(function: str) -> Op:
    return lambda dtype, a, b: f"{function}({a}, {b}, {_width(dtype)})"


def _extreme(name: str, b1: str) -> Op:
    nan = ", propagate_nan=tl.PropagateNan.ALL"
    return _by_class(
        lambda dtype, a, b: f"tl.{name}({a}, {b}{nan})", _call(f"tl.{name}"), b1=_infix(b1)
    )


_floordiv = _by_class(_call("lib.float_floordiv"), _call("lib.floordiv"))
_integer_div = _by_class(_floordiv, _call("lib.floordiv"), u8=_call("lib.unsigned_floordiv"))

OPS: dict[str, Op] = {
    "add": _by_class(_infix("+"), _infix("+"), b1=_infix("|")),
    "sub": _by_class(_infix("-"), _infix("-"), b1=_infix("^")),
    "mul": _by_class(_infix("*"), _infix("*"), b1=_infix("&")),
    "div": _by_class(_by_width(_call("tl.div_rn"), _infix("/")), _integer_div),
    "floordiv": _by_class(_floordiv, _integer_div, u8=_integer_div),
    "mod": _by_class(_call("lib.float_mod"), _call("lib.mod"), u8=_call("lib.unsigned_mod")),
    "fmod": _by_class(
        _call("libdevice.fmod"), _call("lib.remainder"), u8=_call("lib.unsigned_mod")
    ),
    "pow": _by_class(
        _call("libdevice.pow"),
        _sized("lib.signed_pow"),
        b1=lambda dtype, a, b: f"({a} | ({b} == 0))",
        u8=_sized("lib.int_pow"),
    ),
    "atan2": _call("libdevice.atan2"),
    "copysign": _call("libdevice.copysign"),
    "maximum": _extreme("maximum", "|"),
    "minimum": _extreme("minimum", "&"),
    "fmax": _by_class(_call("tl.maximum"), _call("tl.maximum"), b1=_infix("|")),
    "fmin": _by_class(_call("tl.minimum"), _call("tl.minimum"), b1=_infix("&")),
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
    "and": _infix("&"),
    "or": _infix("|"),
    "xor": _infix("^"),
    "shl": _sized("lib.shl"),
    "shr": _sized("lib.shr"),
    "neg": _by_class(lambda d, a: f"(-{a})", lambda d, a: f"({a} * 0 - {a})"),
    "abs": _by_class(_call("tl.abs"), _call("tl.abs"), b1=_same, u8=_same),
    "not": _by_class(_same, lambda d, a: f"(~{a})", b1=lambda d, a: f"({a} == 0)"),
    "sign": _by_class(_call("lib.float_sign"), _call("lib.sign"), b1=_same),
    "floor": _by_class(_call("tl.floor"), _same),
    "ceil": _by_class(_call("tl.ceil"), _same),
    "round": _by_class(_call("libdevice.rint"), _same),
    "trunc": _by_class(_call("libdevice.trunc"), _same),
    "reciprocal": _by_width(lambda d, a: f"tl.div_rn(1.0, {a})", lambda d, a: f"(1.0 / {a})"),
    "sqrt": _by_width(_call("tl.sqrt_rn"), _call("tl.sqrt")),
    "rsqrt": _call("tl.rsqrt"),
    "exp": _call("tl.exp"),
    "exp2": _call("tl.exp2"),
    "erf": _call("tl.erf"),
    "sigmoid": _call("lib.sigmoid"),
    "isnan": _never,
    "isinf": _by_class(lambda d, a: f'(tl.abs({a}) == float("inf"))', _never),
    "signbit": _by_class(
        lambda d, a: f"({a}.to(tl.int{_width(d)}, bitcast=True) < 0)", lambda d, a: f"({a} < 0)"
    ),
    "fma": _by_class(_call("tl.fma"), lambda d, a, b, c: f"({a} * {b} + {c})"),
    "philox": _call("lib.philox"),
    **{
        name: _call(f"libdevice.{name}")
        for name in "expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
        "acosh atanh erfc".split()
    },
}
_WITH_NUMBERS = frozenset(
    "add sub mul div eq ne lt le gt ge maximum minimum fmax fmin and or xor".split()
)
