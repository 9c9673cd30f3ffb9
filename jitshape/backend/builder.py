"""The Builder: what op blocks write their scalar expressions with.

In: scalars, Python numbers and sizes.  Out: scalars.  Invariants: equal expressions are one
object (so a kernel computes them once); arithmetic is never in f16 or bf16; operands of one
operation have one dtype, Python numbers being weak as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.backend.halves import is_held
from jitshape.backend.indexing import expression_of
from jitshape.backend.loops import (
    SCALAR_OPS,
    Apply,
    Buffer,
    IndexValue,
    Literal,
    Load,
    Scalar,
    SizeArgument,
)
from jitshape.ir.intervals import INF
from jitshape.ir.symint import Algebra, Atom, IntExpr, Size

Operand = Scalar | Size | float | bool
HALF = (torch.float16, torch.bfloat16)
COMPARISONS = frozenset("eq ne lt le gt ge isnan isinf signbit".split())
LOGIC = frozenset("and or xor not".split())
FLOATING = frozenset(
    "div reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh sigmoid erf erfc atan2 fma".split()
)
# What one evaluation costs, in additions; 1 where not listed.
WEIGHT = {
    **dict.fromkeys("div sqrt rsqrt reciprocal fmod floordiv mod".split(), 3),
    **dict.fromkeys(FLOATING - {"div", "sqrt", "rsqrt", "reciprocal", "fma"} | {"pow"}, 10),
    "cast": 0,
    "philox": 40,
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that arithmetic on `dtype` is done in."""
    return torch.float32 if dtype in HALF else dtype


class Builder:
    """Builds scalars; one Builder a kernel."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self._interned: dict[tuple, Scalar] = {}
        self._indirect: dict[int, tuple[Atom, Scalar]] = {}
        self.faults: dict[Scalar, None] = {}  # what must not hold at any element computed
        self.divisors: list[Scalar] = []  # that must not be 0, of the op that is lowered
        self.unchecked: set[Size] = set()  # indices computed by the graph that need no binding
        self.inside: set[Size] = set()  # indirect indices that are in range
        self.place: Callable[[Size], Size] = lambda expr: expr  # from index to kernel axes

    def _intern(self, key: tuple, make: Callable[[], Any]) -> Any:
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = make()
        return found

    def scalars(self) -> list[Scalar]:
        """Everything built so far."""
        return [found for found in self._interned.values() if isinstance(found, Scalar)]

    # ---- leaves

    def const(self, value: float | int | bool, dtype: torch.dtype) -> Literal:
        """The number `value` as a scalar of `dtype`."""
        kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
        dtype, value = compute_dtype(dtype), _wrapped(kind(value), dtype)
        return self._intern(("const", repr(value), dtype), lambda: Literal(value, dtype))

    def index(self, expr: Size) -> Scalar:
        """A size or an index of the iteration as an i64 scalar."""
        if type(expr) is int:
            return self.const(expr, torch.int64)
        if any(s.id in self._indirect for s in self.algebra.leaves(expr)):
            return self._polynomial(expr)
        placed = self.place(expr)
        if type(placed) is int:
            return self.const(placed, torch.int64)
        return self._intern(("index", placed), lambda: IndexValue(placed))

    def _polynomial(self, expr: Size) -> Scalar:
        """`expr` term by term, where it holds symbols bound to scalars."""
        total: Scalar = self.const(0, torch.int64)
        for monomial, factor in self.algebra.terms(expr):
            product: Scalar = self.const(factor, torch.int64)
            for id in monomial:
                product = self.mul(product, self._atom(self.algebra.atoms[id]))
            total = self.add(total, product)
        return total

    def _atom(self, atom: Atom) -> Scalar:
        if atom.id in self._indirect:
            return self._indirect[atom.id][1]
        if atom.args is None:
            return self.index(expression_of(self.algebra, atom))
        op = {"max": "maximum", "min": "minimum"}.get(atom.kind, atom.kind)
        return self.apply(op, *(self.index(arg) for arg in atom.args))

    def indirect(self, scalar: Scalar, inside: bool = False) -> Size:
        """A size that stands for the integer `scalar` in an index; `inside`: it is in range by
        the way it is computed, and needs no check."""
        scalar = self.cast(scalar, torch.int64)
        if isinstance(scalar, (IndexValue, Literal)):
            known = scalar.expr if isinstance(scalar, IndexValue) else int(scalar.value)
            if not inside:
                self.unchecked.add(known)
            return known

        def bind() -> Size:
            symbol = indirect_symbol(self.algebra, len(self._indirect))
            assert symbol.symbol is not None
            self._indirect[symbol.symbol.id] = (symbol.symbol, scalar)
            return symbol

        symbol = self._intern(("indirect", scalar, inside), bind)
        if inside:
            self.inside.add(symbol)
        return symbol

    def bindings(self, expr: Size) -> tuple[tuple[Atom, Scalar], ...]:
        """The indirect symbols in `expr` with their scalars."""
        if not self._indirect:
            return ()
        symbols = self.algebra.leaves(expr)
        return tuple(self._indirect[s.id] for s in symbols if s.id in self._indirect)

    def argument(self, position: int, dtype: torch.dtype) -> Scalar:
        return self._intern(("arg", position), lambda: SizeArgument(position, dtype))

    def load(self, buffer: Buffer, index: Size, mask: Scalar | None = None) -> Scalar:
        """`buffer[index]` in its compute dtype; 0 where `mask` is false."""
        index = self.place(index)

        def make() -> Load:
            other = None if mask is None else Literal(_zero(buffer.dtype), buffer.dtype)
            return Load(buffer, index, self.bindings(index), mask, other)

        loaded = self._intern(("load", buffer, index, mask), make)
        return self.cast(loaded, compute_dtype(buffer.dtype))

    # ---- operations

    def scalar(self, x: Operand, like: torch.dtype | None = None) -> Scalar:
        """`x` as a scalar; a Python number takes the dtype `like` where its kind fits."""
        if isinstance(x, Scalar):
            return self.cast(x, compute_dtype(x.dtype))
        if type(x) is IntExpr:
            return self.index(x) if like is None else self.cast(self.index(x), like)
        kind = torch.bool if type(x) is bool else torch.int64
        if isinstance(x, float):
            kind = torch.get_default_dtype()
        return self.const(x, kind if like is None else weak_promote(like, kind))  # type: ignore

    def common(self, *operands: Operand) -> tuple[Scalar, ...]:
        """The operands in one dtype, promoted as torch does."""
        dtype: torch.dtype | None = None
        for x in operands:
            if isinstance(x, Scalar):
                own = compute_dtype(x.dtype)
                dtype = own if dtype is None else torch.promote_types(dtype, own)
        for x in operands:
            if not isinstance(x, Scalar):
                weak = self.scalar(x).dtype
                dtype = weak if dtype is None else weak_promote(dtype, weak)
        assert dtype is not None
        return tuple(self.cast(self.scalar(x, dtype), dtype) for x in operands)

    def cast(self, x: Operand, dtype: torch.dtype) -> Scalar:
        """`x` converted to `dtype`, rounding through it where it is f16 or bf16."""
        if not isinstance(x, Scalar):
            x = self.scalar(x)
        if x.dtype == dtype:
            return x
        if isinstance(x, Apply) and x.op == "cast" and x.args[0].dtype == dtype:
            if _holds(x.dtype, dtype) or (x.dtype in HALF and is_held(x.args[0], x.dtype)):
                return x.args[0]
        if isinstance(x, Literal) and dtype not in HALF and _exact(x.value, dtype):
            return self.const(x.value, dtype)
        return self._intern(("cast", x, dtype), lambda: Apply("cast", (x,), dtype))

    def apply(self, op: str, *operands: Operand) -> Scalar:
        """`op(*operands)`, op in SCALAR_OPS, with promotion."""
        if op == "where":
            return self.where(*operands)
        args = self.common(*operands)
        if op in FLOATING and not args[0].dtype.is_floating_point:
            args = tuple(self.cast(x, torch.get_default_dtype()) for x in args)
        simpler = _simplified(op, args)
        if simpler is not None:
            return simpler
        dtype = torch.bool if op in COMPARISONS else args[0].dtype
        return self._intern((op, *args), lambda: Apply(op, args, dtype))

    def where(self, condition: Operand, yes: Operand, no: Operand) -> Scalar:
        chosen = self.cast(condition, torch.bool)
        args = self.common(yes, no)
        if isinstance(chosen, Literal):
            return args[0] if chosen.value else args[1]
        if args[0] is args[1]:
            return args[0]
        key = ("where", chosen, *args)
        return self._intern(key, lambda: Apply("where", (chosen, *args), args[0].dtype))

    def pow(self, base: Operand, exponent: Operand) -> Scalar:
        """Small constant exponents become products, as in ATen."""
        if isinstance(base, Scalar) and isinstance(exponent, (int, float)):
            x = self.scalar(base)
            if exponent == 1:
                return x
            if exponent == 2:
                return self.mul(x, x)
            if exponent == 3:
                return self.mul(self.mul(x, x), x)
            if exponent == 0.5 and x.dtype.is_floating_point:
                return self.apply("sqrt", x)
        return self.apply("pow", base, exponent)

    def divisor(self, x: Operand) -> Operand:
        """`x`, which integers are divided by: noted unless it is a number other than 0."""
        if isinstance(x, Scalar) and not isinstance(x, Literal):
            self.nonzero(x)
        return x

    def nonzero(self, x: Scalar) -> None:
        """Where `x` is 0 or false, eager raises."""
        self.divisors.append(x)

    def logical_not(self, x: Operand) -> Scalar:
        return self.apply("not", self.cast(x, torch.bool))

    def logical_and(self, x: Operand, y: Operand) -> Scalar:
        return self.apply("and", self.cast(x, torch.bool), self.cast(y, torch.bool))

    def logical_or(self, x: Operand, y: Operand) -> Scalar:
        return self.apply("or", self.cast(x, torch.bool), self.cast(y, torch.bool))


def _method(op: str) -> Callable[..., Scalar]:
    def method(self: Builder, *operands: Operand) -> Scalar:
        return self.apply(op, *operands)

    method.__name__ = op
    method.__doc__ = f"`{op}` of scalars and Python numbers."
    return method


for _op in SCALAR_OPS:
    _name = {"and": "and_", "or": "or_", "not": "not_"}.get(_op, _op)
    if not hasattr(Builder, _name):
        setattr(Builder, _name, _method(_op))


def indirect_symbol(algebra: Algebra, number: int) -> IntExpr:
    """The symbol of a kernel's `number`-th indirect index, shared by all kernels."""
    key = ("indirect", number)
    if key not in algebra.memo:
        algebra.memo[key] = algebra.symbol(f"at{number}", -INF)
    return algebra.memo[key]


def weak_promote(dtype: torch.dtype, weak: torch.dtype) -> torch.dtype:
    """`dtype` joined with a Python number of dtype `weak`."""
    if weak.is_floating_point:
        return dtype if dtype.is_floating_point else weak
    return weak if dtype is torch.bool else dtype


def _wrapped(value: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    """An int as it comes out of the bits that a tensor of `dtype` has."""
    if type(value) is not int:
        return value
    low, bits = torch.iinfo(dtype).min, torch.iinfo(dtype).bits
    return (value - low) % (1 << bits) + low


def _zero(dtype: torch.dtype) -> float | int | bool:
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether each number of `narrow` is one of `wide`, so that there and back changes nothing."""
    if torch.bool in (wide, narrow) or wide.is_floating_point != narrow.is_floating_point:
        return False
    return torch.promote_types(wide, narrow) == wide


def _exact(value: float | int | bool, dtype: torch.dtype) -> bool:
    """Whether a literal may be converted while compiling."""
    if dtype.is_floating_point:
        return abs(value) <= 2**24 or isinstance(value, float)
    return isinstance(value, (bool, int)) and (dtype is torch.bool or -128 <= value <= 127)


def _simplified(op: str, args: tuple[Scalar, ...]) -> Scalar | None:
    """The operand that the operation leaves unchanged, if it does."""
    if len(args) != 2:
        return None
    for x, y in (args, args[::-1]):
        if not isinstance(y, Literal):
            continue
        if op in ("mul", "div") and y.value == 1 and y.value is not True:
            if op == "mul" or y is args[1]:
                return x
        if op == "add" and y.value == 0 and not y.dtype.is_floating_point:
            return x
        if op == "sub" and y.value == 0 and y is args[1]:
            return x
    return None
