"""Integer expressions over symbolic sizes: interned polynomials with FloorDiv, Mod, Max, Min atoms.

In: Python ints and symbols.  Out: `Size = int | IntExpr`; an `IntExpr` is never constant (a
constant result is a plain int), so `type(s) is int` tells static from symbolic.
Invariant: within one `Algebra` equal expressions are the same object; ids, and with them the
order of terms, follow creation order only, so that the same program prints the same text.
What is known of an expression only ever narrows (`narrow`, `exclude`); simplifications made under
it stay valid because the owner of the algebra guards whatever it declared known.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, final

from jitshape.ir.intervals import INF, range_of, solution, times
from jitshape.ir.notation import print_size

Monomial = tuple[int, ...]  # sorted atom ids, with repetition: x*x*y == (x, x, y)
Terms = tuple[tuple[Monomial, int], ...]

_EVAL: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class Atom:
    """What a polynomial is made of: a symbol, or FloorDiv/Mod/Max/Min of two expressions."""

    __slots__ = ("args", "hi", "hint", "id", "kind", "lo", "name", "version")

    def __init__(self, id: int, kind: str, args: tuple[Size, Size] | None, name: str) -> None:
        self.id, self.kind, self.args, self.name = id, kind, args, name
        self.lo: float = -INF
        self.hi: float = INF
        self.hint: Any = None  # an int; of a float symbol a float
        self.version = 0  # of the algebra's knowledge, when lo and hi were last derived

    def __repr__(self) -> str:
        return self.name


@final
class IntExpr:
    """A non-constant integer polynomial.  Operators accept ints and expressions of one algebra."""

    __slots__ = ("__weakref__", "_bounds", "_version", "algebra", "terms")

    def __init__(self, algebra: Algebra, terms: Terms) -> None:
        self.algebra, self.terms = algebra, terms
        self._bounds: tuple[float, float] = (-INF, INF)
        self._version = -1

    def __add__(self, other: Size) -> Size:
        return self.algebra.add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Size) -> Size:
        return self.algebra.add(self, self.algebra.mul(other, -1))

    def __rsub__(self, other: Size) -> Size:
        return self.algebra.add(other, self.algebra.mul(self, -1))

    def __mul__(self, other: Size) -> Size:
        return self.algebra.mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return self.algebra.mul(self, -1)

    def __floordiv__(self, other: Size) -> Size:
        return self.algebra.floordiv(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return self.algebra.floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return self.algebra.mod(self, other)

    def __rmod__(self, other: Size) -> Size:
        return self.algebra.mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of the symbolic size {self} must be asked of a ShapeEnv")

    @property
    def symbol(self) -> Atom | None:
        """The atom if this expression is exactly one symbol."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.algebra.atoms[self.terms[0][0][0]]
            return atom if atom.kind == "sym" else None
        return None

    @property
    def hint(self) -> int | None:
        """The value at the symbols' hints; None where a symbol is unbacked."""
        return self.algebra.evaluate(self, None)

    def symbols(self) -> tuple[Atom, ...]:
        """The symbols in it, in creation order."""
        return self.algebra.symbols(self)

    def print(self, name: Callable[[Atom], str]) -> str:
        """Legal Python; `name` renames symbols."""
        return self.algebra.print(self, name)

    def __str__(self) -> str:
        return self.algebra.print(self)

    __repr__ = __str__


Size = int | IntExpr


class Algebra:
    """Creates and combines expressions; owns their tables, which die with it."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self._interned: dict[Terms, IntExpr] = {}
        self._atom_of: dict[tuple[str, Size, Size], Size] = {}
        self.version = 0  # grows with every piece of knowledge
        self._intervals: dict[IntExpr, tuple[float, float]] = {}  # of primitive polynomials
        self._holes: dict[IntExpr, set[int]] = {}  # values that they never take
        self._sums: dict[tuple[Size, Size], Size] = {}
        self._products: dict[tuple[Size, Size], Size] = {}
        self.memo: dict[Any, Any] = {}  # what others derive, kept as long as the sizes live

    # ---- construction

    def symbol(self, name: str, lo: float = 0, hi: float = INF, hint: int | None = None) -> IntExpr:
        """A new symbol with values in [lo, hi]."""
        atom = Atom(len(self.atoms), "sym", None, name)
        atom.lo, atom.hi, atom.hint = lo, hi, hint
        self.atoms.append(atom)
        return self.atom_expr(atom.id)

    def float_atom(self, name: str, hint: float) -> Atom:
        """The atom of a float symbol; it stands in ir/symfloat's expressions, never in these."""
        atom = Atom(len(self.atoms), "float", None, name)
        atom.hint = hint
        self.atoms.append(atom)
        return atom

    def atom_expr(self, id: int) -> IntExpr:
        """The atom alone as an expression."""
        expr = self._make((((id,), 1),))
        assert isinstance(expr, IntExpr)
        return expr

    def _make(self, terms: Terms) -> Size:
        if not terms:
            return 0
        if len(terms) == 1 and terms[0][0] == ():
            return terms[0][1]
        expr = self._interned.get(terms)
        if expr is None:
            expr = self._interned[terms] = IntExpr(self, terms)
        return expr

    @staticmethod
    def terms(a: Size) -> Terms:
        if type(a) is IntExpr:
            return a.terms
        return (((), int(a)),) if a else ()  # type: ignore[arg-type]

    # ---- arithmetic

    def add(self, a: Size, b: Size) -> Size:
        total = self._sums.get((a, b))
        if total is None:
            total = self._sums[a, b] = self._add(a, b)
        return total

    def _add(self, a: Size, b: Size) -> Size:
        out = dict(self.terms(a))
        for monomial, coefficient in self.terms(b):
            value = out.get(monomial, 0) + coefficient
            if value:
                out[monomial] = value
            else:
                out.pop(monomial, None)
        return self._make(tuple(sorted(out.items())))

    def mul(self, a: Size, b: Size) -> Size:
        if type(a) is int:
            a, b = b, a
        if type(a) is int:
            return a * b
        if type(b) is int:
            if b == 0:
                return 0
            if b == 1:
                return a
        product = self._products.get((a, b))
        if product is None:
            product = self._products[a, b] = self._multiply(a, b)
        return product

    def _multiply(self, a: Size, b: Size) -> Size:
        if type(b) is int:
            return self._make(tuple((m, k * b) for m, k in self.terms(a)))
        out: dict[Monomial, int] = {}
        for m1, c1 in self.terms(a):
            for m2, c2 in self.terms(b):
                monomial = tuple(sorted(m1 + m2))
                value = out.get(monomial, 0) + c1 * c2
                if value:
                    out[monomial] = value
                else:
                    out.pop(monomial, None)
        return self._make(tuple(sorted(out.items())))

    def exact_quotient(self, a: Size, b: Size) -> Size | None:
        """`a / b` where b divides every term of a, else None."""
        if type(b) is int:
            if b and all(k % b == 0 for _, k in self.terms(a)):
                return self._make(tuple((m, k // b) for m, k in self.terms(a)))
            return None
        if a is b:
            return 1
        assert type(b) is IntExpr
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
        if type(a) is not IntExpr or b < 1:
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
            rest = self._split(a, b)[1]
            if rest is not a:
                return self.mod(rest, b)
            lo, hi = self.bounds(a)
            if lo >= 0 and hi < b:
                return a
        return self._atom("mod", a, b)

    def round(self, a: Size, ndigits: int) -> Size:
        """Python's `round(a, ndigits)`: ties go to the even multiple of 10**-ndigits."""
        if ndigits >= 0 or type(a) is int:
            return a if type(a) is not int else round(a, ndigits)
        unit = 10**-ndigits
        odd = self.mod(self.floordiv(a, unit), 2)
        return self.mul(self.floordiv(self.add(self.add(a, unit // 2 - 1), odd), unit), unit)

    def max(self, a: Size, b: Size) -> Size:
        if self.static("ge", a, b):
            return a
        return b if self.static("ge", b, a) else self._atom("max", a, b)

    def min(self, a: Size, b: Size) -> Size:
        if self.static("le", a, b):
            return a
        return b if self.static("le", b, a) else self._atom("min", a, b)

    def _atom(self, kind: str, a: Size, b: Size) -> Size:
        if kind in ("max", "min") and (type(a) is int or self.terms(a) > self.terms(b)):
            a, b = (b, a) if type(b) is not int else (a, b)
        key = (kind, a, b)
        expr = self._atom_of.get(key)
        if expr is None:
            atom = Atom(len(self.atoms), kind, (a, b), kind)
            ha, hb = self.evaluate(a, None), self.evaluate(b, None)
            if ha is not None and hb is not None and not (hb == 0 and kind in ("floordiv", "mod")):
                atom.hint = _EVAL[kind](ha, hb)
            atom.lo, atom.hi = range_of(kind, self.bounds(a), self.bounds(b))
            self.atoms.append(atom)
            expr = self._atom_of[key] = self._make((((atom.id,), 1),))
            if type(a) is IntExpr and type(b) is IntExpr and kind in ("max", "min"):
                for operand in (a, b):
                    self.learn("ge" if kind == "max" else "le", expr, operand)
        return expr

    # ---- what is known without asking

    def bounds(self, a: Size) -> tuple[float, float]:
        """An interval that contains every value of `a`."""
        if type(a) is int:
            return a, a
        assert isinstance(a, IntExpr)
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
        ends = times(below, scale) + offset, times(above, scale) + offset
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
        assert isinstance(p, IntExpr)
        return p, scale, offset

    def learn(self, op: str, a: Size, b: Size) -> None:
        """Declare `a op b`.  The caller answers for its truth."""
        difference = self.add(a, self.mul(b, -1))
        if type(difference) is not IntExpr:
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
            if atom.args is not None:
                a, b = atom.args
                lo, hi = range_of(atom.kind, self.bounds(a), self.bounds(b))
                atom.lo, atom.hi = max(atom.lo, lo), min(atom.hi, hi)
        return atom.lo, atom.hi

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
            lo, hi = lo + a, hi + b
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
        if type(difference) is not IntExpr:
            return COMPARE[op](int(difference), 0)
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

    # ---- evaluation, substitution, printing

    def evaluate(self, a: Size, values: Mapping[str, int] | None) -> int | None:
        """The value of `a` with symbols bound by name, or (values None) at the hints."""
        if type(a) is int:
            return a
        total = 0
        for monomial, coefficient in self.terms(a):
            product = coefficient
            for id in monomial:
                value = self._atom_value(self.atoms[id], values)
                if value is None:
                    return None
                product *= value
            total += product
        return total

    def _atom_value(self, atom: Atom, values: Mapping[str, int] | None) -> int | None:
        if values is None:
            return atom.hint
        if atom.args is None:
            return values[atom.name]
        a, b = (self.evaluate(x, values) for x in atom.args)
        return None if a is None or b is None else _EVAL[atom.kind](a, b)

    def substitute(self, a: Size, replace: Mapping[int, Size]) -> Size:
        """`a` with symbols replaced, by atom id."""
        if type(a) is int:
            return a
        total: Size = 0
        for monomial, coefficient in self.terms(a):
            product: Size = coefficient
            for id in monomial:
                product = self.mul(product, self._substituted(id, replace))
            total = self.add(total, product)
        return total

    def _substituted(self, id: int, replace: Mapping[int, Size]) -> Size:
        atom = self.atoms[id]
        if atom.args is None:
            return replace.get(id, self._make((((id,), 1),)))
        a, b = (self.substitute(x, replace) for x in atom.args)
        if b == 0 and atom.kind in ("floordiv", "mod"):  # undefined there: stays as it is
            return self.atom_expr(id)
        return getattr(self, atom.kind)(a, b)

    def symbols(self, a: Size) -> tuple[Atom, ...]:
        """The symbols in `a`, in creation order, those inside atoms included."""
        found: set[int] = set()

        def visit(x: Size) -> None:
            for monomial, _ in self.terms(x):
                for id in monomial:
                    args = self.atoms[id].args
                    if args is None:
                        found.add(id)
                    else:
                        visit(args[0])
                        visit(args[1])

        visit(a)
        return tuple(self.atoms[id] for id in sorted(found))

    def print(self, a: Size, name: Callable[[Atom], str] | None = None) -> str:
        """Legal Python; `name` renames symbols."""
        return print_size(self, a, name or (lambda atom: atom.name))


def sym_max(a: Size, b: Size) -> Size:
    expr = a if type(a) is IntExpr else b
    return expr.algebra.max(a, b) if type(expr) is IntExpr else max(a, b)  # type: ignore


def sym_min(a: Size, b: Size) -> Size:
    expr = a if type(a) is IntExpr else b
    return expr.algebra.min(a, b) if type(expr) is IntExpr else min(a, b)  # type: ignore
