"""Data movement: the element at an index, as loads with masks and indirect indices.

In: a `Reader` (Builder, elements of operands, mask), the index of the result, the op's arguments.
Out: a scalar.  Invariant: an operand is read only inside its shape; an index taken from data that
is out of range reads nothing and is noted as a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitshape.backend.indexing import Index, broadcast_index, reshape_index
from jitshape.backend.loops import Scalar
from jitshape.ir.graph import Value
from jitshape.ir.symint import IntExpr, Size, sym_max, sym_min
from jitshape.ir.types import numel

if TYPE_CHECKING:
    from jitshape.backend.lower import Reader

MOVEMENT: dict[str, Callable[..., Scalar]] = {}


def movement(*names: str) -> Callable[[Callable[..., Scalar]], Callable[..., Scalar]]:
    """Register the element rule of each op in `names`."""

    def register(rule: Callable[..., Scalar]) -> Callable[..., Scalar]:
        for name in names:
            MOVEMENT[f"aten.{name}" if "." in name else f"aten.{name}.default"] = rule
        return rule

    return register


def normal(dim: int, ndim: int) -> int:
    """`dim` counted from the front."""
    return dim + max(ndim, 1) if dim < 0 else dim


def wrapped(at: Size, size: Size) -> Size:
    """A position counted from the end where it is known to be negative."""
    if type(at) is int:
        return at + size if at < 0 else at
    assert isinstance(at, IntExpr)
    return at + size if at.algebra.static("lt", at, 0) else at


def slice_start(size: Size, start: Size | None) -> Size:
    """Where a slice begins, negative and too large starts included."""
    if start is None:
        return 0
    first = wrapped(start, size)
    if first is not start:
        first = sym_max(first, 0)
    return sym_min(first, size)


def replaced(index: Index, dim: int, at: Size) -> Index:
    return (*index[:dim], at, *index[dim + 1 :])


def within(r: Reader, at: Size, low: Size, high: Size) -> Scalar:
    """Whether low <= at < high."""
    position = r.b.index(at)
    return r.b.logical_and(r.b.ge(position, r.b.index(low)), r.b.lt(position, r.b.index(high)))


# ---- moving by position


def _triangle(keep: str) -> Callable[..., Scalar]:
    def rule(r: Reader, index: Index, x: Value, diagonal: Size = 0) -> Scalar:
        kept = r.b.apply(keep, r.b.index(index[-1] - index[-2]), r.b.index(diagonal))
        return r.b.where(kept, r.at(x, index, kept), r.b.const(0, r.out.dtype))

    return rule


MOVEMENT["aten.tril.default"] = _triangle("le")
MOVEMENT["aten.triu.default"] = _triangle("ge")


@movement("cat")
def cat(r: Reader, index: Index, tensors: Sequence[Value], dim: int = 0) -> Scalar:
    dim = normal(dim, len(index))
    parts = [t for t in tensors if t.type.shape != (0,) or len(index) == 1]
    starts: list[Size] = [0]
    for part in parts:
        starts.append(starts[-1] + part.type.shape[dim])
    result: Scalar | None = None
    for part, start, end in reversed(list(zip(parts, starts, starts[1:]))):
        inside = within(r, index[dim], start, end)
        own = r.b.cast(r.at(part, replaced(index, dim, index[dim] - start), inside), r.out.dtype)
        result = own if result is None else r.b.where(_before(r, index[dim], end), own, result)
    assert result is not None
    return result


def _before(r: Reader, at: Size, end: Size) -> Scalar:
    return r.b.lt(r.b.index(at), r.b.index(end))


@movement("stack")
def stack(r: Reader, index: Index, tensors: Sequence[Value], dim: int = 0) -> Scalar:
    dim = normal(dim, len(index))
    rest, position = index[:dim] + index[dim + 1 :], r.b.index(index[dim])
    result: Scalar | None = None
    for place, part in reversed(list(enumerate(tensors))):
        here = r.b.eq(position, place)
        own = r.b.cast(r.at(part, rest, here), r.out.dtype)
        result = own if result is None else r.b.where(here, own, result)
    assert result is not None
    return result


@movement("roll")
def roll(r: Reader, index: Index, x: Value, shifts: Any, dims: Any = ()) -> Scalar:
    shifts = [shifts] if not isinstance(shifts, (list, tuple)) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:  # all elements in row-major order
        shape, count = x.type.shape, numel(x.type.shape)
        (place,) = reshape_index(r.algebra, index, shape, (count,))
        moved = r.algebra.mod(place - shifts[0], count)
        return r.at(x, reshape_index(r.algebra, (moved,), (count,), shape))
    inner = list(index)
    for shift, dim in zip(shifts, dims, strict=True):
        dim = normal(dim, len(index))
        size = x.type.shape[dim]
        inner[dim] = r.algebra.mod(index[dim] - shift, size)
    return r.at(x, tuple(inner))


@movement("slice_scatter")
def slice_scatter(
    r: Reader,
    index: Index,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Scalar:
    dim = normal(dim, len(index))
    first = slice_start(x.type.shape[dim], start)
    inside, place = _in_slice(r, index[dim], source, dim, first, step)
    new = r.at(source, replaced(index, dim, place), inside)
    return r.b.where(inside, r.b.cast(new, r.out.dtype), r.at(x, index))


def _in_slice(
    r: Reader, at: Size, part: Value, dim: int, first: Size, step: int
) -> tuple[Scalar, Size]:
    """Whether `at` lies in the slice that `part` stands for, and at which place of it."""
    inside = within(r, at, first, first + part.type.shape[dim] * step)
    if step == 1:
        return inside, at - first
    on_step = r.b.eq(r.b.mod(r.b.index(at - first), step), 0)
    return r.b.logical_and(inside, on_step), (at - first) // step


@movement("select_scatter")
def select_scatter(r: Reader, index: Index, x: Value, source: Value, dim: int, at: Size) -> Scalar:
    dim = normal(dim, len(index))
    here = r.b.eq(r.b.index(index[dim]), r.b.index(wrapped(at, x.type.shape[dim])))
    new = r.at(source, index[:dim] + index[dim + 1 :], here)
    return r.b.where(here, r.b.cast(new, r.out.dtype), r.at(x, index))


@movement("select_backward")
def select_backward(
    r: Reader, index: Index, grad: Value, sizes: Sequence[Size], dim: int, at: Size
) -> Scalar:
    dim = normal(dim, len(index))
    here = r.b.eq(r.b.index(index[dim]), r.b.index(wrapped(at, sizes[dim])))
    own = r.at(grad, index[:dim] + index[dim + 1 :], here)
    return r.b.where(here, own, r.b.const(0, r.out.dtype))


@movement("slice_backward")
def slice_backward(
    r: Reader,
    index: Index,
    grad: Value,
    sizes: Sequence[Size],
    dim: int,
    start: Size | None,
    end: Size | None,
    step: int = 1,
) -> Scalar:
    dim = normal(dim, len(index))
    inside, place = _in_slice(r, index[dim], grad, dim, slice_start(sizes[dim], start), step)
    own = r.at(grad, replaced(index, dim, place), inside)
    return r.b.where(inside, own, r.b.const(0, r.out.dtype))


# ---- moving by data


def _from_data(r: Reader, position: Scalar, size: Size) -> Size:
    """An index read from a tensor, negative ones counted from the end."""
    position, extent = r.b.cast(position, torch.int64), r.b.index(size)
    negative = r.b.lt(position, 0)
    return r.b.indirect(r.b.where(negative, r.b.add(position, extent), position))


@movement("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(r: Reader, index: Index, x: Value, places: Sequence[Value | None]) -> Scalar:
    """x[:, i, j]: the broadcast index tensors take the place of the first of them, or come first
    where a slice stands between them."""
    used = [d for d, place in enumerate(places) if place is not None]
    width = max(p.type.ndim for p in places if p is not None)
    adjacent = used == list(range(used[0], used[-1] + 1))
    first = used[0] if adjacent else 0
    common, rest = index[first : first + width], iter(index[:first] + index[first + width :])
    inner: list[Size] = []
    for dim, size in enumerate(x.type.shape):
        place = places[dim] if dim < len(places) else None
        if place is None:
            inner.append(next(rest))
            continue
        position = r.at(place, broadcast_index(common, place.type.shape))
        inner.append(_from_data(r, position, size))
    return r.at(x, tuple(inner))
