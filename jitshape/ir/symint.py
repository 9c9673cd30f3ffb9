"""Integer expressions over symbolic sizes: interned polynomials with FloorDiv, Mod, Max, Min atoms.

In: Python ints and symbols.  Out: `Size = int | IntExpr`; an `IntExpr` is never constant (a
constant result is a plain int), so `type(s) is int` tells static from symbolic.
Invariant: within one `Algebra` equal expressions are the same object; ids, and with them the
order of terms, follow creation order only, so that the same program prints the same text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping

INF = float("inf")
Monomial = tuple[int, ...]  # sorted atom ids, with repetition: x*x*y == (x, x, y)
Terms = tuple[tuple[Monomial, int], ...]

_EVAL: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
_SIGN = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Atom:
    """What a polynomial is made of: a symbol, or FloorDiv/Mod/Max/Min of two expressions."""

    __slots__ = ("args", "hi", "hint", "id", "kind", "lo", "name")

    def __init__(self, id: int, kind: str, args: tuple[Size, Size] | None, name: str) -> None:
        self.id, self.kind, self.args, self.name = id, kind, args, name
        self.lo: float = -INF
        self.hi: float = INF
        self.hint: int | None = None

    def __repr__(self) -> str:
        return self.name


class IntExpr:
    """A non-constant integer polynomial.  Operators accept ints and expressions of one algebra."""

    __slots__ = ("__weakref__", "_bounds", "_hint", "algebra", "terms")

    def __init__(self, algebra: Algebra, terms: Terms) -> None:
        self.algebra, self.terms = algebra, terms
        self._bounds: tuple[float, float] | None = None
        self._hint: int | None = None

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
        if self._hint is None:
            self._hint = self.algebra.evaluate(self, None)
        return self._hint

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

    # ---- construction

    def symbol(
        self, name: str, lo: float = 0, hi: float = INF, hint: int | None = None
    ) -> IntExpr:
        """A new symbol with values in [lo, hi]."""
        atom = Atom(len(self.atoms), "sym", None, name)
        atom.lo, atom.hi, atom.hint = lo, hi, hint
        self.atoms.append(atom)
        expr = self._make((((atom.id,), 1),))
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
            return a if b == 1 else self._make(tuple((m, k * b) for m, k in self.terms(a)))
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
        if len(b.terms) != 1:  # type: ignore[union-attr]
            return None
        divisor, factor = b.terms[0]  # type: ignore[union-attr]
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
        if type(b) is int:  # (b*k + r) // b  -->  k + r // b
            whole = tuple((m, k // b) for m, k in self.terms(a) if k % b == 0)
            if whole:
                rest = self._make(tuple(t for t in self.terms(a) if t[1] % b))
                return self.add(self._make(whole), self.floordiv(rest, b))
        lo, hi = self.bounds(a)
        if type(b) is int and lo >= 0 and hi < b:
            return 0
        return self._atom("floordiv", a, b)

    def mod(self, a: Size, b: Size) -> Size:
        if type(a) is int and type(b) is int:
            return a % b
        if self.exact_quotient(a, b) is not None:
            return 0
        if type(b) is int:
            rest = self._make(tuple(t for t in self.terms(a) if t[1] % b))
            if rest is not a:
                return self.mod(rest, b)
        lo, hi = self.bounds(a)
        if type(b) is int and lo >= 0 and hi < b:
            return a
        return self._atom("mod", a, b)

    def max(self, a: Size, b: Size) -> Size:
        if self.static("ge", a, b):
            return a
        return b if self.static("ge", b, a) else self._atom("max", a, b)

    def min(self, a: Size, b: Size) -> Size:
        if self.static("le", a, b):
            return a
        return b if self.static("le", b, a) else self._atom("min", a, b)

    def _atom(self, kind: str, a: Size, b: Size) -> Size:
        key = (kind, a, b)
        expr = self._atom_of.get(key)
        if expr is None:
            atom = Atom(len(self.atoms), kind, (a, b), kind)
            ha, hb = self.evaluate(a, None), self.evaluate(b, None)
            if ha is not None and hb is not None and not (hb == 0 and kind in ("floordiv", "mod")):
                atom.hint = _EVAL[kind](ha, hb)
            atom.lo, atom.hi = self._atom_range(kind, a, b)
            self.atoms.append(atom)
            expr = self._atom_of[key] = self._make((((atom.id,), 1),))
        return expr

    def _atom_range(self, kind: str, a: Size, b: Size) -> tuple[float, float]:
        (alo, ahi), (blo, bhi) = self.bounds(a), self.bounds(b)
        if kind == "max":
            return max(alo, blo), max(ahi, bhi)
        if kind == "min":
            return min(alo, blo), min(ahi, bhi)
        if kind == "mod" and blo >= 1:
            return 0, bhi - 1
        if kind == "floordiv" and blo >= 1 and alo >= 0:
            low = 0 if bhi == INF else alo // bhi
            return low, INF if ahi == INF else ahi // blo
        return -INF, INF

    # ---- what is known without asking

    def bounds(self, a: Size) -> tuple[float, float]:
        """An interval that contains every value of `a`."""
        if type(a) is int:
            return a, a
        assert isinstance(a, IntExpr)
        if a._bounds is None:
            lo, hi = self._interval(a.terms)
            negated = tuple((m, -k) for m, k in a.terms)
            a._bounds = max(lo, self._shifted(a.terms)), min(hi, -self._shifted(negated))
        return a._bounds

    def _interval(self, terms: Terms) -> tuple[float, float]:
        lo: float = 0
        hi: float = 0
        for monomial, coefficient in terms:
            a: float = coefficient
            b: float = coefficient
            for atom in monomial:
                x, y = self.atoms[atom].lo, self.atoms[atom].hi
                ends = (_times(a, x), _times(a, y), _times(b, x), _times(b, y))
                a, b = min(ends), max(ends)
            lo, hi = lo + a, hi + b
        return (-INF if lo != lo else lo), (INF if hi != hi else hi)

    def _shifted(self, terms: Terms) -> float:
        """Lower bound by writing each atom as lo + x, x >= 0: the constant, if no term is < 0."""
        total: dict[Monomial, float] = {}
        for monomial, coefficient in terms:
            current: dict[Monomial, float] = {(): coefficient}
            for atom in monomial:
                lo = self.atoms[atom].lo
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
        if type(difference) is int:
            return _COMPARE[op](difference, 0)
        lo, hi = self.bounds(difference)
        if op in ("eq", "ne"):
            apart = lo > 0 or hi < 0 or self._never_zero(self.terms(difference))
            return (op == "ne") if apart else None
        if op in ("gt", "le"):
            known = True if lo > 0 else (False if hi <= 0 else None)
            return known if op == "gt" or known is None else not known
        known = True if lo >= 0 else (False if hi < 0 else None)
        return known if op == "ge" or known is None else not known

    @staticmethod
    def _never_zero(terms: Terms) -> bool:
        divisor, constant = 0, 0
        for monomial, coefficient in terms:
            if monomial == ():
                constant = coefficient
            else:
                divisor = math.gcd(divisor, coefficient)
        return bool(divisor and constant % divisor)

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
                        visit(args[0]), visit(args[1])

        visit(a)
        return tuple(self.atoms[id] for id in sorted(found))

    def print(self, a: Size, name: Callable[[Atom], str] | None = None) -> str:
        """Legal Python; `name` renames symbols."""
        name = name or (lambda atom: atom.name)
        parts: list[str] = []
        for monomial, coefficient in self.terms(a):
            factors = [self._print_atom(self.atoms[id], name) for id in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            text = "*".join(factors)
            sign = "-" if coefficient < 0 else "+"
            parts.append(("-" if sign == "-" else "") + text if not parts else f" {sign} {text}")
        return "".join(parts) or "0"

    def _print_atom(self, atom: Atom, name: Callable[[Atom], str]) -> str:
        if atom.args is None:
            return name(atom)
        a, b = (self.print(x, name) for x in atom.args)
        if atom.kind in ("max", "min"):
            return f"{atom.kind}({a}, {b})"
        a, b = (x if x.isidentifier() or x.isdigit() else f"({x})" for x in (a, b))
        return f"({a} // {b})" if atom.kind == "floordiv" else f"({a} % {b})"


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


class BoolExpr:
    """A comparison of sizes, or and/or/not of such.  Build with `compare`, `all_of`, `any_of`."""

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
        return self.args[0] if self.op == "not" else BoolExpr("not", (self,))

    def __str__(self) -> str:
        if self.op in _SIGN:
            return f"{self.args[0]} {_SIGN[self.op]} {self.args[1]}"
        if self.op == "not":
            return f"not ({self.args[0]})"
        return f" {self.op} ".join(f"({a})" for a in self.args)

    __repr__ = __str__

    def evaluate(self, size: Callable[[Size], int | None]) -> bool | None:
        """The truth where `size` gives the value of each side; None where it cannot."""
        if self.op in _COMPARE:
            a, b = size(self.args[0]), size(self.args[1])
            return None if a is None or b is None else _COMPARE[self.op](a, b)
        parts = [a.evaluate(size) if isinstance(a, BoolExpr) else a for a in self.args]
        if self.op == "not":
            return None if parts[0] is None else not parts[0]
        decisive = self.op == "or"
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive


Bool = bool | BoolExpr


def compare(op: str, a: Size, b: Size) -> Bool:
    """`a op b`, op in eq ne lt le gt ge: a bool where it is known, else a BoolExpr."""
    expr = a if type(a) is IntExpr else b
    if type(expr) is not IntExpr:
        return _COMPARE[op](a, b)  # type: ignore[arg-type]
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


def sym_max(a: Size, b: Size) -> Size:
    expr = a if type(a) is IntExpr else b
    return expr.algebra.max(a, b) if type(expr) is IntExpr else max(a, b)  # type: ignore


def sym_min(a: Size, b: Size) -> Size:
    expr = a if type(a) is IntExpr else b
    return expr.algebra.min(a, b) if type(expr) is IntExpr else min(a, b)  # type: ignore
