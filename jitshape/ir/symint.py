"""Integer expressions over symbolic sizes: interned polynomials with FloorDiv, Mod, Max, Min atoms.

In: Python ints and symbols.  Out: `Size = int | IntExpr`; an `IntExpr` is never constant (a
constant result is a plain int), so `type(s) is int` tells static from symbolic.
Invariant: within one `Algebra` equal expressions are the same object; ids, and with them the
order of terms, follow creation order only, so that the same program prints the same text.
What is known of an expression only ever narrows (`narrow`, `exclude`); simplifications made under
it stay valid because the owner of the algebra guards whatever it declared known.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from jitshape.ir.hosted import evaluate_hosted, power_of_two
from jitshape.ir.intervals import INF
from jitshape.ir.knowledge import COMPARE
from jitshape.ir.notation import print_size
from jitshape.ir.quotients import Quotients

__all__ = ["COMPARE", "Algebra", "Atom", "IntExpr", "Size", "Terms", "sym_max", "sym_min"]

Monomial = tuple[int, ...]  # sorted atom ids, with repetition: x*x*y == (x, x, y)
Terms = tuple[tuple[Monomial, int], ...]

_EVAL: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": max,
    "min": min,
}


class Atom:
    """What a polynomial is made of: a symbol; FloorDiv/Mod/Max/Min of two expressions, `args`; or
    what only the host computes, of `host` (ir/hosted), which kernels get as a number."""

    __slots__ = (
        *("args", "depth", "hi", "hint", "host", "id", "kind", "lo", "name", "version", "weight"),
    )

    def __init__(self, id: int, kind: str, args: tuple[Size, Size] | None, name: str) -> None:
        self.id, self.kind, self.args, self.name = id, kind, args, name
        self.lo: float = -INF
        self.hi: float = INF
        self.hint: Any = None  # an int; of a float symbol a float
        self.version = 0  # of the algebra's knowledge, when lo and hi were last derived
        self.host: tuple[Any, ...] | None = None
        self.depth = 0  # of the nest of atoms
        self.weight = 1  # atoms in it, each as often as it is written

    def __repr__(self) -> str:
        return self.name


@final
class IntExpr:
    """A non-constant integer polynomial.  Operators accept ints and expressions of one algebra."""

    __slots__ = ("__weakref__", "_bounds", "_version", "algebra", "depth", "terms", "weight")

    def __init__(self, algebra: Algebra, terms: Terms) -> None:
        self.algebra, self.terms = algebra, terms
        atoms = algebra.atoms
        found = [atoms[id] for monomial, _ in terms for id in monomial]
        self.depth = max([atom.depth for atom in found])
        self.weight = sum([atom.weight for atom in found])
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

    def __divmod__(self, other: Size) -> tuple[Size, Size]:
        return self // other, self % other

    def __rdivmod__(self, other: Size) -> tuple[Size, Size]:
        return other // self, other % self

    def __pos__(self) -> Size:
        return self

    def __abs__(self) -> Size:
        return self.algebra.max(self, -self)

    def __invert__(self) -> Size:
        return -self - 1

    def __pow__(self, exponent: int) -> Size:
        """A natural power that is known."""
        result: Size = 1
        for _ in range(exponent):
            result = result * self
        return result

    def __and__(self, other: Size) -> Size:
        return self.algebra.bits("and", self, other)

    def __or__(self, other: Size) -> Size:
        return self.algebra.bits("or", self, other)

    def __xor__(self, other: Size) -> Size:
        return self.algebra.bits("xor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __lshift__(self, other: Size) -> Size:
        """A count of bits that is symbolic is assumed not to be negative: callers guard it."""
        return self * self.algebra.shift(other)

    def __rlshift__(self, other: int) -> Size:
        return self.algebra.shift(self) * other

    def __rshift__(self, other: Size) -> Size:
        return self // self.algebra.shift(other)

    def __rrshift__(self, other: int) -> Size:
        return other // self.algebra.shift(self)

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
    def is_plain(self) -> bool:
        """Whether 64 bits compute it: nothing of the host, and far from the limits at hints."""
        return self.algebra.is_plain(self)

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


class Algebra(Quotients):
    """Creates and combines expressions; owns their tables, which die with it."""

    def __init__(self) -> None:
        super().__init__()
        self._interned: dict[Terms, IntExpr] = {}
        self._atom_of: dict[tuple, Size] = {}
        self._sums: dict[tuple[Size, Size], Size] = {}
        self._products: dict[tuple[Size, Size], Size] = {}
        self._symbols: dict[Size, tuple[Atom, ...]] = {}
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

    def round(self, a: Size, ndigits: int) -> Size:
        """Python's `round(a, ndigits)`: ties go to the even multiple of 10**-ndigits."""
        if ndigits >= 0 or type(a) is int:
            return a if type(a) is not int else round(a, ndigits)
        unit = 10**-ndigits
        odd = self.mod(self.floordiv(a, unit), 2)
        return self.mul(self.floordiv(self.add(self.add(a, unit // 2 - 1), odd), unit), unit)

    def bits(self, kind: str, a: Size, b: Size) -> Size:
        """`a & b`, `a | b` or `a ^ b`: "and", "or", "xor".  A mask of low bits is a remainder."""
        if type(a) is int:
            a, b = b, a
        if type(a) is int and type(b) is int:
            return {"and": a & b, "or": a | b, "xor": a ^ b}[kind]
        if a is b:
            return 0 if kind == "xor" else a
        if type(b) is int and b in (0, -1):
            if kind == "and":
                return a if b else 0
            return a if not b else (-1 if kind == "or" else -a - 1)
        if kind == "and" and type(b) is int:
            if power_of_two(b + 1):
                return self.mod(a, b + 1)
            if power_of_two(-b):  # ~7: a multiple of 8
                return a - self.mod(a, -b)
        if type(b) is IntExpr and self.terms(a) > self.terms(b):
            a, b = b, a
        return self.hosted(kind, a, b)

    def shift(self, count: Size) -> Size:
        """`1 << count`"""
        return 1 << count if type(count) is int else self.hosted("shift", 1, count)

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
            measure(atom, (a, b))
            self.atoms.append(atom)
            atom.lo, atom.hi = self.range_of_operation(atom)
            expr = self._atom_of[key] = self._make((((atom.id,), 1),))
            if type(a) is IntExpr and type(b) is IntExpr and kind in ("max", "min"):
                for operand in (a, b):
                    self.learn("ge" if kind == "max" else "le", expr, operand)
        return expr

    def known_atom(self, kind: str, a: Size, b: Size) -> Atom | None:
        """The atom of an operation that was computed already."""
        expr = self._atom_of.get((kind, a, b))
        return None if expr is None else self.atoms[self.terms(expr)[0][0][0]]

    def hosted(self, kind: str, *operands: Any) -> Size:
        """An atom that kernels get as a number: `operands` are sizes, or one float expression."""
        expr = self._atom_of.get((kind, *operands))
        if expr is None:
            atom = Atom(len(self.atoms), kind, None, kind)
            atom.name = f"{kind}{atom.id}"
            atom.host = operands
            measure(atom, operands)
            atom.hint = self._hosted_value(atom, None)
            self.atoms.append(atom)
            atom.lo, atom.hi = self.range_of_operation(atom)
            expr = self._atom_of[(kind, *operands)] = self._make((((atom.id,), 1),))
        return expr

    def _hosted_value(self, atom: Atom, values: Mapping[str, Any] | None) -> int | None:
        def leaf(x: Any) -> Any:
            if type(x) in (int, IntExpr):
                return self.evaluate(x, values)
            atom = x.symbol
            if atom is None:
                return x.evaluate(leaf)
            return atom.hint if values is None else values[atom.name]

        return evaluate_hosted(atom.kind, [leaf(x) for x in atom.host or ()])

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
            return self._hosted_value(atom, values) if atom.host else values[atom.name]
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
        if atom.host is not None:
            return self._substituted_host(atom, replace)
        if atom.args is None:
            return replace.get(id, self._make((((id,), 1),)))
        a, b = (self.substitute(x, replace) for x in atom.args)
        if b == 0 and atom.kind in ("floordiv", "mod"):  # undefined there: stays as it is
            return self.atom_expr(id)
        return getattr(self, atom.kind)(a, b)

    def _substituted_host(self, atom: Atom, replace: Mapping[int, Size]) -> Size:
        def leaf(x: Any) -> Any:
            if type(x) in (int, IntExpr):
                return self.substitute(x, replace)
            return x if x.symbol is not None else x.map(leaf)

        operands = [leaf(x) for x in atom.host or ()]
        if atom.kind in ("and", "or", "xor"):
            return self.bits(atom.kind, *operands)
        if not any(isinstance(x, IntExpr) or hasattr(x, "symbol") for x in operands):
            value = evaluate_hosted(atom.kind, operands)
            return self.atom_expr(atom.id) if value is None else value
        return self.hosted(atom.kind, *operands)

    def symbols(self, a: Size) -> tuple[Atom, ...]:
        """The symbols in `a`, in creation order, those inside atoms included."""
        known = self._symbols.get(a)
        if known is None:
            known = self._symbols[a] = self._find_symbols(a)
        return known

    def _find_symbols(self, a: Size) -> tuple[Atom, ...]:
        found: dict[int, Atom] = {}
        todo = list(self.leaves(a))
        while todo:
            atom = todo.pop()
            if atom.host is None:
                found[atom.id] = atom
            for x in atom.host or ():
                if type(x) is not int:
                    todo += self.leaves(x) if type(x) is IntExpr else x.symbols()
        return tuple(found[id] for id in sorted(found))

    def leaves(self, a: Size) -> tuple[Atom, ...]:
        """What a kernel needs to compute `a`, in creation order: symbols, and atoms of the host."""
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

    def derived_bounds(self) -> list[tuple[IntExpr, tuple[float, float]]]:
        """Every expression whose bounds were asked for, with what is known of it by now."""
        asked = [expr for expr in self._interned.values() if expr._version >= 0]
        return [(expr, self.bounds(expr)) for expr in asked]

    def is_plain(self, a: Size) -> bool:
        """As IntExpr.is_plain."""
        total = 0
        for monomial, coefficient in self.terms(a):
            product = abs(coefficient)
            for id in monomial:
                atom = self.atoms[id]
                if atom.host is not None or not all(map(self.is_plain, atom.args or ())):
                    return False
                product *= max(abs(atom.hint or 0), 1)
            total += product
        return total < 1 << 62

    def print(self, a: Size, name: Callable[[Atom], str] | None = None) -> str:
        """Legal Python; `name` renames symbols."""
        return print_size(self, a, name or (lambda atom: atom.name))


def measure(atom: Atom, operands: Sequence[Any]) -> None:
    """Note how deep and heavy an atom of sizes or of float expressions is."""
    atom.depth = 1 + max([getattr(a, "depth", 0) for a in operands])
    atom.weight = 1 + sum([getattr(a, "weight", 0) for a in operands])


def sym_max(a: Size, b: Size) -> Size:
    expr = a if type(a) is IntExpr else b
    return expr.algebra.max(a, b) if type(expr) is IntExpr else max(a, b)  # type: ignore


def sym_min(a: Size, b: Size) -> Size:
    expr = a if type(a) is IntExpr else b
    return expr.algebra.min(a, b) if type(expr) is IntExpr else min(a, b)  # type: ignore
