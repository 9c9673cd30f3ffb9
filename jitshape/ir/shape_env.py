"""The owner of what is known about sizes: symbols, their hints, and the facts that are guarded.

In: questions about sizes, asked by the program, by ops and by the backend.  Out: answers, and in
`facts` the conditions under which they are right, each with the user's line and op that asked.
Invariant: at the values of the call being traced (`actual`) every fact is true, so an entry
guarded by the facts serves the call that made it; every answer follows from the facts, the
declared ranges, and the run-time asserts.

Three kinds of numbers stand behind a symbol.  Its *actual* value is this call's; required answers
(`evaluate`) follow it.  Its *hint* is the same, unless that is 0 or 1: then it is a larger
stand-in, distinct for each symbol, and optional answers (`guard_or`) that depend on the
difference are not taken.  Its *hints* are all values seen at its source so far: an optional answer
is paid for with a guard only if it was right for each of them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitshape.errors import DataDependent
from jitshape.ir.conditions import (
    Bool,
    BoolExpr,
    all_of,
    any_of,
    compare,
    compares_floats,
    implies,
    reduced,
)
from jitshape.ir.facts import Fact, Symbol, assumption
from jitshape.ir.float_symbols import FloatSymbols, is_unwieldy
from jitshape.ir.intervals import INF
from jitshape.ir.prover import Prover
from jitshape.ir.settling import settle
from jitshape.ir.symfloat import FloatExpr, Real
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size

if TYPE_CHECKING:
    from jitshape.ir.graph import Location

STAND_INS = (67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)  # primes: divide nothing


def _question(ask: Callable[..., bool]) -> Callable[..., bool]:
    """A question about a condition, the time of which counts."""

    @functools.wraps(ask)
    def asked(self: ShapeEnv, cond: Bool, *args: Any, **kwargs: Any) -> bool:
        if type(cond) is bool:
            return cond
        if self._asking:
            return ask(self, cond, *args, **kwargs)
        self._asking, start = True, time.thread_time()
        try:
            return ask(self, cond, *args, **kwargs)
        finally:
            self.seconds += time.thread_time() - start
            self._asking = False

    return asked


class ShapeEnv(FloatSymbols):
    """One per trace.  `location` and `current_op` are set by the tracer and sign each fact;
    `replacing` is cleared at the second level (backward), where facts only add guards; `refuted`
    holds the assumptions that an earlier run showed to be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.algebra = Algebra()
        self.prover = Prover(self.algebra)
        self.symbols: dict[str, Symbol] = {}
        self.facts: list[Fact] = []
        self.asserts: list[Fact] = []  # on unbacked symbols: checked when the graph runs, in order
        self.refuted: Collection[str] = ()
        self.seconds = 0.0  # that questions took
        self._asking = False
        self.location: Callable[[], Location | None] = lambda: None
        self.current_op = ""
        self.replacing = True
        self.general = False  # C++ takes the branch for sizes above 1, without a fact
        self.exact = False  # C++ learns which sizes are 1, by facts
        self.declared: dict[str, tuple[float, float]] = {}  # ranges that no fact stands for
        self.undecided: set[str] = set()  # symbols on which no optional answer may depend
        self._replaced: dict[int, Size] = {}  # symbol's atom id -> what it equals
        self._actual: dict[str, int] = {}
        self._simplified: dict[IntExpr, tuple[int, Size]] = {}
        self.wrapped: dict = {}  # ir/torch_numbers.py's objects, so that they die with the trace

    # ---- symbols

    def size_symbol(
        self,
        hint: int,
        *,
        lo: int = 0,
        hi: float = INF,
        name: str | None = None,
        seen: Sequence[int] = (),
        typical: int | None = None,
    ) -> IntExpr:
        """A size: never negative.  A tighter range is a fact.  `seen`: its earlier values;
        `typical`: a value to choose by instead of this call's."""
        return self._backed("s", hint, 0, lo, hi, name, seen, typical)

    def int_symbol(
        self,
        hint: int,
        *,
        lo: float = -INF,
        hi: float = INF,
        name: str | None = None,
        seen: Sequence[int] = (),
        typical: int | None = None,
    ) -> IntExpr:
        """An int argument, stride or offset; `typical` as for sizes."""
        return self._backed("s", hint, -INF, lo, hi, name, seen, typical)

    def unbacked(self, lo: float = 0, hi: float = INF, name: str | None = None) -> IntExpr:
        """A number that exists only when the graph runs; whoever makes it answers for its range."""
        name = name or f"u{sum(s.unbacked for s in self.symbols.values())}"
        expr = self.algebra.symbol(name, lo, hi)
        self.declared[name] = lo, hi
        self.symbols[name] = Symbol(expr, name, ())
        return expr

    def _backed(
        self,
        prefix: str,
        actual: int,
        least: float,
        lo: float,
        hi: float,
        name: str | None,
        seen: Sequence[int],
        typical: int | None = None,
    ) -> IntExpr:
        number = len(self._actual)
        name = name or f"{prefix}{number}"
        assert name not in self.symbols, f"two symbols {name}"
        hint = self._stand_in(actual if typical is None else typical, lo, hi, number)
        expr = self.algebra.symbol(name, least, hint=hint)
        self.declared[name] = least, INF
        self.symbols[name] = Symbol(expr, name, (*seen, actual))
        self._actual[name] = self._values[name] = actual
        for op, bound in (("ge", lo), ("le", hi)):
            if bound not in (INF, -INF, least):
                if not self.evaluate(compare(op, expr, int(bound)), "the range declared for it"):
                    raise ValueError(f"{name} is {actual}, outside of [{lo}, {hi}]")
        return expr

    @staticmethod
    def _stand_in(actual: int, lo: float, hi: float, number: int) -> int:
        if actual not in (0, 1):
            return actual
        stand_in = STAND_INS[number % len(STAND_INS)] + number // len(STAND_INS) * 128
        return stand_in if lo <= stand_in <= hi else actual

    # ---- values

    def hint(self, a: Size, default: int | None = None) -> int:
        """A typical value, for heuristics; `default` for unbacked sizes."""
        value = self.algebra.evaluate(self.simplify(a), None)
        if value is None:
            value = default
        if value is None:
            raise self._data_dependent(a)
        return value

    def actual(self, a: Size | Real) -> Any:
        """The value at this call; None if it exists only when the graph runs."""
        if isinstance(a, (float, FloatExpr)):
            return self._float_value(a, self.actual)
        return self._value(self.simplify(a), self._values)

    def actual_of(self, atom: Atom) -> int | float | None:
        """The value of a symbol at this call, of a size, int or float, as `actual`."""
        return self._floats[atom.id] if atom.kind == "float" else self._actual.get(atom.name)

    def _value(self, a: Size, values: Mapping[str, Any]) -> int | None:
        try:
            return self.algebra.evaluate(a, values)
        except (KeyError, ZeroDivisionError):
            return None

    def simplify(self, a: Size) -> Size:
        """`a` with every symbol replaced that is known to equal something simpler."""
        if type(a) is int or not self._replaced:
            return a
        assert isinstance(a, IntExpr)
        cached = self._simplified.get(a)
        if cached is None or cached[0] != self.algebra.version:
            cached = self.algebra.version, self.algebra.substitute(a, self._replaced)
            self._simplified[a] = cached
        return cached[1]

    # ---- questions

    def static(self, cond: Bool) -> bool | None:
        """The answer where it is the same for every call that the facts admit.  Never guards."""
        if type(cond) is not BoolExpr:
            return bool(cond)
        if cond in self._known:
            return True
        if ~cond in self._known:
            return False
        if cond.op in ("and", "or"):
            parts = [self.static(part) for part in cond.args]
            decisive = cond.op == "or"
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        if compares_floats(cond):
            a, b = (self.simplify_float(side) for side in cond.args)
            number = isinstance(a, float) and isinstance(b, float)
            return cond.evaluate(self.actual) if number else None
        a, b = (self.simplify(side) for side in cond.args)
        if type(a) is int and type(b) is int:
            return compare(cond.op, a, b) is True
        known = self.algebra.static(cond.op, a, b)
        return self.prover.decide(cond.op, a, b) if known is None else known

    @_question
    def evaluate(self, cond: Bool, why: str = "") -> bool:
        """The answer for this call; a fact, unless it is static."""
        known = self.static(cond)
        if known is not None:
            return known
        assert isinstance(cond, BoolExpr)
        value = cond.evaluate(self.actual)
        if value is None:
            settled = settle(self, cond, why)
            if settled is None:
                raise self._data_dependent(cond)
            return settled
        if compares_floats(cond):
            return self._decide_floats(cond, value, why)
        self._record(cond if value else ~cond, why)
        return value

    @_question
    def guard_or(self, cond: Bool, default: bool) -> bool:
        """An optional answer: `default` must always be right, if less good.  The other answer is
        taken, and guarded, only if it was true of every call seen and not for a size of 0 or 1."""
        known = self.static(cond)
        if known is not None:
            return known
        assert isinstance(cond, BoolExpr)
        if any(atom.kind == "float" or atom.name in self.undecided for atom in cond.symbols()):
            return default
        if any(truth is not (not default) for truth in self._truths(cond)):
            return default
        self._record(~cond if default else cond, "")
        return not default

    def _truths(self, cond: BoolExpr) -> list[bool | None]:
        """`cond` at the stand-ins and at every combination of values seen together."""
        symbols = {s.name: self.symbols[s.name] for s in cond.symbols()}
        calls = max(len(s.hints) for s in symbols.values())
        truths = [cond.evaluate(lambda size: self.algebra.evaluate(size, None))]
        for back in range(1, calls + 1):
            values = {n: s.hints[-min(back, len(s.hints))] for n, s in symbols.items() if s.hints}
            truths.append(cond.evaluate(lambda size, values=values: self._value(size, values)))
        return truths

    def equal(self, a: Size, b: Size, why: str = "") -> bool:
        return self.evaluate(compare("eq", a, b), why)

    def broadcast(self, a: Size, b: Size) -> Size | None:
        """The size of two aligned dimensions after broadcasting, None if they do not fit.  Equal
        sizes are tried before size 1, so that a symbol of actual size 1 is not specialised
        where it need not be."""
        if a is b or a == b or b == 1:
            return a
        if a == 1:
            return b
        values = self.actual(a), self.actual(b)
        unbacked = None in values and 1 not in values  # one of run time is taken not to be 1
        if values[0] == values[1] or unbacked or self.static(compare("eq", a, b)):
            self.agree(a, b, "broadcasting")
            return b if type(b) is int else a
        for one, other, value in ((a, b, values[0]), (b, a, values[1])):
            if type(one) is int or value is None:
                continue
            if self.evaluate(compare("eq", one, 1), "broadcasting"):
                return other
        return None

    def specialize(self, a: Size, why: str = "") -> int:
        """The value at this call; a fact, unless it is static."""
        a = self.simplify(a)
        if type(a) is int:
            return a
        value = self.actual(a)
        if value is None:
            raise self._data_dependent(a)
        self.evaluate(compare("eq", a, value), why)
        return value

    def shallow(self, a: Size) -> Size:
        """`a`, specialised where it is too deep or too large for what comes after it."""
        deep = type(a) is IntExpr and is_unwieldy(a)
        return self.specialize(a, "a size nested too deeply") if deep else a

    def floordiv(self, a: Size, b: Size) -> Size:
        """The program's `a // b`: that b is not 0 becomes a fact, if it is 0 the error eager's."""
        self._check_divisor(b)
        return self.algebra.floordiv(a, b)

    def mod(self, a: Size, b: Size) -> Size:
        """The program's `a % b`, as `floordiv`."""
        self._check_divisor(b)
        return self.algebra.mod(a, b)

    def _check_divisor(self, b: Size) -> None:
        if not self.assume(compare("ne", b, 0), "division by zero"):
            raise ZeroDivisionError("integer division or modulo by zero")

    # ---- knowledge

    @_question
    def assume(self, cond: Bool, why: str = "") -> bool:
        """What must hold for the program to go on, as `torch._check(cond)`: False if it fails at
        this call.  A condition on unbacked symbols becomes a run-time assert, and is known from
        here on; where it fails then, the call is made again without the graph.  So it may also
        be what only holds as a rule."""
        if type(cond) is BoolExpr and self.static(cond) is None:
            if cond.evaluate(self.actual) is None:
                fact = self._fact(cond, why)
                if assumption(fact) in self.refuted:
                    raise self._data_dependent(cond)
                self.asserts.append(fact)
                self._learn(cond)
                return True
        return self.evaluate(cond, why)

    @_question
    def likely(self, cond: Bool, why: str = "") -> bool:
        """Whether `cond` may be relied on: on unbacked symbols that is a run-time assert, unless
        it failed before."""
        if type(cond) is BoolExpr and self.static(cond) is None:
            if cond.evaluate(self.actual) is None:
                if assumption(self._fact(cond, why)) in self.refuted:
                    return False
        return self.assume(cond, why)

    def agree(self, a: Size, b: Size, why: str = "") -> bool:
        """Whether two sizes that must be equal are: as `assume`."""
        return a is b or self.assume(compare("eq", a, b), why)

    def refine(self, symbol: IntExpr, lo: float = -INF, hi: float = INF) -> None:
        """Narrow a symbol to [lo, hi]: the caller answers for it, no fact is made."""
        assert symbol.symbol is not None
        below, above = self.declared[symbol.symbol.name]
        self.declared[symbol.symbol.name] = max(below, lo), min(above, hi)
        self.algebra.narrow(symbol, lo, hi)

    def remembered(self) -> list[Bool]:
        """The conditions that are known as they are."""
        return list(self._known)

    def replacements(self) -> list[tuple[IntExpr, Size]]:
        """The symbols that are known to equal something."""
        return [(self.algebra.atom_expr(id), value) for id, value in self._replaced.items()]

    def _fact(self, cond: Bool, why: str) -> Fact:
        specialised = (
            isinstance(cond, BoolExpr)
            and cond.op == "eq"
            and any(isinstance(side, (int, float)) for side in cond.args)
            and any(getattr(side, "symbol", None) for side in cond.args)
        )
        return Fact(cond, self.location(), why or self.current_op, specialised)

    def _record(self, cond: Bool, why: str) -> None:
        """Add a true condition to the facts, split into conjuncts, and learn from it."""
        if isinstance(cond, BoolExpr) and cond.op == "and":
            for part in cond.args:
                if self.static(part) is None:
                    self._record(part, why)
            return
        cond = self._simplified_condition(cond)
        assert isinstance(cond, BoolExpr)
        fact = self._fact(cond, why)
        self.facts = [old for old in self.facts if not implies(cond, old.condition)]
        self.facts.append(fact)
        self._learn(cond)

    def _simplified_condition(self, cond: Bool) -> Bool:
        """With known symbols replaced, and parts of connectives dropped that are known."""
        if type(cond) is not BoolExpr:
            return cond
        if cond.op in ("and", "or"):
            parts = []
            for part in cond.args:
                known = self.static(part)
                parts.append(self._simplified_condition(part) if known is None else known)
            return all_of(parts) if cond.op == "and" else any_of(parts)
        a, b = (self.simplify(side) for side in cond.args)
        return reduced(cond.op, a, b)

    def _learn(self, cond: Bool) -> None:
        if type(cond) is not BoolExpr:
            return
        if cond.op == "and":
            for part in cond.args:
                self._learn(part)
        elif cond.op == "or" or compares_floats(cond):
            self._known.add(cond)
        else:
            a, b = (self.simplify(side) for side in cond.args)
            self.algebra.learn(cond.op, a, b)
            if cond.op == "eq" and self.replacing:
                self._replace(self.algebra.add(a, self.algebra.mul(b, -1)))

    def _replace(self, zero: Size) -> None:
        """From `zero == 0` express one symbol by the others: an unbacked one, else the newest."""
        if type(zero) is not IntExpr:
            return
        algebra = self.algebra
        p, scale, offset = algebra.primitive(zero)
        zero = algebra.add(p, offset // scale)
        best: tuple[tuple[bool, int], Atom, Size] | None = None
        for monomial, k in algebra.terms(zero):
            atom = algebra.atoms[monomial[0]] if len(monomial) == 1 else None
            if atom is None or atom.kind != "sym" or k not in (1, -1):
                continue
            symbol = self.symbols[atom.name]
            rest = algebra.mul(algebra.add(zero, algebra.mul(symbol.expr, -k)), -k)
            rank = (symbol.unbacked, atom.id)
            if atom not in algebra.symbols(rest) and (best is None or rank > best[0]):
                best = rank, atom, rest
        if best is None:
            return
        _, atom, value = best
        for op, bound in (("ge", atom.lo), ("le", atom.hi)):
            if bound not in (INF, -INF):
                algebra.learn(op, value, int(bound))
        atom.hint = algebra.evaluate(value, None)
        id = atom.id
        self._replaced = {i: algebra.substitute(x, {id: value}) for i, x in self._replaced.items()}
        self._replaced[id] = value
        algebra.version += 1

    def _data_dependent(self, what: Size | Bool | Real) -> DataDependent:
        place = self.location()
        error = DataDependent(
            f"a decision needs the value of {what}",
            where=str(place) if place else "",
            because=f"{what} is computed by the graph and unknown while tracing",
            avoid="torch._check(...) on it before, or torch.cond",
        )
        error.condition = what
        return error
