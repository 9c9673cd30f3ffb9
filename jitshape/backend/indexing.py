"""Index arithmetic: reshaping index tuples, addresses, coefficients of axes.

In: index tuples and shapes of `Size`.  Out: index tuples and linear addresses.  Invariant: an
index passed in lies inside its shape, so the sizes of that shape are at least 1; this is what
lets `Max(1, s)` become `s` in addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitshape.ir.symint import Algebra, Atom, Size
from jitshape.ir.types import TensorType, numel

Index = tuple[Size, ...]
Run = tuple[tuple[int, ...], tuple[int, ...]]


def match_shapes(algebra: Algebra, a: Sequence[Size], b: Sequence[Size]) -> list[Run] | None:
    """The shortest runs of dimensions (of a, of b) with equal products, static 1s left out; None
    where the element counts differ or cannot be compared."""
    left = [d for d, size in enumerate(a) if size != 1]
    right = [d for d, size in enumerate(b) if size != 1]
    runs: list[Run] = []
    i = j = 0
    while i < len(left) and j < len(right):
        i0, j0 = i, j
        pa, pb = a[left[i]], b[right[j]]
        i, j = i + 1, j + 1
        while pa != pb:
            extend_right = j < len(right) and (i == len(left) or _divides(algebra, pb, pa))
            if extend_right:
                pb, j = pb * b[right[j]], j + 1
            elif i < len(left):
                pa, i = pa * a[left[i]], i + 1
            else:
                return None
        runs.append((tuple(left[i0:i]), tuple(right[j0:j])))
    return runs if i == len(left) and j == len(right) else None


def _divides(algebra: Algebra, small: Size, large: Size) -> bool:
    return small != 0 and algebra.exact_quotient(large, small) is not None


def reshape_index(
    algebra: Algebra,
    index: Index,
    source: Sequence[Size],
    target: Sequence[Size],
    extents: Mapping[int, Size] | None = None,
) -> Index:
    """The index into `target` of the element at `index` of `source`, in row-major order.
    `extents` of axes, by atom id, save divisions:  (i*s + j) // s  -->  i  where j < s."""
    if tuple(source) == tuple(target):
        return index
    if 0 in source or 0 in target:
        return (0,) * len(target)
    runs = match_shapes(algebra, source, target)
    if runs is None:
        runs = [(tuple(range(len(source))), tuple(range(len(target))))]
    out: list[Size] = [0] * len(target)
    for dims, target_dims in runs:
        linear: Size = 0
        for d in dims:
            linear = linear * source[d] + index[d]
        for position, d in enumerate(reversed(target_dims)):
            last = position == len(target_dims) - 1
            rest = linear
            if not last:
                linear, rest = _divided(algebra, linear, target[d], extents or {})
            out[d] = rest
    return tuple(out)


def _divided(
    algebra: Algebra, a: Size, size: Size, extents: Mapping[int, Size]
) -> tuple[Size, Size]:
    """Quotient and remainder of an index."""
    whole: Size = 0
    rest: Size = 0
    for monomial, factor in algebra.terms(a):
        term = algebra._make(((monomial, factor),))
        quotient = algebra.exact_quotient(term, size)
        if quotient is None:
            rest = rest + term
        else:
            whole = whole + quotient
    if _below(algebra, rest, size, extents):
        return whole, rest
    return algebra.floordiv(a, size), algebra.mod(a, size)


def _below(algebra: Algebra, a: Size, size: Size, extents: Mapping[int, Size]) -> bool:
    """Whether 0 <= a < size wherever the axes are in their ranges."""
    if type(a) is int:
        return _less(algebra, a, size) and a >= 0
    ids = {id for monomial, _ in algebra.terms(a) for id in monomial}
    if any(k < 0 for _, k in algebra.terms(a)) or not ids & extents.keys():
        return False
    if any(algebra.atoms[id].args is not None for id in ids):
        return False
    last = {id: extents[id] - 1 for id in ids if id in extents}
    return _less(algebra, algebra.substitute(a, last), size)


def _less(algebra: Algebra, a: Size, b: Size) -> bool:
    return algebra.static("lt", a, b) is True


def broadcast_index(index: Index, shape: Sequence[Size]) -> Index:
    """The index into an operand of `shape` that is broadcast to the shape `index` is of."""
    behind = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(behind, shape))


def address(algebra: Algebra, type: TensorType, index: Index, base: TensorType) -> Size:
    """Elements from the data pointer of `base` to the element at `index`; `type` is `base` or a
    view of it."""
    total: Size = type.offset - base.offset
    for i, stride in zip(index, type.strides):
        if i != 0:
            total = total + i * inhabited(algebra, stride)
    return total


def inhabited(algebra: Algebra, stride: Size) -> Size:
    """`stride` where every size is at least 1:  Max(1, s)  -->  s"""
    if type(stride) is int:
        return stride
    total: Size = 0
    for monomial, coefficient in algebra.terms(stride):
        product: Size = coefficient
        for id in monomial:
            product = product * _without_max(algebra, algebra.atoms[id])
        total = total + product
    return total


def is_dense(algebra: Algebra, type: TensorType) -> bool:
    """Whether the elements lie in row-major order without gaps, wherever there are any."""
    step: Size = 1
    for size, stride in zip(reversed(type.shape), reversed(type.strides)):
        if size != 1 and inhabited(algebra, stride) != step:
            return False
        step = step * size
    return True


def _without_max(algebra: Algebra, atom: Atom) -> Size:
    if atom.kind == "max" and atom.args is not None and 1 in atom.args:
        return inhabited(algebra, atom.args[atom.args[0] == 1])
    return expression_of(algebra, atom)


def expression_of(algebra: Algebra, atom: Atom) -> Size:
    """The expression that is exactly `atom`."""
    return algebra._make((((atom.id,), 1),))


def coefficient(algebra: Algebra, expr: Size, axis: int) -> Size | None:
    """What `expr` grows by where the symbol with id `axis` grows by one; None if not constant."""
    total: Size = 0
    for monomial, factor in algebra.terms(expr):
        count = monomial.count(axis)
        if any(_mentions(algebra, id, axis) for id in monomial) or count > 1:
            return None
        if count:
            product: Size = factor
            for id in monomial:
                if id != axis:
                    product = product * expression_of(algebra, algebra.atoms[id])
            total = total + product
    return total


def _mentions(algebra: Algebra, id: int, axis: int) -> bool:
    args = algebra.atoms[id].args
    return args is not None and any(s.id == axis for a in args for s in algebra.leaves(a))


def divides(algebra: Algebra, expr: Size) -> bool:
    """Whether `expr` holds a division or remainder."""
    ids = {id for monomial, _ in algebra.terms(expr) for id in monomial}
    return any(algebra.atoms[id].kind in ("floordiv", "mod") for id in ids)


def same_count(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes provably have equally many elements."""
    return numel(tuple(a)) == numel(tuple(b))
