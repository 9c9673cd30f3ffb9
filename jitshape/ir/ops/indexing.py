"""Data movement: gathers, scatters, pads, and what an index tensor names.

Blocks of the index family whose elements can be named by an index have
`source(b, index, load, *args)`: the element at `index` of the output, where `load(x, index)` gives
an element of an argument.  The others are extern calls of ATen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import (
    fresh,
    index_op,
    like,
    preserved,
    require,
    require_shape,
    wrap_dim,
)
from jitshape.ir.ops.parts import selected, sliced
from jitshape.ir.ops.registry import OPS, op
from jitshape.ir.strides import (
    CHANNELS_LAST_ORDER,
    broadcast,
    broadcasts_to,
    dense,
    format_strides,
    iteration_order,
    row_major,
    suggested_format,
)
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType

# ---- rearranging


@index_op("aten.flip.default")
class Flip:
    def type(env, x, dims):
        return preserved(env, x)

    def source(b, index, load, x, dims):
        named = {d % x.type.ndim for d in dims}
        sizes = x.type.shape
        return load(x, tuple(sizes[d] - 1 - i if d in named else i for d, i in enumerate(index)))

    def samples():
        return [((torch.randn(3, 4).t(), [0]), {})]


@index_op("aten.roll.default")
class Roll:
    """Along dimensions it joins two slices, so that the layout is that of `cat`."""

    def type(env, x, shifts, dims=()):
        old = x.type
        format = suggested_format(old.shape, old.strides)
        if not dims or format is torch.contiguous_format:
            return like(x)
        strides = dense(old.shape, CHANNELS_LAST_ORDER[old.ndim])
        return TensorType(old.shape, strides, old.dtype, old.device)

    def samples():
        image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        rows = [(torch.randn(3, 4), [1], [0]), (torch.randn(3, 4), [2]), (image, [1], [2])]
        return [(row, {}) for row in rows]


@index_op("aten.repeat.default")
class Repeat:
    def type(env, x, repeats):
        extra = len(repeats) - x.type.ndim
        padded = (1,) * extra + x.type.shape
        return like(x, tuple(s * r for s, r in zip(padded, repeats)))

    def source(b, index, load, x, repeats):
        tail = index[len(index) - x.type.ndim :]
        return load(x, tuple(i % s for i, s in zip(tail, x.type.shape)))

    def samples():
        return [((torch.randn(3, 4), [2, 1, 3]), {})]


@index_op("aten.constant_pad_nd.default")
class ConstantPad:
    """`pad` names amounts from the last dimension on, before and after; negative ones crop."""

    stored = (2,)

    def type(env, x, pad, value=0):
        old = x.type
        shape = list(old.shape)
        for d in range(len(pad) // 2):
            shape[-1 - d] = shape[-1 - d] + pad[2 * d] + pad[2 * d + 1]
        format_ = suggested_format(old.shape, old.strides)
        strides = format_strides(env, tuple(shape), (), format_)
        return TensorType(tuple(shape), strides, old.dtype, old.device)

    def check(env, x, pad, value=0):
        for d, size in enumerate(reversed(x.type.shape[len(x.type.shape) - len(pad) // 2 :])):
            before, after = pad[2 * d], pad[2 * d + 1]
            text = "narrow(): length must be non-negative."
            require(env, compare("ge", size + before + after, 0), text)
            for crop in (before, after):
                if type(crop) is not int or crop < 0:
                    require(env, compare("ge", size + crop, 0), text)

    def source(b, index, load, x, pad, value=0):
        rank = x.type.ndim
        place, inside = list(index), []
        for d in range(len(pad) // 2):
            at = place[rank - 1 - d] = index[rank - 1 - d] - pad[2 * d]
            size = x.type.shape[rank - 1 - d]
            inside += [b.ge(b.index(at), 0), b.lt(b.index(at), b.index(size))]
        mask = inside[0]
        for more in inside[1:]:
            mask = b.and_(mask, more)
        element = load(x, tuple(place), mask)
        around = b.cast(b.cast(b.scalar(value), x.type.dtype), element.dtype)
        return b.where(mask, element, around)

    def samples():
        x = torch.randn(3, 4)
        return [((x, [1, 2]), {}), ((x, [0, -1, 2, 0], 1.5), {})]


# ---- by an index tensor


@index_op("aten.embedding.default")
class Embedding:
    def type(env, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
        return fresh(
            (*indices.type.shape, *weight.type.shape[1:]), weight.type.dtype, weight.type.device
        )

    def source(b, index, load, weight, indices, *args, **kwargs):
        rank = indices.type.ndim
        row = b.indirect(load(indices, index[:rank]))
        return load(weight, (row, *index[rank:]))

    def samples():
        return [((torch.randn(10, 4), torch.randint(10, (2, 3))), {})]


@op("aten.embedding_dense_backward.default", family="extern")
class EmbeddingDenseBackward:
    def type(env, grad, indices, num_weights, padding_idx, scale_grad_by_freq):
        return fresh((num_weights, grad.type.shape[-1]), grad.type.dtype, grad.type.device)

    def samples():
        return [((torch.randn(2, 3, 4), torch.randint(10, (2, 3)), 10, -1, False), {})]


@index_op("aten.index_select.default")
class IndexSelect:
    def type(env, x, dim, index):
        old = x.type
        if not old.ndim:
            return like(x)
        dim = wrap_dim(dim, old.ndim)
        length = index.type.shape[0] if index.type.ndim else 1
        return like(x, (*old.shape[:dim], length, *old.shape[dim + 1 :]))

    def source(b, place, load, x, dim, index):
        if not x.type.ndim:
            return load(x, ())
        dim %= x.type.ndim
        at = b.indirect(load(index, place[dim : dim + 1] if index.type.ndim else ()))
        return load(x, (*place[:dim], at, *place[dim + 1 :]))

    def samples():
        return [((torch.randn(5, 4), 0, torch.tensor([1, 3, 3])), {})]


@index_op("aten.gather.default")
class Gather:
    def check(env, x, dim, index, sparse_grad=False):
        own, wanted = x.type.shape or (1,), index.type.shape or (1,)
        if len(own) != len(wanted):
            raise RuntimeError(
                "Index tensor must have the same number of dimensions as input tensor"
            )
        dim = wrap_dim(dim, len(own))
        for d, (size, most) in enumerate(zip(wanted, own)):
            if d != dim and size is not most:
                require(env, compare("le", size, most), f"Size does not match at dimension {d}")

    def type(env, x, dim, index, sparse_grad=False):
        return fresh(index.type.shape, x.type.dtype, x.type.device)

    def source(b, place, load, x, dim, index, sparse_grad=False):
        if not place:
            return load(x, ())
        dim %= len(place)
        at = b.indirect(load(index, place))
        return load(x, (*place[:dim], at, *place[dim + 1 :]))

    def samples():
        return [((torch.randn(3, 5), 1, torch.randint(5, (3, 2))), {})]


class _Scatter:
    """A copy of `x`, some elements replaced or added to."""

    def type(env, x, *args, **kwargs):
        return like(x)


@op(
    "aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce",
    "aten.scatter_add.default", "aten.scatter_reduce.two", family="extern", base=_Scatter,
)  # fmt: skip
class Scatter:
    def samples():
        return []


@op("aten.index_add.default", "aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor",
    "aten.index_copy.default", family="extern", base=_Scatter)  # fmt: skip
class IndexAdd:
    def samples():
        return []


def expand_masks(env: Any, x: Value, indices: Sequence[Any]) -> list[Any]:
    """Shapes of the index tensors, a mask standing for one of unknown length per dimension."""
    shapes: list[Any] = []
    for index in indices:
        if index is None:
            shapes.append(None)
        elif index.type.dtype in (torch.bool, torch.uint8):
            count = env.unbacked()
            shapes += [(count,)] * index.type.ndim
        else:
            shapes.append(index.type.shape)
    return shapes


def indexed_shape(env: Any, x: Value, indices: Sequence[Any]) -> tuple[tuple[Size, ...], int]:
    """(shape of x[indices], where the dimensions of the indices stand in it)."""
    shapes = expand_masks(env, x, indices)
    used = [d for d, s in enumerate(shapes) if s is not None]
    if len(shapes) > x.type.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.type.ndim}")
    middle = broadcast(env, *(shapes[d] for d in used))
    rest = [s for d, s in enumerate(x.type.shape) if d >= len(shapes) or shapes[d] is None]
    together = used == list(range(used[0], used[-1] + 1))
    place = used[0] if together else 0
    return (*rest[:place], *middle, *rest[place:]), place


@index_op("aten.index.Tensor", "aten._unsafe_index.Tensor")
class Index:
    """The indexed dimensions are iterated over as one operand with strides; the result has
    TensorIterator's layout for it."""

    def type(env, x, indices):
        shape, place = indexed_shape(env, x, indices)
        old = x.type
        masks = any(i is not None and i.type.dtype in (torch.bool, torch.uint8) for i in indices)
        plain = [i for i in indices if i is not None]
        middle = len(shape) - (old.ndim - len(plain)) if not masks else 0
        strides = row_major(shape)
        if not masks:
            rest = [old.strides[d] for d in range(old.ndim)
                    if d >= len(indices) or indices[d] is None]  # fmt: skip
            source = (*rest[:place], *(0,) * middle, *rest[place:])
            operands = [source]
            for index in plain:
                own = index.type
                missing = middle - own.ndim
                inner = [0] * missing + [
                    0 if type(n) is int and n == 1 else s for n, s in zip(own.shape, own.strides)
                ]
                operands.append((*(0,) * place, *inner, *(0,) * (len(shape) - place - middle)))
            strides = dense(shape, iteration_order(env, shape, operands))
        return TensorType(shape, strides, old.dtype, old.device)

    def samples():
        x, i = torch.randn(5, 6, 4), torch.randint(5, (3, 2))
        return [((x, [i]), {}), ((x, [None, i]), {}), ((x, [i, None, torch.randint(4, (2,))]), {})]


@index_op("aten.index_put.default", "aten._unsafe_index_put.default")
class IndexPut:
    def check(env, x, indices, values, accumulate=False):
        if any(i is not None and i.type.dtype in (torch.bool, torch.uint8) for i in indices):
            return  # the call of ATen checks
        shape, _ = indexed_shape(env, x, indices)
        if not broadcasts_to(env, values.type.shape, shape):
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(values.type.shape)} cannot be "
                f"broadcast to indexing result of shape {list(shape)}"
            )

    def type(env, x, indices, values, accumulate=False):
        return preserved(env, x)

    def samples():
        x, i = torch.randn(5, 4), torch.tensor([0, 2])
        return [((x, [i], torch.randn(2, 4)), {}), ((x.t(), [i], torch.randn(5), True), {})]


@index_op("aten.masked_scatter.default")
class MaskedScatter:
    def type(env, x, mask, source):
        return like(x, broadcast(env, x.type.shape, mask.type.shape))

    def samples():
        return [((torch.randn(3, 4), torch.randn(3, 4) > 0, torch.randn(12)), {})]


# ---- writing into a view, as pure ops


class _IntoView:
    """A copy of `x` with `src` written into a view of it, given by the op `view`."""

    @classmethod
    def check(cls, env, x, src, *args, **kwargs):
        part = OPS[cls.view].type(env, x, *args, **kwargs)
        text = "expected src to have a size equal to the slice of self."
        require_shape(env, src.type.shape, part.shape, text)

    def type(env, x, src, *args, **kwargs):
        return preserved(env, x)


@index_op("aten.slice_scatter.default", base=_IntoView)
class SliceScatter:
    view = "aten.slice.Tensor"

    def canonical(env, x, src, dim=0, start=None, end=None, step=1):
        return (x, src, *sliced(env, x.type.shape, dim, start, end), step), {}

    def samples():
        return [((torch.randn(6, 4), torch.randn(2, 4), 0, 1, 5, 2), {})]


@index_op("aten.select_scatter.default", base=_IntoView)
class SelectScatter:
    view = "aten.select.int"

    def canonical(env, x, src, dim, index):
        return (x, src, *selected(env, x.type.shape, dim, index)), {}

    def samples():
        return [((torch.randn(6, 4), torch.randn(6), 1, 2), {})]


@index_op("aten.as_strided_scatter.default", base=_IntoView)
class AsStridedScatter:
    view = "aten.as_strided.default"

    def samples():
        return [((torch.randn(4, 4), torch.randn(4), [4], [5], 0), {})]


# ---- results of unknown length, order


@op("aten.nonzero.default", family="extern")
class Nonzero:
    """Column-major: the coordinates of one dimension lie together."""

    def type(env, x):
        shape = (env.unbacked(), x.type.ndim)
        return TensorType(shape, dense(shape, (0, 1)), torch.int64, x.type.device)


@op("aten.masked_select.default", family="extern")
class MaskedSelect:
    def type(env, x, mask):
        broadcast(env, x.type.shape, mask.type.shape)
        return fresh((env.unbacked(),), x.type.dtype, x.type.device)


@op("aten.sort.default", "aten.sort.stable", family="extern")
class Sort:
    def type(env, x, *args, **kwargs):
        types = preserved(env, x)
        return [types, TensorType(types.shape, types.strides, torch.int64, types.device)]

    def samples():
        return [((torch.randn(3, 4),), {})]


@op("aten.topk.default", family="extern")
class TopK:
    def type(env, x, k, dim=-1, largest=True, sorted=True):
        shape = list(x.type.shape)
        if shape:
            dim = wrap_dim(dim, len(shape))
            if not env.assume(compare("le", k, shape[dim])):
                raise RuntimeError("selected index k out of range")
            shape[dim] = k
        return [like(x, shape), like(x, shape, torch.int64)]

    def samples():
        return [((torch.randn(3, 6), 2), {})]
