"""Every scalar op of the loop IR as LLVM IR, on uniform values and on vectors alike.

In: an op's name, the dtype it works in, and operands of that dtype.  Out: the result `Value`.
Registers hold b1 as i1, u8 as i8, bf16 as i16 (its bits), f16 as half; `cast` is the only op on
the last two.  Integer division never traps: masked-off lanes hold anything.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitshape.backend.codegen import cpu_math
from jitshape.backend.codegen.llvm_text import BITS, Value, Variable
from jitshape.ir.ops.streams import INCREMENTS, MULTIPLIERS, ROUNDS, WORD

ELEMENT = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "i16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.bool: "i1",
}
HALF = (torch.float16, torch.bfloat16)
UNSIGNED = (torch.uint8, torch.bool)


# ---- conversions


def cast(value: Value, source: torch.dtype, target: torch.dtype) -> Value:
    if source == target:
        return value
    if source in HALF:
        wide = _widen_bf16(value) if source == torch.bfloat16 else value.convert("fpext", "float")
        return cast(wide, torch.float32, target)
    if target in HALF:
        single = cast(value, source, torch.float32)
        if target == torch.bfloat16:
            return _round_to_bf16(single)
        # the fence keeps a product from being fused, unrounded, into what it is added to
        return single.intrinsic("arithmetic.fence").convert("fptrunc", "half")
    kind = ELEMENT[target]
    if target == torch.bool:
        return value.compare("une" if value.is_float else "ne", 0)
    if value.is_float:
        return _from_float(value, target)
    if target.is_floating_point:
        return value.convert("uitofp" if source in UNSIGNED else "sitofp", kind)
    if BITS[kind] > BITS[value.kind]:
        return value.convert("zext" if source in UNSIGNED else "sext", kind)
    return value.convert("trunc", kind)


def _from_float(value: Value, target: torch.dtype) -> Value:
    kind = ELEMENT[target]
    if target.is_floating_point:
        return value.convert("fpext" if kind == "double" else "fptrunc", kind)
    through = "i64" if kind == "i64" else "i32"
    return value.convert("fptosi", through).frozen().convert("trunc", kind)


def _widen_bf16(value: Value) -> Value:
    return value.convert("zext", "i32").integer("shl", 16).convert("bitcast", "float")


def _round_to_bf16(value: Value) -> Value:
    """To nearest even; every nan becomes the quiet one, as in ATen."""
    rounded = value.compare("uno", value).select(0x7FC0_0000, _rounded_bits(value))
    return rounded.integer("lshr", 16).convert("trunc", "i16")


def round_as_bf16(value: Value, nans_stay: bool) -> Value:
    """An f32 rounded to bf16 and widened again; `nans_stay`: none becomes a number by it."""
    bits = _rounded_bits(value) & -0x1_0000
    if not nans_stay:
        bits = value.compare("uno", value).select(0x7FC0_0000, bits)
    return bits.convert("bitcast", "float")


def _rounded_bits(value: Value) -> Value:
    """The bits of a bf16 are the upper half."""
    bits = value.bits()
    return bits + (bits.integer("lshr", 16) & 1) + 0x7FFF


# ---- arithmetic

Op = Callable[..., Value]


def _by_class(floats: Op | None, integers: Op, b1: Op | None = None) -> Op:
    def op(dtype: torch.dtype, *args: Value) -> Value:
        if dtype == torch.bool and b1 is not None:
            return b1(dtype, *args)
        if dtype.is_floating_point:
            assert floats is not None, f"not an op of {dtype}"
            return floats(dtype, *args)
        return integers(dtype, *args)

    return op


def _compare(floats: str, integers: str) -> Op:
    def op(dtype: torch.dtype, a: Value, b: Value) -> Value:
        unsigned = dtype in UNSIGNED and integers not in ("eq", "ne")
        return a.compare(floats if a.is_float else ("u" if unsigned else "") + integers, b)

    return op


def _signed_compare(floats: str, integers: str) -> Op:
    def op(dtype: torch.dtype, a: Value, b: Value) -> Value:
        if a.is_float:
            return a.compare(floats, b)
        return a.compare(("u" if dtype in UNSIGNED else "s") + integers, b)

    return op


GREATER, LESS = _signed_compare("ogt", "gt"), _signed_compare("olt", "lt")


def _extreme(better: Op, nan_wins: bool) -> Op:
    """Compare and select: llvm.maximum is slow on x86."""

    def op(dtype: torch.dtype, a: Value, b: Value) -> Value:
        best = better(dtype, a, b).select(a, b)
        if not a.is_float:
            return best
        if nan_wins:
            return a.compare("uno", a).select(a, best)
        return b.compare("uno", b).select(a, best)

    return op


def _safe_divisor(a: Value, b: Value, unsigned: bool) -> tuple[Value, Value]:
    """(b without the values that trap, whether b was -1)."""
    zero = b.compare("eq", 0)
    minus_one = b.compare("eq", -1) if not unsigned else zero
    return (zero | minus_one).select(1, b), minus_one


def integer_floordiv(dtype: torch.dtype, a: Value, b: Value) -> Value:
    divisor, minus_one = _safe_divisor(a, b, dtype in UNSIGNED)
    if dtype in UNSIGNED:
        quotient = a.integer("udiv", divisor)
        return b.compare("eq", 0).select(0, quotient)
    quotient = a.integer("sdiv", divisor)
    rest = a - quotient * divisor
    inexact = rest.compare("ne", 0) & (rest ^ divisor).compare("slt", 0)
    floored = inexact.select(quotient - 1, quotient)
    return b.compare("eq", 0).select(0, minus_one.select(-a, floored))


def integer_mod(dtype: torch.dtype, a: Value, b: Value) -> Value:
    return _integer_remainder(dtype, a, b, floor=True)


def _integer_remainder(dtype: torch.dtype, a: Value, b: Value, floor: bool) -> Value:
    divisor, minus_one = _safe_divisor(a, b, dtype in UNSIGNED)
    rest = a.integer("urem" if dtype in UNSIGNED else "srem", divisor)
    if floor and dtype not in UNSIGNED:
        other_sign = rest.compare("ne", 0) & (rest ^ divisor).compare("slt", 0)
        rest = other_sign.select(rest + divisor, rest)
    return (b.compare("eq", 0) | minus_one).select(0, rest)


def _float_mod(dtype: torch.dtype, a: Value, b: Value) -> Value:
    rest = cpu_math.libm("fmod", a, b)
    other_sign = rest.compare("une", 0.0) & (rest.compare("olt", 0.0) ^ b.compare("olt", 0.0))
    return other_sign.select(rest + b, rest)


def _float_floordiv(dtype: torch.dtype, a: Value, b: Value) -> Value:
    """(a - fmod(a, b)) / b, one less where the signs differ, rounded to the nearest integer."""
    rest = cpu_math.libm("fmod", a, b)
    quotient = (a - rest) / b
    other_sign = rest.compare("une", 0.0) & (rest.compare("olt", 0.0) ^ b.compare("olt", 0.0))
    quotient = other_sign.select(quotient - 1.0, quotient)
    floored = quotient.intrinsic("floor")
    floored = (quotient - floored).compare("ogt", 0.5).select(floored + 1.0, floored)
    zero = quotient.intrinsic("fabs") * 0.0
    floored = quotient.compare("oeq", 0.0).select(zero.intrinsic("copysign", a / b), floored)
    return b.compare("oeq", 0.0).select(a / b, floored)


def _shift(kind: str) -> Op:
    def op(dtype: torch.dtype, a: Value, b: Value) -> Value:
        width = BITS[a.kind]
        inside = b.compare("ult", width)
        if kind == "shl":
            return inside.select(a.integer("shl", inside.select(b, 0)), 0)
        right = "lshr" if dtype in UNSIGNED else "ashr"
        return a.integer(right, inside.select(b, width - 1))

    return op


def _sign(dtype: torch.dtype, a: Value) -> Value:
    positive = GREATER(dtype, a, a.like(0)).select(a.like(1), a.like(0))
    return LESS(dtype, a, a.like(0)).select(a.like(-1), positive)


def _integer_pow(dtype: torch.dtype, a: Value, b: Value) -> Value:
    """A negative exponent gives 0 but for a = 1 and a = -1."""
    power = cpu_math.by_lane(_square_and_multiply, a, b)
    if dtype in UNSIGNED:
        return power
    one, minus_one = a.compare("eq", 1), a.compare("eq", -1)
    odd = (b & 1).compare("ne", 0)
    inverse = minus_one.select(odd.select(a.like(-1), a.like(1)), one.select(a.like(1), a.like(0)))
    return b.compare("slt", 0).select(inverse, power)


def _square_and_multiply(a: Value, b: Value) -> Value:
    """a ** b for b >= 0, wrapping."""
    f = a.f
    result, base, left = (Variable(f, a.kind, 0, name) for name in ("power", "base", "left"))
    result.set(1)
    base.set(a)
    left.set(b)
    with f.loop(f.constant("i64", 0), f.constant("i64", BITS[a.kind]), 1, "square"):
        bit = (left.get() & 1).compare("ne", 0)
        result.set(bit.select(result.get() * base.get(), result.get()))
        base.set(base.get() * base.get())
        left.set(left.get().integer("lshr", 1))
    return result.get()


def philox(seed: Value, stream: Value, position: Value) -> Value:
    """32 random bits: ir/ops/streams.py has the formula.  Products of words are exact in i64."""
    key = [seed & WORD, seed.integer("lshr", 32)]
    words = [position & WORD, position.integer("lshr", 32)]
    words += [stream & WORD, stream.integer("lshr", 32)]
    for _ in range(ROUNDS):
        a, b = (words[place] * factor for place, factor in zip((0, 2), MULTIPLIERS))
        left = a.integer("lshr", 32) ^ words[3] ^ key[1]
        words = [b.integer("lshr", 32) ^ words[1] ^ key[0], b & WORD, left, a & WORD]
        key = [(k + more) & WORD for k, more in zip(key, INCREMENTS)]
    return words[0]


def _same(dtype: torch.dtype, a: Value) -> Value:
    return a


def _never(dtype: torch.dtype, a: Value) -> Value:
    return a.compare("ne", a) if not a.is_float else a.compare("uno", a)


def _intrinsic(name: str) -> Op:
    return _by_class(lambda dtype, a: a.intrinsic(name), _same)


def _math(name: str) -> Op:
    return lambda dtype, *args: cpu_math.FUNCTIONS[name](*args)


def _abs(dtype: torch.dtype, a: Value) -> Value:
    if dtype in UNSIGNED:
        return a
    return a.compare("slt", 0).select(-a, a)


_OR: Op = lambda dtype, a, b: a | b  # noqa: E731
_AND: Op = lambda dtype, a, b: a & b  # noqa: E731
_ADD: Op = lambda dtype, a, b: a + b  # noqa: E731
_MUL: Op = lambda dtype, a, b: a * b  # noqa: E731
MAXIMUM = _by_class(*[_extreme(GREATER, True)] * 2, b1=_OR)
MINIMUM = _by_class(*[_extreme(LESS, True)] * 2, b1=_AND)

OPS: dict[str, Op] = {
    "add": _by_class(_ADD, _ADD, b1=_OR),
    "sub": _by_class(lambda d, a, b: a - b, lambda d, a, b: a - b, b1=lambda d, a, b: a ^ b),
    "mul": _by_class(_MUL, _MUL, b1=_AND),
    "div": _by_class(lambda d, a, b: a / b, integer_floordiv),
    "floordiv": _by_class(_float_floordiv, integer_floordiv),
    "mod": _by_class(_float_mod, integer_mod),
    "fmod": _by_class(
        lambda d, a, b: cpu_math.libm("fmod", a, b),
        lambda d, a, b: _integer_remainder(d, a, b, floor=False),
    ),
    "pow": _by_class(_math("pow"), _integer_pow, b1=lambda d, a, b: a | ~b),
    "atan2": _math("atan2"),
    "copysign": lambda d, a, b: a.intrinsic("copysign", b),
    "maximum": MAXIMUM,
    "minimum": MINIMUM,
    "fmax": _by_class(*[_extreme(GREATER, False)] * 2, b1=_OR),
    "fmin": _by_class(*[_extreme(LESS, False)] * 2, b1=_AND),
    "eq": _compare("oeq", "eq"),
    "ne": _compare("une", "ne"),
    "lt": LESS,
    "le": _signed_compare("ole", "le"),
    "gt": GREATER,
    "ge": _signed_compare("oge", "ge"),
    "and": _AND,
    "or": _OR,
    "xor": lambda d, a, b: a ^ b,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "neg": lambda d, a: -a,
    "abs": _by_class(lambda d, a: a.intrinsic("fabs"), _abs, b1=_same),
    "not": lambda d, a: ~a,
    "sign": _by_class(_sign, _sign, b1=_same),
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "round": _intrinsic("rint"),
    "trunc": _intrinsic("trunc"),
    "reciprocal": lambda d, a: 1.0 / a,
    "sqrt": lambda d, a: a.intrinsic("sqrt"),
    "rsqrt": lambda d, a: 1.0 / a.intrinsic("sqrt"),
    "isnan": _never,
    "isinf": _by_class(lambda d, a: a.intrinsic("fabs").compare("oeq", float("inf")), _never),
    "signbit": _by_class(
        lambda d, a: a.bits().compare("slt", 0),
        lambda d, a: LESS(d, a, a.like(0)),
    ),
    "fma": _by_class(lambda d, a, b, c: a.intrinsic("fmuladd", b, c), lambda d, a, b, c: a * b + c),
    "philox": lambda d, *args: philox(*args),
    **{name: _math(name) for name in cpu_math.UNARY},
}


COMBINE: dict[str, Op] = {
    "sum": OPS["add"],
    "prod": OPS["mul"],
    "max": MAXIMUM,
    "min": MINIMUM,
    "any": _OR,
    "all": _AND,
}
