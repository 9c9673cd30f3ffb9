"""Values that eager refuses: checked by the kernel that reads them.

`in_range(x, low, high, kind)` is `x`.  Where an element lies outside of low <= x <= high, on the
CPU, the kernel notes a fault; the program then runs with ATen, where `run` raises what eager does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jitshape.ir.ops.families import pointwise
from jitshape.ir.symint import IntExpr

# By kind: the error for the first element that is refused.
ERRORS: dict[str, Callable[[Any], Exception]] = {
    "probability": lambda x: RuntimeError("all elements of input should be between 0 and 1"),
    "target": lambda x: IndexError(f"Target {x} is out of bounds."),
    "class": lambda x: RuntimeError(
        "Class values must be non-negative."
        if x < 0
        else "Class values must be smaller than num_classes."
    ),
}


@pointwise("jitshape.in_range", operands=1)
class InRange:
    """A nan is refused."""

    @staticmethod
    def lower(b, x, low, high, kind):
        low, high = (b.index(n) if isinstance(n, IntExpr) else n for n in (low, high))
        b.nonzero(b.logical_and(b.ge(x, low), b.le(x, high)))
        return x

    @staticmethod
    def run(x, low, high, kind):
        refused = ~((x >= low) & (x <= high))
        if x.device.type == "cpu" and refused.any():
            raise ERRORS[kind](x[refused][0].item())
        return x
