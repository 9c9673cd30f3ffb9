"""What rounding to f16 and bf16 needs not be done, or not in full.

In: scalars of loop IR.  Out: facts about every value that they can have.
"""

from __future__ import annotations

import torch

from jitshape.backend.loops import Apply, Carry, IndexValue, Literal, Scalar

# Their result is an operand, one with another sign, or an integer no larger than it.
CHOOSING = frozenset("neg abs maximum minimum fmax fmin floor ceil round trunc sign".split())


def is_held(scalar: Scalar, dtype: torch.dtype) -> bool:
    """Whether each value is a number of `dtype`, f16 or bf16, so that rounding changes nothing."""
    todo = [scalar]
    while todo:
        x = todo.pop()
        if isinstance(x, Literal):
            held = float(torch.tensor(x.value, dtype=torch.float64).to(dtype))
            if held != x.value and x.value == x.value:
                return False
        elif not isinstance(x, Apply):
            return False
        elif x.op == "cast" and not x.args[0].dtype.is_floating_point:
            if x.args[0].dtype is not torch.bool:
                return False
        elif x.op == "cast":
            if x.args[0].dtype != dtype:
                return False
        elif x.op == "where":
            todo += x.args[1:]
        elif x.op in CHOOSING:
            todo += x.args
        else:
            return False
    return True


class Nans:
    """Whether the nans of a scalar are such that rounding their bits as those of a number gives a
    nan again.  One whose mantissa is ones would become a zero: a program can load it as f32, but
    arithmetic makes none, and hands on those of its operands."""

    def __init__(self) -> None:
        self._known: dict[Scalar, bool] = {}

    def stay(self, scalar: Scalar) -> bool:
        known = self._known.get(scalar)
        if known is None:
            known = self._known[scalar] = self._stay(scalar)
        return known

    def _stay(self, scalar: Scalar) -> bool:
        if isinstance(scalar, (Literal, IndexValue)) or not scalar.dtype.is_floating_point:
            return True
        if isinstance(scalar, Carry):
            return self.stay(scalar.accumulator.value)
        if not isinstance(scalar, Apply):
            return scalar.dtype is torch.bfloat16
        if scalar.op == "cast" and scalar.args[0].dtype in (torch.float16, torch.float64):
            return False
        return all(map(self.stay, scalar.args))
