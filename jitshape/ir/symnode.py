"""Sizes as torch sees them: the nodes behind torch.SymInt, SymFloat and SymBool.

In: `Size`, `Bool`, `Real` and the ShapeEnv they belong to.  Out: what torch asks of them;
torch_numbers.py has the objects that it is handed.
C++ calls the nodes' methods by name, Python's operators on SymInt call them too.  A method named
guard_* or int_ or bool_ must answer: it asks the env, which records a fact.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from jitshape.errors import DataDependent
from jitshape.ir import symfloat
from jitshape.ir.branches import raising_truth
from jitshape.ir.conditions import Bool, BoolExpr, all_of, any_of, compare, indicator, negate
from jitshape.ir.hosted import power_of_two
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.strides import equal_above_one
from jitshape.ir.symfloat import FloatExpr, Real
from jitshape.ir.symint import IntExpr, Size, sym_max, sym_min

MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_PYTHON_COMPARE = {name: getattr(operator, name) for name in COMPARISONS}


class SymNode:
    """What every node answers.  `expr` is the Size, Bool or Real; subclasses have one kind."""

    __slots__ = ("env", "expr")
    fx_node = None

    def __init__(self, env: ShapeEnv, expr: Any) -> None:
        self.env, self.expr = env, expr

    @property
    def shape_env(self) -> ShapeEnv:
        return self.env

    @property
    def constant(self) -> Any:
        return self.expr if self.is_constant() else None

    @property
    def hint(self) -> Any:
        return self.env.actual(self.expr)

    _hint = hint

    def is_constant(self) -> bool:
        return isinstance(self.expr, (bool, int, float))

    def is_symbolic(self) -> bool:
        return not self.is_constant()

    def has_hint(self) -> bool:
        return self.hint is not None

    def is_int(self) -> bool:
        return False

    is_float = is_bool = is_nested_int = is_int

    def nested_int(self) -> None:
        return None

    nested_int_coeff = maybe_as_int = constant_int = constant_bool = nested_int

    def clone(self) -> SymNode:
        return self

    def str(self) -> str:
        return str(self.expr)

    _graph_repr = __repr__ = __str__ = str

    def wrap_int(self, value: int) -> SymNode:
        return SizeNode(self.env, value)

    def wrap_float(self, value: float) -> SymNode:
        return FloatNode(self.env, value)

    def wrap_bool(self, value: bool) -> SymNode:
        return BoolNode(self.env, value)


def _arithmetic(op: str, combine: Callable[[Any, Any], Any]) -> Callable:
    def method(self: SizeNode, other: SymNode) -> SymNode:
        if type(other) is SizeNode:
            return SizeNode(self.env, combine(self.expr, other.expr))
        return FloatNode(self.env, symfloat.apply(op, self.expr, other.expr))

    return method


def _size_comparison(op: str) -> Callable:
    def method(self: SizeNode, other: SymNode) -> SymNode:
        if type(other) is SizeNode:
            asked = self.env.wrapped  # C++ asks the same again and again
            key = (op, self.expr, other.expr)
            node = asked.get(key)
            if node is None:
                node = asked[key] = BoolNode(self.env, compare(*key))
            return node
        return BoolNode(self.env, _compare_reals(op, self.expr, other.expr))

    return method


def _bits(kind: str) -> Callable:
    def method(self: SizeNode, other: SymNode) -> SymNode:
        theirs = other.expr if type(other) is SizeNode else indicator(other.expr)
        return SizeNode(self.env, self.env.algebra.bits(kind, self.expr, theirs))

    return method


class SizeNode(SymNode):
    """Behind a SymInt."""

    __slots__ = ()

    def is_int(self) -> bool:
        return True

    def maybe_as_int(self) -> int | None:
        return self.expr if type(self.expr) is int else None

    add = _arithmetic("add", operator.add)
    sub = _arithmetic("sub", operator.sub)
    mul = _arithmetic("mul", operator.mul)
    floordiv = int_floordiv = _arithmetic("floordiv", operator.floordiv)
    mod = _arithmetic("mod", operator.mod)
    sym_max = _arithmetic("max", sym_max)
    sym_min = _arithmetic("min", sym_min)
    eq, ne, lt, le, gt, ge = (_size_comparison(op) for op in COMPARISONS)
    bitwise_and, bitwise_or, bitwise_xor = (_bits(kind) for kind in ("and", "or", "xor"))
    and_, or_ = bitwise_and, bitwise_or

    def neg(self) -> SymNode:
        return SizeNode(self.env, -self.expr)

    def pos(self) -> SymNode:
        return self

    floor = ceil = trunc = pos

    def abs(self) -> SymNode:
        return SizeNode(self.env, sym_max(self.expr, -self.expr))

    def round(self, ndigits: int | None = None) -> SymNode:
        return SizeNode(self.env, self.env.algebra.round(self.expr, ndigits or 0))

    def pow_by_natural(self, other: SymNode) -> SymNode:
        if type(self.expr) is int and power_of_two(self.expr):  # (2**k) ** n  -->  1 << k*n
            bits = other.expr * (self.expr.bit_length() - 1)
            return SizeNode(self.env, self.env.algebra.shift(bits))
        power = self.env.specialize(other.expr, "a power")
        base = self.expr
        return SizeNode(self.env, base**power)

    def pow(self, other: SymNode) -> SymNode:
        if type(other) is SizeNode and self.env.evaluate(compare("ge", other.expr, 0)):
            return self.pow_by_natural(other)
        return self.float_pow(other)

    def float_pow(self, other: SymNode) -> SymNode:
        return FloatNode(self.env, symfloat.apply("pow", self.expr, other.expr))

    def lshift(self, other: SymNode) -> SymNode:
        return SizeNode(self.env, self.expr * self._shift(other.expr))

    def rshift(self, other: SymNode) -> SymNode:
        return SizeNode(self.env, self.expr // self._shift(other.expr))

    def _shift(self, count: Size) -> Size:
        if not self.env.assume(compare("ge", count, 0), "a count of bits"):
            raise ValueError("negative shift count")
        return self.env.algebra.shift(count)

    def truediv(self, other: SymNode) -> SymNode:
        return FloatNode(self.env, symfloat.apply("div", self.expr, other.expr))

    int_truediv = float_truediv = truediv

    def sym_float(self) -> SymNode:
        return FloatNode(self.env, symfloat.apply("float", self.expr))

    def sym_sqrt(self) -> SymNode:
        return FloatNode(self.env, symfloat.apply("sqrt", self.expr))

    def sym_sum(self, nodes: Sequence[SymNode]) -> SymNode:
        total: Size = 0
        for node in nodes:
            total = total + node.expr
        return SizeNode(self.env, total)

    def guard_int(self, file: str, line: int) -> int:
        return self.env.specialize(self.expr)

    def int_(self) -> int:
        return self.env.specialize(self.expr)

    def bool_(self) -> bool:
        return self.env.evaluate(compare("ne", self.expr, 0))

    # ---- questions about whole shapes; optional answers, so that they never specialise

    def is_contiguous(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return _dense(self.env, sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Sequence, strides: Sequence) -> SymNode:
        return _dense(self.env, sizes, strides, (1, 3, 2, 0))

    def is_channels_last_contiguous_3d(self, sizes: Sequence, strides: Sequence) -> SymNode:
        return _dense(self.env, sizes, strides, (1, 4, 3, 2, 0))

    def is_channels_last_strides_2d(self, sizes: Sequence, strides: Sequence) -> SymNode:
        return _ordered(self.env, sizes, strides, (1, 3, 2, 0))

    def is_channels_last_strides_3d(self, sizes: Sequence, strides: Sequence) -> SymNode:
        return _ordered(self.env, sizes, strides, (1, 4, 3, 2, 0))

    def is_non_overlapping_and_dense(self, sizes: Sequence, strides: Sequence) -> SymNode:
        hint = [self.env.hint(node.expr, 0) for node in strides]
        order = sorted(range(len(sizes)), key=lambda d: (hint[d], -d))
        return _dense(self.env, sizes, strides, order)


def _general(cond: Bool) -> bool | None:
    """The answer at all sizes above 1, if there is one."""
    if not isinstance(cond, BoolExpr) or cond.op not in ("eq", "ne"):
        return None
    if any(isinstance(side, (float, FloatExpr)) for side in cond.args):
        return None
    equal = equal_above_one(*cond.args)
    return None if equal is None else equal is (cond.op == "eq")


class BoolNode(SymNode):
    """Behind a SymBool."""

    __slots__ = ()

    def is_bool(self) -> bool:
        return True

    def bool_(self) -> bool:
        return self.decide(sys._getframe(2))  # torch.SymBool.__bool__ stands between

    def decide(self, frame: FrameType) -> bool:
        """The truth that the Python code in `frame` asks for."""
        try:
            return self.env.evaluate(self.expr)
        except DataDependent:
            raising = raising_truth(frame.f_code, frame.f_lasti)
            answer = _general(self.expr) if raising is None else not raising
            return self._assumed(answer)

    def _assumed(self, answer: bool | None) -> bool:
        """`answer` under a run-time assert, for code of torch's."""
        cond = self.expr if answer else negate(self.expr)
        if answer is None or not self.env.likely(cond):
            return self.env.evaluate(self.expr)
        return answer

    def int_(self) -> int:
        return int(self.env.evaluate(self.expr))

    def guard_bool(self, file: str, line: int) -> bool:
        general = _general(self.expr)
        if self.env.general and general is not None:
            return general
        try:
            return self.env.evaluate(self.expr)
        except DataDependent:
            return self._assumed(general)

    def guard_or_false(self, file: str, line: int) -> bool:
        return self._layout(False)

    guard_size_oblivious = guard_or_false

    def guard_or_true(self, file: str, line: int) -> bool:
        return self._layout(True)

    def _layout(self, default: bool) -> bool:
        """C++ asks this of sizes and strides.  Strides that differ only where a size is 0 are the
        same: the layout of an empty tensor cannot be observed."""
        cond = self.expr
        if type(cond) is bool:
            return cond
        answers = self.env.algebra.memo  # either answer stays right once it was given
        if self.env.exact and cond.op in ("eq", "ne") and 1 in cond.args:
            answers[cond, False] = answers[cond, True] = self.guard_bool("", 0)
        key = (cond, default)
        known = answers.get(key)
        if known is None:
            known = answers[key] = self._laid_out(default)
        return known

    def _laid_out(self, default: bool) -> bool:
        cond = self.expr
        if cond.op in ("eq", "ne"):
            a, b = (_without_max(side) for side in cond.args)
            if a is b:
                return cond.op == "eq"
        return self.env.guard_or(cond, default)

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.env.static(self.expr) is True

    def expect_true(self, file: str, line: int) -> bool:
        return self.env.assume(self.expr)

    def sym_and(self, other: SymNode) -> SymNode:
        return BoolNode(self.env, all_of((self.expr, other.expr)))

    def sym_or(self, other: SymNode) -> SymNode:
        return BoolNode(self.env, any_of((self.expr, other.expr)))

    def sym_not(self) -> SymNode:
        return BoolNode(self.env, negate(self.expr))

    def eq(self, other: SymNode) -> SymNode:
        return self if self.env.evaluate(other.expr) else self.sym_not()

    def ne(self, other: SymNode) -> SymNode:
        return self.sym_not() if self.env.evaluate(other.expr) else self

    def sym_ite(self, then: SymNode, otherwise: SymNode) -> SymNode:
        return then if self.bool_() else otherwise

    def sym_int(self) -> SymNode:
        return SizeNode(self.env, self.int_())

    def sym_float(self) -> SymNode:
        return FloatNode(self.env, float(self.bool_()))

    and_ = bitwise_and = sym_and
    or_ = bitwise_or = sym_or


def _real(op: str) -> Callable:
    def method(self: FloatNode, *others: SymNode) -> SymNode:
        operands = (self.expr, *(node.expr for node in others))
        return FloatNode(self.env, symfloat.apply(op, *operands))

    return method


def _real_comparison(op: str) -> Callable:
    def method(self: FloatNode, other: SymNode) -> SymNode:
        return BoolNode(self.env, _compare_reals(op, self.expr, other.expr))

    return method


def _rounding(op: str) -> Callable:
    def method(self: FloatNode) -> SymNode:
        return SizeNode(self.env, self.env.round_float(op, self.expr))

    return method


class FloatNode(SymNode):
    """Behind a SymFloat."""

    __slots__ = ()

    def is_float(self) -> bool:
        return True

    add, sub, mul, mod, floordiv = (_real(op) for op in ("add", "sub", "mul", "mod", "floordiv"))
    truediv = float_truediv = _real("div")
    pow = float_pow = _real("pow")
    sym_max, sym_min, neg, abs = (_real(op) for op in ("max", "min", "neg", "abs"))
    sym_sqrt, sym_sin, sym_cos, sym_tanh = (_real(op) for op in ("sqrt", "sin", "cos", "tanh"))
    eq, ne, lt, le, gt, ge = (_real_comparison(op) for op in COMPARISONS)
    floor, ceil, trunc = (_rounding(op) for op in ("floor", "ceil", "trunc"))

    def round(self, ndigits: int | None = None) -> SymNode:
        if ndigits is None:
            return SizeNode(self.env, self.env.round_float("round", self.expr))
        return FloatNode(self.env, symfloat.apply("round_to", self.expr, ndigits))

    def pos(self) -> SymNode:
        return self

    sym_float = pos

    def is_integer(self) -> SymNode:
        if not math.isfinite(self.env.actual(self.expr) or 0.0):
            return BoolNode(self.env, self.guard_float("", 0).is_integer())
        floor = self.env.round_float("floor", self.expr)
        return BoolNode(self.env, _compare_reals("eq", floor, self.expr))

    def guard_float(self, file: str, line: int) -> float:
        return self.env.specialize_float(self.expr)

    def int_(self) -> int:
        return int(self.guard_float("", 0))

    def sym_int(self) -> SymNode:
        return SizeNode(self.env, self.env.round_float("trunc", self.expr))

    def bool_(self) -> bool:
        return self.env.evaluate(_compare_reals("ne", self.expr, 0.0))


def _compare_reals(op: str, a: Size | Real, b: Size | Real) -> Bool:
    a, b = _as_size(a), _as_size(b)
    if type(a) in (int, IntExpr) and type(b) in (int, IntExpr):
        return compare(op, a, b)  # type: ignore[arg-type]
    if type(a) is IntExpr and type(b) is float:
        return _compare_to_fraction(op, a, b)
    if type(b) is IntExpr and type(a) is float:
        return _compare_to_fraction(MIRRORED[op], b, a)
    symbolic = type(a) in (IntExpr, FloatExpr) or type(b) in (IntExpr, FloatExpr)
    return BoolExpr(op, (a, b)) if symbolic else _PYTHON_COMPARE[op](a, b)


def _compare_to_fraction(op: str, a: IntExpr, b: float) -> Bool:
    """With a float that is no integer: n > 2.5 is n > 2."""
    if not math.isfinite(b):
        return _PYTHON_COMPARE[op](0, b)
    if op in ("eq", "ne"):
        return op == "ne"
    return compare(op, a, math.floor(b) if op in ("gt", "le") else math.ceil(b))


def _as_size(a: Size | Real) -> Size | Real:
    """The size that a real is equal to, if it is plainly one."""
    if isinstance(a, FloatExpr):
        return a.args[0] if a.op == "float" else a
    return int(a) if isinstance(a, float) and a.is_integer() else a


def _dense(env: ShapeEnv, sizes: Sequence, strides: Sequence, order: Sequence[int]) -> SymNode:
    """Whether dimensions in `order`, innermost first, follow each other without gaps.  Strides
    of size-1 dimensions do not matter, nor any if the tensor is empty."""
    shape, steps = tuple(n.expr for n in sizes), tuple(n.expr for n in strides)
    memo = env.algebra.memo
    key = ("dense", shape, steps, tuple(order))
    if key not in memo:
        memo[key] = _is_dense(env, shape, steps, order)
    return BoolNode(env, memo[key])


def _is_dense(
    env: ShapeEnv, sizes: Sequence[Size], strides: Sequence[Size], order: Sequence[int]
) -> Bool:
    steps: list[Bool] = []
    step: Size = 1
    for d in order:
        size, stride = sizes[d], strides[d]
        fits = _fits(env, stride, step, size)
        steps.append(fits if fits is True else any_of((fits, compare("eq", size, 1))))
        step = step * size
    dense = all_of(steps)
    empty = [] if dense is True else [compare("eq", size, 0) for size in sizes]
    return dense if dense is True else any_of((dense, *empty))


def _fits(env: ShapeEnv, stride: Size, step: Size, size: Size) -> Bool:
    """stride == step; strides made of Max(size, 1) are those of plain products unless empty."""
    if stride is step or env.static(compare("eq", stride, step)) is True:
        return True
    return True if _without_max(stride) is step else compare("eq", stride, step)


def _without_max(a: Size) -> Size:
    """`a` with every Max(s, 1) written as s: equal to it where no size is 0."""
    if type(a) is not IntExpr:
        return a
    algebra = a.algebra
    total: Size = 0
    for monomial, k in a.terms:
        product: Size = k
        for id in monomial:
            atom = algebra.atoms[id]
            factor: Size = algebra.atom_expr(id)
            if atom.kind == "max" and atom.args is not None and atom.args[1] == 1:
                factor = atom.args[0]
            product = product * factor
        total = total + product
    return total


def _ordered(env: ShapeEnv, sizes: Sequence, strides: Sequence, order: Sequence[int]) -> SymNode:
    """Whether strides grow along `order`, as torch asks to suggest a memory format; by hints."""
    found = [env.hint(strides[d].expr, 0) for d in order]
    extents = [env.hint(sizes[d].expr, 2) for d in order]
    least = 0
    for stride, extent in zip(found, extents):
        if stride == 0 or stride < least:
            return BoolNode(env, False)
        least = stride * max(extent, 1)
    return BoolNode(env, found[0] != found[-1])
