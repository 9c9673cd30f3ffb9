"""Float expressions over symbolic sizes and float arguments: what `d ** -0.5` and `1 / s` become.

In: sizes, Python floats and float symbols.  Out: `Real = float | FloatExpr`; a FloatExpr is never
constant.  It is a tree that is evaluated exactly as Python would: nothing is reassociated, since
rounding is observable.  Rounding to an integer gives back a `Size` where one is exact.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitshape.ir.notation import operand
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size

_BINARY: dict[str, tuple[str, Callable[[Any, Any], float]]] = {
    "add": ("{} + {}", operator.add),
    "sub": ("{} - {}", operator.sub),
    "mul": ("{} * {}", operator.mul),
    "div": ("{} / {}", operator.truediv),
    "pow": ("{} ** {}", operator.pow),
    "floordiv": ("{} // {}", operator.floordiv),
    "mod": ("{} % {}", operator.mod),
    "max": ("max({}, {})", max),
    "min": ("min({}, {})", min),
}
_UNARY: dict[str, tuple[str, Callable[[Any], float]]] = {
    "float": ("float({})", float),
    "neg": ("-{}", operator.neg),
    "abs": ("abs({})", abs),
    "sqrt": ("math.sqrt({})", math.sqrt),
    "exp": ("math.exp({})", math.exp),
    "log": ("math.log({})", math.log),
    "sin": ("math.sin({})", math.sin),
    "cos": ("math.cos({})", math.cos),
    "tanh": ("math.tanh({})", math.tanh),
}
_PYTHON = {**_BINARY, **_UNARY}
ROUNDINGS: dict[str, Callable[[float], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
}


@dataclass(frozen=True)
class FloatExpr:
    """`op` of `args`: sizes, floats, float expressions; op "symbol" has its Atom."""

    op: str
    args: tuple[Any, ...]

    def evaluate(self, leaf: Callable[[Any], Any]) -> float | None:
        """The value where `leaf` gives that of each size and float symbol; None where it cannot,
        or where Python would raise."""
        if self.op == "symbol":
            return leaf(self)
        values = [
            arg.evaluate(leaf) if type(arg) is FloatExpr else _leaf(arg, leaf) for arg in self.args
        ]
        if None in values:
            return None
        try:
            result = _PYTHON[self.op][1](*values)
        except (ArithmeticError, ValueError):
            return None
        return result if type(result) is float else None

    @property
    def symbol(self) -> Atom | None:
        """The atom if this is exactly one float symbol."""
        return self.args[0] if self.op == "symbol" else None

    def symbols(self) -> tuple[Atom, ...]:
        """The symbols in it, in creation order."""
        found: dict[int, Atom] = {}
        for arg in self.args:
            parts = (arg,) if type(arg) is Atom else ()
            if isinstance(arg, (IntExpr, FloatExpr)):
                parts = arg.symbols()
            found.update((atom.id, atom) for atom in parts)
        return tuple(found[id] for id in sorted(found))

    def print(self, name: Callable[[Atom], str]) -> str:
        """Legal Python; `name` renames symbols."""
        if self.op == "symbol":
            return name(self.args[0])
        template = _PYTHON[self.op][0]
        bare = template.endswith(")")
        return template.format(*(_text(arg, name, bare) for arg in self.args))

    def map(self, fn: Callable[[Any], Any]) -> Real:
        """The expression with `fn` applied to its leaves that are symbolic."""
        if self.op == "symbol":
            return fn(self)
        args = [
            arg.map(fn) if type(arg) is FloatExpr else (fn(arg) if type(arg) is IntExpr else arg)
            for arg in self.args
        ]
        return apply(self.op, *args)

    def __str__(self) -> str:
        return self.print(lambda atom: atom.name)

    __repr__ = __str__


Real = float | FloatExpr


def symbol_of(algebra: Algebra, atom: Atom) -> IntExpr | FloatExpr:
    """The expression that is one symbol, of a size or of a float."""
    return FloatExpr("symbol", (atom,)) if atom.kind == "float" else algebra.atom_expr(atom.id)


def _leaf(arg: Any, leaf: Callable[[Any], Any]) -> Any:
    return leaf(arg) if type(arg) is IntExpr else arg


def _text(arg: Any, name: Callable[[Atom], str], bare: bool) -> str:
    if isinstance(arg, (IntExpr, FloatExpr)):
        text = arg.print(name)
    elif math.isfinite(arg):
        text = repr(arg)
    else:
        text = f"float('{arg}')"
    return text if bare else operand(text)


def apply(op: str, *args: Size | Real) -> Any:
    """`op` of sizes and reals, folded where all are constant (then it may raise as Python does)."""
    if not any(type(arg) in (IntExpr, FloatExpr) for arg in args):
        return _PYTHON[op][1](*args)
    if op == "float" and type(args[0]) is not IntExpr:
        return args[0]
    return FloatExpr(op, args)


def exact_rounding(op: str, value: Real) -> Size | None:
    """`op` of `value` as a size where that is exact for all sizes below 2**53, else None."""
    if not isinstance(value, FloatExpr):
        return ROUNDINGS[op](value)
    if value.op == "float":
        return value.args[0]
    sizes = all(type(arg) in (int, IntExpr) for arg in value.args)
    if value.op != "div" or not sizes:
        return None
    # a quotient of integers below 2**53 never rounds up to the next integer
    a, b = value.args
    algebra = next(arg.algebra for arg in value.args if type(arg) is IntExpr)
    signs = algebra.bounds(a)[0] >= 0 and algebra.bounds(b)[0] >= 0
    if op == "floor" or (op == "trunc" and signs):
        return algebra.floordiv(a, b)
    if op == "ceil":
        return algebra.mul(algebra.floordiv(algebra.mul(a, -1), b), -1)
    return None
