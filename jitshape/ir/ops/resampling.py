"""Resampling of rows, images and volumes: neighbours, and sums of them along each dimension.

An element of the result is read where its centre falls in the input; the place is computed in f32
(f64 for f64), as in ATen.  Invariant: layouts as ATen's (channels-last is kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.graph import Value
from jitshape.ir.ops.families import WIDER, require_elements
from jitshape.ir.ops.rearranging import image
from jitshape.ir.ops.registry import op
from jitshape.ir.symint import Size, sym_min

CUBIC = -0.75  # the slope of the cubic's outer pieces at 1


class _Resampled:
    rank = 2

    @classmethod
    def check(cls, env, x, output_size, *args):
        shape = (*x.type.shape[1:], *output_size)
        require_elements(env, shape, "Input and output sizes should be greater than 0")

    @classmethod
    def type(cls, env, x, output_size, *args):
        return image(env, x, (*x.type.shape[: -cls.rank], *output_size))

    @classmethod
    def split(cls, index: Sequence[Size]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
        """(batch and channel, place in the image)"""
        return tuple(index[: -cls.rank]), tuple(index[-cls.rank :])

    @classmethod
    def images(cls):
        x = torch.randn(2, 3, 5, 4, 6)[(slice(None), slice(None), *(0,) * (3 - cls.rank))]
        formats = {2: [torch.channels_last], 3: [torch.channels_last_3d]}.get(cls.rank, [])
        return [x, *(x.contiguous(memory_format=format_) for format_ in formats)]


def _real(b: Any, x: Size, dtype: torch.dtype) -> Any:
    return b.cast(b.index(x), dtype)


def _is_number(scale: Any) -> bool:
    """Not one that changes from call to call, which is positive, as the size that it gives is."""
    return isinstance(scale, (int, float))


def _part(b: Any, scale: Any, dtype: torch.dtype) -> Any:
    """1 / scale, rounded to `dtype` after the division."""
    if _is_number(scale):
        return b.const(1 / scale, dtype)
    return b.cast(b.div(b.const(1.0, torch.float64), b.cast(scale, torch.float64)), dtype)


# ---- the nearest neighbour


class _Nearest(_Resampled):
    @classmethod
    def source(cls, b, index, load, x, output_size, *scales):
        lead, places = cls.split(index)
        scales = scales or (None,) * cls.rank
        rows = zip(places, cls.split(x.type.shape)[1], output_size, scales)
        return load(x, (*lead, *(cls.neighbour(b, *row) for row in rows)))

    @classmethod
    def neighbour(cls, b, place, size, new, scale):
        if _is_number(scale) and float(scale).is_integer():
            return sym_min(place // int(scale), size - 1)
        step = b.div(_real(b, size, torch.float32), _real(b, new, torch.float32))
        if scale is not None:
            step = _part(b, scale, torch.float32)
        source = b.trunc(b.mul(_real(b, place, torch.float32), step))
        found = b.minimum(b.cast(source, torch.int64), b.index(size - 1))
        # in images the number of steps, if it is 1 or 2, counts before the scale
        for steps in (2, 1) if cls.rank == 2 else ():
            whole = b.eq(b.index(new), b.index(size * steps))
            found = b.where(whole, b.index(place // steps), found)
        return b.indirect(found, inside=True)

    @classmethod
    def samples(cls):
        (x, *others), rank = cls.images(), cls.rank
        calls = [(x, [8, 3, 7][:rank]), *((last, [10, 4, 3][:rank]) for last in others)]
        for scales in ((2.0, 2.0, 2.0), (1.5, 1.2, 2.1)):
            size = [int(n * s) for n, s in zip(x.shape[2:], scales)]
            calls.append((x, size, *scales[:rank]))  # type: ignore
        return [(call, {}) for call in calls]


class _NearestExact(_Nearest):
    """The centre of an element decides, not its start."""

    @staticmethod
    def neighbour(b, place, size, new, scale):
        if _is_number(scale) and float(scale).is_integer():
            return sym_min(place // int(scale), size - 1)
        centre = _centre(b, place, _step(b, size, new, scale, torch.float32))
        source = b.cast(b.floor(b.add(centre, 0.5)), torch.int64)
        return b.indirect(b.minimum(source, b.index(size - 1)), inside=True)


# ---- interpolation


def _step(b: Any, size: Size, new: Size, scale: Any, dtype: torch.dtype) -> Any:
    """How far apart the elements of the result lie in the input."""
    if scale is not None and not (_is_number(scale) and scale <= 0):
        return _part(b, scale, dtype)
    return b.div(_real(b, size, dtype), _real(b, new, dtype))


def _centre(b: Any, place: Size, step: Any) -> Any:
    return b.sub(b.mul(step, b.add(_real(b, place, step.dtype), 0.5)), 0.5)


def _corner_step(b: Any, size: Size, new: Size, dtype: torch.dtype) -> Any:
    """The distance where the outermost elements lie on those of the input."""
    steps = b.div(_real(b, size - 1, dtype), _real(b, new - 1, dtype))
    return b.where(b.gt(b.index(new), 1), steps, 0.0)


class _Interpolated(_Resampled):
    """A weighted sum of neighbours along each dimension, the last first.  `copies`: where nothing
    is resized the scale does not count."""

    copies = True

    @classmethod
    def left_to_aten(cls, x, *args):
        """On the CPU ATen computes half types in steps of their own precision."""
        dtype = x.type.dtype
        half = dtype in WIDER and x.type.device.type == "cpu"
        return half or not dtype.is_floating_point

    @classmethod
    def source(cls, b, index, load, x, output_size, align_corners, *scales):
        lead, places = cls.split(index)
        dtype = torch.float64 if x.type.dtype is torch.float64 else torch.float32
        scales = scales or (None,) * cls.rank
        choices = []
        for place, size, new, scale in zip(places, cls.split(x.type.shape)[1], output_size, scales):
            if align_corners:
                step = _corner_step(b, size, new, dtype)
                at = b.mul(step, _real(b, place, dtype))
            else:
                at = _centre(b, place, _step(b, size, new, scale, dtype))
            if scale is not None and cls.copies:
                same = b.eq(b.index(new), b.index(size))
                at = b.where(same, _real(b, place, dtype), at)
            choices.append(cls.neighbours(b, at, size))
        return cls.combined(b, load, x, lead, choices)

    @classmethod
    def combined(cls, b, load, x: Value, at: tuple, choices: list) -> Any:
        """The sum over the first dimension's neighbours of the sums over the others."""
        if not choices:
            return load(x, at)
        total = None
        for place, weight in choices[0]:
            part = b.mul(cls.combined(b, load, x, (*at, place), choices[1:]), weight)
            total = part if total is None else b.add(total, part)
        return total

    @classmethod
    def samples(cls):
        (x, *others), rank = cls.images(), cls.rank
        calls = [(x, [8, 3, 7][:rank], True), (x, [1, 4, 9][:rank], False)]
        calls += [(last, [3, 10, 4][:rank], False) for last in others]
        scales = (1.5, 1.2, 2.1)[:rank]
        size = [int(n * s) for n, s in zip(x.shape[2:], scales)]
        return [(call, {}) for call in (*calls, (x, size, False, *scales))]


class _Linear(_Interpolated):
    @staticmethod
    def neighbours(b, at, size):
        at = b.maximum(at, 0.0)
        low = b.minimum(b.cast(at, torch.int64), b.index(size - 1))
        high = b.minimum(b.add(low, 1), b.index(size - 1))
        part = b.minimum(b.maximum(b.sub(at, b.cast(low, at.dtype)), 0.0), 1.0)
        rows = (low, b.sub(1.0, part)), (high, part)
        return [(b.indirect(place, inside=True), weight) for place, weight in rows]


class _Cubic(_Interpolated):
    copies = False

    @staticmethod
    def neighbours(b, at, size):
        low = b.floor(at)
        part = b.sub(at, low)
        rest = b.sub(1.0, part)
        distances = (b.add(part, 1.0), part, rest, b.add(rest, 1.0))
        weights = [piece(b, x) for piece, x in zip((_far, _near, _near, _far), distances)]
        rows = []
        for shift, weight in zip((-1, 0, 1, 2), weights):
            place = b.add(b.cast(low, torch.int64), shift)
            place = b.minimum(b.maximum(place, 0), b.index(size - 1))
            rows.append((b.indirect(place, inside=True), weight))
        return rows


def _near(b, x):
    """((a + 2) x - (a + 3)) x^2 + 1 for |x| <= 1"""
    return b.add(b.mul(b.mul(b.sub(b.mul(x, CUBIC + 2), CUBIC + 3), x), x), 1.0)


def _far(b, x):
    """((a x - 5 a) x + 8 a) x - 4 a for 1 < |x| <= 2"""
    inner = b.add(b.mul(b.sub(b.mul(x, CUBIC), 5 * CUBIC), x), 8 * CUBIC)
    return b.sub(b.mul(inner, x), 4 * CUBIC)


_BLOCKS = (
    *((f"aten.upsample_nearest{rank}d", _Nearest, rank) for rank in (1, 2, 3)),
    *((f"aten._upsample_nearest_exact{rank}d", _NearestExact, rank) for rank in (1, 2, 3)),
    ("aten.upsample_linear1d", _Linear, 1),
    ("aten.upsample_bilinear2d", _Linear, 2),
    ("aten.upsample_trilinear3d", _Linear, 3),
    ("aten.upsample_bicubic2d", _Cubic, 2),
)
for _name, _base, _rank in _BLOCKS:
    _block = type(_base.__name__[1:], (_base,), {"rank": _rank, "__doc__": _base.__doc__})
    op(f"{_name}.default", family="index")(_block)


@op(
    "aten.upsample_nearest2d_backward.default",
    "aten.upsample_bilinear2d_backward.default",
    "aten.upsample_bicubic2d_backward.default",
    family="extern",
)
class UpsampleBackward:
    def type(env, grad, output_size, input_size, *args):
        return image(env, grad, input_size)
