"""Runs generated Triton kernels on CPU tensors, through Triton's interpreter.

In: the text of a kernel.  Out: a callable `run(grid, *arguments)`.
Invariant: nothing of Triton is changed but while one of our kernels runs; for that time those
operations of its interpreter are replaced that are wrong in some supported version.  What a kernel
calls besides `triton.language` comes from here: libdevice, loops over sizes, and the reductions
that the interpreter would do element by element.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as its

from jitshape import forks
from jitshape.backend.codegen import triton_library
from jitshape.backend.generated import defined
from jitshape.backend.interpret_ops import OPS

_lock = forks.lock()  # the interpreter is one per process
UNARY = (
    "expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erfc"
)


def interpreted(text: str, name: str, file: str) -> Callable[..., None]:
    """The kernel `name` that `text` defines, to be called with a grid and its arguments."""
    names = {"triton": SimpleNamespace(jit=its.InterpretedFunction), "tl": tl}
    names |= {"lib": _library(), "libdevice": _LIBDEVICE, "range": _range}
    kernel = defined(text, name, names, file)

    def run(grid: int, *arguments: Any) -> None:
        with _lock, _repaired(), np.errstate(all="ignore"):
            kernel[(grid,)](*arguments)

    return run


@functools.cache
def _library() -> SimpleNamespace:
    """The functions of `triton_library`, as plain functions on the interpreter's blocks."""
    text = inspect.getsource(triton_library)
    names: dict[str, Any] = {"__name__": "library"}
    text = text.replace("@triton.jit\n", "")
    exec(compile(text, triton_library.__file__, "exec"), names)
    names.update(libdevice=_LIBDEVICE, **_REDUCTIONS)
    return SimpleNamespace(**names)


# ---- blocks


def _block(data: np.ndarray, like: tl.dtype) -> tl.tensor:
    scalar = like.scalar
    kind = tl.block_type(scalar, list(data.shape))
    return tl.core.tensor(its.TensorHandle(data, scalar), kind)


def _elementwise(function: Callable[..., np.ndarray]) -> Callable[..., tl.tensor]:
    def apply(*blocks: tl.tensor) -> tl.tensor:
        arrays = [block.handle.data for block in blocks]
        result = np.asarray(function(*arrays)).astype(arrays[0].dtype)
        return _block(result, blocks[0].dtype)

    return apply


_LIBDEVICE = SimpleNamespace(
    **{name: _elementwise(OPS[name]) for name in UNARY.split()},
    atan2=_elementwise(np.arctan2),
    copysign=_elementwise(np.copysign),
    fmod=_elementwise(np.fmod),
    pow=_elementwise(OPS["pow"]),
    rint=_elementwise(np.rint),
    trunc=_elementwise(np.trunc),
)


def _range(*bounds: Any) -> range:
    """Scalars are blocks of one element, which numpy does not take for integers."""
    return range(*(b.handle.data.item() if isinstance(b, tl.tensor) else b for b in bounds))


# ---- reductions


def _number(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _reduction(function: Callable[..., np.ndarray]) -> Callable[..., tl.tensor]:
    def reduce(block: tl.tensor, dim: Any) -> tl.tensor:
        data = block.handle.data
        result = function(data, axis=_number(dim), keepdims=True)
        return _block(np.asarray(result).astype(data.dtype), block.dtype)

    return reduce


def _arg_over(
    block: tl.tensor, at: tl.tensor, largest: Any, dim: Any
) -> tuple[tl.tensor, tl.tensor]:
    values, positions = np.broadcast_arrays(block.handle.data, at.handle.data)
    dim = _number(dim)
    best = (np.max if _number(largest) else np.min)(values, axis=dim, keepdims=True)
    extreme = (values == best) | ((values != values) & (best != best))
    first = np.where(extreme, positions, np.iinfo(np.int64).max).min(axis=dim, keepdims=True)
    return _block(best, block.dtype), _block(first, at.dtype)


_REDUCTIONS = {
    "sum_over": _reduction(np.sum),
    "max_over": _reduction(np.max),
    "min_over": _reduction(np.min),
    "prod_over": _reduction(np.prod),
    "any_over": _reduction(np.any),
    "all_over": _reduction(np.all),
    "arg_over": _arg_over,
}
assert set(_REDUCTIONS) == set(triton_library.REPLACED)


# ---- bfloat16, held as its bits


def _round_to_bf16(data: np.ndarray) -> np.ndarray:
    """To nearest even; every nan becomes the quiet one."""
    single = np.array(data, np.float32)
    return torch.from_numpy(single).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def _widen_bf16(data: np.ndarray) -> np.ndarray:
    return (data.astype(np.uint32) << 16).view(np.float32)


def _cast(builder: Any, source: Any, target: tl.dtype) -> Any:
    """Comparisons leave handles whose dtype is that of their operands: the data decides."""
    old, new = source.dtype.scalar, target.scalar
    if old == new == tl.bfloat16:
        return source
    data = _widen_bf16(source.data) if old == tl.bfloat16 else source.data
    if new == tl.bfloat16:
        return its.TensorHandle(_round_to_bf16(data), new)
    return its.TensorHandle(data.astype(its._get_np_dtype(new)), new)


def _cast_with_rounding(builder: Any, source: Any, target: tl.dtype, rounding: Any) -> Any:
    return _cast(builder, source, target)


# ---- operations that are wrong in some versions


def _all_ones(kind: Any) -> Any:
    zero: Any = np.zeros(1, its._get_np_dtype(kind))
    return its.TensorHandle(~zero, kind.scalar)


def _fused(x: Any, y: Any, z: Any) -> Any:
    """The product of two float32 is exact in float64."""
    wide = x.data.astype(np.float64) * y.data + z.data
    return its.TensorHandle(wide.astype(z.data.dtype), z.dtype.scalar)


def _dot(a: Any, b: Any, acc: Any, precision: Any, most: Any) -> Any:
    """A product of matrices, whose factors may be bfloat16."""
    left, right = (_widen_bf16(x.data) if x.dtype.scalar == tl.bfloat16 else x.data for x in (a, b))
    product = np.matmul(left, right, dtype=acc.data.dtype)
    return its.TensorHandle(product + acc.data, acc.dtype.scalar)


def _past_nan(function: Callable[..., np.ndarray]) -> Callable[..., Any]:
    return lambda a, b: its.TensorHandle(function(a.data, b.data), a.dtype.scalar)


@contextmanager
def _repaired() -> Iterator[None]:
    """The interpreter with right operations, and without its checks of integer overflow, which
    masked lanes may run into."""
    builder = its.interpreter_builder
    repairs = {
        "cast_impl": functools.partial(_cast, builder),
        "create_fp_to_fp": functools.partial(_cast_with_rounding, builder),
        "create_dot": _dot,
        "create_fma": _fused,
        "create_maxnumf": _past_nan(np.fmax),
        "create_minnumf": _past_nan(np.fmin),
        "get_all_ones_value": _all_ones,
        "options": its.InterpreterOptions(sanitize_overflow=False),
    }
    missing = object()
    saved = {name: builder.__dict__.get(name, missing) for name in repairs}
    builder.__dict__.update(repairs)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is missing:
                del builder.__dict__[name]
            else:
                builder.__dict__[name] = value
