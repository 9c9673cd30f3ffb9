"""Conditions on sizes: comparisons, and/or of them, what is known of them, what implies what.

In: a comparison of sizes.  Out: `Bool = bool | BoolExpr`; a BoolExpr is never known at once, so
`isinstance(c, bool)` tells what needs no question.
Invariant: a BoolExpr has no truth of its own; only a ShapeEnv gives it one, and remembers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jitshape.ir.intervals import INF, solution
from jitshape.ir.symfloat import FloatExpr, print_number
from jitshape.ir.symint import COMPARE, Atom, IntExpr, Size, sym_max, sym_min

_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_SIGN = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class BoolExpr:
    """A comparison of sizes (or of ir/symfloat's expressions), or and/or of such.  Build with
    `compare`, `all_of`, `any_of`, `~`."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, args: tuple) -> None:
        self.op, self.args = op, args

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BoolExpr) and (self.op, self.args) == (other.op, other.args)

    def __hash__(self) -> int:
        return hash((self.op, self.args))

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic condition {self} must be asked of a ShapeEnv")

    def __invert__(self) -> Bool:
        if self.op in _NEGATED:
            return BoolExpr(_NEGATED[self.op], self.args)
        return (any_of if self.op == "and" else all_of)(negate(part) for part in self.args)

    def symbols(self) -> tuple[Atom, ...]:
        """The symbols in it, in creation order."""
        found: dict[int, Atom] = {}
        for arg in self.args:
            if not isinstance(arg, (bool, int, float)):
                found.update((atom.id, atom) for atom in arg.symbols())
        return tuple(found[id] for id in sorted(found))

    def print(self, name: Callable[[Atom], str]) -> str:
        """Legal Python; `name` renames symbols."""
        if self.op in _SIGN:
            a, b = (print_number(x, name) for x in self.args)
            return f"{a} {_SIGN[self.op]} {b}"
        return f" {self.op} ".join(f"({part.print(name)})" for part in self.args)

    def __str__(self) -> str:
        return self.print(lambda atom: atom.name)

    __repr__ = __str__

    def evaluate(self, size: Callable[[Size], int | None]) -> bool | None:
        """The truth where `size` gives the value of each side; None where it cannot."""
        if self.op in COMPARE:
            a, b = size(self.args[0]), size(self.args[1])
            return None if a is None or b is None else COMPARE[self.op](a, b)
        parts = [a.evaluate(size) if isinstance(a, BoolExpr) else a for a in self.args]
        decisive = self.op == "or"
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive


Bool = bool | BoolExpr


def negate(cond: Bool) -> Bool:
    return ~cond if isinstance(cond, BoolExpr) else not cond


def compare(op: str, a: Size, b: Size) -> Bool:
    """`a op b`, op in eq ne lt le gt ge: a bool where it is known, else a BoolExpr."""
    expr = a if type(a) is IntExpr else b
    if type(expr) is not IntExpr:
        return COMPARE[op](a, b)  # type: ignore[arg-type]
    known = expr.algebra.static(op, a, b)
    return BoolExpr(op, (a, b)) if known is None else known


def all_of(parts: Iterable[Bool]) -> Bool:
    kept: list[Bool] = []
    for part in parts:
        if part is False:
            return False
        if part is not True and part not in kept:
            kept.append(part)
    return BoolExpr("and", tuple(kept)) if len(kept) > 1 else (kept[0] if kept else True)


def any_of(parts: Iterable[Bool]) -> Bool:
    kept: list[Bool] = []
    for part in parts:
        if part is True:
            return True
        if part is not False and part not in kept:
            kept.append(part)
    return BoolExpr("or", tuple(kept)) if len(kept) > 1 else (kept[0] if kept else False)


def compares_floats(cond: BoolExpr) -> bool:
    """Whether a side of it is a float."""
    return any(
        compares_floats(x) if isinstance(x, BoolExpr) else isinstance(x, (float, FloatExpr))
        for x in cond.args
    )


def indicator(cond: Bool) -> Size:
    """The size that is 1 where `cond`, a condition on sizes, holds, and else 0."""
    if not isinstance(cond, BoolExpr):
        return int(cond)
    if cond.op in ("and", "or"):
        combine = sym_min if cond.op == "and" else sym_max
        total: Size = int(cond.op == "and")
        for part in cond.args:
            total = combine(total, indicator(part))
        return total
    a, b = cond.args
    if cond.op in ("gt", "ge"):
        a, b = b, a
    if cond.op in ("lt", "gt"):
        return sym_min(sym_max(b - a, 0), 1)
    if cond.op in ("le", "ge"):
        return sym_min(sym_max(b - a + 1, 0), 1)
    apart = sym_min(sym_max(a - b, b - a), 1)
    return apart if cond.op == "ne" else 1 - apart


def reduced(op: str, a: Size, b: Size) -> BoolExpr:
    """`a op b`, which is not known, without a common factor: 2*s0 <= 6 is s0 <= 3."""
    expr = a if type(a) is IntExpr else b
    assert type(expr) is IntExpr
    algebra = expr.algebra
    difference = algebra.add(a, algebra.mul(b, -1))
    assert isinstance(difference, IntExpr)
    p, scale, offset = algebra.primitive(difference)
    if abs(scale) == 1:
        return BoolExpr(op, (a, b))
    if op in ("eq", "ne"):
        bound = -offset // scale
    else:
        lo, hi = solution(op, scale, offset)
        op, bound = ("ge", int(lo)) if hi == INF else ("le", int(hi))
    return BoolExpr(op, algebra.sides(algebra.add(p, -bound)))


def implies(a: Bool, b: Bool) -> bool:
    """Whether `a` alone, without anything known of its symbols, is seen to imply `b`."""
    if a == b or a is False or b is True:
        return True
    if not isinstance(a, BoolExpr) or not isinstance(b, BoolExpr):
        return False
    if compares_floats(a) or compares_floats(b):
        return False
    if b.op in ("and", "or"):
        return (all if b.op == "and" else any)(implies(a, part) for part in b.args)
    if a.op not in COMPARE or a.op == "ne" or not (_on_sizes(a) and _on_sizes(b)):
        return False
    p, lo, hi = _interval_of(a)
    symbol = p.symbol
    if symbol is not None and lo == hi:
        fixed = {symbol.id: int(lo)}

        def value(size: Size) -> int | None:
            size = p.algebra.substitute(size, fixed)
            return size if type(size) is int else None

        return b.evaluate(value) is True
    if b.op == "ne":
        q, root, end = _interval_of(BoolExpr("eq", b.args))
        return q is p and (root != end or not lo <= root <= hi)
    q, below, above = _interval_of(b)
    return q is p and below <= lo and hi <= above


def _on_sizes(relation: BoolExpr) -> bool:
    """Whether it compares integers, not reals."""
    return all(type(side) in (int, IntExpr) for side in relation.args)


def _interval_of(relation: BoolExpr) -> tuple[IntExpr, float, float]:
    """(p, lo, hi): the relation says lo <= p <= hi of a primitive polynomial."""
    expr = next(x for x in relation.args if type(x) is IntExpr)
    difference = expr.algebra.add(relation.args[0], expr.algebra.mul(relation.args[1], -1))
    assert isinstance(difference, IntExpr)
    p, scale, offset = expr.algebra.primitive(difference)
    return p, *solution(relation.op, scale, offset)
