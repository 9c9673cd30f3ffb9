"""Which integers 64 bits hold: what kernels, guards in C and torch compute with.

In: a size or number of the program, and what is known of its symbols.  Out: whether a machine's
word holds it and all that it is computed from.
Invariant: Python's integers do not overflow.  So what may is either proved not to, or guarded,
where it leaves Python: at calls of torch (`within_word`).  A product of sizes is taken to stay
within the memory that it measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitshape.ir.conditions import BoolExpr, all_of, compare
from jitshape.ir.intervals import INF
from jitshape.ir.symint import Atom, IntExpr, Size

if TYPE_CHECKING:
    from jitshape.ir.shape_env import ShapeEnv

WORD = 1 << 62  # that guards read numbers as, less a bit for sums
MEMORY = 1 << 40  # more elements than fit


def fits(number: Any) -> bool:
    """Whether a guard can read an int, of any size in Python, as a machine's word."""
    return type(number) is not int or -WORD <= number < WORD


def within_word(env: ShapeEnv, number: Size, why: str) -> bool:
    """Whether 64 bits hold the number at this call; a fact, unless it is certain."""
    if type(number) is int:
        return fits(number)
    number = env.simplify(number)
    if magnitude(env, number) < 1 << 63:
        return True
    bounds = compare("le", number, WORD - 1), compare("ge", number, 1 - WORD)
    return env.assume(all_of(bounds), why)


def magnitude(env: ShapeEnv, number: Size) -> float:
    """The largest absolute value of the number, and of each term that it is the sum of."""
    if type(number) is int:
        return abs(number)
    total: float = 0
    algebra = env.algebra
    for monomial, coefficient in algebra.terms(number):
        atoms = [algebra.atoms[id] for id in monomial]
        sizes = [atom for atom in atoms if is_size(env, atom)]
        product: float = abs(coefficient) * (MEMORY if sizes else 1)
        for atom in atoms:
            product *= 1 if atom in sizes else magnitude_of_atom(env, atom)
        total += product
    return total


def is_size(env: ShapeEnv, atom: Atom) -> bool:
    return atom.kind == "sym" and env.declared[atom.name] == (0, INF)


def magnitude_of_atom(env: ShapeEnv, atom: Atom) -> float:
    lo, hi = env.algebra.range(atom)
    known = max(abs(lo), abs(hi))
    if atom.kind == "sym":
        return min(known, WORD)
    if atom.args is None:
        return known
    parts = [magnitude(env, part) for part in atom.args]
    return min(known, parts[0] if atom.kind == "floordiv" else max(parts))


def computed_in_words(env: ShapeEnv, condition: Any) -> bool:
    """Whether 64 bits hold all that the condition is computed from, at this call."""
    if isinstance(condition, BoolExpr):
        return all(computed_in_words(env, part) for part in condition.args)
    if type(condition) is not IntExpr:
        return fits(condition)
    total = 0
    algebra = env.algebra
    for monomial, coefficient in algebra.terms(condition):
        product = abs(coefficient)
        for id in monomial:
            atom = algebra.atoms[id]
            if not all(computed_in_words(env, part) for part in atom.args or ()):
                return False
            product *= max(abs(env.actual(algebra.atom_expr(id)) or 0), 1)
        total += product
    return total < WORD
