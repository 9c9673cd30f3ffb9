"""What is known of integer expressions: intervals, holes, and the answers that follow.

In: declarations `a op b`, whose truth the caller answers for.  Out: bounds of any expression, and
whether a comparison holds for all values in range.
Invariant: knowledge only ever narrows, so that an answer once given stays right.  The prover is
interval arithmetic and the substitution s = lo + x, x >= 0; it takes a time linear in the terms.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from jitshape.ir.hosted import BITS, hosted_range
from jitshape.ir.intervals import INF, plus, range_of, solution, times

if TYPE_CHECKING:
    from jitshape.ir.symint import Atom, IntExpr, Monomial, Size, Terms

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class Knowledge:
    """The part of an Algebra that remembers and proves; the rest computes."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.version = 0  # grows with every piece of knowledge
        self._intervals: dict[IntExpr, tuple[float, float]] = {}  # of primitive polynomials
        self._holes: dict[IntExpr, set[int]] = {}  # values that they never take

    def add(self, a: Size, b: Size) -> Size:
        raise NotImplementedError

    def mul(self, a: Size, b: Size) -> Size:
        raise NotImplementedError

    def _make(self, terms: Terms) -> Size:
        raise NotImplementedError

    @staticmethod
    def terms(a: Size) -> Terms:
        """(monomial, coefficient) of each term, sorted."""
        if type(a) is int:
            return (((), a),) if a else ()
        return a.terms  # type: ignore[union-attr]

    def bounds(self, a: Size) -> tuple[float, float]:
        """An interval that contains every value of `a`."""
        if isinstance(a, int):
            return a, a
        if a._version != self.version:
            lo, hi = self._interval(a.terms)
            negated = tuple((m, -k) for m, k in a.terms)
            lo, hi = max(lo, self._shifted(a.terms)), min(hi, -self._shifted(negated))
            if self._intervals or self._holes:
                lo, hi = self._known(a, lo, hi)
            a._bounds, a._version = (lo, hi), self.version
        return a._bounds

    def _known(self, a: IntExpr, lo: float, hi: float) -> tuple[float, float]:
        """[lo, hi] of `a`, tightened by what was declared of its primitive polynomial."""
        p, scale, offset = self.primitive(a)
        below, above = self._intervals.get(p, (-INF, INF))
        ends = plus(times(below, scale), offset), plus(times(above, scale), offset)
        lo, hi = max(lo, min(ends)), min(hi, max(ends))
        holes = self._holes.get(p)
        if holes and scale in (1, -1):
            while (lo - offset) * scale in holes:
                lo += 1
            while (hi - offset) * scale in holes:
                hi -= 1
        return lo, hi

    def primitive(self, a: IntExpr) -> tuple[IntExpr, int, int]:
        """(p, scale, offset) with a == scale*p + offset; p has no constant term, coefficients
        without a common factor, and a positive first one."""
        offset = a.terms[0][1] if a.terms[0][0] == () else 0
        rest = a.terms[1:] if offset else a.terms
        scale = math.gcd(*(k for _, k in rest))
        if rest[0][1] < 0:
            scale = -scale
        if scale == 1 and not offset:
            return a, 1, 0
        p = self._make(tuple((m, k // scale) for m, k in rest))
        return p, scale, offset  # type: ignore[return-value]

    def learn(self, op: str, a: Size, b: Size) -> None:
        """Declare `a op b`.  The caller answers for its truth."""
        difference = self.add(a, self.mul(b, -1))
        if isinstance(difference, int):
            return
        p, scale, offset = self.primitive(difference)
        if op != "ne":
            self.narrow(p, *solution(op, scale, offset))
        elif offset % scale == 0:
            self.exclude(p, -offset // scale)

    def narrow(self, p: IntExpr, lo: float, hi: float) -> None:
        """Declare lo <= p <= hi, for a primitive p.  The caller answers for its truth."""
        atom = self._single(p)
        if atom is not None:
            atom.lo, atom.hi = max(atom.lo, lo), min(atom.hi, hi)
        below, above = self._intervals.get(p, (-INF, INF))
        self._intervals[p] = max(below, lo), min(above, hi)
        self.version += 1
        if atom is None and len(p.terms) == 1 and lo >= 1:
            factors = [self.atoms[id] for id in p.terms[0][0]]
            if all(self.range(f)[0] >= 0 for f in factors):  # a product >= 1 of factors >= 0
                for f in factors:
                    f.lo = max(f.lo, 1)
                self.version += 1

    def exclude(self, p: IntExpr, value: int) -> None:
        """Declare p != value, for a primitive p."""
        self._holes.setdefault(p, set()).add(value)
        self.version += 1
        self.narrow(p, *self.bounds(p))  # a hole at an end moves the end, also of an atom

    def _single(self, p: IntExpr) -> Atom | None:
        """The atom if `p` is exactly one."""
        (monomial, k), *more = p.terms
        return None if more or k != 1 or len(monomial) != 1 else self.atoms[monomial[0]]

    def range(self, atom: Atom) -> tuple[float, float]:
        """The interval of an atom, derived again when more is known of its operands."""
        if atom.version != self.version:
            atom.version = self.version
            if atom.args is not None or atom.host is not None:
                lo, hi = self.range_of_operation(atom)
                atom.lo, atom.hi = max(atom.lo, lo), min(atom.hi, hi)
        return atom.lo, atom.hi

    def excluded(self) -> Iterable[tuple[IntExpr, Iterable[int]]]:
        """The polynomials that some values were excluded of."""
        return self._holes.items()

    def learned(self) -> Iterable[tuple[IntExpr, float, float, Iterable[int]]]:
        """(p, lo, hi, values it never takes) of every polynomial that something was declared of."""
        for p in self._intervals | self._holes:
            yield p, *self._intervals.get(p, (-INF, INF)), self._holes.get(p, ())

    def range_of_operation(self, atom: Atom) -> tuple[float, float]:
        """The interval that follows from those of its operands."""
        if atom.args is not None:
            a, b = atom.args
            return range_of(atom.kind, self.bounds(a), self.bounds(b))
        if atom.kind not in BITS:
            return -INF, INF
        return hosted_range(atom.kind, *(self.bounds(x) for x in atom.host or ()))

    def _interval(self, terms: Terms) -> tuple[float, float]:
        lo: float = 0
        hi: float = 0
        for monomial, coefficient in terms:
            a: float = coefficient
            b: float = coefficient
            for atom in monomial:
                x, y = self.range(self.atoms[atom])
                ends = (times(a, x), times(a, y), times(b, x), times(b, y))
                a, b = min(ends), max(ends)
            lo, hi = plus(lo, a), plus(hi, b)
        return (-INF if lo != lo else lo), (INF if hi != hi else hi)

    def _shifted(self, terms: Terms) -> float:
        """Lower bound by writing each atom as lo + x, x >= 0: the constant, if no term is < 0."""
        total: dict[Monomial, float] = {}
        for monomial, coefficient in terms:
            current: dict[Monomial, float] = {(): coefficient}
            for atom in monomial:
                lo = self.range(self.atoms[atom])[0]
                if lo == -INF:
                    return -INF
                step: dict[Monomial, float] = {}
                for m, k in current.items():
                    longer = tuple(sorted((*m, atom)))
                    step[longer] = step.get(longer, 0) + k
                    if lo:
                        step[m] = step.get(m, 0) + k * lo
                current = step
            for m, k in current.items():
                total[m] = total.get(m, 0) + k
        constant = total.pop((), 0)
        return constant if all(k >= 0 for k in total.values()) else -INF

    def static(self, op: str, a: Size, b: Size) -> bool | None:
        """Whether `a op b` holds for all values in range (True), for none (False), or either."""
        if a is b:
            return op in ("eq", "le", "ge")
        difference = self.add(a, self.mul(b, -1))
        if isinstance(difference, int):
            return COMPARE[op](difference, 0)
        lo, hi = self.bounds(difference)
        if op in ("eq", "ne"):
            if lo == hi == 0:
                return op == "eq"
            apart = lo > 0 or hi < 0 or self._never_zero(difference)
            return (op == "ne") if apart else None
        if op in ("gt", "le"):
            known = True if lo > 0 else (False if hi <= 0 else None)
            return known if op == "gt" or known is None else not known
        known = True if lo >= 0 else (False if hi < 0 else None)
        return known if op == "ge" or known is None else not known

    def sides(self, a: Size) -> tuple[Size, Size]:
        """(l, r) with a == l - r, neither with a minus sign."""
        terms = self.terms(a)
        left = self._make(tuple((m, k) for m, k in terms if k > 0))
        return left, self._make(tuple((m, -k) for m, k in terms if k < 0))

    def _never_zero(self, a: IntExpr) -> bool:
        p, scale, offset = self.primitive(a)
        return offset % scale != 0 or -offset // scale in self._holes.get(p, ())
