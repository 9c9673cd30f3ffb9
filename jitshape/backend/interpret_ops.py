"""The meaning of every scalar op on numpy arrays, for `interpret`.

In: arrays already converted to one dtype (f32 for f16 and bf16).  Out: the result array.
Where numpy has no such function or rounds otherwise, ATen's is called: it is the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from jitshape.ir.ops.streams import philox

Array = np.ndarray


def _aten(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    def call(*args: Array) -> Array:
        shape = np.broadcast_shapes(*(a.shape for a in args))
        result = function(*(torch.from_numpy(np.array(a)) for a in args))
        return result.numpy().reshape(shape)

    return call


def _integers_apart(integers: Callable[..., Array], floats: Callable[..., Array]):
    def call(*args: Array) -> Array:
        return (floats if np.issubdtype(args[-1].dtype, np.floating) else integers)(*args)

    return call


def _logical(on_b1: Callable[..., Array], otherwise: Callable[..., Array]):
    def call(*args: Array) -> Array:
        return (on_b1 if args[-1].dtype == np.bool_ else otherwise)(*args)

    return call


def _fmod_integers(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b)))


def _sign(a: Array) -> Array:
    return (a > 0).astype(a.dtype) - (a < 0).astype(a.dtype)


def _shift_left(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)


def _shift_right(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    return np.right_shift(a, np.where(inside, b, bits - 1).astype(a.dtype))


def _philox(seed: Array, stream: Array, position: Array) -> Array:
    numbers = (
        torch.from_numpy(np.ascontiguousarray(x)) for x in np.broadcast_arrays(seed, position)
    )
    (number,) = set(np.ravel(stream).tolist())  # one stream an op
    seeds, positions = numbers
    return philox(seeds, number, positions).numpy()


OPS: dict[str, Callable[..., Array]] = {
    "add": _logical(np.logical_or, np.add),
    "sub": _logical(np.logical_xor, np.subtract),
    "mul": _logical(np.logical_and, np.multiply),
    "div": np.true_divide,
    "floordiv": _integers_apart(np.floor_divide, _aten(torch.floor_divide)),
    "mod": _integers_apart(np.mod, _aten(torch.remainder)),
    "fmod": _integers_apart(_fmod_integers, np.fmod),
    "pow": _aten(torch.pow),
    "atan2": _aten(torch.atan2),
    "copysign": np.copysign,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift_left,
    "shr": _shift_right,
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "sign": _logical(lambda a: a, _sign),
    "floor": _integers_apart(lambda a: a, np.floor),
    "ceil": _integers_apart(lambda a: a, np.ceil),
    "round": _integers_apart(lambda a: a, np.rint),
    "trunc": _integers_apart(lambda a: a, np.trunc),
    "reciprocal": lambda a: np.true_divide(np.asarray(1, a.dtype), a),
    "rsqrt": _aten(torch.rsqrt),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "signbit": np.signbit,
    "philox": _philox,
    "where": lambda condition, yes, no: np.where(condition != 0, yes, no),
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype),
    **{
        name: _aten(getattr(torch, name))
        for name in "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh "
        "cosh tanh asinh acosh atanh sigmoid erf erfc".split()
    },
}
