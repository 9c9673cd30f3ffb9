"""Pooling and resampling of images.

Small windows are unrolled: an output element, or a gradient of an input element, is an expression
over the elements in reach.  Large ones are left to ATen.  Invariant: layouts as ATen's
(channels-last is kept).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import require, require_elements
from jitshape.ir.ops.indexing import index_op
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import format_strides, suggested_format
from jitshape.ir.symint import Size, sym_max, sym_min
from jitshape.ir.types import TensorType

MOST_UNROLLED = 32  # elements of a window


def _pair(x: Any, default: tuple[int, int] = (0, 0)) -> tuple[Any, Any]:
    """One number for both dimensions, or one for each; none: `default`."""
    values = list(x) if isinstance(x, (list, tuple)) else [x]
    if not values:
        return default
    return (values[0], values[-1])


class Windows(NamedTuple):
    """Windows over the last two dimensions of an image."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil: bool

    def count(self, env: Any, size: Size, d: int) -> Size:
        """How many windows fit along dimension `d`; with `ceil` the last may reach out, but must
        start inside."""
        k, step, pad = self.kernel[d], self.stride[d], self.padding[d]
        room = size + 2 * pad - self.dilation[d] * (k - 1) - 1
        if not self.ceil:
            return env.floordiv(room, step) + 1
        most = env.floordiv(size + pad - 1, step) + 1
        return sym_min(env.floordiv(room + step - 1, step) + 1, most)

    def check(self, env: Any, shape: Sequence[Size]) -> None:
        """An image has channels and pixels, and room for a window."""
        require_elements(env, shape[-3:], f"Expected a non-empty image, but got {list(shape)}")
        for d, size in enumerate(shape[-2:]):
            reach = self.dilation[d] * (self.kernel[d] - 1) + 1
            room = size + 2 * self.padding[d] - reach + (self.stride[d] - 1) * self.ceil
            require(env, compare("ge", room, 0), "Output size is too small")

    @property
    def large(self) -> bool:
        """Whether an expression over all elements would be too long."""
        return self.kernel[0] * self.kernel[1] > MOST_UNROLLED

    def elements(self) -> Iterator[tuple[int, int]]:
        for kh in range(self.kernel[0]):
            for kw in range(self.kernel[1]):
                yield kh, kw

    def start(self, at: Size, d: int) -> Size:
        return at * self.stride[d] - self.padding[d]


def windows(
    kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Windows:
    kernel = _pair(kernel_size)
    return Windows(kernel, _pair(stride, kernel), _pair(padding), _pair(dilation), ceil_mode)


def _image(env: Any, x: Value, height: Size, width: Size, dtype: Any = None) -> TensorType:
    """A new image of other extent, in the memory format of `x`."""
    old = x.type
    shape = (*old.shape[:-2], height, width)
    format_ = suggested_format(old.shape, old.strides)
    strides = format_strides(env, shape, (), format_)
    return TensorType(shape, strides, dtype or old.dtype, old.device)


def _pooled(env: Any, x: Value, w: Windows, dtype: Any = None) -> TensorType:
    height, width = (w.count(env, x.type.shape[d - 2], d) for d in range(2))
    return _image(env, x, height, width, dtype)


def _all(b: Any, conditions: Sequence[Any]) -> Any:
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.logical_and(result, condition)
    return result


def _within(b: Any, at: Sequence[Size], sizes: Sequence[Size]) -> Any:
    """Whether a position lies in an extent."""
    return _all(
        b,
        [
            test
            for i, size in zip(at, sizes)
            for test in (b.ge(b.index(i), 0), b.lt(b.index(i), b.index(size)))
        ],
    )


def _covering(b: Any, w: Windows, at: Sequence[Size], kh: int, kw: int, sizes: Any) -> Any:
    """The window whose element (kh, kw) lies at `at`, and whether there is one among `sizes`."""
    shifted = [at[d] + w.padding[d] - w.dilation[d] * k for d, k in enumerate((kh, kw))]
    window = [i // step for i, step in zip(shifted, w.stride)]
    exists = [_within(b, window, sizes)]
    for i, step in zip(shifted, w.stride):
        if step != 1:
            exists.append(b.eq(b.index(i % step), 0))
    return window, _all(b, exists)


# ---- maxima


def _least(dtype: torch.dtype) -> float | int:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _walk(b: Any, index: Any, load: Any, x: Value, w: Windows) -> tuple[Any, Any]:
    """The maximum of a window and its position in the image; nan wins, the last of them."""
    *lead, i, j = index
    height, width = x.type.shape[-2:]
    best, place, found = None, None, None
    for kh, kw in w.elements():
        at = (w.start(i, 0) + kh * w.dilation[0], w.start(j, 1) + kw * w.dilation[1])
        inside = _within(b, at, (height, width)) if any(w.padding) or w.ceil else None
        value = load(x, (*lead, *at), inside)
        here = b.index(at[0] * width + at[1])
        if best is None:
            least = b.cast(b.scalar(_least(x.type.dtype)), value.dtype)
            best, place, found = (b.where(inside, value, least) if inside else value), here, inside
            continue
        better = b.gt(value, best)
        if value.dtype.is_floating_point:
            better = b.logical_or(better, b.isnan(value))
        if inside is not None:
            better = b.logical_and(inside, b.logical_or(better, b.logical_not(found)))
            found = b.logical_or(found, inside)
        best, place = b.where(better, value, best), b.where(better, here, place)
    return best, place


class _Maxima:
    def check(env, x, *args):
        windows(*args).check(env, x.type.shape)

    def type(env, x, *args):
        return _pooled(env, x, windows(*args))

    def samples():
        x = torch.randn(2, 3, 7, 9)
        last = x.contiguous(memory_format=torch.channels_last)
        return [
            ((x, [2, 2]), {}),
            ((last, [3, 3], [2, 2], [1, 1]), {}),
            ((x, [3, 2], [2, 2], [1, 0], [2, 1], True), {}),
            ((x[0], [2, 2], [1, 1]), {}),
            ((x, [6, 7], [1, 2], [2, 3]), {}),
        ]


@index_op("jitshape.max_pool2d.default", base=_Maxima)
class MaxPoolValues:
    def run(*args):
        return torch.ops.aten.max_pool2d_with_indices(*args)[0]

    def source(b, index, load, x, *args):
        return _walk(b, index, load, x, windows(*args))[0]


@index_op("jitshape.max_pool2d_places.default", base=_Maxima)
class MaxPoolPlaces:
    """Where the maxima lie, counted row by row within one image."""

    def type(env, x, *args):
        return _pooled(env, x, windows(*args), torch.int64)

    def run(*args):
        return torch.ops.aten.max_pool2d_with_indices(*args)[1]

    def source(b, index, load, x, *args):
        return _walk(b, index, load, x, windows(*args))[1]


@op("aten.max_pool2d_with_indices.default", family="composite", base=_Maxima)
class MaxPool:
    def type(env, x, *args):
        w = windows(*args)
        return [_pooled(env, x, w), _pooled(env, x, w, torch.int64)]

    def decompose(g, node, x, *args):
        if windows(*args).large:
            return g.call("jitshape.large_max_pool2d", x, *args)
        names = ("jitshape.max_pool2d", "jitshape.max_pool2d_places")
        return tuple(g.call(name, x, *args) for name in names)


@op("jitshape.large_max_pool2d.default", family="extern", base=_Maxima)
class LargeMaxPool:
    type = MaxPool.type

    def run(*args):
        return torch.ops.aten.max_pool2d_with_indices(*args)

    def samples():
        return [((torch.randn(2, 3, 14, 15), [9, 7], [1, 1], [4, 3]), {})]


@index_op("aten.max_pool2d_with_indices_backward.default")
class MaxPoolBackward:
    def type(env, grad, x, *args):
        return _image(env, x, *x.type.shape[-2:])

    def left_to_aten(grad, x, *args):
        return windows(*args[:-1]).large

    def source(b, index, load, grad, x, kernel_size, stride, padding, dilation, ceil_mode, places):
        w = windows(kernel_size, stride, padding, dilation, ceil_mode)
        *lead, i, j = index
        here = b.index(i * x.type.shape[-1] + j)
        total = None
        for kh, kw in w.elements():
            window, exists = _covering(b, w, (i, j), kh, kw, places.type.shape[-2:])
            at = (*lead, *window)
            mine = b.logical_and(exists, b.eq(load(places, at, exists), here))
            share = load(grad, at, mine)
            share = b.where(mine, share, b.cast(b.scalar(0), share.dtype))
            total = share if total is None else b.add(total, share)
        return total

    def samples():
        rows = []
        for (x, *args), _ in _Maxima.samples():
            row = (*args, *([], [0, 0], [1, 1], False)[len(args) - 1 :])
            values, places = torch.ops.aten.max_pool2d_with_indices(x, *row)
            rows.append(((torch.randn_like(values), x, *row, places), {}))
        return rows


# ---- means


class Means(NamedTuple):
    """How a window's sum is divided."""

    windows: Windows
    count_padding: bool
    divisor: int | None

    def share(self, b: Any, at: Sequence[Size], sizes: Sequence[Size], dtype: Any) -> Any:
        """What a window's sum is divided by."""
        if self.divisor is not None:
            return b.cast(b.scalar(self.divisor), dtype)
        w, count = self.windows, 1
        for d in range(2):
            start = w.start(at[d], d)
            end = start + w.kernel[d]
            if w.ceil or (w.padding[d] and not self.count_padding):
                end = sym_min(end, sizes[d] + w.padding[d])
            if w.padding[d] and not self.count_padding:
                start, end = sym_max(start, 0), sym_min(end, sizes[d])
            count = count * (end - start)
        return b.cast(b.index(count), dtype)


def means(
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Means:
    w = windows(kernel_size, stride, padding, 1, ceil_mode)
    return Means(w, count_include_pad, divisor_override)


def _quotient(b: Any, total: Any, count: Any) -> Any:
    """The mean, rounded towards 0 where it is an integer."""
    if total.dtype.is_floating_point:
        return b.div(total, count)
    wide = b.div(b.cast(total, torch.float64), b.cast(count, torch.float64))
    return b.cast(b.trunc(wide), total.dtype)


@index_op("aten.avg_pool2d.default")
class AvgPool:
    def check(env, x, *args):
        means(*args).windows.check(env, x.type.shape)

    def type(env, x, *args):
        return _pooled(env, x, means(*args).windows)

    def left_to_aten(x, *args):
        return means(*args).windows.large

    def source(b, index, load, x, *args):
        m = means(*args)
        w, (*lead, i, j), sizes = m.windows, index, x.type.shape[-2:]
        total = None
        for kh, kw in w.elements():
            at = (w.start(i, 0) + kh, w.start(j, 1) + kw)
            inside = _within(b, at, sizes) if any(w.padding) or w.ceil else None
            value = load(x, (*lead, *at), inside)
            if inside is not None:
                value = b.where(inside, value, b.cast(b.scalar(0), value.dtype))
            total = value if total is None else b.add(total, value)
        assert total is not None
        return _quotient(b, total, m.share(b, (i, j), sizes, total.dtype))

    def samples():
        x = torch.randn(2, 3, 7, 9)
        last = x.contiguous(memory_format=torch.channels_last)
        return [
            ((x, [2, 2]), {}),
            ((last, [3, 3], [2, 2], [1, 1]), {}),
            ((x, [3, 2], [2, 2], [1, 1], True, False), {}),
            ((x, [3, 3], [2, 2], [1, 1], True, True), {}),
            ((x[0], [2, 2], [1, 1], [0, 0], False, True, 3), {}),
            ((x, [6, 7], [1, 2], [2, 3]), {}),
        ]


@index_op("aten.avg_pool2d_backward.default")
class AvgPoolBackward:
    def type(env, grad, x, *args):
        return _image(env, x, *x.type.shape[-2:])

    def left_to_aten(grad, x, *args):
        return means(*args).windows.large

    def source(b, index, load, grad, x, *args):
        m = means(*args)
        *lead, i, j = index
        total = None
        for kh, kw in m.windows.elements():
            window, exists = _covering(b, m.windows, (i, j), kh, kw, grad.type.shape[-2:])
            share = load(grad, (*lead, *window), exists)
            share = _quotient(b, share, m.share(b, window, x.type.shape[-2:], share.dtype))
            share = b.where(exists, share, b.cast(b.scalar(0), share.dtype))
            total = share if total is None else b.add(total, share)
        return total

    def samples():
        rows = []
        for (x, *args), _ in AvgPool.samples():
            row = (*args, *([], [0, 0], False, True, None)[len(args) - 1 :])
            grad = torch.randn_like(torch.ops.aten.avg_pool2d(x, *row))
            rows.append(((grad, x, *row), {}))
        return rows


@op("aten._adaptive_avg_pool2d.default", family="extern")
class AdaptiveAvgPool:
    def type(env, x, output_size):
        return _image(env, x, *output_size)

    def samples():
        return [((torch.randn(2, 3, 7, 9), [3, 4]), {})]


@op("aten._adaptive_avg_pool2d_backward.default", family="extern")
class AdaptiveAvgPoolBackward:
    def type(env, grad, x):
        return _image(env, x, *x.type.shape[-2:])

    def samples():
        return [((torch.randn(2, 3, 3, 4), torch.randn(2, 3, 7, 9)), {})]


# ---- resampling


@index_op("aten.upsample_nearest2d.default")
class UpsampleNearest:
    def check(env, x, output_size, scales_h=None, scales_w=None):
        shape = (*x.type.shape[1:], *output_size)
        require_elements(env, shape, "Input and output sizes should be greater than 0")

    def type(env, x, output_size, scales_h=None, scales_w=None):
        return _image(env, x, *output_size)

    def source(b, index, load, x, output_size, scales_h=None, scales_w=None):
        *lead, i, j = index
        at = []
        for place, size, new, scale in zip(
            (i, j), x.type.shape[-2:], output_size, (scales_h, scales_w)
        ):
            if scale is not None and float(scale).is_integer():
                at.append(sym_min(place // int(scale), size - 1))
                continue
            step = b.div(b.cast(b.index(size), torch.float32), b.cast(b.index(new), torch.float32))
            if scale is not None:
                step = b.const(1 / scale, torch.float32)
            source = b.trunc(b.mul(b.cast(b.index(place), torch.float32), step))
            found = b.minimum(b.cast(source, torch.int64), b.index(size - 1))
            # the number of steps, if it is 1 or 2, counts before the scale
            for steps in (2, 1):
                whole = b.eq(b.index(new), b.index(size * steps))
                found = b.where(whole, b.index(place // steps), found)
            at.append(b.indirect(found))
        return load(x, (*lead, *at))

    def samples():
        x = torch.randn(2, 3, 4, 5)
        return [
            ((x, [8, 10], 2.0, 2.0), {}),
            ((x, [7, 3]), {}),
            ((x, [6, 7], 1.5, 1.5), {}),
            ((x, [4, 10], 1.2, 2.1), {}),
        ]


class _Resampled:
    def type(env, x, output_size, *args):
        return _image(env, x, *output_size)


@op("aten.upsample_bilinear2d.default", "aten.upsample_bicubic2d.default", family="extern",
    base=_Resampled)  # fmt: skip
class UpsampleLinear:
    def samples():
        return [((torch.randn(2, 3, 4, 5), [8, 9], False), {})]


@op(
    "aten.upsample_nearest2d_backward.default",
    "aten.upsample_bilinear2d_backward.default",
    "aten.upsample_bicubic2d_backward.default",
    family="extern",
)
class UpsampleBackward:
    def type(env, grad, output_size, input_size, *args):
        return _image(env, grad, *input_size[-2:])
