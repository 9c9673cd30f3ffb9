"""Symbolic integers, floats and truths as machine values.

In: Size, FloatExpr, Bool of ir.  Out: Values that behave as int, float and bool.
Invariant: nothing here decides by a hint without the ShapeEnv recording a fact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jitshape.errors import DataDependent
from jitshape.frontend.torchside.numpy_scalars import SCALARS
from jitshape.frontend.values.base import Value, data_dependent
from jitshape.ir import torch_numbers
from jitshape.ir.branches import raising_truth
from jitshape.ir.conditions import (
    Bool,
    BoolExpr,
    all_of,
    any_of,
    compare,
    compares_floats,
    indicator,
    negate,
)
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.words import within_word

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

COMPARISONS = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
ARITHMETIC: dict[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}


def number_value(m: Machine, env: ShapeEnv, number: Any) -> Value:
    """The Value of what torch's symbolic arithmetic or `Size` arithmetic gave."""
    torch = torch_numbers.torch
    if isinstance(number, IntExpr):
        return SymbolicInt(env, number)
    if isinstance(number, torch.SymInt):
        size = torch_numbers.from_torch(number)
        return m.const(size) if type(size) is int else SymbolicInt(env, size)
    if isinstance(number, torch.SymFloat):
        return SymbolicFloat(env, number)
    if isinstance(number, torch.SymBool):
        return truth_value(m, env, torch_numbers.from_torch(number))
    if isinstance(number, BoolExpr):
        return SymbolicBool(env, number)
    return m.const(number)


def truth_value(m: Machine, env: ShapeEnv, truth: Any) -> Value:
    return SymbolicBool(env, truth) if isinstance(truth, BoolExpr) else m.const(truth)


def answer(ask: Callable[[], Any]) -> Any:
    """What the ShapeEnv answers; a number that exists only at run time ends the graph."""
    try:
        return ask()
    except DataDependent as error:
        raise data_dependent(error) from error


class SymbolicNumber(Value):
    """Shared by int and float: arithmetic through torch's SymInt/SymFloat operators, which run on
    our nodes, so that both sides of the boundary give the same expressions."""

    remembered = False  # equal ints may be one object today

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env

    def to_torch(self) -> Any:
        raise NotImplementedError

    def specialize(self, m: Machine) -> Value:
        """The literal at the hint, guarded."""
        raise NotImplementedError

    def sizes(self) -> Iterable[Size]:
        """The ints that it is computed from."""
        raise NotImplementedError

    def for_torch(self, m: Machine) -> Any:
        """As an argument of torch, which takes ints of 64 bits: the literal where they are not
        enough, so that torch says what it says to eager."""
        return self.to_torch() if self.within_word(m) else self.specialize(m).constant()

    def within_word(self, m: Machine) -> bool:
        """Whether 64 bits hold what it is computed from, guarded."""
        why = "an int of 64 bits"
        return all(answer(lambda s=size: within_word(self.env, s, why)) for size in self.sizes())

    def operand(self, m: Machine, other: Value) -> Any:
        """`other` as a number that torch's operators take, or None."""
        if isinstance(other, SymbolicBool):
            other = other.as_int(m)
        if isinstance(other, SymbolicNumber):
            return other.to_torch()
        if other.is_constant() and type(other.constant()) in (int, float, bool):
            return other.constant()
        return None

    def unary(self, m: Machine, op: str) -> Value:
        if op == "+":
            return self
        if op == "-":
            return number_value(m, self.env, -self.to_torch())
        if op == "~" and self.python_type() is int:
            return number_value(m, self.env, -self.to_torch() - 1)
        return self.specialize(m).unary(m, op)

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        number = self.operand(m, other)
        if number is None:
            return (
                NotImplemented
                if not other.is_constant()
                else m.binary(op, *_sides(self.specialize(m), other, reflected))
            )
        op = op.removesuffix("=")
        if op not in ARITHMETIC:
            return NotImplemented
        if op in ("/", "//", "%") and not _holds(m, _nonzero(m, self, other, reflected)):
            return self.specialize(m).binary(m, op, other, reflected)
        left, right = (number, self.to_torch()) if reflected else (self.to_torch(), number)
        if op in ("<<", ">>", "&", "|", "^"):
            shift = op in ("<<", ">>")
            if float in (self.python_type(), other.python_type()):
                return NotImplemented
            if shift and not _holds(m, number_value(m, self.env, right >= 0)):
                return m.throw(ValueError, "negative shift count")
        return number_value(m, self.env, answer(lambda: ARITHMETIC[op](left, right)))

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        number = self.operand(m, other)
        if number is None:
            plain = other.is_constant() and type(other.constant()) in (int, *SCALARS)
            return m.compare(op, self.specialize(m), other) if plain else NotImplemented
        compared = getattr(operator, COMPARISONS[op])(self.to_torch(), number)
        return number_value(m, self.env, compared)

    def hash_key(self, m: Machine) -> Any:
        return self.specialize(m).hash_key(m)

    def getattr(self, m: Machine, name: str) -> Value:
        return self.specialize(m).getattr(m, name)

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.specialize(m).call(m, args, kwargs)


def _sides(a: Value, b: Value, reflected: bool) -> tuple[Value, Value]:
    return (b, a) if reflected else (a, b)


def _nonzero(m: Machine, mine: Value, other: Value, reflected: bool) -> Value:
    divisor = mine if reflected else other
    if isinstance(divisor, SymbolicFloat) and divisor.number.node.expr.op in ("float", "sqrt"):
        divisor = number_value(m, divisor.env, divisor.number.node.expr.args[0])
    return m.compare("!=", divisor, m.const(0))


def _holds(m: Machine, condition: Value) -> bool:
    """Whether what the program needs to go on is so."""
    if isinstance(condition, SymbolicBool):
        return answer(lambda: condition.env.assume(condition.condition, "division by zero"))
    return condition.truth(m)


class SymbolicInt(SymbolicNumber):
    """An int known as an expression over symbols."""

    def __init__(self, env: ShapeEnv, expr: IntExpr) -> None:
        super().__init__(env)
        self.expr = expr

    def __repr__(self) -> str:
        return f"SymbolicInt({self.expr})"

    def python_type(self) -> type:
        return int

    def to_torch(self) -> Any:
        return torch_numbers.to_torch(self.expr, self.env)

    def sizes(self) -> Iterable[Size]:
        return (self.expr,)

    def specialize(self, m: Machine) -> Value:
        return m.const(answer(lambda: self.env.specialize(self.expr, "used as a plain number")))

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        plain = op.removesuffix("=")
        size = self.size_of(other)
        if size is not None and plain in ("+", "-", "*"):
            left, right = (size, self.expr) if reflected else (self.expr, size)
            result: Size = self.env.shallow(ARITHMETIC[plain](left, right))
            return m.const(result) if type(result) is int else SymbolicInt(self.env, result)
        return super().binary(m, op, other, reflected)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        size = self.size_of(other)
        if size is None:
            return super().compare(m, op, other)
        return truth_value(m, self.env, compare(COMPARISONS[op], self.expr, size))

    def size_of(self, other: Value) -> Size | None:
        if type(other) is SymbolicInt:
            return other.expr
        if other.is_constant() and type(other.constant()) in (int, bool):
            return int(other.constant())
        return None

    def truth(self, m: Machine) -> bool:
        return truth_value(m, self.env, compare("ne", self.expr, 0)).truth(m)

    def reconstruct(self, e: Any) -> None:
        e.output(self.expr)


class SymbolicFloat(SymbolicNumber):
    """A float computed from symbols; kept as the torch.SymFloat over our node."""

    def __init__(self, env: ShapeEnv, number: Any) -> None:
        super().__init__(env)
        self.number = number

    def __repr__(self) -> str:
        return f"SymbolicFloat({self.number})"

    def python_type(self) -> type:
        return float

    def to_torch(self) -> Any:
        return self.number

    def sizes(self) -> Iterable[Size]:
        return self.number.node.expr.sizes()

    def specialize(self, m: Machine) -> Value:
        return m.const(answer(lambda: self.number.node.guard_float("", 0)))

    def truth(self, m: Machine) -> bool:
        return self.compare(m, "!=", m.const(0.0)).truth(m)

    def reconstruct(self, e: Any) -> None:
        e.output(self.number.node.expr)


_BOTH = ("and", "or")


def is_linear(size: Any) -> bool:
    """Whether it is a polynomial of degree one, of symbols alone."""
    return type(size) is IntExpr and all(
        len(monomial) <= 1 and all(size.algebra.atoms[id].kind == "sym" for id in monomial)
        for monomial, _ in size.algebra.terms(size)
    )


class SymbolicBool(Value):
    """A comparison of symbols that nobody has asked the truth of yet."""

    def __init__(self, env: ShapeEnv, condition: BoolExpr) -> None:
        self.env, self.condition = env, condition

    def __repr__(self) -> str:
        return f"SymbolicBool({self.condition})"

    def python_type(self) -> type:
        return bool

    def to_torch(self) -> Any:
        return torch_numbers.to_torch_bool(self.condition, self.env)

    def truth(self, m: Machine) -> bool:
        def ask() -> bool:
            try:
                return self.env.evaluate(self.condition, "a branch on a size")
            except DataDependent:
                raising = raising_branch(m)
                taken = self.if_not_empty() if raising is None else not raising
                if taken is None:
                    raise
                going_on = self.condition if taken else negate(self.condition)
                ask = self.env.likely if raising is None else self.env.assume
                if not ask(going_on, "a branch on a size"):
                    raise
                return taken

        return answer(ask)

    def if_not_empty(self) -> bool | None:
        """The truth of a test for emptiness where there is something: what masks select as a
        rule, so that it is assumed until a call refutes it.  None: it tests for something else."""
        symbols = self.condition.symbols()
        env = self.env
        if len(symbols) != 1 or self.condition.op in _BOTH:
            return None
        lo, hi = env.algebra.range(symbols[0])
        if lo < 0 or hi <= 1:  # a number that is no count, or a truth
            return None
        if not all(type(side) is int or is_linear(side) for side in self.condition.args):
            return None
        name = symbols[0].name

        def at(number: int) -> bool | None:
            return self.condition.evaluate(lambda s: env.algebra.evaluate(s, {name: number}))

        return at(1) if at(0) is not at(1) and at(1) is at(1 << 40) else None

    def decided(self, m: Machine) -> Value:
        return m.const(self.truth(m))

    def as_int(self, m: Machine) -> Value:
        """The same number as an int: decided, unless only a run can."""
        if compares_floats(self.condition) or self.condition.evaluate(self.env.actual) is not None:
            return self.decided(m)
        return number_value(
            m, self.env, torch_numbers.to_torch(indicator(self.condition), self.env)
        )

    def unary(self, m: Machine, op: str) -> Value:
        return self.decided(m).unary(m, op)

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        truth = self._both(m, op.removesuffix("="), other)
        if truth is not None:
            return truth
        truths = op in ("^", "^=") and other.python_type() is bool
        mine = self.decided(m) if truths else self.as_int(m)
        return m.binary(op, *_sides(mine, other, reflected))

    def _both(self, m: Machine, op: str, other: Value) -> Value | None:
        """`&` and `|` of two truths give one."""
        if other.python_type() is not bool or op not in ("&", "|"):
            return None
        theirs = other.condition if isinstance(other, SymbolicBool) else other.constant()
        combine = all_of if op == "&" else any_of
        return truth_value(m, self.env, combine((self.condition, theirs)))

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        return m.compare(op, self.as_int(m), other)

    def hash_key(self, m: Machine) -> Any:
        return self.decided(m).hash_key(m)

    def getattr(self, m: Machine, name: str) -> Value:
        return self.decided(m).getattr(m, name)

    def reconstruct(self, e: Any) -> None:
        known = self.env.static(self.condition)
        if known is None and self.condition.evaluate(self.env.actual) is None:
            _push_truth(e, self.condition)
        else:
            e.const(self.env.evaluate(self.condition, "returned") if known is None else known)


def _push_truth(e: Any, condition: Bool) -> None:
    """Code that compares the numbers of a condition, outputs of the graph."""
    if not isinstance(condition, BoolExpr):
        e.const(condition)
        return
    push = _push_truth if condition.op in ("and", "or") else _push_number
    parts = iter(condition.args)
    combine = getattr(operator, {"and": "and_", "or": "or_"}.get(condition.op, condition.op))
    push(e, next(parts))
    for part in parts:
        left = e.local()
        e.store(left)
        e.call(combine, lambda left=left: e.load(left), lambda part=part: push(e, part))


def _push_number(e: Any, number: Any) -> None:
    if isinstance(number, (IntExpr, FloatExpr)):
        e.output(number)
    else:
        e.const(number)


def raising_branch(m: Machine) -> bool | None:
    """The truth with which the current instruction, a branch, leads to an exception only."""
    frame = m.frame
    if frame is None:
        return None
    return raising_truth(frame.callee.code, frame.program.instructions[frame.index].offset)
