"""Functions that generated Triton kernels call.

In: blocks.  Out: blocks of the same dtype.  Invariant: eager's results where Triton's own operators
differ from them: floor division, remainders, shifts beyond the width, reductions in which nan wins.
The interpreter runs this file's text too, with `REPLACED` in place of what it is too slow for.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

REPLACED = ("sum_over", "max_over", "min_over", "prod_over", "any_over", "all_over", "arg_over")


@triton.jit
def cdiv(a, b):
    return (a + b - 1) // b


@triton.jit
def in_bands(tile, down, across):
    """The row and column of a tile, counted through bands of 8 rows: tiles that run together
    share rows and columns, which then come from the cache."""
    first = tile // (8 * across) * 8
    height = tl.minimum(down - first, 8)
    within = tile % (8 * across)
    return first + within % height, within // height


# ---- integers


@triton.jit
def remainder(a, b):
    """Of C, with the dividend's sign; 0 where b is 0."""
    divisor = tl.where((b == 0) | (b + 1 == 0), b * 0 + 1, b)
    return a % divisor


@triton.jit
def mod(a, b):
    """Of Python, with the divisor's sign; 0 where b is 0."""
    rest = remainder(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floordiv(a, b):
    """Rounded down; 0 where b is 0."""
    zero = b * 0
    minus_one = (b + 1 == 0) & (b < 0)
    divisor = tl.where((b == 0) | minus_one, zero + 1, b)
    quotient = a // divisor
    rest = a - quotient * divisor
    floored = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    return tl.where(b == 0, zero, tl.where(minus_one, zero - a, floored))


@triton.jit
def unsigned_floordiv(a, b):
    return tl.where(b == 0, b, a // tl.where(b == 0, b + 1, b))


@triton.jit
def unsigned_mod(a, b):
    return tl.where(b == 0, b, a % tl.where(b == 0, b + 1, b))


@triton.jit
def philox(seed, stream, position):
    """32 random bits: ir/ops/streams.py has the formula."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w0 = (position & 0xFFFFFFFF).to(tl.uint32)
    w1 = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    w2 = (position * 0 + (stream & 0xFFFFFFFF)).to(tl.uint32)
    w3 = (position * 0 + ((stream >> 32) & 0xFFFFFFFF)).to(tl.uint32)
    for _ in tl.static_range(10):  # type: ignore
        a = w0.to(tl.uint64) * 0xD2511F53
        b = w2.to(tl.uint64) * 0xCD9E8D57
        w0 = (b >> 32).to(tl.uint32) ^ w1 ^ k0
        w1 = (b & 0xFFFFFFFF).to(tl.uint32)
        w2 = (a >> 32).to(tl.uint32) ^ w3 ^ k1
        w3 = (a & 0xFFFFFFFF).to(tl.uint32)
        k0 = ((k0.to(tl.uint64) + 0x9E3779B9) & 0xFFFFFFFF).to(tl.uint32)
        k1 = ((k1.to(tl.uint64) + 0xBB67AE85) & 0xFFFFFFFF).to(tl.uint32)
    return w0.to(tl.int64)


@triton.jit
def int_pow(a, b, BITS: tl.constexpr):
    """a ** b for b >= 0, wrapping, by squaring."""
    result = a * 0 + 1
    base = a
    left = b
    for _ in tl.static_range(BITS):  # type: ignore
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    return result


@triton.jit
def signed_pow(a, b, BITS: tl.constexpr):
    """A negative exponent gives 0 but for a = 1 and a = -1."""
    zero = a * 0
    odd = (b & 1) != 0
    inverse = tl.where(a == 1, zero + 1, tl.where(a + 1 == 0, tl.where(odd, a, zero + 1), zero))
    return tl.where(b < 0, inverse, int_pow(a, b, BITS))


@triton.jit
def shl(a, b, WIDTH: tl.constexpr):
    inside = (b >= 0) & (b < WIDTH)
    return tl.where(inside, a << tl.where(inside, b, b * 0), a * 0)


@triton.jit
def shr(a, b, WIDTH: tl.constexpr):
    """By at most WIDTH - 1, which leaves the sign."""
    inside = (b >= 0) & (b < WIDTH)
    return a >> tl.where(inside, b, b * 0 + (WIDTH - 1))


@triton.jit
def sign(a):
    zero = a * 0
    return tl.where(a > 0, zero + 1, tl.where(a < 0, zero - 1, zero))


@triton.jit
def float_sign(a):
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


# ---- floats


@triton.jit
def float_mod(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)  # type: ignore


@triton.jit
def float_floordiv(a, b):
    """(a - fmod(a, b)) / b, one less where the signs differ, rounded to the nearest integer."""
    rest = libdevice.fmod(a, b)
    quotient = tl.fdiv(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)  # type: ignore
    floored = tl.floor(quotient)
    floored = tl.where(quotient - floored > 0.5, floored + 1.0, floored)
    exact = tl.fdiv(a, b)
    floored = tl.where(quotient == 0, libdevice.copysign(quotient * 0.0, exact), floored)
    return tl.where(b == 0, exact, floored)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


# ---- reductions over one dimension, which stays with one element


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def sum_over(x, DIM: tl.constexpr):
    return tl.reduce(x, DIM, _sum, keep_dims=True)


@triton.jit
def max_over(x, DIM: tl.constexpr):
    return tl.reduce(x, DIM, _larger, keep_dims=True)


@triton.jit
def min_over(x, DIM: tl.constexpr):
    return tl.reduce(x, DIM, _smaller, keep_dims=True)


@triton.jit
def prod_over(x, DIM: tl.constexpr):
    return tl.reduce(x, DIM, _product, keep_dims=True)


@triton.jit
def any_over(x, DIM: tl.constexpr):
    return tl.reduce(x.to(tl.int32), DIM, _larger, keep_dims=True) != 0


@triton.jit
def all_over(x, DIM: tl.constexpr):
    return tl.reduce(x.to(tl.int32), DIM, _smaller, keep_dims=True) != 0


@triton.jit
def beats_max(a, at_a, b, at_b):
    """Whether a at position at_a comes before b for argmax; nan is the largest."""
    equal = (a == b) | ((a != a) & (b != b))
    return (a > b) | ((a != a) & (b == b)) | (equal & (at_a < at_b))


@triton.jit
def beats_min(a, at_a, b, at_b):
    """Whether a at position at_a comes before b for argmin; nan is the smallest."""
    equal = (a == b) | ((a != a) & (b != b))
    return (a < b) | ((a != a) & (b == b)) | (equal & (at_a < at_b))


@triton.jit
def _first_max(a, at_a, b, at_b):
    first = beats_max(a, at_a, b, at_b)
    return tl.where(first, a, b), tl.where(first, at_a, at_b)


@triton.jit
def _first_min(a, at_a, b, at_b):
    first = beats_min(a, at_a, b, at_b)
    return tl.where(first, a, b), tl.where(first, at_a, at_b)


@triton.jit
def arg_over(x, at, LARGEST: tl.constexpr, DIM: tl.constexpr):
    """The first extreme and its position."""
    if LARGEST:
        return tl.reduce((x, at), DIM, _first_max, keep_dims=True)
    else:
        return tl.reduce((x, at), DIM, _first_min, keep_dims=True)
