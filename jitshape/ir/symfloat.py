"""Float expressions over symbolic sizes and float arguments: what `d ** -0.5` and `1 / s` become.

In: sizes, Python floats and float symbols.  Out: `Real = float | FloatExpr`; a FloatExpr is never
constant.  It is a tree that is evaluated exactly as Python would: nothing is reassociated, since
rounding is observable.  Rounding to an integer gives back a `Size` where one is exact.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jitshape.ir.hosted import ROUNDINGS
from jitshape.ir.notation import operand, print_int
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
    "round_to": ("round({}, {})", round),
}
_UNARY: dict[str, tuple[str, Callable[[Any], float]]] = {
    "float": ("float({})", float),
    "neg": ("-{}", operator.neg),
    "abs": ("abs({})", abs),
}
# Functions of `math` that give a float.
_UNARY_MATH = (
    "sqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc gamma lgamma fabs degrees radians cbrt"
).split()
BINARY_MATH = "pow fmod atan2 hypot copysign remainder".split()
MATH = {name: getattr(math, name) for name in (*_UNARY_MATH, *BINARY_MATH)}
_PYTHON: dict[str, tuple[str, Callable[..., float]]] = {
    **_BINARY,
    **_UNARY,
    **{name: (f"math.{name}({{}})", MATH[name]) for name in _UNARY_MATH},
    **{
        name if name != "pow" else "math_pow": (f"math.{name}({{}}, {{}})", MATH[name])
        for name in BINARY_MATH
    },
}
EXACT_BITS = 20  # of a factor: products with sizes below 2**33 are exact


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

    @functools.cached_property
    def depth(self) -> int:
        """As that of an Atom."""
        return 1 + max([getattr(arg, "depth", 0) for arg in self.args])

    @functools.cached_property
    def weight(self) -> int:
        return 1 + sum([getattr(arg, "weight", 0) for arg in self.args])

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

    def sizes(self) -> Iterator[IntExpr]:
        """The integers in it."""
        for arg in self.args:
            if type(arg) is IntExpr:
                yield arg
            elif type(arg) is FloatExpr:
                yield from arg.sizes()

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

    def __add__(self, other: Any) -> Real:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Real:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Real:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Real:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Real:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Real:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Real:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Real:
        return apply("div", other, self)

    def __neg__(self) -> Real:
        return apply("neg", self)

    def __str__(self) -> str:
        return self.print(lambda atom: atom.name)

    __repr__ = __str__


Real = float | FloatExpr


def symbol_of(algebra: Algebra, atom: Atom) -> IntExpr | FloatExpr:
    """The expression that is one symbol, of a size or of a float."""
    return FloatExpr("symbol", (atom,)) if atom.kind == "float" else algebra.atom_expr(atom.id)


def _leaf(arg: Any, leaf: Callable[[Any], Any]) -> Any:
    return leaf(arg) if type(arg) is IntExpr else arg


def print_number(x: Any, name: Callable[[Atom], str]) -> str:
    """Legal Python of a size, a float or an expression."""
    if isinstance(x, (IntExpr, FloatExpr)):
        return x.print(name)
    if type(x) is int:
        return print_int(x)
    return repr(x) if math.isfinite(x) else f"float('{x}')"


def _text(arg: Any, name: Callable[[Atom], str], bare: bool) -> str:
    text = print_number(arg, name)
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
        return ROUNDINGS[op][1](value)
    if value.op == "float":
        return value.args[0]
    quotient = _quotient(value)
    if quotient is None:
        return None
    # a quotient of integers below 2**53 never rounds up to the next integer
    a, b = quotient
    algebra = next(arg.algebra for arg in quotient if type(arg) is IntExpr)
    signs = algebra.bounds(a)[0] >= 0 and algebra.bounds(b)[0] >= 0
    if op == "floor" or (op == "trunc" and signs):
        return algebra.floordiv(a, b)
    if op == "ceil":
        return algebra.mul(algebra.floordiv(algebra.mul(a, -1), b), -1)
    return None


def _quotient(value: FloatExpr) -> tuple[Size, Size] | None:
    """(a, b) where `value` is a / b: a quotient of sizes, or a size by a short binary fraction."""
    if value.op not in ("div", "mul") or len(value.args) != 2:
        return None
    a, b = [arg.args[0] if _is_size(arg) else arg for arg in value.args]
    if value.op == "mul" and type(a) is float:
        a, b = b, a
    if type(a) not in (int, IntExpr):
        return None
    if type(b) is float:
        if not math.isfinite(b) or b == 0:
            return None
        top, bottom = b.as_integer_ratio()
        if max(abs(top), bottom) >= 1 << EXACT_BITS:
            return None
        return (a * top, bottom) if value.op == "mul" else _positive(a * bottom, top)
    return (a, b) if value.op == "div" and isinstance(b, (int, IntExpr)) else None


def _positive(a: Size, b: int) -> tuple[Size, Size]:
    return (a, b) if b > 0 else (-a, -b)


def _is_size(arg: Any) -> bool:
    return type(arg) is FloatExpr and arg.op == "float"
