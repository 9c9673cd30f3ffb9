"""Pooling of images and of volumes.

Small windows are unrolled: an output element, or a gradient of an input element, is an expression
over the elements in reach.  Large ones are left to ATen.  Invariant: layouts as ATen's
(channels-last is kept).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import like, require, require_elements
from jitshape.ir.ops.rearranging import all_of, image, within, zero_unless
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import format_strides, is_channels_last, is_contiguous
from jitshape.ir.symint import Size, sym_max, sym_min
from jitshape.ir.types import TensorType

MOST_UNROLLED = 32  # elements of a window


def _each(rank: int, x: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    """One number for all dimensions, or one for each; none: `default`."""
    values = tuple(x) if isinstance(x, (list, tuple)) else (x,)
    if not values:
        return default
    return values * rank if len(values) == 1 else values


class Windows(NamedTuple):
    """Windows over the last dimensions of an image or a volume."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil: bool

    @property
    def rank(self) -> int:
        return len(self.kernel)

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
        text = f"Expected a non-empty image, but got {list(shape)}"
        require_elements(env, shape[-self.rank - 1 :], text)
        for d, size in enumerate(shape[-self.rank :]):
            reach = self.dilation[d] * (self.kernel[d] - 1) + 1
            room = size + 2 * self.padding[d] - reach + (self.stride[d] - 1) * self.ceil
            require(env, compare("ge", room, 0), "Output size is too small")

    @property
    def large(self) -> bool:
        """Whether an expression over all elements would be too long."""
        return math.prod(self.kernel) > MOST_UNROLLED

    def elements(self) -> Iterator[tuple[int, ...]]:
        """The places within a window."""
        return itertools.product(*map(range, self.kernel))

    def starts(self, window: Sequence[Size]) -> list[Size]:
        """Where a window begins, in the padding too."""
        rows = zip(window, self.stride, self.padding)
        return [at * step - pad for at, step, pad in rows]

    def reached(self, window: Sequence[Size], element: Sequence[int]) -> list[Size]:
        """Where an element of a window lies."""
        rows = zip(self.starts(window), element, self.dilation)
        return [start + k * step for start, k, step in rows]

    def split(self, index: Sequence[Size]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
        """(batch and channel, place in the image)"""
        return tuple(index[: -self.rank]), tuple(index[-self.rank :])


def windows(
    rank: int,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Windows:
    """Windows over `rank` dimensions, from a pooling op's arguments."""
    none, one = (0,) * rank, (1,) * rank
    kernel = _each(rank, kernel_size, none)
    return Windows(
        kernel,
        _each(rank, stride, kernel),
        _each(rank, padding, none),
        _each(rank, dilation, one),
        ceil_mode,
    )


def _extent(env: Any, x: Value, w: Windows) -> tuple[Size, ...]:
    """The shape of what is pooled from `x`."""
    lead, sizes = w.split(x.type.shape)
    return (*lead, *(w.count(env, n, d) for d, n in enumerate(sizes)))


def _laid_out(
    env: Any, x: Value, rank: int, shape: Sequence[Size], dtype: Any = None
) -> TensorType:
    """In the memory format of `x`; a single volume has that of channels inside only where it has
    no gaps."""
    if rank == 2 or len(shape) > rank + 1:
        return image(env, x, shape, dtype)
    old = x.type
    batch, strides = (1, *old.shape), (0, *old.strides)
    inside = not is_contiguous(batch, strides) and is_channels_last(batch, strides)
    format_ = torch.channels_last_3d if inside else torch.contiguous_format
    laid = format_strides(env, (1, *shape), (), format_)[1:]
    return TensorType(tuple(shape), laid, dtype or old.dtype, old.device)


def _covering(b: Any, w: Windows, at: Sequence[Size], element: Sequence[int], sizes: Any) -> Any:
    """The window of which an element lies at `at`, and whether there is one among `sizes`."""
    rows = zip(at, w.padding, w.dilation, element)
    shifted = [i + pad - step * k for i, pad, step, k in rows]
    window = [i // step for i, step in zip(shifted, w.stride)]
    exists = [within(b, window, sizes)]
    for i, step in zip(shifted, w.stride):
        if step != 1:
            exists.append(b.eq(b.index(i % step), 0))
    return window, all_of(b, exists)


def _number(at: Sequence[Size], sizes: Sequence[Size]) -> Size:
    """A place counted row by row."""
    number: Size = 0
    for i, size in zip(at, sizes):
        number = number * size + i
    return number


# ---- maxima


def _least(dtype: torch.dtype) -> float | int:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _walk(b: Any, index: Any, load: Any, x: Value, w: Windows) -> tuple[Any, Any]:
    """The maximum of a window and its position in the image; nan wins, the last of them."""
    lead, window = w.split(index)
    sizes = w.split(x.type.shape)[1]
    best, place, found = None, None, None
    for element in w.elements():
        at = w.reached(window, element)
        inside = within(b, at, sizes) if any(w.padding) or w.ceil else None
        value = load(x, (*lead, *at), inside)
        here = b.index(_number(at, sizes))
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


def _images(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images or volumes, row-major and with the channels inside."""
    x = torch.randn(2, 3, 7, 9) if rank == 2 else torch.randn(2, 2, 5, 6, 7)
    format_ = torch.channels_last if rank == 2 else torch.channels_last_3d
    return x, x.contiguous(memory_format=format_)


class _Maxima:
    rank = 2

    @classmethod
    def windows(cls, *args):
        return windows(cls.rank, *args)

    @classmethod
    def check(cls, env, x, *args):
        cls.windows(*args).check(env, x.type.shape)

    @classmethod
    def type(cls, env, x, *args):
        return cls.typed(env, x, *args)

    @classmethod
    def typed(cls, env, x, *args, dtype=None):
        return _laid_out(env, x, cls.rank, _extent(env, x, cls.windows(*args)), dtype)

    @classmethod
    def eager(cls):
        return getattr(torch.ops.aten, f"max_pool{cls.rank}d_with_indices")

    @classmethod
    def samples(cls):
        x, last = _images(cls.rank)
        if cls.rank == 3:
            rows = [(x, [2] * 3), (last, [3] * 3, [2] * 3, [1] * 3), (x[0], [2, 1, 3], [1] * 3)]
            return [(row, {}) for row in (*rows, (x, [3, 3, 4], [2] * 3, [1] * 3, [1] * 3, True))]
        return [
            ((x, [2, 2]), {}),
            ((last, [3, 3], [2, 2], [1, 1]), {}),
            ((x, [3, 2], [2, 2], [1, 0], [2, 1], True), {}),
            ((x[0], [2, 2], [1, 1]), {}),
            ((x, [6, 7], [1, 2], [2, 3]), {}),
        ]


class _MaxValues(_Maxima):
    part, dtype = 0, None  # of what a walk over a window finds

    @classmethod
    def type(cls, env, x, *args):
        return cls.typed(env, x, *args, dtype=cls.dtype)

    @classmethod
    def run(cls, *args):
        return cls.eager()(*args)[cls.part]

    @classmethod
    def source(cls, b, index, load, x, *args):
        return _walk(b, index, load, x, cls.windows(*args))[cls.part]


class _MaxPlaces(_MaxValues):
    """Where the maxima lie, counted row by row within one image."""

    part, dtype = 1, torch.int64


class _Max(_Maxima):
    @classmethod
    def type(cls, env, x, *args):
        return [cls.typed(env, x, *args, dtype=dtype) for dtype in (None, torch.int64)]

    @classmethod
    def run(cls, *args):
        return cls.eager()(*args)

    @classmethod
    def decompose(cls, g, node, x, *args):
        if cls.windows(*args).large:
            return g.call(f"jitshape.large_max_pool{cls.rank}d", x, *args)
        names = (f"jitshape.max_pool{cls.rank}d", f"jitshape.max_pool{cls.rank}d_places")
        return tuple(g.call(name, x, *args) for name in names)


class _LargeMax(_Max):
    @classmethod
    def samples(cls):
        if cls.rank == 3:
            return [((torch.randn(2, 3, 8, 9, 9), [7, 4, 4], [1] * 3, [3, 2, 2]), {})]
        return [((torch.randn(2, 3, 14, 15), [9, 7], [1, 1], [4, 3]), {})]


class _MaxBackward(_Maxima):
    @classmethod
    def check(cls, env, *args):
        pass

    @classmethod
    def type(cls, env, grad, x, *args):
        return _laid_out(env, x, cls.rank, x.type.shape)

    @classmethod
    def left_to_aten(cls, grad, x, *args):
        return cls.windows(*args[:-1]).large

    @classmethod
    def source(cls, b, index, load, grad, x, *args):
        *rest, places = args
        w = cls.windows(*rest)
        lead, at = w.split(index)
        here = b.index(_number(at, w.split(x.type.shape)[1]))
        total = None
        for element in w.elements():
            window, exists = _covering(b, w, at, element, w.split(places.type.shape)[1])
            place = (*lead, *window)
            mine = b.logical_and(exists, b.eq(load(places, place, exists), here))
            share = zero_unless(b, mine, load(grad, place, mine))
            total = share if total is None else b.add(total, share)
        return total

    @classmethod
    def samples(cls):
        rows, rank = [], cls.rank
        for (x, *args), _ in super().samples():
            row = (*args, *([], [0] * rank, [1] * rank, False)[len(args) - 1 :])
            values, places = cls.eager()(x, *row)
            rows.append(((torch.randn_like(values), x, *row, places), {}))
        return rows


# ---- means


class Means(NamedTuple):
    """How a window's sum is divided."""

    windows: Windows
    count_padding: bool
    divisor: int | None

    def share(self, b: Any, window: Sequence[Size], sizes: Sequence[Size], dtype: Any) -> Any:
        """What a window's sum is divided by."""
        if self.divisor is not None:
            return b.cast(b.scalar(self.divisor), dtype)
        w, count = self.windows, 1
        for start, kernel, pad, size in zip(w.starts(window), w.kernel, w.padding, sizes):
            end = start + kernel
            if w.ceil or (pad and not self.count_padding):
                end = sym_min(end, size + pad)
            if pad and not self.count_padding:
                start, end = sym_max(start, 0), sym_min(end, size)
            count = count * (end - start)
        return b.cast(b.index(count), dtype)


def means(
    rank: int,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Means:
    w = windows(rank, kernel_size, stride, padding, 1, ceil_mode)
    return Means(w, count_include_pad, divisor_override)


def _quotient(b: Any, total: Any, count: Any) -> Any:
    """The mean, rounded towards 0 where it is an integer."""
    if total.dtype.is_floating_point:
        return b.div(total, count)
    wide = b.div(b.cast(total, torch.float64), b.cast(count, torch.float64))
    return b.cast(b.trunc(wide), total.dtype)


class _Mean:
    rank = 2

    @classmethod
    def means(cls, *args):
        return means(cls.rank, *args)

    @classmethod
    def check(cls, env, x, *args):
        w = cls.means(*args).windows
        w.check(env, x.type.shape)
        for size, kernel in zip(w.split(x.type.shape)[1], w.kernel):
            if cls.rank == 3:
                require(env, compare("ge", size, kernel), "input image smaller than kernel size")

    @classmethod
    def type(cls, env, x, *args):
        """Means of volumes are row-major."""
        shape = _extent(env, x, cls.means(*args).windows)
        return image(env, x, shape) if cls.rank == 2 else like(x, shape)

    @classmethod
    def left_to_aten(cls, x, *args):
        return cls.means(*args).windows.large

    @classmethod
    def source(cls, b, index, load, x, *args):
        m = cls.means(*args)
        w = m.windows
        (lead, window), sizes = w.split(index), w.split(x.type.shape)[1]
        total = None
        for element in w.elements():
            at = w.reached(window, element)
            inside = within(b, at, sizes) if any(w.padding) or w.ceil else None
            value = load(x, (*lead, *at), inside)
            if inside is not None:
                value = zero_unless(b, inside, value)
            total = value if total is None else b.add(total, value)
        assert total is not None
        return _quotient(b, total, m.share(b, window, sizes, total.dtype))

    @classmethod
    def samples(cls):
        x, last = _images(cls.rank)
        if cls.rank == 3:
            rows = [(x, [2] * 3), (last, [3] * 3, [2] * 3, [1] * 3), (x[0], [2, 1, 3], [1] * 3)]
            return [(row, {}) for row in (*rows, (x, [3, 3, 2], [2] * 3, [1] * 3, True, False))]
        return [
            ((x, [2, 2]), {}),
            ((last, [3, 3], [2, 2], [1, 1]), {}),
            ((x, [3, 2], [2, 2], [1, 1], True, False), {}),
            ((x, [3, 3], [2, 2], [1, 1], True, True), {}),
            ((x[0], [2, 2], [1, 1], [0, 0], False, True, 3), {}),
            ((x, [6, 7], [1, 2], [2, 3]), {}),
        ]


class _MeanBackward(_Mean):
    @classmethod
    def check(cls, env, *args):
        pass

    @classmethod
    def type(cls, env, grad, x, *args):
        return image(env, x, x.type.shape) if cls.rank == 2 else like(x)

    @classmethod
    def left_to_aten(cls, grad, x, *args):
        return cls.means(*args).windows.large

    @classmethod
    def source(cls, b, index, load, grad, x, *args):
        m = cls.means(*args)
        w = m.windows
        lead, at = w.split(index)
        total = None
        for element in w.elements():
            window, exists = _covering(b, w, at, element, w.split(grad.type.shape)[1])
            share = load(grad, (*lead, *window), exists)
            divisor = m.share(b, window, w.split(x.type.shape)[1], share.dtype)
            share = zero_unless(b, exists, _quotient(b, share, divisor))
            total = share if total is None else b.add(total, share)
        return total

    @classmethod
    def samples(cls):
        rows, rank = [], cls.rank
        for (x, *args), _ in super().samples():
            row = (*args, *([], [0] * rank, False, True, None)[len(args) - 1 :])
            grad = torch.randn_like(getattr(torch.ops.aten, f"avg_pool{rank}d")(x, *row))
            rows.append(((grad, x, *row), {}))
        return rows


for _rank in (2, 3):
    for _name, _family, _base in (
        ("jitshape.max_pool{}d", "index", _MaxValues),
        ("jitshape.max_pool{}d_places", "index", _MaxPlaces),
        ("jitshape.large_max_pool{}d", "extern", _LargeMax),
        ("aten.max_pool{}d_with_indices", "composite", _Max),
        ("aten.max_pool{}d_with_indices_backward", "index", _MaxBackward),
        ("aten.avg_pool{}d", "index", _Mean),
        ("aten.avg_pool{}d_backward", "index", _MeanBackward),
    ):
        _block = type(_base.__name__[1:], (_base,), {"rank": _rank, "__doc__": _base.__doc__})
        op(f"{_name.format(_rank)}.default", family=_family)(_block)


@op("aten._adaptive_avg_pool2d.default", family="extern")
class AdaptiveAvgPool:
    def type(env, x, output_size):
        return image(env, x, (*x.type.shape[:-2], *output_size))

    def samples():
        return [((torch.randn(2, 3, 7, 9), [3, 4]), {})]


@op("aten._adaptive_avg_pool2d_backward.default", family="extern")
class AdaptiveAvgPoolBackward:
    def type(env, grad, x):
        return image(env, x, x.type.shape)

    def samples():
        return [((torch.randn(2, 3, 3, 4), torch.randn(2, 3, 7, 9)), {})]
