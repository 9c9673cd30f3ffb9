"""Index expressions of kernels: their shape along one axis, and their printing for a target.

In: a `Size` over axes and sizes.  Out: an `Access` (how the index moves along the vector axis) or
the target's own form of the expression, built through `Target`.
Invariant: nothing here knows a target; `emit` visits terms in the order of the expression, so
that equal expressions give equal code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

from jitshape.ir.symint import Atom, IntExpr, Size

T = TypeVar("T")


class Target(Protocol[T]):
    """What `emit` needs of a code generator.  Values are 64-bit integers."""

    def integer(self, value: int) -> T: ...
    def symbol(self, atom: Atom) -> T: ...
    def add(self, a: T, b: T) -> T: ...
    def mul(self, a: T, b: T) -> T: ...
    def divide(self, kind: str, a: T, b: T, unsigned: bool) -> T:
        """ "floordiv" or "mod"; `unsigned`: the dividend is >= 0 and the divisor > 0."""
        ...

    def extreme(self, kind: str, a: T, b: T) -> T:
        """ "max" or "min"."""
        ...


def emit(expr: Size, target: Target[T]) -> T:
    """`expr` in the target's form."""
    if not isinstance(expr, IntExpr):
        return target.integer(int(expr))
    total: T | None = None
    for monomial, coefficient in expr.terms:
        product: T | None = None
        for id in monomial:
            factor = _emit_atom(expr.algebra.atoms[id], target)
            product = factor if product is None else target.mul(product, factor)
        if product is None:
            product = target.integer(coefficient)
        elif coefficient != 1:
            product = target.mul(product, target.integer(coefficient))
        total = product if total is None else target.add(total, product)
    assert total is not None
    return total


def _emit_atom(atom: Atom, target: Target[T]) -> T:
    if atom.args is None:
        return target.symbol(atom)
    a, b = (emit(x, target) for x in atom.args)
    if atom.kind in ("max", "min"):
        return target.extreme(atom.kind, a, b)
    return target.divide(atom.kind, a, b, _at_least(atom.args[0], 0) and _at_least(atom.args[1], 0))


def _at_least(expr: Size, low: int) -> bool:
    return expr.algebra.bounds(expr)[0] >= low if isinstance(expr, IntExpr) else expr >= low


def symbol_ids(expr: Size) -> frozenset[int]:
    """The ids of all symbols in `expr`, those inside FloorDiv, Mod, Max and Min included."""
    if not isinstance(expr, IntExpr):
        return frozenset()
    return frozenset(atom.id for atom in expr.algebra.leaves(expr))


def linear_in(expr: Size, axis: int) -> tuple[Size, Size] | None:
    """(stride, base) with `expr == stride * axis + base`, both free of the axis; else None."""
    if not isinstance(expr, IntExpr):
        return 0, expr
    stride: Size = 0
    base: Size = 0
    for monomial, coefficient in expr.terms:
        factors = list(monomial)
        along = axis in factors
        if along:
            factors.remove(axis)
        term: Size = coefficient
        for id in factors:
            factor = expr.algebra._make((((id,), 1),))
            if axis in symbol_ids(factor):
                return None
            term = term * factor
        stride, base = (stride + term, base) if along else (stride, base + term)
    return stride, base


@dataclass(frozen=True)
class Access:
    """How an index moves along the vector axis: "uniform" (not at all), "unit" (by one),
    "strided" (by `stride`, constant or symbolic) or "gather" (in no known way).
    `index == stride * axis + base`, except for a gather."""

    kind: str
    stride: Size = 0
    base: Size = 0


def access(index: Size, axis: int, varying: Collection[int] = ()) -> Access:
    """Classify `index`; `varying` are the ids of other symbols that differ from lane to lane."""
    ids = symbol_ids(index)
    if any(id in ids for id in varying):
        return Access("gather")
    if axis not in ids:
        return Access("uniform", 0, index)
    parts = linear_in(index, axis)
    if parts is None:
        return Access("gather")
    stride, base = parts
    return Access("unit" if stride == 1 else "strided", stride, base)
