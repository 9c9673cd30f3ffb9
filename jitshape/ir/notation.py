"""Sizes as legal Python.

In: a size and the names of symbols.  Out: text that Python evaluates to the size's value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jitshape.ir.hosted import HOSTED

if TYPE_CHECKING:
    from jitshape.ir.symint import Algebra, Atom, Size


def print_int(x: int) -> str:
    """Legal Python; decimal digits have a limit."""
    return repr(x) if abs(x) < 1 << 1024 else hex(x)


def print_size(algebra: Algebra, a: Size, name: Callable[[Atom], str]) -> str:
    """Legal Python; `name` renames symbols."""
    terms = algebra.terms(a)
    if len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return _print_atom(algebra, algebra.atoms[terms[0][0][0]], name)
    terms = sorted(terms, key=lambda term: term[0] == ())  # the constant last
    first = next((i for i, (_, k) in enumerate(terms) if k > 0), 0)
    terms.insert(0, terms.pop(first) if terms else ((), 0))
    parts: list[str] = []
    for monomial, coefficient in terms:
        factors = [operand(_print_atom(algebra, algebra.atoms[id], name)) for id in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, print_int(abs(coefficient)))
        text = "*".join(factors)
        sign = "-" if coefficient < 0 else "+"
        parts.append(("-" if sign == "-" else "") + text if not parts else f" {sign} {text}")
    return "".join(parts)


def _print_atom(algebra: Algebra, atom: Atom, name: Callable[[Atom], str]) -> str:
    if atom.host is not None:
        return _print_hosted(atom, name)
    if atom.args is None:
        return name(atom)
    a, b = (print_size(algebra, x, name) for x in atom.args)
    if atom.kind in ("max", "min"):
        return f"{atom.kind}({a}, {b})"
    return f"{operand(a)} {'//' if atom.kind == 'floordiv' else '%'} {operand(b)}"


def _print_hosted(atom: Atom, name: Callable[[Atom], str]) -> str:
    template = HOSTED[atom.kind][0]
    texts = [str(x) if isinstance(x, int) else x.print(name) for x in atom.host or ()]
    return template.format(*(texts if template.endswith(")") else map(operand, texts)))


def operand(text: str) -> str:
    """`text` where it can stand beside any operator."""
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if depth == 0 and char in " -*":
            return f"({text})"
    return text
