"""Integers that only the host computes: bit operations, powers of two, rounded floats.

In: the kind of such an atom and its operands (sizes; of a rounding a float expression).  Out: its
value, interval and text.
Invariant: kernels never compute these.  They get the value as a number, as they get symbols, so
that Python's own arithmetic is the only one there is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from jitshape.ir.intervals import INF, Interval

MOST_SHIFT = 4096  # bits: more is nobody's size

BITS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "and": ("{} & {}", operator.and_),
    "or": ("{} | {}", operator.or_),
    "xor": ("{} ^ {}", operator.xor),
    "shift": ("{} << {}", operator.lshift),  # of 1
}
ROUNDINGS: dict[str, tuple[str, Callable[[float], int]]] = {
    "floor": ("math.floor({})", math.floor),
    "ceil": ("math.ceil({})", math.ceil),
    "trunc": ("math.trunc({})", math.trunc),
    "round": ("round({})", round),
}
HOSTED: dict[str, tuple[str, Callable[..., int]]] = {**BITS, **ROUNDINGS}


def evaluate_hosted(kind: str, operands: list[Any]) -> int | None:
    """The value; None where an operand is unknown, or Python would raise."""
    if None in operands or (kind == "shift" and operands[1] > MOST_SHIFT):
        return None
    try:
        return HOSTED[kind][1](*operands)
    except (ArithmeticError, ValueError):
        return None


def hosted_range(kind: str, *operands: Interval) -> Interval:
    """The values of an atom whose operands lie in these intervals."""
    if kind not in BITS:
        return -INF, INF
    (alo, ahi), (blo, bhi) = operands
    if kind == "shift":
        return 1 << max(int(blo), 0) if blo > 0 else 1, 1 << int(bhi) if 0 <= bhi < 63 else INF
    if kind == "and" and (alo >= 0 or blo >= 0):
        return 0, min(ahi if alo >= 0 else INF, bhi if blo >= 0 else INF)
    if alo < 0 or blo < 0:
        return -INF, INF
    most = max(ahi, bhi)
    above = INF if most == INF else (1 << int(most).bit_length()) - 1
    return (max(alo, blo) if kind == "or" else 0), above


def power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0
