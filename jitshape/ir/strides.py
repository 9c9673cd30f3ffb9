"""Memory layout under symbolic sizes: broadcasting, output strides, views of a layout.

In: shapes and strides as tuples of `Size`.  Out: the strides that ATen's TensorIterator and
memory-format rules give.  Invariant: answers hold for sizes of at least 2; where a size is 0 or 1
they may differ from eager only in the strides of dimensions of size <= 1, or of empty tensors.
So `Max(s, 1)` in a contiguous stride equals `s`, and no guard is made for a size being 1: for
such calls ir/layouts.py asks again, with numbers, where the answers are eager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.symint import Algebra, IntExpr, Size, sym_min
from jitshape.ir.types import TensorType, contiguous_strides, numel

Shape = tuple[Size, ...]
Layout = tuple[Shape, Shape]  # (shape, strides)

CHANNELS_LAST_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
CHANNELS_LAST_FORMAT = {4: torch.channels_last, 5: torch.channels_last_3d}


# ---- comparing sizes and strides


def generic(size: Size) -> Size:
    """`size` with every Max(s, 1) written s."""
    if type(size) is not IntExpr:
        return size
    algebra = size.algebra
    key = ("generic", size)
    known = algebra.memo.get(key)
    if known is None:
        known = algebra.memo[key] = _without_max(algebra, size)
    return known


def _without_max(algebra: Algebra, size: Size) -> Size:
    total: Size = 0
    for monomial, coefficient in algebra.terms(size):
        product: Size = coefficient
        for id in monomial:
            atom = algebra.atoms[id]
            factor: Size = algebra._make((((id,), 1),))
            if atom.kind == "max" and atom.args is not None and 1 in atom.args:
                a, b = atom.args
                factor = b if type(a) is int else a
            product = product * factor
        total = total + product
    return total


def same(a: Size, b: Size) -> bool:
    """Whether the two are equal at all sizes of at least 2."""
    if a is b:
        return True
    if type(a) is int and type(b) is int:
        return a == b
    return generic(a) is generic(b) or compare("eq", a, b) is True


def same_all(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))


def equal_above_one(a: Size, b: Size) -> bool | None:
    """Whether a == b at all sizes of at least 2 (True), at none of them (False), or either."""
    if same(a, b):
        return True
    if type(a) is int and type(b) is int:
        return False
    a, b = generic(a), generic(b)
    algebra = (a if type(a) is IntExpr else b).algebra  # type: ignore[union-attr]
    apart = _lower_bound(algebra, b - a) > 0 or _lower_bound(algebra, a - b) > 0
    return False if apart else None


def same_layout(a: TensorType, b: TensorType) -> bool:
    """Whether a reader of the elements cannot tell the types apart: strides of dimensions of size
    1 mean nothing."""
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    rows = zip(a.shape, a.strides, b.strides)
    return all((type(n) is int and n <= 1) or same(x, y) for n, x, y in rows)


def less(env: Any, a: Size, b: Size) -> bool:
    """Whether a < b at sizes of at least 2; where that depends on the sizes, a guard."""
    if type(a) is int and type(b) is int:
        return a < b
    a, b = generic(a), generic(b)
    if a is b:
        return False
    algebra = (a if type(a) is IntExpr else b).algebra  # type: ignore[union-attr]
    if _lower_bound(algebra, b - a) > 0:
        return True
    if _lower_bound(algebra, a - b) >= 0:
        return False
    condition = compare("lt", a, b)
    if env.actual(a) is None or env.actual(b) is None:
        return env.guard_or(condition, False)
    return env.evaluate(condition, "the order of strides")


def _lower_bound(algebra: Algebra, size: Size) -> float:
    """A lower bound of `size` with every symbol at least 2: each is written lo + x, x >= 0."""
    total: dict[tuple, float] = {}
    for monomial, coefficient in algebra.terms(size):
        current: dict[tuple, float] = {(): coefficient}
        for id in monomial:
            atom = algebra.atoms[id]
            low = max(atom.lo, 2) if atom.kind == "sym" else atom.lo
            if low == -float("inf"):
                return low
            step: dict[tuple, float] = {}
            for rest, k in current.items():
                longer = tuple(sorted((*rest, id)))
                step[longer] = step.get(longer, 0) + k
                step[rest] = step.get(rest, 0) + k * low
            current = step
        for rest, k in current.items():
            total[rest] = total.get(rest, 0) + k
    constant = total.pop((), 0)
    return constant if all(k >= 0 for k in total.values()) else -float("inf")


# ---- broadcasting


def broadcast(env: Any, *shapes: Shape) -> Shape:
    """The common shape."""
    first = shapes[0]
    if all(s is first or s == first for s in shapes[1:]):
        return first
    rank = max(map(len, shapes))
    out: list[Size] = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            common = env.broadcast(out[place], size)
            if common is None:
                raise RuntimeError(
                    f"The size of tensor a ({out[place]}) must match the size of tensor b "
                    f"({size}) at non-singleton dimension {place}"
                )
            out[place] = common
    return tuple(out)


def broadcasts_to(env: Any, shape: Shape, target: Shape) -> bool:
    """Whether the common shape is `target`, by what is known of the sizes.  RuntimeError where
    there is none."""
    common = broadcast(env, target, shape)
    return common == target or list(map(env.simplify, common)) == list(map(env.simplify, target))


# ---- layouts


def row_major(shape: Shape) -> Shape:
    """Contiguous strides, remembered as long as the sizes live."""
    for size in shape:
        if type(size) is IntExpr:
            memo = size.algebra.memo
            known = memo.get(shape)
            if known is None:
                known = memo[shape] = contiguous_strides(shape)
            return known
    step = 1
    strides = []
    for size in reversed(shape):
        strides.append(step)
        step *= size if size > 1 else 1  # type: ignore[operator]
    strides.reverse()
    return tuple(strides)


def dense(shape: Shape, order: Sequence[int]) -> Shape:
    """Strides without gaps, `order` naming the dimensions from the fastest to the slowest."""
    packed = row_major(tuple(shape[d] for d in reversed(order)))
    strides: list[Size] = [0] * len(shape)
    for dim, stride in zip(reversed(order), packed):
        strides[dim] = stride
    return tuple(strides)


def is_packed(shape: Shape, strides: Shape, order: Sequence[int]) -> bool:
    expected: Size = 1
    for dim in order:
        size = shape[dim]
        if type(size) is int and size == 1:
            continue
        if not same(strides[dim], expected):
            return False
        expected = expected * size
    return True


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    if strides == row_major(shape) or 0 in shape:
        return True
    return is_packed(shape, strides, range(len(shape) - 1, -1, -1))


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    order = CHANNELS_LAST_ORDER.get(len(shape))
    return order is not None and is_packed(shape, strides, order)


def is_dense(env: Any, shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill a piece of memory without gaps or overlap, in any order."""
    if is_contiguous(shape, strides):
        return True
    return is_packed(shape, strides, _by_stride(env, shape, strides))


def _by_stride(env: Any, shape: Shape, strides: Shape) -> list[int]:
    """Dimensions of size other than 1, from the smallest stride to the largest."""
    order: list[int] = []
    for dim in reversed(range(len(shape))):
        if type(shape[dim]) is int and shape[dim] == 1:
            continue
        place = len(order)
        while place and less(env, strides[dim], strides[order[place - 1]]):
            place -= 1
        order.insert(place, dim)
    return order


def iteration_order(env: Any, shape: Shape, operands: Sequence[Shape]) -> list[int]:
    """TensorIterator's order of dimensions, fastest first, from the operands' strides (aligned
    to `shape`, 0 where broadcast): insertion sort in which a zero stride decides nothing."""

    def slower(a: int, b: int) -> int:
        """1 if dimension a should lie outside b, -1 if inside, 0 if no operand tells."""
        for strides in operands:
            x, y = strides[a], strides[b]
            if (type(x) is int and x == 0) or (type(y) is int and y == 0):
                continue
            if not same(x, y):
                return -1 if less(env, x, y) else 1
            if less(env, shape[b], shape[a]):
                return 1
        return 0

    order = list(reversed(range(len(shape))))
    for start in range(1, len(order)):
        place = start
        for other in range(start - 1, -1, -1):
            verdict = slower(order[other], order[place])
            if verdict > 0:
                order[other], order[place] = order[place], order[other]
                place = other
            elif verdict < 0:
                break
    return order


def elementwise_strides(
    env: Any, shape: Shape, operands: Sequence[Layout], numbers: bool = False
) -> Shape:
    """Strides of a new output of `shape` computed elementwise from `operands`, and `numbers`,
    which only tell where sizes of 0 or 1 do."""
    alike = all(s is shape or s == shape for s, _ in operands)
    if alike and not (numbers and all(type(n) is int for n in (*shape, *operands[0][1]))):
        first = operands[0][1]
        packed = row_major(shape)
        if all(st == packed or is_contiguous(shape, st) for _, st in operands):
            return packed
        if all(is_channels_last(shape, st) for _, st in operands):
            return dense(shape, CHANNELS_LAST_ORDER[len(shape)])
        equal = all(same_all(st, first) for _, st in operands[1:])
        if equal and is_dense(env, shape, first):
            return first
    aligned = [_aligned(env, shape, *operand) for operand in operands]
    return iterated(shape, iteration_order(env, shape, aligned))


def iterated(shape: Shape, order: Sequence[int]) -> Shape:
    """The strides that TensorIterator gives a new output, whose dimensions lie in `order`."""
    if 0 not in shape or list(order) == list(reversed(range(len(shape)))):
        return dense(shape, order)
    strides: list[Size] = [0] * len(shape)
    step: Size = 1
    for dim in order:
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def _aligned(env: Any, shape: Shape, own: Shape, strides: Shape) -> Shape:
    """The operand's strides over `shape`: 0 where it is broadcast."""
    missing = len(shape) - len(own)
    out: list[Size] = [0] * missing
    for place, (size, stride) in enumerate(zip(own, strides), missing):
        stretched = env.simplify(size) == 1 and env.simplify(shape[place]) != 1
        out.append(0 if stretched else stride)
    return tuple(out)


def preserved_strides(env: Any, shape: Shape, strides: Shape) -> Shape:
    """Of empty_like, clone and to under torch.preserve_format."""
    if strides == row_major(shape) or is_dense(env, shape, strides):
        return strides
    return dense(shape, iteration_order(env, shape, [strides]))


def format_strides(env: Any, shape: Shape, strides: Shape, memory_format: Any) -> Shape:
    """Strides of a fresh tensor like one of `shape` and `strides` in `memory_format`."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(env, shape, strides)
    if memory_format is torch.contiguous_format:
        return row_major(shape)
    return dense(shape, CHANNELS_LAST_ORDER[len(shape)])


def suggested_format(shape: Shape, strides: Shape) -> Any:
    """torch.channels_last(_3d) where the strides grow from the channels over the pixels to the
    images, with gaps or without, else torch.contiguous_format.  The strides of sizes of 1 count,
    and images no further apart than channels tell nothing."""
    if len(shape) not in CHANNELS_LAST_ORDER or 0 in shape or strides[1] == 0:
        return torch.contiguous_format
    reach: Size = 0
    for dim in CHANNELS_LAST_ORDER[len(shape)]:
        if not _at_least(strides[dim], reach) or (dim == 0 and same(reach, strides[1])):
            return torch.contiguous_format
        reach = strides[dim] * shape[dim]
    return CHANNELS_LAST_FORMAT[len(shape)]


def _at_least(a: Size, b: Size) -> bool:
    """Whether a >= b at all sizes of at least 2."""
    if type(a) is int and type(b) is int:
        return a >= b
    a, b = generic(a), generic(b)
    algebra = (a if type(a) is IntExpr else b).algebra  # type: ignore[union-attr]
    return a is b or _lower_bound(algebra, a - b) >= 0


# ---- views


def view_strides(
    env: Any, shape: Shape, strides: Shape, new: Shape, guard: bool = False
) -> Shape | None:
    """Strides that show the same elements as `new`, or None if no view can at every size; with
    `guard`, a view that is possible at the sizes of this call makes facts of what it needs."""

    def match(a: Size, b: Size) -> bool:
        if same(a, b):
            return True
        return guard and env.actual(a) == env.actual(b) and env.equal(a, b, "a view")

    def is_one(a: Size) -> bool:
        if a == 1 or env.static(compare("eq", a, 1)) is True:
            return True
        return guard and env.actual(a) == 1 and env.equal(a, 1, "a view")

    if guard:
        shape, new = (tuple(1 if is_one(s) else s for s in sizes) for sizes in (shape, new))
    if new == shape or strides == row_major(shape):
        return strides if new == shape else row_major(new)
    runs = _runs(shape, strides)
    out: list[Size] = [0] * len(new)
    dim = len(new) - 1
    for size, stride in reversed(runs):
        covered: Size = 1
        while dim >= 0 and not match(covered, size):
            out[dim] = stride * covered
            covered = covered * new[dim]
            dim -= 1
            if type(covered) is int and type(size) is int and covered > size:
                return None
        while dim >= 0 and is_one(new[dim]):
            out[dim] = stride * covered
            dim -= 1
        if not match(covered, size):
            return None
    while dim >= 0:  # only ones can be left
        if not is_one(new[dim]):
            return None
        out[dim] = out[dim + 1] * new[dim + 1] if dim + 1 < len(new) else 1
        dim -= 1
    return tuple(out)


def _runs(shape: Shape, strides: Shape) -> list[tuple[Size, Size]]:
    """(size, stride) of the longest stretches of dimensions that lie in memory as one."""
    runs: list[tuple[Size, Size]] = []
    for size, stride in zip(shape, strides):
        if type(size) is int and size == 1:
            continue
        if runs and same(runs[-1][1], size * stride):
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    return runs


def end_of(type_: TensorType) -> Size:
    """One past the last element in the storage (its start, for a tensor without elements)."""
    reach: Size = 1
    for size, stride in zip(type_.shape, type_.strides):
        reach = reach + (size - 1) * stride
    return type_.offset + reach * sym_min(numel(type_.shape), 1)
