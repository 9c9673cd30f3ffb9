"""Elementary functions as LLVM IR.

In: `Value`s of float or double, uniform or vector.  Out: the same type, right at infinities, nan
and the ends of the range; floats within 1.8 ulp of the exact result (sigmoid 2.5, as in ATen).
The f32 functions that programs use most are polynomials written inline: an argument reduction, and
the minimax polynomial (Remez, relative error) of the reduced function on the interval named beside
it.  The others, and all of f64, call libm lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jitshape.backend.codegen.llvm_text import Value, Variable

UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh sigmoid erf erfc"
).split()
INF, NAN = math.inf, math.nan

# ---- coefficients, constant term first
EXP = (0.499999931, 0.166665148, 0.0416684562, 0.0083694189, 0.00138131763)
"""(e^r - 1 - r) / r^2, |r| <= ln(2)/2"""
EXP2 = (0.693147204, 0.240226477, 0.0555032935, 0.00961845001, 0.00134001694, 0.000153523025)
"""(2^r - 1) / r, |r| <= 1/2"""
LOG = (
    *(0.333333316, -0.2500085, 0.200012733, -0.166222859, 0.141997812, -0.131692978),
    *(0.127809762, -0.0763415365),
)
"""(log(1 + f) - f + f^2/2) / f^3, sqrt(1/2) <= 1 + f <= sqrt(2)"""
LOG2_ATANH = (2.88539008, 0.961796694, 0.577077939, 0.4122096, 0.319890677, 0.283124713)
"""log2(m) / t in t^2, t = (m - 1) / (m + 1), sqrt(1/2) <= m <= sqrt(2); for double"""
SIN = (-0.166666542, 0.0083321315, -0.000195108391)
"""(sin(r)/r - 1) / r^2 in r^2, |r| <= pi/4"""
COS = (0.0416666457, -0.00138873062, 2.44312244e-05)
"""(cos(r) - 1 + r^2/2) / r^4 in r^2, |r| <= pi/4"""
TANH = (-0.333332832, 0.133314702, -0.0537416218, 0.0206441329, -0.00570949375)
"""(tanh(x)/x - 1) / x^2 in x^2, |x| <= 0.625"""
ERF = (0.12837915, -0.376124943, 0.112818028, -0.0267655679, 0.00499098146, -0.000597689928)
"""erf(x)/x - 1 in x^2, |x| <= 0.93"""
LOG_ERFC = (
    *(-0.000166509071, -1.12779696, -0.636976607, -0.104113174, 0.0223149474, -0.00306541785),
    0.000198211663,
)
"""log(erfc(t)), 0.9 <= t <= 4"""
ERF_TOP = (1.43611872, 0.24587062, 0.0675928295, 0.00494386069, 0.000365920831, 2.57981744e-06)
ERF_BOTTOM = (*(1.27272725, 0.642137408, 0.146683812, 0.0193514209, 0.00151635264, 4.8353995e-05),)
"""erf(x)/x as a quotient in x^2, least absolute error, |x| <= 3.93"""
LN2_HI, LN2_LO = 0.693145751953125, 1.4286068203094173e-06  # the first with 16 bits
PI_2 = (1.5707960128784180, 3.1391647326017846e-07, 5.3903025299577648e-15)


# ---- calls of libm


def by_lane(function: Callable[..., Value], *args: Value) -> Value:
    """`function` of uniform values, for each lane in turn."""
    args = args[0].f.level_lanes(*args)
    f, lanes, kind = args[0].f, args[0].lanes, args[0].kind
    if not lanes:
        return function(*args)
    slots = [Variable(f, kind, lanes, "lanes") for _ in args]
    for slot, arg in zip(slots, args):
        slot.set(arg)
    with f.loop(f.constant("i64", 0), f.constant("i64", lanes), 1, "lane") as lane:
        pointers = [f.element(slot.pointer, kind, lane) for slot in slots]
        result = function(*(f.load(p, kind) for p in pointers))
        f.line(f"store {result}, ptr {pointers[0]}")
    return slots[0].get()


def libm(name: str, *args: Value) -> Value:
    """The C library's function."""

    def one(*lane: Value) -> Value:
        kind = lane[0].kind
        return lane[0].f.call(name, kind, 0, name + ("f" if kind == "float" else ""), lane)

    return by_lane(one, *args)


# ---- pieces


def fma(a: Value, b: Value | float, c: Value | float) -> Value:
    """a * b + c, fused where that is cheap."""
    return a.intrinsic("fmuladd", b, c)


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    result: Value | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = fma(x, result, coefficient)
    assert isinstance(result, Value)
    return result


def at_most(x: Value, high: float) -> Value:
    """nan stays."""
    return x.compare("ogt", high).select(high, x)


def clamp(x: Value, low: float, high: float) -> Value:
    """nan stays."""
    x = at_most(x, high)
    return x.compare("olt", low).select(low, x)


def to_int(x: Value, kind: str = "i32") -> Value:
    """Of a whole number; of nan anything, but the same at every use."""
    return x.convert("fptosi", kind).frozen()


def power_of_two(n: Value) -> Value:
    """2.0 ** n as float, -127 < n < 128."""
    return (n + 127).integer("shl", 23).convert("bitcast", "float")


def _nearest(x: Value) -> tuple[Value, Value]:
    """The nearest whole number, as integer and as float."""
    whole = to_int(x.intrinsic("rint"))
    return whole, whole.convert("sitofp", "float")


def _reduce_exp(x: Value) -> tuple[Value, Value]:
    """(n, r) with x = n ln(2) + r, n a whole number as integer, |r| <= ln(2)/2"""
    whole, n = _nearest(x * math.log2(math.e))
    return whole, fma(n, -LN2_LO, fma(n, -LN2_HI, x))


def _scale(p: Value, n: Value) -> Value:
    """p * 2^n for -152 < n <= 128 and p near 1.  Where no single instruction does it, in two
    steps, so that results below the normal range come out right."""
    if p.f.scales and p.lanes:
        full = f"llvm.ldexp.{p.f.suffix(p.kind, p.lanes)}.{p.f.suffix(n.kind, n.lanes)}"
        return p.f.call("ldexp", p.kind, p.lanes, full, (p, n))
    low = n.integer("ashr", 1)
    return p * power_of_two(low) * power_of_two(n - low)


def _vanishing(x: Value, low: float, function: Callable[[Value], Value]) -> Value:
    """`function`, but 0 below `low`: products that vanish take a processor a hundred times as
    long as others, and the exponentials of masked scores are all of this kind."""
    dead = x.compare("olt", low)
    kept = x if x.f.scales and x.lanes else dead.select(0.0, x)
    return dead.select(0.0, function(kept))


def _select_zero(x: Value, value: Value) -> Value:
    """Keeps the sign of a zero."""
    return x.compare("oeq", 0.0).select(x, value)


# ---- exponentials


def exp(x: Value) -> Value:
    def inside(x: Value) -> Value:
        n, r = _reduce_exp(x)
        return _scale(fma(r * r, horner(r, EXP), r) + 1.0, n)

    return _vanishing(at_most(x, 89.0), -150.0 * math.log(2.0), inside)


def exp2(x: Value) -> Value:
    def inside(x: Value) -> Value:
        whole, n = _nearest(x)
        r = x - n
        return _scale(fma(r, horner(r, EXP2), 1.0), whole)

    return _vanishing(at_most(x, 129.0), -150.0, inside)


def expm1(x: Value) -> Value:
    """2^n (p + 1) - 1 = 2 (2^(n-1) p + (2^(n-1) - 1/2)): n = 128 does not overflow."""
    n, r = _reduce_exp(clamp(x, -30.0, 89.0))
    p = fma(r * r, horner(r, EXP), r)
    half = power_of_two(n - 1)
    return _select_zero(x, fma(half, p, half - 0.5) * 2.0)


def sigmoid(x: Value) -> Value:
    return 1.0 / (FUNCTIONS["exp"](-x) + 1.0)


def tanh(x: Value) -> Value:
    size = x.intrinsic("fabs")
    e = exp(size * -2.0)
    large = 1.0 - (e + e) / (e + 1.0)
    square = x * x
    small = fma(square * x, horner(square, TANH), x)
    return size.compare("olt", 0.625).select(small, large).intrinsic("copysign", x)


# ---- logarithms


def _reduce_log(x: Value) -> tuple[Value, Value]:
    """(e, f) with x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)"""
    tiny = x.compare("olt", 1.1754943508222875e-38)
    bits = tiny.select(x * 8388608.0, x).bits()
    e = (bits - 0x3F3504F3).integer("ashr", 23)
    m = (bits - e.integer("shl", 23)).convert("bitcast", "float")
    exponent = e.convert("sitofp", "float")
    return tiny.select(exponent - 23.0, exponent), m - 1.0


def _log_ends(x: Value, result: Value) -> Value:
    """Outside (0, inf)."""
    result = x.compare("ogt", 0.0).select(result, -INF)
    result = x.compare("olt", 0.0).select(NAN, result)
    return x.compare("olt", INF).select(result, x)


def _log_mantissa(f: Value) -> tuple[Value, Value]:
    """log(1 + f) as a sum: f and the small rest."""
    square = f * f
    return f, fma(square * f, horner(f, LOG), square * -0.5)


def _log_sum(e: Value, f: Value) -> Value:
    """log(2^e (1 + f))"""
    f, rest = _log_mantissa(f)
    return fma(e, LN2_HI, f + fma(e, LN2_LO, rest))


def log(x: Value) -> Value:
    return _log_ends(x, _log_sum(*_reduce_log(x)))


def log2(x: Value) -> Value:
    e, f = _reduce_log(x)
    f, rest = _log_mantissa(f)
    scale = math.log2(math.e)
    return _log_ends(x, e + fma(f, scale, rest * scale))


def log10(x: Value) -> Value:
    e, f = _reduce_log(x)
    f, rest = _log_mantissa(f)
    scale = math.log10(math.e)
    return _log_ends(x, fma(e, math.log10(2.0), fma(f, scale, rest * scale)))


def log1p(x: Value) -> Value:
    """1 + x = 2^e (1 + f) with f = 2^-e x + (2^-e - 1): nothing of x is lost to rounding."""
    u = x + 1.0
    e = (u.bits() - 0x3F3504F3).integer("ashr", 23)
    shift = e.integer("shl", 23)
    scale = 0x3F800000 - shift
    scale = scale.compare("sgt", 0).select(scale, 0).convert("bitcast", "float")
    f = (x.bits() - shift).convert("bitcast", "float") + (scale - 1.0)
    return _select_zero(x, _log_ends(u, _log_sum(e.convert("sitofp", "float"), f)))


def pow(x: Value, y: Value) -> Value:
    """exp2(y log2|x|) in double, then the signs and ends of C's pow."""
    wide, exponent = x.convert("fpext", "double"), y.convert("fpext", "double")
    size = wide.intrinsic("fabs")
    logarithm = _log2_double(size)
    logarithm = size.compare("oeq", 0.0).select(-INF, logarithm)
    logarithm = size.compare("oeq", INF).select(INF, logarithm)
    w = size.compare("oeq", 1.0).select(exponent * 0.0, exponent * logarithm)
    w = (size.compare("oeq", 1.0) & exponent.intrinsic("fabs").compare("oeq", INF)).select(0.0, w)
    result = _exp2_double(clamp(w, -1000.0, 1000.0)).convert("fptrunc", "float")
    whole = y.intrinsic("trunc").compare("oeq", y)
    half = y * 0.5
    odd = whole & half.intrinsic("trunc").compare("une", half)
    result = (x.bits().compare("slt", 0) & odd).select(-result, result)
    outside = x.compare("olt", 0.0) & x.compare("ogt", -INF) & ~whole
    result = (outside | x.compare("uno", y)).select(NAN, result)
    return (x.compare("oeq", 1.0) | y.compare("oeq", 0.0)).select(1.0, result)


POWERS: dict[float, Callable[[Value], Value]] = {
    0.5: lambda x: x.intrinsic("sqrt"),
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: lambda x: 1.0 / x.intrinsic("sqrt"),
    -1.0: lambda x: 1.0 / x,
    -2.0: lambda x: 1.0 / (x * x),
}
"""Constant exponents that ATen too computes without pow."""


def _log2_double(x: Value) -> Value:
    """To 40 bits, of a normal number."""
    bits = x.bits()
    e = (bits - 0x3FE6A09E667F3BCD).integer("ashr", 52)
    m = (bits - e.integer("shl", 52)).convert("bitcast", "double")
    t = (m - 1.0) / (m + 1.0)
    exponent = e.convert("trunc", "i32").convert("sitofp", "double")
    return fma(t, horner(t * t, LOG2_ATANH), exponent)


def _exp2_double(x: Value) -> Value:
    """To 28 bits, |x| <= 1000."""
    n = x.intrinsic("rint")
    r = x - n
    scale = (to_int(n).convert("sext", "i64") + 1023).integer("shl", 52)
    return fma(r, horner(r, EXP2), 1.0) * scale.convert("bitcast", "double")


# ---- trigonometry


def _circular(quadrant: int, name: str) -> Callable[[Value], Value]:
    """sin(x + quadrant * pi/2).  The reduction takes pi/2 in three pieces, each product exact;
    where their 72 bits do not suffice, libm takes over."""

    def function(x: Value) -> Value:
        f = x.f
        whole, n = _nearest(x * (2.0 / math.pi))
        r = x
        for piece in PI_2:
            r = n.intrinsic("fma", -piece, r)
        turns = whole + quadrant
        square = r * r
        sine = fma(square * r, horner(square, SIN), r)
        cosine = fma(square * square, horner(square, COS), fma(square, -0.5, 1.0))
        result = (turns & 1).compare("ne", 0).select(cosine, sine)
        result = (turns & 2).compare("ne", 0).select(-result, result)
        result = _select_zero(x, result) if quadrant == 0 else result
        large = ~x.intrinsic("fabs").compare("olt", 71476.0)
        kept = Variable(f, "float", x.lanes, name)
        kept.set(result)
        with f.when(f.any_lane(large), "large"):
            kept.set(large.select(libm(name, x), result))
        return kept.get()

    return function


# ---- the error function


def erf(x: Value) -> Value:
    size = x.intrinsic("fabs")
    square = x * x
    small = fma(x, horner(square, ERF), x)
    n, r = _reduce_exp(horner(at_most(size, 4.0), LOG_ERFC))
    e = (fma(r * r, horner(r, EXP), r) + 1.0) * power_of_two(n)
    large = (1.0 - e).intrinsic("copysign", x)
    return size.compare("olt", 0.92).select(small, large)


def one_plus_erf(x: Value, factor: float) -> Value:
    """1 + erf(x factor), factor > 0, to 4e-7: one quotient serves all of x, but its last bits are
    those of 1."""
    square = x * x
    top = [c * factor ** (2 * i + 1) for i, c in enumerate(ERF_TOP)]
    bottom = [c * factor ** (2 * i) for i, c in enumerate(ERF_BOTTOM)]
    inside = (x * horner(square, top)) / horner(square, bottom)
    outside = square.compare("ogt", (3.92 / factor) ** 2)
    return outside.select(x.like(1.0).intrinsic("copysign", x), inside) + 1.0


# ---- which one


def _library(name: str) -> Callable[..., Value]:
    return lambda *args: libm(name, *args)


def _single(name: str, inline: Callable[..., Value]) -> Callable[..., Value]:
    """`inline` for float, libm for double."""

    def function(*args: Value) -> Value:
        return inline(*args) if args[0].kind == "float" else libm(name, *args)

    return function


INLINE = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "pow": pow,
    "sin": _circular(0, "sin"),
    "cos": _circular(1, "cos"),
    "tanh": tanh,
    "erf": erf,
}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: _library(name) for name in [*UNARY, "pow", "atan2"]},
    **{name: _single(name, inline) for name, inline in INLINE.items()},
    "sigmoid": sigmoid,
}
