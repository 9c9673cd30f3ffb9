"""The second prover: comparisons that hold for all values in range, though no interval tells.

In: a comparison that ir/knowledge cannot decide.  Out: its truth where there is a proof, else None.
Most questions have different answers at different values, and two samples show it.  The others are
tried: quotients and remainders are written as what they are of each other (b*q == a - r with
0 <= r < b), a maximum is one operand or the other, and sympy factors what is left.
Invariant: bounded work, by steps and by seconds; the algebra of the program gets no new atoms, as
a proof has an algebra of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

from jitshape.ir.intervals import INF
from jitshape.ir.knowledge import COMPARE
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size

STEPS = 64  # of one proof
SECONDS = 1.0  # of sympy in one trace, less its import
MOST_SYMBOLS, MOST_TERMS, HIGHEST_DEGREE = 6, 24, 6
SAMPLES = (0, 1, 2, 3, 5, 8, 17, 64, 7, 31, 100, 12)  # above the least value, or round zero
_STRIDES = (1, 5, 7, 11, 1, 5)  # through them, by symbol: no two symbols keep step
_OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


class Prover:
    """Of one algebra.  `asked`, `proved`, `factored`: how many questions came, were answered, and
    went to sympy."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.asked = self.proved = self.factored = 0
        self.left = SECONDS  # of sympy
        self._answers: dict[tuple[str, IntExpr], tuple[int, bool | None]] = {}

    def counts(self) -> dict[str, int]:
        """What was counted, if anything."""
        found = {"asked": self.asked, "proved": self.proved, "factored": self.factored}
        return {name: count for name, count in found.items() if count}

    def decide(self, op: str, a: Size, b: Size) -> bool | None:
        """The truth of `a op b` for all values in range, None where it is not known."""
        difference = self.algebra.add(a, self.algebra.mul(b, -1))
        if type(difference) is not IntExpr or not self._is_worth_it(difference):
            return None
        version, answer = self._answers.get((op, difference), (-1, None))
        if answer is None and version != self.algebra.version:
            answer = self._decide(op, difference)
            self._answers[op, difference] = self.algebra.version, answer
        return answer

    def _is_worth_it(self, a: IntExpr) -> bool:
        """Whether intervals may have missed something: it is not a sum of symbols."""
        atoms = self.algebra.atoms
        simple = all(len(m) < 2 and all(atoms[id].args is None for id in m) for m, _ in a.terms)
        return not simple and len(a.terms) <= MOST_TERMS and a.weight <= 4 * MOST_TERMS

    def _decide(self, op: str, difference: IntExpr) -> bool | None:
        self.asked += 1
        seen = {COMPARE[op](value, 0) for value in self._samples(difference)}
        if len(seen) != 1:
            return None
        truth = seen.pop()
        proof = _Proof(self, op not in ("eq", "ne"))  # layouts are asked about by the dozen
        if proof.holds(op if truth else _OPPOSITE[op], proof.translate(difference)):
            self.proved += 1
            return truth
        return None

    def _samples(self, a: IntExpr) -> Iterator[int]:
        """Values of `a` at points that nothing known rules out."""
        algebra = self.algebra
        symbols = algebra.symbols(a)
        if len(symbols) > MOST_SYMBOLS or any(atom.kind != "sym" for atom in symbols):
            return
        names = {atom.name for atom in symbols}
        known = [
            (p, (lo, hi, holes))
            for p, lo, hi, holes in algebra.learned()
            if names.issuperset(_names(algebra, p))
        ]
        points = [
            {
                atom.name: _sample(algebra, atom, place * step + j)
                for j, (atom, step) in enumerate(zip(symbols, _STRIDES))
            }
            for place in range(len(SAMPLES))
        ]
        if all(atom.hint is not None for atom in symbols):
            points.append({atom.name: atom.hint for atom in symbols})
        for values in points:
            try:
                if all(_admits(algebra.evaluate(p, values), *row) for p, row in known):
                    value = algebra.evaluate(a, values)
                    if value is not None:
                        yield value
            except ZeroDivisionError:
                continue


def _names(algebra: Algebra, a: IntExpr) -> set[str]:
    return {atom.name for atom in algebra.symbols(a)}


def _sample(algebra: Algebra, atom: Atom, place: int) -> int:
    lo, hi = algebra.range(atom)
    step = SAMPLES[place % len(SAMPLES)]
    if lo != -INF:
        return int(min(lo + step, hi))
    return int(min(step if place % 2 else -step, hi))


def _admits(value: int | None, lo: float, hi: float, holes: Iterable[int]) -> bool:
    return value is not None and lo <= value <= hi and value not in holes


class _Proof:
    """Of one comparison, in an algebra of its own."""

    def __init__(self, prover: Prover, factors: bool) -> None:
        self.prover, self.source, self.factors = prover, prover.algebra, factors
        self.algebra = Algebra()
        self.steps = STEPS
        self._symbols: dict[int, Size] = {}  # by the atom's id in the source
        self._remainders: dict[tuple[Size, Size], Size] = {}

    # ---- into this algebra

    def translate(self, a: Size) -> Size:
        """The same size here, with what is known of its symbols."""
        found = self._translated(a)
        names = {self.source.atoms[id].name for id in self._symbols}
        for p, lo, hi, holes in self.source.learned():
            if p.symbol is not None or not names.issuperset(_names(self.source, p)):
                continue
            here = self._translated(p)
            for op, bounds in (("ge", [lo]), ("le", [hi]), ("ne", holes)):
                for bound in bounds:
                    if abs(bound) != INF:
                        self.algebra.learn(op, here, int(bound))
        return found

    def _translated(self, a: Size) -> Size:
        total: Size = 0
        for monomial, coefficient in self.source.terms(a):
            product: Size = coefficient
            for id in monomial:
                product = self.algebra.mul(product, self._atom(id))
            total = self.algebra.add(total, product)
        return total

    def _atom(self, id: int) -> Size:
        atom = self.source.atoms[id]
        if atom.args is not None:
            return getattr(self.algebra, atom.kind)(*map(self._translated, atom.args))
        if id not in self._symbols:
            self._symbols[id] = self._fresh(*self.source.range(atom))
        return self._symbols[id]

    def _fresh(self, lo: float, hi: float) -> IntExpr:
        symbol = self.algebra.symbol(f"x{len(self.algebra.atoms)}", lo, hi)
        symbol.algebra.atoms[-1].hint = None
        return symbol

    # ---- goals

    def holds(self, op: str, a: Size) -> bool:
        """Whether `a op 0` is proved."""
        up, down = a, self.algebra.mul(a, -1)
        less = self.algebra.add
        if op == "eq":
            return self.natural(up, ()) and self.natural(down, ())
        if op == "ne":
            return self.natural(less(up, -1), ()) or self.natural(less(down, -1), ())
        goal = up if op in ("ge", "gt") else down
        return self.natural(goal if op in ("ge", "le") else less(goal, -1), ())

    def natural(self, a: Size, given: tuple[Size, ...]) -> bool:
        """Whether `a >= 0` where all of `given` are."""
        if self.algebra.bounds(a)[0] >= 0:
            return True
        self.steps -= 1
        if type(a) is not IntExpr or self.steps < 0:
            return self._cannot_be(given)
        outer = max((id for m, _ in a.terms for id in m if self._args(id)), default=None)
        if outer is None:
            return self._follows(a, given) or self._by_factors(a)
        kind = self.algebra.atoms[outer].kind
        ways = {"floordiv": self._quotient, "mod": self._remainder}.get(kind, self._extreme)
        return ways(a, given, self.algebra.atoms[outer])

    def _args(self, id: int) -> tuple[Size, Size] | None:
        return self.algebra.atoms[id].args

    def _extreme(self, a: IntExpr, given: tuple[Size, ...], atom: Atom) -> bool:
        """Of two cases, which hold for the minimum and the maximum of the same operands."""
        assert atom.args is not None
        x, y = atom.args
        for large, small in ((x, y), (y, x)):
            case: Size = a
            for kind, value in (("max", large), ("min", small)):
                same = self.algebra.known_atom(kind, x, y)
                if same is not None and type(case) is IntExpr:
                    case = self._replace(case, (same.id,), value, 1)[0]
            apart = self.algebra.add(large, self.algebra.mul(small, -1))
            if not self.natural(case, (*given, apart)):
                return False
        return True

    def _remainder(self, a: IntExpr, given: tuple[Size, ...], atom: Atom) -> bool:
        assert atom.args is not None
        rest, more = self._rest(*atom.args)
        return self.natural(self._replace(a, (atom.id,), rest, 1)[0], (*given, *more))

    def _quotient(self, a: IntExpr, given: tuple[Size, ...], atom: Atom) -> bool:
        assert atom.args is not None
        dividend, divisor = atom.args
        rest, more = self._rest(dividend, divisor)
        whole = self.algebra.add(dividend, self.algebra.mul(rest, -1))
        given = (*given, *more)
        if type(divisor) is int and divisor > 0:
            scaled, scale = self._replace(a, (atom.id,), whole, divisor)
            return self.natural(self.algebra.add(scaled, scale - 1), given)
        inner = divisor.symbol if type(divisor) is IntExpr else None
        if inner is not None and self.algebra.range(inner)[0] >= 1:
            a_, _ = self._replace(a, (inner.id, atom.id), whole, 1)
            if type(a_) is not IntExpr or all(atom.id not in m for m, _ in a_.terms):
                return self.natural(a_, given)
            a = a_
        plain = self._fresh(*self.algebra.range(atom))
        return self.natural(self._replace(a, (atom.id,), plain, 1)[0], given)

    def _rest(self, a: Size, b: Size) -> tuple[Size, tuple[Size, ...]]:
        """The remainder as a symbol, and what is natural because of it."""
        known = self._remainders.get((a, b))
        lo, hi = self.algebra.bounds(b)
        if known is None:
            ends = (0, hi - 1) if lo >= 1 else (-INF, INF)
            known = self._remainders[a, b] = self._fresh(*ends)
        if type(b) is int or lo < 1:
            return known, ()
        below = self.algebra.add(b, self.algebra.mul(self.algebra.add(known, 1), -1))
        return known, (below,)

    def _replace(
        self, a: IntExpr, factors: tuple[int, ...], value: Size, scale: int
    ) -> tuple[Size, int]:
        """(n*a, n) with the product of `factors`, atoms' ids, replaced by `value / scale`; n is a
        power of `scale`."""
        algebra = self.algebra
        rows = [(m, k, min(m.count(id) for id in factors)) for m, k in a.terms]
        most = max(count for *_, count in rows)
        total: Size = 0
        for monomial, coefficient, count in rows:
            rest = list(monomial)
            for id in factors * count:
                rest.remove(id)
            product: Size = coefficient * scale ** (most - count)
            for factor in (*(algebra.atom_expr(id) for id in rest), *[value] * count):
                product = algebra.mul(product, factor)
            total = algebra.add(total, product)
        return total, scale**most

    # ---- polynomials of symbols

    def _follows(self, a: IntExpr, given: Sequence[Size]) -> bool:
        """From one or two of `given` and intervals; from what cannot be, anything."""
        less = (self.algebra.add(a, self.algebra.mul(known, -1)) for known in self._sums(given))
        return any(self.algebra.bounds(rest)[0] >= 0 for rest in less) or self._cannot_be(given)

    def _cannot_be(self, given: Sequence[Size]) -> bool:
        return any(self.algebra.bounds(known)[1] < 0 for known in self._sums(given))

    def _sums(self, given: Sequence[Size]) -> list[Size]:
        return [*given, *(self.algebra.add(*pair) for pair in combinations(given, 2))]

    def _by_factors(self, a: IntExpr) -> bool:
        degree = max(len(m) for m, _ in a.terms)
        if not self.factors or self.prover.left <= 0:
            return False
        if not 2 <= degree <= HIGHEST_DEGREE or len(a.terms) < 2:
            return False
        import sympy  # half a second, which most programs never need

        if not self.prover.factored:
            sympy.factor_list(sympy.Symbol("x") ** 2 - 1)  # what it only does once takes longest
        start = time.thread_time()
        factors = self._factors(sympy, a)
        self.prover.left -= time.thread_time() - start
        self.prover.factored += 1
        sign = 1
        for factor, power in factors:
            lo, hi = self.algebra.bounds(factor)
            if power % 2 and lo < 0:
                if hi > 0:
                    return False
                sign = -sign
        return sign > 0

    def _factors(self, sympy: Any, a: IntExpr) -> list[tuple[Size, int]]:
        """Polynomials and their powers, the product of which is `a`."""
        names = {id: sympy.Symbol(f"x{id}") for m, _ in a.terms for id in m}
        ids = {symbol: id for id, symbol in names.items()}
        rows = [sympy.Mul(k, *(names[id] for id in m)) for m, k in a.terms]
        constant, found = sympy.factor_list(sympy.Add(*rows))
        return [(int(constant), 1), *((self._sized(f, ids), power) for f, power in found)]

    def _sized(self, polynomial: Any, ids: dict[Any, int]) -> Size:
        """A polynomial of sympy's with integer coefficients as a size."""
        total: Size = 0
        for factors, coefficient in polynomial.as_poly(*ids).terms():
            product: Size = int(coefficient)
            for id, power in zip(ids.values(), factors):
                for _ in range(power):
                    product = self.algebra.mul(product, self.algebra.atom_expr(id))
            total = self.algebra.add(total, product)
        return total
