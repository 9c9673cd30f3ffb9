"""Sizes, conditions and reals as torch's own classes: SymInt, SymBool and SymFloat.

In: `Size`, `Bool`, `Real` and the ShapeEnv they belong to.  Out: an int, bool or float where the
value is constant, else an object round a node (symnode.py); `from_torch` goes back.
Invariant: one expression has one SymInt while the trace lasts, kept in `env.wrapped`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.ir.conditions import Bool, BoolExpr
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symfloat import FloatExpr, Real
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.symnode import COMPARISONS, BoolNode, FloatNode, SizeNode, SymNode


class TracedInt(torch.SymInt):
    """A SymInt whose operators go to the algebra without torch's detours, which cost time and
    import modules that a trace must not."""

    def __hash__(self) -> int:
        return hash(self.node.int_())

    def __round__(self, ndigits: int | None = None) -> Any:
        return _wrap(self.node.round(ndigits))

    def __divmod__(self, other: Any) -> tuple:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple:
        return other // self, other % self

    def __invert__(self) -> Any:
        return -self - 1


class TracedFloat(torch.SymFloat):
    """A SymFloat with direct operators."""

    def __hash__(self) -> int:
        return hash(self.node.guard_float("", 0))

    def __round__(self, ndigits: int | None = None) -> Any:
        return _wrap(self.node.round(ndigits))


def _cached(name: str, combine: Callable, reflected: bool) -> None:
    """An operator of TracedInt that is asked often: on sizes its results are kept."""
    attribute = f"__{'r' if reflected else ''}{name}__"
    general = getattr(TracedInt, attribute)

    def method(self: TracedInt, other: Any) -> Any:
        mine = self.node.expr
        if type(other) is int:
            theirs = other
        elif isinstance(other, torch.SymInt):
            theirs = other.node.expr
        else:
            return general(self, other)
        env = self.node.env
        key = (attribute, mine, theirs)
        result = env.wrapped.get(key)
        if result is None:
            operands = (theirs, mine) if reflected else (mine, theirs)
            value = combine(env, *operands)
            result = env.wrapped[key] = to_torch(value, env)
        return result

    setattr(TracedInt, attribute, method)


def _binary(cls: type, attribute: str, node_method: str, reflected: bool = False) -> None:
    def method(self: Any, other: Any) -> Any:
        node, theirs = self.node, _node_of(other, self.node.env)
        if theirs is None:
            return NotImplemented
        pair = (theirs, node) if reflected else (node, theirs)
        return _wrap(getattr(pair[0], node_method)(pair[1]))

    setattr(cls, attribute, method)


def _node_of(x: Any, env: ShapeEnv) -> SymNode | None:
    if isinstance(x, (torch.SymInt, torch.SymFloat)):
        return x.node
    if isinstance(x, int):  # a bool computes as an int
        return SizeNode(env, int(x))
    return FloatNode(env, x) if isinstance(x, float) else None


def _wrap(node: SymNode) -> Any:
    return _WRAPPERS[type(node)](node.expr, node.env)


_OPERATORS = ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow")
for _cls, _names in (
    (TracedInt, (*_OPERATORS, "lshift", "rshift", "and", "or", "xor")),
    (TracedFloat, _OPERATORS),
):
    for _name in _names:
        _method = f"bitwise_{_name}" if _name in ("and", "or", "xor") else _name
        _binary(_cls, f"__{_name}__", _method)
        _binary(_cls, f"__r{_name}__", _method, reflected=True)
    for _name in COMPARISONS:
        _binary(_cls, f"__{_name}__", _name)
for _name, _combine in (
    ("add", lambda env, a, b: a + b),
    ("sub", lambda env, a, b: a - b),
    ("mul", lambda env, a, b: a * b),
    ("floordiv", ShapeEnv.floordiv),  # Python's operator: the program divides
    ("mod", ShapeEnv.mod),
):
    _cached(_name, _combine, reflected=False)
    _cached(_name, _combine, reflected=True)


def to_torch(size: Size, env: ShapeEnv) -> int | torch.SymInt:
    """The int or SymInt of a size."""
    if type(size) is not IntExpr:
        return size  # type: ignore[return-value]
    wrapped = env.wrapped.get(size)
    if wrapped is None:
        size = env.shallow(size)
        if type(size) is not IntExpr:
            return size  # type: ignore[return-value]
        wrapped = env.wrapped[size] = TracedInt(SizeNode(env, size))
    return wrapped


def to_torch_bool(cond: Bool, env: ShapeEnv) -> bool | torch.SymBool:
    """The bool or SymBool of a condition."""
    return torch.SymBool(BoolNode(env, cond)) if type(cond) is BoolExpr else cond  # type: ignore


def to_torch_float(value: Real, env: ShapeEnv) -> float | torch.SymFloat:
    """The float or SymFloat of a real."""
    value = env.shallow_float(value)
    return TracedFloat(FloatNode(env, value)) if isinstance(value, FloatExpr) else value


_WRAPPERS: dict[type, Callable] = {
    SizeNode: to_torch,
    BoolNode: to_torch_bool,
    FloatNode: to_torch_float,
}


def from_torch(x: Any) -> Any:
    """The Size, Bool or Real behind a number that torch handed out, which may be symbolic."""
    if isinstance(x, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        assert isinstance(x.node, SymNode), f"{x} belongs to another tracer"
        return x.node.expr
    return x
