"""New tensors made from numbers and indices.

`at(b, index, *args, **kwargs)` is the element at an index of the output, given as a tuple of
Size; empty tensors have none (`uninitialised`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import INT, category, fresh, number_dtype, require
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import CHANNELS_LAST_ORDER, dense, format_strides
from jitshape.ir.symfloat import apply
from jitshape.ir.symint import IntExpr, Size, sym_max
from jitshape.ir.types import TensorType


class Factory:
    uninitialised = False


def factory(*names: str, **attributes: Any) -> Callable[[type], type]:
    return op(*names, family="factory", base=Factory, **attributes)


def _default_device() -> torch.device:
    return torch.get_default_device()


def _made(shape: Sequence[Size], dtype: Any, device: Any, default: Any = None) -> TensorType:
    """A new contiguous tensor with the dtype and device asked for, or the defaults."""
    where = _default_device() if device is None else torch.device(device)
    return fresh(shape, dtype or default or torch.get_default_dtype(), where)


def _checked(env: Any, size: Sequence[Size]) -> Sequence[Size]:
    for s in size:
        if type(s) is int and s < 0:
            raise RuntimeError(f"Trying to create tensor with negative dimension {s}: {list(size)}")
    return size


# ---- by shape


def _full_at(value: Any) -> Callable[..., Any]:
    def at(b: Any, index: Any, dtype: torch.dtype) -> Any:
        return b.cast(b.scalar(value), dtype)

    return at


@factory("aten.zeros.default")
class Zeros:
    def type(env, size, dtype=None, layout=None, device=None, pin_memory=None):
        return _made(_checked(env, size), dtype, device)

    def at(b, index, size, **kwargs):
        return b.scalar(0)

    def samples():
        return [(([2, 3],), {}), (([4],), {"dtype": torch.int32})]


@factory("aten.ones.default")
class Ones(Zeros):
    def at(b, index, size, **kwargs):
        return b.scalar(1)

    def samples():
        return [(([2, 3],), {"dtype": torch.bool})]


@factory("aten.empty.memory_format")
class Empty:
    uninitialised = True

    def type(env, size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        type_ = _made(_checked(env, size), dtype, device)
        if memory_format in (None, torch.contiguous_format):
            return type_
        strides = dense(type_.shape, CHANNELS_LAST_ORDER[type_.ndim])
        return TensorType(type_.shape, strides, type_.dtype, type_.device)


@factory("aten.empty_strided.default")
class EmptyStrided:
    uninitialised = True

    def type(env, size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        type_ = _made(size, dtype, device)
        return TensorType(type_.shape, tuple(stride), type_.dtype, type_.device)


@factory("aten.full.default")
class Full:
    stored = (1,)

    def type(env, size, fill_value, dtype=None, layout=None, device=None, pin_memory=None):
        return _made(_checked(env, size), dtype, device, number_dtype(fill_value))

    def at(b, index, size, fill_value, **kwargs):
        return b.scalar(fill_value)

    def samples():
        return [(([2, 3], 1.5), {}), (([2], 3), {}), (([2], True), {})]


@factory("aten.scalar_tensor.default")
class ScalarTensor:
    stored = (0,)

    def type(env, s, dtype=None, layout=None, device=None, pin_memory=None):
        return _made((), dtype, device)

    def at(b, index, s, **kwargs):
        return b.scalar(s)

    def samples():
        return [((2.5,), {}), ((3,), {"dtype": torch.int64})]


# ---- like another tensor


def _like(env: Any, x: Value, dtype: Any, device: Any, memory_format: Any) -> TensorType:
    old = x.type
    strides = format_strides(env, old.shape, old.strides, memory_format)
    where = old.device if device is None else torch.device(device)
    return TensorType(old.shape, strides, dtype or old.dtype, where)


class _Like:
    def type(env, x, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return _like(env, x, dtype, device, memory_format)


@factory("aten.empty_like.default")
class EmptyLike(_Like):
    uninitialised = True


@factory("aten.zeros_like.default")
class ZerosLike(_Like):
    def at(b, index, x, **kwargs):
        return b.scalar(0)

    def samples():
        x = torch.randn(3, 4)
        return [((x,), {}), ((x.t(),), {}), ((x[:, ::2],), {"dtype": torch.int64})]


@factory("aten.ones_like.default")
class OnesLike(_Like):
    def at(b, index, x, **kwargs):
        return b.scalar(1)

    def samples():
        return [((torch.randn(3, 4, 5).permute(2, 0, 1),), {})]


@factory("aten.full_like.default")
class FullLike:
    stored = (1,)

    def type(
        env,
        x,
        fill_value,
        dtype=None,
        layout=None,
        device=None,
        pin_memory=None,
        memory_format=None,
    ):
        return _like(env, x, dtype, device, memory_format)

    def at(b, index, x, fill_value, **kwargs):
        return b.scalar(fill_value)

    def samples():
        return [((torch.randn(3, 4).t(), 2), {})]


def _new(x: Value, size: Sequence[Size], dtype: Any, device: Any) -> TensorType:
    return fresh(size, dtype or x.type.dtype, x.type.device if device is None else device)


class _New:
    def type(env, x, size, dtype=None, layout=None, device=None, pin_memory=None):
        return _new(x, _checked(env, size), dtype, device)


@factory("aten.new_empty.default")
class NewEmpty(_New):
    uninitialised = True


@factory("aten.new_zeros.default")
class NewZeros(_New):
    def at(b, index, x, size, **kwargs):
        return b.scalar(0)

    def samples():
        return [((torch.randn(3), [2, 4]), {})]


@factory("aten.new_ones.default")
class NewOnes(_New):
    def at(b, index, x, size, **kwargs):
        return b.scalar(1)

    def samples():
        return [((torch.randn(3), [2, 4]), {"dtype": torch.int64})]


@factory("aten.new_full.default")
class NewFull:
    stored = (2,)

    def type(env, x, size, fill_value, dtype=None, layout=None, device=None, pin_memory=None):
        return _new(x, _checked(env, size), dtype, device)

    def at(b, index, x, size, fill_value, **kwargs):
        return b.scalar(fill_value)

    def samples():
        return [((torch.randn(3), [2, 4], 7), {})]


@factory("aten.new_empty_strided.default")
class NewEmptyStrided:
    uninitialised = True

    def type(env, x, size, stride, dtype=None, layout=None, device=None, pin_memory=None):
        made = _new(x, size, dtype, device)
        return TensorType(made.shape, tuple(stride), made.dtype, made.device)


# ---- by index


def arange_length(env: Any, start: Any, end: Any, step: Any) -> Size:
    """The number of elements of arange: ceil((end - start) / step), at least 0."""
    if all(isinstance(x, (int, IntExpr)) for x in (start, end, step)):
        if step == 0:
            raise RuntimeError("step must be nonzero")
        distance = end - start
        count = distance if step == 1 else -((-distance) // step)
        wrong = env.static(compare("ge", count, 0)) is not True
        return sym_max(count, 0) if wrong else count
    return env.round_float("ceil", apply("div", apply("sub", end, start), step))


class _Arange:
    @staticmethod
    def range(*args):
        if len(args) == 1:
            return 0, args[0], 1
        return (*args, 1) if len(args) == 2 else args

    @classmethod
    def check(cls, env, *args, **kwargs):
        start, end, step = cls.range(*args)
        if all(isinstance(x, (int, IntExpr)) for x in (start, end, step)):
            require(env, compare("ne", step, 0), "step must be nonzero")
            text = "upper bound and lower bound inconsistent with step sign"
            require(env, compare("ge", (end - start) * step, 0), text)

    @classmethod
    def type(cls, env, *args, dtype=None, layout=None, device=None, pin_memory=None):
        start, end, step = cls.range(*args)
        integral = all(isinstance(x, (int, IntExpr)) for x in (start, end, step))
        length = arange_length(env, start, end, step)
        return _made((length,), dtype, device, torch.int64 if integral else None)

    @classmethod
    def at(cls, b, index, *args, **kwargs):
        start, _, step = cls.range(*args)
        if all(isinstance(x, (int, IntExpr)) for x in (start, step)):
            return b.index(start + index[0] * step)
        dtype = kwargs.get("dtype")
        if dtype is not None and category(dtype) <= INT:  # they are rounded before they are added
            start, step = (b.cast(b.scalar(x), torch.int64) for x in (start, step))
            return b.add(start, b.mul(b.index(index[0]), step))
        return b.add(start, b.mul(b.cast(b.index(index[0]), torch.float64), step))


@factory("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
class Arange(_Arange):
    def samples():
        return [((5,), {})]


@factory("aten.eye.default", "aten.eye.m")
class Eye:
    def type(env, n, m=None, dtype=None, layout=None, device=None, pin_memory=None):
        return _made((n, n if m is None else m), dtype, device)

    def at(b, index, *sizes, **kwargs):
        return b.eq(b.index(index[0]), b.index(index[1]))

    def samples():
        return [((4,), {})]


class _Triangle:
    """Zeros above (tril) or below (triu) a diagonal; `keep` compares column - row with it."""

    keep = ""

    def type(env, x, diagonal=0):
        return fresh(x.type.shape, x.type.dtype, x.type.device)

    @classmethod
    def select(cls, b, index, x, diagonal=0):
        """`x`, an element, where the index lies in the triangle."""
        distance = b.index(index[-1] - index[-2] - diagonal)
        return b.where(getattr(b, cls.keep)(distance, 0), x, b.cast(b.scalar(0), x.dtype))

    def samples():
        x = torch.randn(2, 4, 5)
        return [((x,), {}), ((x, 1), {}), ((x.transpose(0, 1), -1), {})]


@factory("aten.tril.default")
class Tril(_Triangle):
    keep = "le"


@factory("aten.triu.default")
class Triu(_Triangle):
    keep = "ge"


class _TriangleIndices:
    triangle = staticmethod(torch.tril)

    @classmethod
    def type(
        cls, env, row, col, offset=0, dtype=torch.int64, layout=None, device=None, pin_memory=None
    ):
        rows, columns, shift = (env.specialize(v, "its length") for v in (row, col, offset))
        count = cls.triangle(torch.ones(rows, columns), shift).count_nonzero().item()
        return _made((2, int(count)), dtype or torch.int64, device)

    def samples():
        return [((4, 4, -1), {})]


@op("aten.tril_indices.default", family="extern", base=_TriangleIndices)
class TrilIndices:
    pass


@op("aten.triu_indices.default", family="extern", base=_TriangleIndices)
class TriuIndices:
    triangle = staticmethod(torch.triu)


@op("aten.linspace.default", family="extern")
class Linspace:
    def check(env, start, end, steps, **kwargs):
        require(env, compare("ge", steps, 0), "number of steps must be non-negative")

    def type(env, start, end, steps, dtype=None, layout=None, device=None, pin_memory=None):
        return _made((steps,), dtype, device)

    def samples():
        return [((0.0, 1.0, 7), {})]
