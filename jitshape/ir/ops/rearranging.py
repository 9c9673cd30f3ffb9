"""Data movement by position: turning, shuffling, diagonals, reflections, windows as columns.

Blocks of the index family have `source(b, index, load, x, *args)`: the element at an index of the
result (see indexing.py).  Invariant: layouts as ATen's, which keeps channels-last where images are
shuffled or padded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.composing import finish, view
from jitshape.ir.ops.families import (
    fresh,
    index_op,
    like,
    preserved,
    promote,
    require,
    require_elements,
    require_shape,
    wrap_dim,
)
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import broadcast, format_strides, is_contiguous, suggested_format
from jitshape.ir.symint import Size, sym_max, sym_min
from jitshape.ir.types import TensorType, numel

MOST_JOINED = 16  # tensors of a block diagonal: each is a branch of every element


def image(env: Any, x: Value, shape: Sequence[Size], dtype: Any = None) -> TensorType:
    """A new tensor of another shape, in the memory format of `x`."""
    old = x.type
    strides = format_strides(env, tuple(shape), (), suggested_format(old.shape, old.strides))
    return TensorType(tuple(shape), strides, dtype or old.dtype, old.device)


def all_of(b: Any, conditions: Sequence[Any]) -> Any:
    """Whether all hold; there is at least one."""
    result = conditions[0]
    for condition in conditions[1:]:
        result = b.logical_and(result, condition)
    return result


def within(b: Any, at: Sequence[Size], sizes: Sequence[Size]) -> Any:
    """Whether a position lies in an extent."""
    bounds = [
        test
        for i, size in zip(at, sizes)
        for test in (b.ge(b.index(i), 0), b.lt(b.index(i), b.index(size)))
    ]
    return all_of(b, bounds)


def zero_unless(b: Any, condition: Any, value: Any) -> Any:
    return b.where(condition, value, b.cast(b.scalar(0), value.dtype))


# ---- turning and shuffling


@index_op("aten.rot90.default")
class Rot90:
    """Turned by right angles from the first of `dims` to the second.  The rows of a half turn keep
    their layout; a quarter is the transposed of what one flip gives."""

    def type(env, x, k=1, dims=(0, 1)):
        old = x.type
        first, second = (wrap_dim(d, old.ndim) for d in dims)
        if k % 4 == 0:
            return like(x)
        kept = preserved(env, x)
        if k % 2 == 0:
            return kept
        turned = list(range(old.ndim))
        turned[first], turned[second] = second, first
        shape, strides = (tuple(row[d] for d in turned) for row in (kept.shape, kept.strides))
        return TensorType(shape, strides, old.dtype, old.device)

    def source(b, index, load, x, k=1, dims=(0, 1)):
        first, second = (d % x.type.ndim for d in dims)
        at, (i, j) = list(index), (index[first], index[second])
        down, right = (x.type.shape[d] - 1 for d in (first, second))
        corners = {0: (i, j), 1: (j, right - i), 2: (down - i, right - j), 3: (down - j, i)}
        at[first], at[second] = corners[k % 4]
        return load(x, tuple(at))

    def samples():
        x = torch.randn(2, 3, 4)
        return [((x, k, [0, 2]), {}) for k in range(4)] + [((x.permute(1, 2, 0), 3, [1, -1]), {})]


class _Shuffled:
    """Images as (..., channels, height, width) of which each pixel has a square of others."""

    def samples():
        x = torch.randn(2, 8, 4, 6)
        return [((x, 2), {}), ((x.contiguous(memory_format=torch.channels_last), 2), {})]


@index_op("aten.pixel_shuffle.default")
class PixelShuffle(_Shuffled):
    def check(env, x, factor):
        text = "pixel_shuffle expects its input's 'channel' dimension to be divisible"
        channels = x.type.shape[-3]
        require(env, compare("eq", env.mod(channels, factor * factor), 0), text)

    def type(env, x, factor):
        *lead, channels, height, width = x.type.shape
        fewer = env.floordiv(channels, factor * factor)
        return image(env, x, (*lead, fewer, height * factor, width * factor))

    def source(b, index, load, x, factor):
        *lead, c, i, j = index
        channel = c * factor * factor + i % factor * factor + j % factor
        return load(x, (*lead, channel, i // factor, j // factor))


@index_op("aten.pixel_unshuffle.default")
class PixelUnshuffle(_Shuffled):
    def check(env, x, factor):
        for size in x.type.shape[-2:]:
            text = "pixel_unshuffle expects height and width to be divisible by downscale_factor"
            require(env, compare("eq", env.mod(size, factor), 0), text)

    def type(env, x, factor):
        *lead, channels, height, width = x.type.shape
        small = (env.floordiv(size, factor) for size in (height, width))
        return image(env, x, (*lead, channels * factor * factor, *small))

    def source(b, index, load, x, factor):
        *lead, c, i, j = index
        square = factor * factor
        down, right = c % square // factor, c % factor
        return load(x, (*lead, c // square, i * factor + down, j * factor + right))


@index_op("aten.channel_shuffle.default")
class ChannelShuffle(_Shuffled):
    def check(env, x, groups):
        text = "Number of groups to divide channels in must be positive"
        require(env, compare("ge", groups, 1), text)
        text = "Number of channels must be divisible by groups"
        require(env, compare("eq", env.mod(x.type.shape[1], groups), 0), text)

    def type(env, x, groups):
        return image(env, x, x.type.shape)

    def source(b, index, load, x, groups):
        n, c, *rest = index
        each = x.type.shape[1] // groups
        return load(x, (n, c % groups * each + c // groups, *rest))


# ---- diagonals


def _on_diagonal(b: Any, index: Any, offset: Size, dim1: int, dim2: int) -> tuple[Any, tuple]:
    """Whether `index` lies on a diagonal, and its index there: the place comes last."""
    d1, d2 = dim1 % len(index), dim2 % len(index)
    here = b.eq(b.index(index[d2] - index[d1]), b.index(offset))
    rest = tuple(i for d, i in enumerate(index) if d not in (d1, d2))
    return here, (*rest, sym_min(index[d1], index[d2]))


@index_op("aten.diag_embed.default")
class DiagEmbed:
    def type(env, x, offset=0, dim1=-2, dim2=-1):
        old, rank = x.type, x.type.ndim + 1
        d1, d2 = sorted((wrap_dim(dim1, rank), wrap_dim(dim2, rank)))
        side = old.shape[-1] + abs(offset)
        shape = list(old.shape[:-1])
        shape.insert(d1, side)
        shape.insert(d2, side)
        return like(x, shape)

    def source(b, index, load, x, offset=0, dim1=-2, dim2=-1):
        here, place = _on_diagonal(b, index, offset, dim1, dim2)
        return zero_unless(b, here, load(x, place, here))

    def samples():
        x = torch.randn(3, 4)
        return [((x,), {}), ((x, 1, 0, 2), {}), ((x, -2, 2, 1), {}), ((x[0],), {})]


@index_op("aten.diagonal_backward.default")
class DiagonalBackward:
    def type(env, grad, input_sizes, offset, dim1, dim2):
        return fresh(input_sizes, grad.type.dtype, grad.type.device)

    def source(b, index, load, grad, input_sizes, offset, dim1, dim2):
        here, place = _on_diagonal(b, index, offset, dim1, dim2)
        return zero_unless(b, here, load(grad, place, here))

    def samples():
        return [
            ((torch.randn(3), [3, 4], 0, 0, 1), {}),
            ((torch.randn(2, 3), [4, 2, 4], -1, 0, 2), {}),
        ]


@index_op("aten.diagonal_scatter.default")
class DiagonalScatter:
    def check(env, x, src, offset=0, dim1=0, dim2=1):
        from jitshape.ir.ops.parts import Diagonal

        part = Diagonal.type(env, x, offset, dim1, dim2)
        text = "expected src to have a size equal to the slice of self."
        require_shape(env, src.type.shape, part.shape, text)

    def type(env, x, src, offset=0, dim1=0, dim2=1):
        return preserved(env, x)

    def source(b, index, load, x, src, offset=0, dim1=0, dim2=1):
        here, place = _on_diagonal(b, index, offset, dim1, dim2)
        old = load(x, index)
        return b.where(here, b.cast(load(src, place, here), old.dtype), old)

    def samples():
        x = torch.randn(4, 4)
        return [((x, torch.randn(4)), {}), ((x.t(), torch.randn(3), -1), {})]


@index_op("aten.block_diag.default")
class BlockDiag:
    """Matrices along the diagonal of a matrix of zeros; a row is one, and so is a number."""

    def type(env, tensors):
        sides = [_as_matrix(t.type.shape) for t in tensors]
        shape = [sum(side[d] for side in sides) for d in range(2)]
        return fresh(shape, promote(tensors), tensors[0].type.device)

    @staticmethod
    def left_to_aten(tensors):
        return len(tensors) > MOST_JOINED

    def source(b, index, load, tensors):
        i, j = index
        total, top, left = b.const(0, promote(tensors)), 0, 0
        for part in tensors:
            sides = _as_matrix(part.type.shape)
            at = (i - top, j - left)
            inside = within(b, at, sides)
            place = at[2 - part.type.ndim :] if part.type.ndim else ()
            total = b.where(inside, b.cast(load(part, place, inside), total.dtype), total)
            top, left = top + sides[0], left + sides[1]
        return total

    def samples():
        return [(([torch.randn(2, 3), torch.randn(4), torch.tensor(1.0), torch.randn(3, 2)],), {})]


def _as_matrix(shape: Sequence[Size]) -> tuple[Size, Size]:
    rows, columns = (1, 1, *shape)[-2:]
    return rows, columns


# ---- pads that repeat what they surround


def _amounts(pad: Sequence[Size]) -> Iterator[tuple[int, Size, Size]]:
    """(dimension from the end, amount before, amount behind)."""
    for d in range(len(pad) // 2):
        yield -1 - d, pad[2 * d], pad[2 * d + 1]


class _Padded:
    """Negative amounts crop."""

    def type(env, x, pad):
        shape = list(x.type.shape)
        for d, before, behind in _amounts(pad):
            shape[d] = shape[d] + before + behind
        return image(env, x, shape)

    @classmethod
    def check(cls, env, x, pad):
        shape = x.type.shape
        rank = len(pad) // 2
        text = f"Expected an input with non-zero sizes but for the batch, got {list(shape)}"
        require_elements(env, shape[-rank - 1 :], text)
        for d, before, behind in _amounts(pad):
            cls.check_amounts(env, shape[d], before, behind)
            text = "input is too small: there is nothing left"
            require(env, compare("ge", shape[d] + before + behind, 1), text)

    @classmethod
    def source(cls, b, index, load, x, pad):
        at = list(index)
        for d, before, _ in _amounts(pad):
            at[d] = cls.place(index[d] - before, x.type.shape[d])
        return load(x, tuple(at))


class _Reflected(_Padded):
    @staticmethod
    def check_amounts(env, size, before, behind):
        text = "Argument #4: Padding size should be less than the corresponding input dimension"
        for amount in (before, behind):
            require(env, compare("lt", amount, size), text)

    @staticmethod
    def place(at, size):
        at = sym_max(at, -at)
        return sym_min(at, 2 * size - 2 - at)


class _Replicated(_Padded):
    @staticmethod
    def check_amounts(env, size, before, behind):
        pass

    @staticmethod
    def place(at, size):
        return sym_min(sym_max(at, 0), size - 1)


class _ReflectedBackward:
    """An element is the sum of its place and of those before and behind that mirror it."""

    def type(env, grad, x, pad):
        return image(env, x, x.type.shape)

    def source(b, index, load, grad, x, pad):
        choices = []
        for d, before, _ in reversed(list(_amounts(pad))):
            at, size, width = index[d], x.type.shape[d], grad.type.shape[d]
            mirrored = (before - at, before + 2 * (size - 1) - at)
            exists = [within(b, [place], [width]) for place in (at + before, *mirrored)]
            exists[1] = b.logical_and(exists[1], b.gt(b.index(at), 0))
            exists[2] = b.logical_and(exists[2], b.lt(b.index(at), b.index(size - 1)))
            choices.append(list(zip((at + before, *mirrored), exists)))
        total = None
        for row in itertools.product(*choices):
            inside = all_of(b, [condition for _, condition in row])
            at = (*index[: len(index) - len(row)], *(place for place, _ in row))
            share = zero_unless(b, inside, load(grad, at, inside))
            total = share if total is None else b.add(total, share)
        return total


def _pad_samples(rank: int) -> list:
    x = torch.randn(2, 3, 4, 5)
    last = x.contiguous(memory_format=torch.channels_last)
    return {
        1: [((x[0], [1, 2]), {}), ((x[0, :, :3], [-1, 2]), {})],
        2: [((x, [1, 2, 3, 0]), {}), ((last, [-1, 2, 2, 2]), {}), ((x[1], [0, 0, 1, 3]), {})],
        3: [((x, [1, 2, 3, 0, 1, 1]), {}), ((x[None], [0, 1, 1, -1, 1, 0]), {})],
    }[rank]


def _register_pads(rank: int) -> None:
    def backward() -> list:
        op = getattr(torch.ops.aten, f"reflection_pad{rank}d")
        rows = [row for row, _ in _pad_samples(rank)]
        return [((torch.randn_like(op(x, pad)), x, pad), {}) for x, pad in rows]

    for name, base, samples in (
        ("reflection_pad{}d", _Reflected, lambda: _pad_samples(rank)),
        ("replication_pad{}d", _Replicated, lambda: _pad_samples(rank)),
        ("reflection_pad{}d_backward", _ReflectedBackward, backward),
    ):
        block = type(base.__name__[1:], (), {"samples": staticmethod(samples)})
        index_op(f"aten.{name.format(rank)}.default", base=base)(block)


for _rank in (1, 2, 3):
    _register_pads(_rank)


# ---- elements by their number


@op("aten.take.default", family="composite")
class Take:
    """Of a tensor as one row; negative numbers count from its end."""

    def type(env, x, index):
        return fresh(index.type.shape, x.type.dtype, x.type.device)

    def decompose(g, node, x, index):
        if not is_contiguous(x.type.shape, x.type.strides):
            x = g.call("aten.clone", x, memory_format=torch.contiguous_format)
        row = view(g, x, [numel(x.type.shape)])
        return finish(g, node, g.call("aten.index.Tensor", row, [index]))

    def samples():
        index = torch.tensor([[0, -1], [5, 11]])
        return [((torch.randn(3, 4), index), {}), ((torch.randn(3, 4).t(), index.t()), {})]


@index_op("aten.linalg_cross.default")
class Cross:
    def check(env, x, y, dim=-1):
        text = f"linalg.cross: inputs dimension {dim} must have length 3."
        for t in (x, y):
            require(env, compare("eq", t.type.shape[wrap_dim(dim, t.type.ndim)], 3), text)

    def type(env, x, y, dim=-1):
        return fresh(broadcast(env, x.type.shape, y.type.shape), promote((x, y)), x.type.device)

    def source(b, index, load, x, y, dim=-1):
        dim %= len(index)

        def side(t: Value, turn: int) -> Any:
            at = (*index[:dim], (index[dim] + turn) % 3, *index[dim + 1 :])
            sizes = t.type.shape
            return load(t, tuple(0 if type(n) is int and n == 1 else i for i, n in zip(at, sizes)))

        def product(turn: int) -> Any:
            """In half types rounded before it is subtracted, where little may be left of it."""
            result = b.mul(side(x, turn), side(y, 3 - turn))
            return b.cast(b.cast(result, promote((x, y))), result.dtype)

        return b.sub(product(1), product(2))

    def samples():
        x = torch.randn(4, 3)
        return [((x, torch.randn(4, 3)), {}), ((x.t(), torch.randn(3, 1)), {"dim": 0})]


# ---- windows as columns


def _reach(kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How far a window goes along each dimension."""
    return [step * (k - 1) + 1 for k, step in zip(kernel, dilation)]


@op("aten.im2col.default", family="composite")
class Im2Col:
    """(batch, channels times elements of a window, windows)"""

    def check(env, x, kernel, dilation, padding, stride):
        shape = x.type.shape
        text = f"Expected non-zero sizes but for the batch, got {list(shape)}"
        require_elements(env, shape[-3:], text)
        for size, reach, pad in zip(shape[-2:], _reach(kernel, dilation), padding):
            text = "calculated shape of the array of sliding blocks is too small"
            require(env, compare("ge", size + 2 * pad, reach), text)

    def type(env, x, kernel, dilation, padding, stride):
        *lead, channels, height, width = x.type.shape
        count: Size = 1
        for size, reach, pad, step in zip(
            (height, width), _reach(kernel, dilation), padding, stride
        ):
            count = count * (env.floordiv(size + 2 * pad - reach, step) + 1)
        return like(x, (*lead, channels * math.prod(kernel), count))

    def decompose(g, node, x, kernel, dilation, padding, stride):
        if any(padding):
            amounts = [pad for pad in reversed(padding) for _ in range(2)]
            x = g.call("aten.constant_pad_nd", x, amounts)
        lead = x.type.ndim - 3
        for d, reach in enumerate(_reach(kernel, dilation)):  # the window's dimensions come last
            x = g.call("aten.unfold", x, lead + 1 + d, reach, stride[d])
            if dilation[d] != 1:
                x = g.call("aten.slice.Tensor", x, x.type.ndim - 1, 0, reach, dilation[d])
        order = (*range(lead + 1), lead + 3, lead + 4, lead + 1, lead + 2)
        x = g.call("aten.permute", x, list(order))
        x = g.call("aten.clone", x, memory_format=torch.contiguous_format)
        return view(g, x, node.outs[0].type.shape)

    def samples():
        x = torch.randn(2, 3, 5, 7)
        return [
            ((x, [2, 3], [1, 1], [0, 0], [1, 1]), {}),
            ((x[0], [2, 3], [2, 1], [1, 2], [2, 3]), {}),
        ]
