"""Views of a part of a tensor (slice, select, diagonal, unfold), and their gradients: zeros of the
whole with the gradient written into the part.

`index(b, index, x, *args)` maps an index of the output to one of `x`, both as tuples of Size.
Splits and unbind do not appear: the trace records their parts as slices and selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.ops.families import fresh, see, view, wrap_dim
from jitshape.ir.ops.registry import op
from jitshape.ir.symint import Size, sym_max, sym_min

LAST = 2**63 - 1  # the end of a slice without one


def clamp_index(env: Any, index: Size, size: Size) -> Size:
    """A slice bound as Python counts it: from the front, within [0, size]."""
    if env.actual(index) is None:
        if env.likely(compare("ge", index, 0), "a slice"):
            return sym_min(index, size)
        near = sym_min(sym_max(index, -size), size)
        return near - size * (near // (size + 1))  # the quotient is -1 for what is negative
    if env.evaluate(compare("lt", index, 0)):
        index = index + size
        if env.actual(size) is None:
            return sym_max(index, 0)
        if env.evaluate(compare("lt", index, 0)):
            return 0
    if env.actual(size) is None:
        return sym_min(index, size)
    return index if env.evaluate(compare("le", index, size)) else size


def slice_range(env: Any, size: Size, start: Any, end: Any) -> tuple[Size, Size]:
    """(start, length before stepping) of a slice of a dimension of `size`."""
    if start is None or (type(start) is int and start == 0):
        first: Size = 0
    else:
        first = clamp_index(env, start, size)
    if end is None or (type(end) is int and end >= LAST):
        return first, size - first
    last = clamp_index(env, end, size)
    if type(first) is int and first == 0:
        return 0, last
    if env.actual(first) is None or env.actual(last) is None:
        return first, sym_max(last - first, 0)
    return first, (last - first if env.evaluate(compare("ge", last, first)) else 0)


def sliced(env: Any, shape: Sequence[Size], dim: int, start: Any, end: Any) -> tuple:
    """(dim, start, end) of a slice of a tensor of `shape`: counted from the front, within it."""
    dim = wrap_dim(dim, len(shape))
    first, length = slice_range(env, shape[dim], start, end)
    return dim, first, first + length


def selected(env: Any, shape: Sequence[Size], dim: int, index: Size) -> tuple:
    """(dim, index) of a selection from a tensor of `shape`, counted from the front, within it."""
    dim = wrap_dim(dim, len(shape))
    size = shape[dim]
    place = _place(env, index, size)
    if not (_holds(env, "ge", place, 0) and _holds(env, "lt", place, size)):
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(shape)} "
            f"at dimension {dim}"
        )
    return dim, place


@view("aten.slice.Tensor")
class Slice:
    def canonical(env, x, dim=0, start=None, end=None, step=1):
        return (x, *sliced(env, x.type.shape, dim, start, end), step), {}

    @staticmethod
    def type(env, x, dim=0, start=None, end=None, step=1):
        old = x.type
        dim = wrap_dim(dim, old.ndim)
        first, length = slice_range(env, old.shape[dim], start, end)
        shape, strides = list(old.shape), list(old.strides)
        shape[dim] = length if step == 1 else (length + step - 1) // step
        strides[dim] = strides[dim] * step
        return see(x, shape, strides, old.offset + first * old.strides[dim])

    def index(b, index, x, dim=0, start=None, end=None, step=1):
        dim %= len(index)
        source = list(index)
        source[dim] = source[dim] * step + (0 if start is None else start)
        return tuple(source)

    def samples():
        x = torch.randn(6, 5)
        return [((x, 0, 1, 4), {}), ((x, 1, -3, LAST, 2), {}), ((x, 0, 2, 100), {})]


@view("aten.select.int")
class Select:
    def canonical(env, x, dim, index):
        return (x, *selected(env, x.type.shape, dim, index)), {}

    def type(env, x, dim, index):
        old = x.type
        dim, place = selected(env, old.shape, dim, index)
        drop = lambda row: row[:dim] + row[dim + 1 :]  # noqa: E731
        return see(x, drop(old.shape), drop(old.strides), old.offset + place * old.strides[dim])

    def index(b, index, x, dim, place):
        dim %= x.type.ndim
        if type(place) is int and place < 0:
            place = place + x.type.shape[dim]
        return (*index[:dim], place, *index[dim:])

    def samples():
        x = torch.randn(4, 5)
        return [((x, 0, 1), {}), ((x, -1, -2), {})]


def _place(env: Any, index: Size, size: Size) -> Size:
    """An index counted from the front."""
    if env.actual(index) is not None:
        return index + size if env.evaluate(compare("lt", index, 0)) else index
    if env.likely(compare("ge", index, 0), "an index"):
        return index
    inside = env.assume(compare("ge", index, -size)) and env.assume(compare("lt", index, size))
    return env.mod(index, size) if inside else index


def _holds(env: Any, op_: str, a: Size, b: Size) -> bool:
    """A condition of the program; where it is known only at run time, an assert."""
    return env.assume(compare(op_, a, b))


@view("aten.diagonal.default")
class Diagonal:
    def type(env, x, offset=0, dim1=0, dim2=1):
        old = x.type
        d1, d2 = wrap_dim(dim1, old.ndim), wrap_dim(dim2, old.ndim)
        rows, columns = old.shape[d1], old.shape[d2]
        start = old.offset
        if offset >= 0:
            columns = columns - offset
            start = start + offset * old.strides[d2]
        else:
            rows = rows + offset
            start = start - offset * old.strides[d1]
        length = sym_max(sym_min(rows, columns), 0)
        rest = [d for d in range(old.ndim) if d not in (d1, d2)]
        shape = [old.shape[d] for d in rest] + [length]
        strides = [old.strides[d] for d in rest] + [old.strides[d1] + old.strides[d2]]
        return see(x, shape, strides, start)

    def index(b, index, x, offset=0, dim1=0, dim2=1):
        rank = x.type.ndim
        d1, d2 = dim1 % rank, dim2 % rank
        rest = list(index[:-1])
        place = index[-1]
        at = {d1: place + max(-offset, 0), d2: place + max(offset, 0)}
        return tuple(at[d] if d in at else rest.pop(0) for d in range(rank))

    def samples():
        x = torch.randn(3, 5, 4)
        return [((x,), {}), ((x, 1, 2, 0), {}), ((x, -1, 0, 1), {})]


@view("aten.unfold.default")
class Unfold:
    def type(env, x, dimension, size, step):
        old = x.type
        dim = wrap_dim(dimension, old.ndim)
        shape, strides = list(old.shape), list(old.strides)
        most, stride = (shape[dim], strides[dim]) if shape else (1, 1)
        if not _holds(env, "le", size, most):
            raise RuntimeError(
                f"maximum size for tensor at dimension {dim} is {most} but size is {size}"
            )
        if not shape:
            return see(x, [size], [1])
        shape[dim] = (shape[dim] - size) // step + 1
        strides[dim] = stride * step
        return see(x, [*shape, size], [*strides, stride])

    def index(b, index, x, dimension, size, step):
        source = list(index[:-1])
        if not source:
            return ()
        dim = dimension % x.type.ndim
        source[dim] = source[dim] * step + index[-1]
        return tuple(source)

    def samples():
        return [((torch.randn(3, 7), 1, 3, 2), {}), ((torch.randn(()), 0, 1, 1), {})]


# ---- gradients of parts


def _zeros_like_input(env, grad, shape):
    return fresh(shape, grad.type.dtype, grad.type.device)


@op("aten.slice_backward.default", family="index")
class SliceBackward:
    """Zeros of the slice's source with the gradient written into the slice."""

    def canonical(env, grad, input_sizes, dim, start, end, step):
        return (grad, input_sizes, *sliced(env, input_sizes, dim, start, end), step), {}

    def type(env, grad, input_sizes, dim, start, end, step):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3, 4), [6, 4], 0, 1, 4, 1), {})]


@op("aten.select_backward.default", family="index")
class SelectBackward:
    def canonical(env, grad, input_sizes, dim, index):
        return (grad, input_sizes, *selected(env, input_sizes, dim, index)), {}

    def type(env, grad, input_sizes, dim, index):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3, 4), [3, 6, 4], 1, 2), {})]


@op("aten.unfold_backward.default", family="extern")
class UnfoldBackward:
    def type(env, grad, input_sizes, dim, size, step):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3, 3, 3), [3, 7], 1, 3, 2), {})]
