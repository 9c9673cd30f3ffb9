"""Decisions on numbers of run time that the sizes of a call settle: `n + k == 0` for a size n of 30
and a count k that only the graph knows.

In: a comparison with unbacked symbols.  Out: its truth at all their values, if a fact on the sizes
of this call makes sure of it; the fact is a guard.
"""

from __future__ import annotations

from typing import Any

from jitshape.ir.conditions import BoolExpr, compare, compares_floats
from jitshape.ir.symint import IntExpr, Size

# Of a - b, by the comparison of a and b: what its lowest value must be for which answer, and what
# its highest.
_BY_LOWEST = {
    "eq": ("gt", False),
    "ne": ("gt", True),
    "lt": ("ge", False),
    "le": ("gt", False),
    "gt": ("gt", True),
    "ge": ("ge", True),
}
_BY_HIGHEST = {
    "eq": ("lt", False),
    "ne": ("lt", True),
    "lt": ("lt", True),
    "le": ("le", True),
    "gt": ("le", False),
    "ge": ("lt", False),
}


def settle(env: Any, condition: BoolExpr, why: str) -> bool | None:
    """The truth of `condition`, or None where it depends on more than sizes."""
    if condition.op not in _BY_LOWEST or compares_floats(condition):
        return None
    a, b = map(env.simplify, condition.args)
    difference = a - b
    for table, lowest in ((_BY_LOWEST, True), (_BY_HIGHEST, False)):
        extreme = _extreme(env, difference, lowest)
        if extreme is None:
            continue
        op, answer = table[condition.op]
        needed = compare(op, *extreme)
        holds = needed.evaluate(env.actual) if isinstance(needed, BoolExpr) else needed
        if holds and env.evaluate(needed, why):
            return answer
    return None


def _extreme(env: Any, difference: Size, lowest: bool) -> tuple[Size, Size] | None:
    """The least (greatest) that `difference` can be: an expression of sizes, less another one."""
    if type(difference) is not IntExpr:
        return difference, 0
    algebra = difference.algebra
    plus: Size = 0
    minus: Size = 0
    for monomial, coefficient in algebra.terms(difference):
        product: Size = coefficient
        for id in monomial:
            atom = algebra.atoms[id]
            if not _depends_on_data(env, algebra.atom_expr(id)):
                product = product * algebra.atom_expr(id)
                continue
            rest_counts = all(algebra.atoms[i].lo >= 0 for i in monomial if i != id)
            bound = atom.lo if lowest == (coefficient > 0) else atom.hi
            if not rest_counts or abs(bound) == float("inf") or monomial.count(id) > 1:
                return None
            product = product * int(bound)
        if coefficient > 0:
            plus = plus + product
        else:
            minus = minus - product
    return plus, minus


def _depends_on_data(env: Any, atom: IntExpr) -> bool:
    return any(env.actual_of(symbol) is None for symbol in atom.algebra.symbols(atom))
