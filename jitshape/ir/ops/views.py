"""Views: ops whose result shares the memory of the first argument.

`index(b, index, x, *args)` maps an index of the output to one of `x`, both as tuples of Size.
Splits and unbind do not appear: the trace records their parts as slices and selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import fresh, see, view, wrap_dim
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import same, view_strides
from jitshape.ir.symint import IntExpr, Size, sym_max, sym_min
from jitshape.ir.types import TensorType, numel

LAST = 2**63 - 1  # the end of a slice without one


# ---- other shapes


def infer_shape(env: Any, shape: Sequence[Size], total: Size) -> tuple[Size, ...]:
    """`shape` with -1 replaced so that it holds `total` elements."""
    sizes = list(shape)
    if -1 in sizes:
        place = sizes.index(-1)
        rest: Size = 1
        for size in sizes[:place] + sizes[place + 1 :]:
            rest = rest * size
        sizes[place] = _quotient(env, total, rest, shape)
    elif not same(numel(tuple(sizes)), total) and not env.equal(numel(tuple(sizes)), total):
        raise _invalid(shape, total)
    return tuple(sizes)


def _quotient(env: Any, total: Size, rest: Size, shape: Sequence[Size]) -> Size:
    expr = total if type(total) is IntExpr else rest
    if type(expr) is not IntExpr:
        if not rest or total % rest:  # type: ignore[operator]
            raise _invalid(shape, total)
        return total // rest
    exact = expr.algebra.exact_quotient(total, rest)
    if exact is not None:
        return exact
    if not env.equal(env.mod(total, rest), 0):
        raise _invalid(shape, total)
    return env.floordiv(total, rest)


def _invalid(shape: Sequence[Size], total: Size) -> RuntimeError:
    return RuntimeError(f"shape '{list(shape)}' is invalid for input of size {total}")


def reindex(index: Sequence[Size], shape: Sequence[Size], new: Sequence[Size]) -> tuple[Size, ...]:
    """The index into `new` of the element at `index` of `shape`, both row-major.  Dimensions
    that the two have in common at the front and the back stay apart."""
    front = 0
    while front < min(len(shape), len(new)) and same(shape[front], new[front]):
        front += 1
    back = 0
    limit = min(len(shape), len(new)) - front
    while back < limit and same(shape[-1 - back], new[-1 - back]):
        back += 1
    flat: Size = 0
    for place in range(front, len(shape) - back):
        flat = flat * shape[place] + index[place]
    middle: list[Size] = []
    for place in range(len(new) - back - 1, front - 1, -1):
        if place == front:
            middle.append(flat)
        elif type(new[place]) is int and new[place] == 1:
            middle.append(0)
        else:
            middle.append(flat % new[place])
            flat = flat // new[place]
    tail = tuple(index[len(shape) - back :])
    return (*index[:front], *reversed(middle), *tail)


@view("aten.view.default")
class ViewOp:
    @staticmethod
    def type(env, x, size):
        shape = infer_shape(env, size, numel(x.type.shape))
        strides = view_strides(env, x.type.shape, x.type.strides, shape)
        if strides is None:
            strides = view_strides(env, x.type.shape, x.type.strides, shape, guard=True)
        if strides is None:
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride (at least one "
                "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
            )
        return see(x, shape, strides)

    @staticmethod
    def index(b, index, x, size):
        shape = infer_shape(None, size, numel(x.type.shape)) if -1 in size else tuple(size)
        return reindex(index, shape, x.type.shape)

    def samples():
        x = torch.randn(4, 6)
        return [((x, [24]), {}), ((x, [4, 2, 3]), {}), ((x.t(), [2, 3, 4]), {}), ((x, [-1, 3]), {})]


@view("aten._unsafe_view.default")
class UnsafeView(ViewOp):
    """A view that autograd takes for a new tensor."""

    def samples():
        return [((torch.randn(4, 6), [2, 12]), {})]


@view("aten._reshape_alias.default")
class ReshapeAlias(ViewOp):
    @staticmethod
    def type(env, x, size, stride):
        return see(x, size, stride)

    @staticmethod
    def index(b, index, x, size, stride):
        return reindex(index, tuple(size), x.type.shape)

    def samples():
        return [((torch.randn(4, 6), [24], [1]), {})]


@view("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default")
class Alias:
    def type(env, x):
        return x.type

    def index(b, index, x):
        return index

    def samples():
        return [((torch.randn(3, 4),), {})]


# ---- order of dimensions


def _permuted(x: Value, order: Sequence[int]) -> TensorType:
    type_ = x.type
    return see(x, [type_.shape[d] for d in order], [type_.strides[d] for d in order])


def _unpermuted(index: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    source: list[Size] = [0] * len(order)
    for place, dim in enumerate(order):
        source[dim] = index[place]
    return tuple(source)


def _swap(rank: int, a: int, b: int) -> list[int]:
    order = list(range(rank))
    if rank:
        a, b = wrap_dim(a, rank), wrap_dim(b, rank)
        order[a], order[b] = order[b], order[a]
    return order


@view("aten.permute.default")
class Permute:
    def type(env, x, dims):
        order = [wrap_dim(d, x.type.ndim) for d in dims]
        if sorted(order) != list(range(x.type.ndim)):
            raise RuntimeError(
                f"permute(sparse_coo): number of dimensions in the tensor input does not match "
                f"the length of the desired ordering of dimensions i.e. input.dim() = "
                f"{x.type.ndim} is not equal to len(dims) = {len(dims)}"
            )
        return _permuted(x, order)

    def index(b, index, x, dims):
        return _unpermuted(index, [d % len(dims) for d in dims])

    def samples():
        return [((torch.randn(2, 3, 4), [2, 0, -2]), {})]


@view("aten.transpose.int")
class Transpose:
    def type(env, x, dim0, dim1):
        return _permuted(x, _swap(x.type.ndim, dim0, dim1))

    def index(b, index, x, dim0, dim1):
        return _unpermuted(index, _swap(len(index), dim0, dim1))

    def samples():
        return [((torch.randn(2, 3, 4), 0, -1), {}), ((torch.randn(()), 0, 0), {})]


@view("aten.t.default")
class T:
    def type(env, x):
        if x.type.ndim > 2:
            raise RuntimeError(
                f"t() expects a tensor with <= 2 dimensions, but self is {x.type.ndim}D"
            )
        return _permuted(x, range(x.type.ndim)[::-1])

    def index(b, index, x):
        return tuple(reversed(index))

    def samples():
        return [((torch.randn(2, 3),), {}), ((torch.randn(3),), {})]


# ---- size 1


@view("aten.expand.default")
class Expand:
    def type(env, x, size, implicit=False):
        old = x.type
        extra = len(size) - old.ndim
        if extra < 0:
            raise RuntimeError(
                f"expand({_short(old)}, size={list(size)}): the number of sizes provided "
                f"({len(size)}) must be greater or equal to the number of dimensions in the "
                f"tensor ({old.ndim})"
            )
        shape: list[Size] = list(size[:extra])
        strides: list[Size] = [0] * extra
        for wanted, own, stride in zip(size[extra:], old.shape, old.strides):
            if (type(wanted) is int and wanted == -1) or same(wanted, own):
                shape.append(own)
                strides.append(stride)
                continue
            common = env.broadcast(own, wanted)
            if common is None or env.static(compare("eq", common, wanted)) is not True:
                raise RuntimeError(
                    f"The expanded size of the tensor ({wanted}) must match the existing size "
                    f"({own}) at non-singleton dimension {len(shape)}.  Target sizes: "
                    f"{list(size)}.  Tensor sizes: {list(old.shape)}"
                )
            stretched = env.static(compare("eq", own, 1)) is True
            shape.append(wanted)
            strides.append(0 if stretched else stride)
        return see(x, shape, strides)

    def index(b, index, x, size, implicit=False):
        tail = index[len(index) - x.type.ndim :]
        return tuple(0 if type(s) is int and s == 1 else i for i, s in zip(tail, x.type.shape))

    def samples():
        x = torch.randn(3, 1, 4)
        return [((x, [3, 5, 4]), {}), ((x, [2, 3, 5, -1]), {}), ((torch.randn(()), [2, 3]), {})]


def _short(type_: TensorType) -> str:
    return f"torch.{str(type_.dtype)[6:]}{list(type_.shape)}"


@view("aten.unsqueeze.default")
class Unsqueeze:
    def type(env, x, dim):
        old = x.type
        dim = wrap_dim(dim, old.ndim + 1)
        stride = old.shape[dim] * old.strides[dim] if dim < old.ndim else 1
        shape = (*old.shape[:dim], 1, *old.shape[dim:])
        return see(x, shape, (*old.strides[:dim], stride, *old.strides[dim:]))

    def index(b, index, x, dim):
        dim %= len(index)
        return (*index[:dim], *index[dim + 1 :])

    def samples():
        return [((torch.randn(2, 3), d), {}) for d in (0, 1, -1)]


class _Squeeze:
    """Whether a dimension has size 1 decides the rank of the result: a guard."""

    def type(env, x, dims=None):
        old = x.type
        named = _named_dims(old.ndim, dims)
        keep = [
            d
            for d, size in enumerate(old.shape)
            if d not in named or not env.evaluate(compare("eq", size, 1))
        ]
        return see(x, [old.shape[d] for d in keep], [old.strides[d] for d in keep])

    def index(b, index, x, dims=None):
        named = _named_dims(x.type.ndim, dims)
        left = list(index)
        ones = x.type.ndim - len(index)
        source: list[Size] = []
        for dim, size in enumerate(x.type.shape):
            one = ones and dim in named and type(size) is int and size == 1
            ones -= bool(one)
            source.append(0 if one else left.pop(0))
        return tuple(source)


@view("aten.squeeze.default")
class Squeeze(_Squeeze):
    def samples():
        return [((torch.randn(1, 3, 1, 4),), {})]


@view("aten.squeeze.dim")
class SqueezeDim(_Squeeze):
    def samples():
        return [((torch.randn(1, 3, 1, 4), d), {}) for d in (0, 1, -2)]


@view("aten.squeeze.dims")
class SqueezeDims(_Squeeze):
    def samples():
        return [((torch.randn(1, 3, 1, 4), [0, 2]), {}), ((torch.randn(1, 3), [0, 1]), {})]


def _named_dims(rank: int, dims: Any) -> set[int]:
    if dims is None:
        return set(range(rank))
    dims = [dims] if isinstance(dims, int) else dims
    return {wrap_dim(d, rank) for d in dims} if rank else set()


# ---- parts


def clamp_index(env: Any, index: Size, size: Size) -> Size:
    """A slice bound as Python counts it: from the front, within [0, size]."""
    if env.evaluate(compare("lt", index, 0)):
        index = index + size
        if env.evaluate(compare("lt", index, 0)):
            return 0
    if env.actual(index) is None or env.actual(size) is None:
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


@view("aten.slice.Tensor")
class Slice:
    def canonical(env, x, dim=0, start=None, end=None, step=1):
        """Bounds counted from the front and within the tensor."""
        dim = wrap_dim(dim, x.type.ndim)
        first, length = slice_range(env, x.type.shape[dim], start, end)
        return (x, dim, first, first + length, step), {}

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
        source[dim] = source[dim] * step + (start or 0)
        return tuple(source)

    def samples():
        x = torch.randn(6, 5)
        return [((x, 0, 1, 4), {}), ((x, 1, -3, LAST, 2), {}), ((x, 0, 2, 100), {})]


@view("aten.select.int")
class Select:
    def canonical(env, x, dim, index):
        dim = wrap_dim(dim, x.type.ndim)
        size = x.type.shape[dim]
        if env.evaluate(compare("lt", index, 0)):
            index = index + size
        return (x, dim, index), {}

    def type(env, x, dim, index):
        old = x.type
        dim = wrap_dim(dim, old.ndim)
        size = old.shape[dim]
        place = index + size if env.evaluate(compare("lt", index, 0)) else index
        if not (_holds(env, "ge", place, 0) and _holds(env, "lt", place, size)):
            raise IndexError(
                f"select(): index {index} out of range for tensor of size {list(old.shape)} "
                f"at dimension {dim}"
            )
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
        stride = strides[dim]
        if not _holds(env, "le", size, shape[dim]):
            raise RuntimeError(
                f"maximum size for tensor at dimension {dim} is {shape[dim]} but size is {size}"
            )
        shape[dim] = (shape[dim] - size) // step + 1
        strides[dim] = stride * step
        return see(x, [*shape, size], [*strides, stride])

    def index(b, index, x, dimension, size, step):
        dim = dimension % x.type.ndim
        source = list(index[:-1])
        source[dim] = source[dim] * step + index[-1]
        return tuple(source)

    def samples():
        return [((torch.randn(3, 7), 1, 3, 2), {})]


# ---- raw memory


@view("aten.as_strided.default")
class AsStrided:
    def type(env, x, size, stride, storage_offset=None):
        return see(x, size, stride, storage_offset)

    def samples():
        return [((torch.randn(4, 6), [3, 2], [6, 2], 1), {})]


@view("aten.view.dtype")
class ViewDtype:
    """The same bytes as another dtype; the last dimension grows or shrinks with its size."""

    def type(env, x, dtype):
        old = x.type
        before, after = old.dtype.itemsize, dtype.itemsize
        shape, strides, offset = list(old.shape), list(old.strides), old.offset
        if before > after:
            ratio = before // after
            strides = [s * ratio for s in strides[:-1]] + [1]
            shape[-1], offset = shape[-1] * ratio, offset * ratio
        elif after > before:
            ratio = after // before
            if not _holds(env, "eq", shape[-1] % ratio, 0):
                raise RuntimeError(
                    f"self.size(-1) must be divisible by {ratio} to view {old.dtype} as {dtype}"
                )
            strides = [s // ratio for s in strides[:-1]] + [1]
            shape[-1], offset = shape[-1] // ratio, offset // ratio
        return TensorType(tuple(shape), tuple(strides), dtype, old.device, offset)

    def samples():
        x = torch.randn(3, 4)
        return [((x, torch.int32), {}), ((x, torch.int16), {}), ((x, torch.float64), {})]


@view("aten.view_as_real.default")
class ViewAsReal:
    def type(env, x):
        old = x.type
        strides = tuple(s * 2 for s in old.strides)
        dtype = old.dtype.to_real()
        return TensorType((*old.shape, 2), (*strides, 1), dtype, old.device, old.offset * 2)

    def samples():
        return [((torch.randn(3, 4, dtype=torch.complex64),), {})]


@view("aten.view_as_complex.default")
class ViewAsComplex:
    def type(env, x):
        old = x.type
        strides = tuple(s // 2 for s in old.strides[:-1])
        dtype = old.dtype.to_complex()
        return TensorType(old.shape[:-1], strides, dtype, old.device, old.offset // 2)

    def samples():
        return [((torch.randn(3, 4, 2),), {})]


# ---- gradients of parts


def _zeros_like_input(env, grad, shape):
    return fresh(shape, grad.type.dtype, grad.type.device)


@op("aten.slice_backward.default", family="index")
class SliceBackward:
    """Zeros of the slice's source with the gradient written into the slice."""

    def type(env, grad, input_sizes, dim, start, end, step):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3, 4), [6, 4], 0, 1, 4, 1), {})]


@op("aten.select_backward.default", family="index")
class SelectBackward:
    def type(env, grad, input_sizes, dim, index):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3, 4), [3, 6, 4], 1, 2), {})]


@op("aten.diagonal_backward.default", family="index")
class DiagonalBackward:
    def type(env, grad, input_sizes, offset, dim1, dim2):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3), [3, 4], 0, 0, 1), {})]


@op("aten.unfold_backward.default", family="extern")
class UnfoldBackward:
    def type(env, grad, input_sizes, dim, size, step):
        return _zeros_like_input(env, grad, input_sizes)

    def samples():
        return [((torch.randn(3, 3, 3), [3, 7], 1, 3, 2), {})]
