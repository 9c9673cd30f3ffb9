"""Calls of torch's that speak to others than the program: to its profiler, to its compiler.

In: functions that the program meets on its way through torch's own Python code, such as that of
optimizers.  Out: what is left of them where nobody listens: nothing, or the function behind.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import torch
from torch.autograd.profiler import record_function

from jitshape.frontend.builtins_.registry import models
from jitshape.frontend.torchside.natives import behind_switch
from jitshape.frontend.values.base import Value
from jitshape.frontend.values.functions import FunctionValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


@models(record_function.__init__)
def name_range(m: Machine, self: Value, name: Value, args: Value | None = None) -> None:
    return None


@models(record_function.__enter__)
def enter_range(m: Machine, self: Value) -> Value:
    """A named range in a profile: the graph's kernels do not lie in it."""
    return self


@models(record_function.__exit__)
def leave_range(m: Machine, self: Value, kind: Value, value: Value, trace: Value) -> None:
    return None


def _marked() -> None:
    """A function that torch marked as not to be compiled by its own compiler."""


MARKED = torch._disable_dynamo(_marked).__code__


class MarkedFunction(FunctionValue):
    """The mark wraps a function that any other compiler may see."""

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        closure = dict(zip(self.code.co_freevars, self.callee(m).closure))
        behind = m.load_cell(closure["fn"])
        assert behind is not None
        return m.forward(self, behind, args, kwargs)


def look_behind(value: FunctionValue, real: types.FunctionType) -> FunctionValue:
    """`value`, or where `real` is a mark, the value that calls what it marks."""
    if real.__code__ is not MARKED and behind_switch(real) is None:
        return value
    return MarkedFunction(value.code, value.globals, value.parts, value.object, value.source)
