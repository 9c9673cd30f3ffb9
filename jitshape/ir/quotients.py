"""Floor division and remainders of integer polynomials.

In: sizes.  Out: `a // b` and `a % b` as Python means them, a symbolic divisor not zero (callers
guard it): what divides evenly leaves, nests of divisors that are known become one, and only what
remains is an atom.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from jitshape.ir.knowledge import Knowledge

if TYPE_CHECKING:
    from jitshape.ir.symint import Monomial, Size


class Quotients(Knowledge):
    """The part of an Algebra that divides."""

    def _atom(self, kind: str, a: Size, b: Size) -> Size:
        raise NotImplementedError

    def exact_quotient(self, a: Size, b: Size) -> Size | None:
        """`a / b` where b divides every term of a, else None."""
        if type(b) is int:
            if b and all(k % b == 0 for _, k in self.terms(a)):
                return self._make(tuple((m, k // b) for m, k in self.terms(a)))
            return None
        if a is b:
            return 1
        assert not isinstance(b, int)
        if len(b.terms) != 1:
            return None
        divisor, factor = b.terms[0]
        out: list[tuple[Monomial, int]] = []
        for monomial, coefficient in self.terms(a):
            if coefficient % factor:
                return None
            rest = list(monomial)
            for atom in divisor:
                if atom not in rest:
                    return None
                rest.remove(atom)
            out.append((tuple(rest), coefficient // factor))
        return self._make(tuple(sorted(out)))

    def floordiv(self, a: Size, b: Size) -> Size:
        """Python's floor division.  A symbolic divisor is assumed non-zero: callers guard it."""
        if type(a) is int and type(b) is int:
            return a // b
        exact = self.exact_quotient(a, b)
        if exact is not None:
            return exact
        if type(b) is int:
            if b == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            whole, rest = self._split(a, b)
            if whole != 0:  # (b*k + r) // b  -->  k + r // b
                return self.add(whole, self.floordiv(rest, b))
            shorter = self._reduced(a, b)
            if shorter is not None:
                return self.floordiv(*shorter)
            lo, hi = self.bounds(a)
            if lo >= 0 and hi < b:
                return 0
        return self._atom("floordiv", a, b)

    def _split(self, a: Size, b: int) -> tuple[Size, Size]:
        """(k, r) with a == b*k + r: every term whose coefficient b divides, and of the constant
        as much as it can."""
        whole: list[tuple[Monomial, int]] = []
        rest: list[tuple[Monomial, int]] = []
        for monomial, k in self.terms(a):
            quotient, remainder = divmod(k, b)
            if remainder and monomial:
                rest.append((monomial, k))
                continue
            if quotient:
                whole.append((monomial, quotient))
            if remainder:
                rest.append((monomial, remainder))
        return self._make(tuple(whole)), self._make(tuple(rest))

    def _reduced(self, a: Size, b: int) -> tuple[Size, int] | None:
        """Operands of the same quotient with a smaller divisor, or without an inner division."""
        if isinstance(a, int) or b < 1:
            return None
        atom = self._single(a)
        if atom is not None and atom.kind == "floordiv":
            assert atom.args is not None
            inner, divisor = atom.args  # (x // d) // b  -->  x // (d*b)
            return (inner, divisor * b) if type(divisor) is int and divisor > 0 else None
        common = math.gcd(b, *(k for m, k in a.terms if m))
        if common == 1:  # (g*p + c) // (g*b)  -->  (p + c // g) // b
            return None
        return self._make(tuple((m, k // common) for m, k in a.terms if k // common)), b // common

    def mod(self, a: Size, b: Size) -> Size:
        if type(a) is int and type(b) is int:
            return a % b
        if self.exact_quotient(a, b) is not None:
            return 0
        if type(b) is int:
            if b == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            rest = self._without_remainders(self._split(a, b)[1], b)
            if rest is not a:
                return self.mod(rest, b)
            lo, hi = self.bounds(a)
            if lo >= 0 and hi < b:
                return a
        return self._atom("mod", a, b)

    def _without_remainders(self, a: Size, b: int) -> Size:
        """The same modulo b: k*(x % d)  -->  k*x where b divides k*d."""
        total: Size = 0
        for monomial, k in self.terms(a):
            atom = self.atoms[monomial[0]] if len(monomial) == 1 else None
            if atom is not None and atom.kind == "mod" and atom.args is not None:
                inner, divisor = atom.args
                if type(divisor) is int and k * divisor % b == 0:
                    total = self.add(total, self.mul(inner, k))
                    continue
            total = self.add(total, self._make(((monomial, k),)))
        return total
