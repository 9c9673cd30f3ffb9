"""Views: ops whose result shares the memory of the first argument.

`index(b, index, x, *args)` maps an index of the output to one of `x`, both as tuples of Size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import require, require_shape, see, view, wrap_dim
from jitshape.ir.overlap import check_inside
from jitshape.ir.strides import same, view_strides
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import TensorType, numel

# ---- other shapes


def is_minus_one(env: Any, size: Size) -> bool:
    """Whether a size stands for one to be found, also where it is a number of the program."""
    if type(size) is int:
        return size == -1
    if env is None or size.algebra.bounds(size)[0] >= 0 or env.actual(size) is None:
        return False
    return env.evaluate(compare("eq", size, -1))


def infer_shape(env: Any, shape: Sequence[Size], total: Size) -> tuple[Size, ...]:
    """`shape` with -1 replaced so that it holds `total` elements."""
    sizes = [-1 if is_minus_one(env, size) else size for size in shape]
    if -1 in sizes:
        place = sizes.index(-1)
        rest: Size = 1
        for size in sizes[:place] + sizes[place + 1 :]:
            rest = rest * size
        sizes[place] = _quotient(env, total, rest, shape)
    elif not same(numel(tuple(sizes)), total) and not env.agree(numel(tuple(sizes)), total):
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
    if not env.assume(compare("ne", rest, 0)) or not env.agree(env.mod(total, rest), 0):
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


@view("jitshape.tracked.default", "jitshape.untracked.default")
class Tracked(Alias):
    """A view of what requires grad, which autograd saw made; or did not, so that it is a leaf."""

    def run(x):
        return x

    def samples():
        return []


class _Flipped:
    """A view whose elements are those of `x`, conjugated or negated.  Eager notes that in a bit
    of the tensor; here it is computed, and a write through it flips what is written."""

    def type(env, x):
        return x.type


@view("aten._conj.default", flip="conj")
class Conj(_Flipped):
    def run(x):
        return torch.conj_physical(x)

    def samples():
        return [((torch.randn(3, dtype=torch.complex64),), {})]


@view("aten._neg_view.default", flip="neg")
class NegView(_Flipped):
    def run(x):
        return torch.neg(x)

    def samples():
        return [((torch.randn(3),), {})]


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
            if is_minus_one(env, wanted) or same(wanted, own):
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


# ---- raw memory


@view("aten.as_strided.default")
class AsStrided:
    def check(env, x, size, stride, storage_offset=None):
        check_inside(env, x, see(x, size, stride, storage_offset))

    def type(env, x, size, stride, storage_offset=None):
        return see(x, size, stride, storage_offset)

    def samples():
        return [((torch.randn(4, 6), [3, 2], [6, 2], 1), {})]


@view("aten.view.dtype")
class ViewDtype:
    """The same bytes as another dtype; the last dimension grows or shrinks with its size."""

    def check(env, x, dtype):
        old, ratio = x.type, dtype.itemsize // x.type.dtype.itemsize
        if ratio > 1 and old.shape:
            for number in (old.offset, *old.strides[:-1]):
                text = f"self.stride must be divisible by {ratio} to view {old.dtype} as {dtype}"
                require(env, compare("eq", number % ratio, 0), text)

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
            if not env.assume(compare("eq", shape[-1] % ratio, 0)):
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
    def check(env, x):
        old = x.type
        if old.dtype not in (torch.float16, torch.float32, torch.float64):
            raise RuntimeError(
                "view_as_complex is only supported for half, float and double tensors, but got a "
                f"tensor of {old.dtype}"
            )
        if not old.ndim:
            raise RuntimeError("Input tensor must have one or more dimensions")
        require_shape(env, old.shape[-1:], [2], "Tensor must have a last dimension of size 2")
        require_shape(env, old.strides[-1:], [1], "Tensor must have a last dimension with stride 1")
        for number in (old.offset, *old.strides[:-1]):
            text = "Tensor must have a stride divisible by 2 for all but last dimension"
            require(env, compare("eq", number % 2, 0), text)

    def type(env, x):
        old = x.type
        strides = tuple(s // 2 for s in old.strides[:-1])
        dtype = old.dtype.to_complex()
        return TensorType(old.shape[:-1], strides, dtype, old.device, old.offset // 2)

    def samples():
        return [((torch.randn(3, 4, 2),), {})]
