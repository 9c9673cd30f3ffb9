"""Floats of a trace: arguments that changed, numbers of run time, and what is computed from them.

In: real numbers that the program computes with.  Out: their values at this call, and the facts
that a decision on one makes: it is specialised, since no interval holds for floats.
Invariant: as ShapeEnv, of which this is the part for floats: every fact is true at this call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jitshape.errors import DataDependent
from jitshape.ir import symfloat
from jitshape.ir.conditions import Bool, BoolExpr
from jitshape.ir.facts import Fact, Symbol
from jitshape.ir.hosted import ROUNDINGS
from jitshape.ir.symfloat import FloatExpr, Real
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size

_UNKNOWN = 0.618033988749  # is lent for what only a run can tell
DEEPEST = 64  # nest of quotients, maxima and the like
HEAVIEST = 400  # of them in one expression, written out


def is_unwieldy(a: IntExpr | FloatExpr) -> bool:
    """Whether a number is nested too deeply, or too large, for what comes after it."""
    return a.depth > DEEPEST or a.weight > HEAVIEST


class FloatSymbols:
    """The part of a ShapeEnv that knows floats; the rest knows sizes."""

    algebra: Algebra
    symbols: dict[str, Symbol]
    facts: list[Fact]

    def __init__(self) -> None:
        self.lent: dict[float, FloatExpr] = {}  # numbers that stand for floats inside of C++
        self.returned: set[float] = set()  # those of them that arrived at an op
        self._values: dict[str, Any] = {}  # the actual ones, of ints too
        self._known: set[Bool] = set()  # conditions that no interval can express
        self._floats: dict[int, float | None] = {}  # float symbol's atom id -> actual value
        self._fixed: set[int] = set()  # those of them that were specialised

    def actual(self, a: Size | Real) -> Any:
        raise NotImplementedError

    def simplify(self, a: Size) -> Size:
        raise NotImplementedError

    def evaluate(self, cond: Bool, why: str = "") -> bool:
        raise NotImplementedError

    def specialize(self, a: Size, why: str = "") -> int:
        raise NotImplementedError

    def _fact(self, cond: Bool, why: str) -> Fact:
        raise NotImplementedError

    def _data_dependent(self, what: Size | Bool | Real) -> DataDependent:
        raise NotImplementedError

    def float_symbol(self, actual: float, name: str | None = None) -> FloatExpr:
        """A float argument.  A decision on it specialises it: the fact `symbol == value` (of
        floats, so to be checked bit by bit)."""
        atom = self.algebra.float_atom(name or f"f{len(self._floats)}", actual)
        self._floats[atom.id] = self._values[atom.name] = actual
        return FloatExpr("symbol", (atom,))

    def unbacked_float(self) -> FloatExpr:
        """A float that exists only when the graph runs."""
        atom = self.algebra.float_atom(f"uf{len(self._floats)}", math.nan)
        self._floats[atom.id] = None
        return FloatExpr("symbol", (atom,))

    def _float_value(self, a: Real, size: Callable[[Size], int | None]) -> float | None:
        def leaf(x: Size | FloatExpr) -> float | None:
            return self._floats[x.args[0].id] if isinstance(x, FloatExpr) else size(x)

        return a.evaluate(leaf) if isinstance(a, FloatExpr) else a

    def lend(self, a: FloatExpr) -> float | None:
        """A number that nothing else is, close to `a` where that is known before the run; None for
        what is not finite."""
        number = self.actual(a)
        number = _UNKNOWN if number is None else number
        if not math.isfinite(number):
            return None
        number = math.nextafter(number, math.inf)
        while self.lent.get(number, a) != a:
            number = math.nextafter(number, math.inf)
        self.lent[number] = a
        return number

    def simplify_float(self, a: Real) -> Real:
        """As `simplify`; a float where all symbols in `a` are specialised."""

        def leaf(x: Size | FloatExpr) -> Size | Real:
            if not isinstance(x, FloatExpr):
                return self.simplify(x)
            id = x.args[0].id
            if id not in self._fixed:
                return x
            value = self._floats[id]
            assert value is not None
            return value

        return a.map(leaf) if isinstance(a, FloatExpr) else a

    def specialize_float(self, a: Real, why: str = "") -> float:
        """The value at this call; every symbol in it is specialised."""
        if not isinstance(a, FloatExpr):
            return a
        value = self.actual(a)
        if value is None:
            raise self._data_dependent(a)
        for atom in a.symbols():
            self._fix(atom, why)
        return value

    def _fix(self, atom: Atom, why: str) -> None:
        """Specialise one symbol."""
        if atom.kind == "sym":
            self.specialize(self.symbols[atom.name].expr, why)
        elif atom.id not in self._fixed:
            self._fixed.add(atom.id)
            equal = BoolExpr("eq", (FloatExpr("symbol", (atom,)), self._floats[atom.id]))
            self.facts.append(self._fact(equal, why))

    def round_float(self, op: str, a: Real, why: str = "") -> Size:
        """floor, ceil, trunc or round of a real."""
        exact = symfloat.exact_rounding(op, a)
        if exact is not None:
            return exact
        value = self.actual(a)
        if value is not None and not math.isfinite(value):
            a = self.specialize_float(a, why)
            return ROUNDINGS[op][1](a)  # raises
        return self.algebra.hosted(op, a)

    def _decide_floats(self, cond: BoolExpr, value: bool, why: str) -> bool:
        """As a fact; what is equal to a float, or compares a nan, holds for one value only, unless
        it is one of several that may hold."""
        if cond.op == "and" or (cond.op == "or" and not value):
            ask = all if cond.op == "and" else any
            return ask(self.evaluate(part, why) for part in cond.args)
        if cond.op != "or":
            sides = [self.actual(x) for x in cond.args]
            equal = cond.op == ("eq" if value else "ne") and cond.args[0] != cond.args[1]
            if equal or any(x != x for x in sides):
                for atom in cond.symbols():
                    self._fix(atom, why)
                return value
        held = cond if value else ~cond
        self.facts.append(self._fact(held, why))
        self._known.add(held)
        return value

    def shallow_float(self, a: Real) -> Real:
        """As `shallow`."""
        deep = type(a) is FloatExpr and is_unwieldy(a)
        return self.specialize_float(a, "a float nested too deeply") if deep else a
