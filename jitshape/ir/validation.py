"""Proof by z3 that the facts of a trace imply everything that was relied on (JITSHAPE_VALIDATE=1).

In: a ShapeEnv at the end of a trace.  Out: counts of what was proved and of what z3 could not
decide in time; an InternalError where z3 finds sizes that meet every guard and yet break something
that the trace took for known.
What is relied on: the bounds that were derived of any expression, values excluded, conditions
remembered, symbols replaced.  Every answer of the prover follows from these.
Premises: facts, run-time asserts, declared ranges; divisors are not 0 (whoever divides guards it),
and atoms of the host lie in the range of their operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jitshape.errors import InternalError, UnsupportedEnvironment
from jitshape.ir.conditions import Bool, BoolExpr, compares_floats
from jitshape.ir.intervals import INF, Interval
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import Atom, IntExpr, Size

MILLISECONDS = 200  # for one claim
_COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class Outcome:
    """How many claims were proved, and how many z3 left open."""

    proved: int
    open: int


def validate(env: ShapeEnv) -> Outcome:
    """Prove what `env` relied on, claim by claim."""
    try:
        import z3
    except ModuleNotFoundError as error:
        raise UnsupportedEnvironment(
            "JITSHAPE_VALIDATE=1 needs z3, which is not installed",
            avoid="pip install z3-solver, or unset JITSHAPE_VALIDATE",
        ) from error

    terms = _Terms(env)
    claims = list(_claims(env, terms))
    solver = z3.Solver()
    solver.set("timeout", MILLISECONDS)
    for fact in (*env.facts, *env.asserts):
        solver.add(terms.condition(fact.condition))
    for name, interval in env.declared.items():
        solver.add(*terms.within(z3.Int(name), interval))
    solver.add(*terms.premises)
    proved = 0
    for text, claim in claims:
        solver.push()
        solver.add(z3.Not(claim))
        answer = solver.check()
        if answer == z3.sat:
            cause = AssertionError(f"the guards do not imply {text}: {solver.model()}")
            raise InternalError("validate", cause)
        proved += answer == z3.unsat
        solver.pop()
    return Outcome(proved, len(claims) - proved)


def _claims(env: ShapeEnv, terms: _Terms) -> Iterator[tuple[str, Any]]:
    """What was relied on, as text and as a term."""
    algebra = env.algebra
    for expr, (lo, hi) in algebra.derived_bounds():
        for claim in terms.within(terms.size(expr), (lo, hi)):
            yield f"{lo} <= {expr} <= {hi}", claim
    for expr, values in algebra.excluded():
        for value in values:
            yield f"{expr} != {value}", terms.size(expr) != value
    for cond in env.remembered():
        yield str(cond), terms.condition(cond)
    for symbol, value in env.replacements():
        yield f"{symbol} == {value}", terms.size(symbol) == terms.size(value)


class _Terms:
    """z3's terms of sizes and conditions; `premises` grows with what they need."""

    def __init__(self, env: ShapeEnv) -> None:
        import z3

        self.z3, self.algebra = z3, env.algebra
        self.premises: list[Any] = []
        self._atoms: dict[int, Any] = {}

    def within(self, term: Any, interval: Interval) -> list[Any]:
        lo, hi = interval
        found = [] if lo == -INF else [term >= int(lo)]
        return found if hi == INF else [*found, term <= int(hi)]

    def condition(self, cond: Bool) -> Any:
        if not isinstance(cond, BoolExpr):
            return self.z3.BoolVal(cond)
        if cond.op in ("and", "or"):
            join = self.z3.And if cond.op == "and" else self.z3.Or
            return join(*(self.condition(part) for part in cond.args))
        if compares_floats(cond):
            return self.z3.Bool(str(cond))
        return _COMPARE[cond.op](*(self.size(side) for side in cond.args))

    def size(self, a: Size) -> Any:
        total: Any = self.z3.IntVal(0)
        for monomial, coefficient in self.algebra.terms(a):
            product: Any = self.z3.IntVal(coefficient)
            for id in monomial:
                product = product * self.atom(self.algebra.atoms[id])
            total = total + product
        return total

    def atom(self, atom: Atom) -> Any:
        term = self._atoms.get(atom.id)
        if term is None:
            term = self._atoms[atom.id] = self._make(atom)
        return term

    def _make(self, atom: Atom) -> Any:
        z3 = self.z3
        if atom.args is None:
            term = z3.Int(atom.name)
            if atom.host is not None:
                self.premises += self.within(term, self.algebra.range_of_operation(atom))
            return term
        a, b = (self.size(x) for x in atom.args)
        if atom.kind in ("max", "min"):
            return z3.If(a >= b, a, b) if atom.kind == "max" else z3.If(a <= b, a, b)
        if isinstance(atom.args[1], IntExpr):
            self.premises.append(b != 0)
        quotient = z3.If(b > 0, a / b, (-a) / (-b))  # z3 divides so that remainders are >= 0
        return quotient if atom.kind == "floordiv" else a - b * quotient
