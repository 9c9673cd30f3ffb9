"""Intervals of integers, with ends that may be infinite.

In: ends and the operation.  Out: an interval that contains every result; for a relation, of all
integers that meet it, exactly.
"""

from __future__ import annotations

INF = float("inf")
Interval = tuple[float, float]


def times(a: float, b: float) -> float:
    """`a * b` of interval ends: zero times infinity is zero, and no int is too large."""
    if a == 0 or b == 0:
        return 0
    if a in (INF, -INF) or b in (INF, -INF):
        return INF if (a > 0) == (b > 0) else -INF
    return a * b


def plus(a: float, b: float) -> float:
    """`a + b` of interval ends: no int is too large beside infinity."""
    if b in (INF, -INF):
        a, b = b, a
    return a + b if b in (INF, -INF) or a not in (INF, -INF) else a


def floordiv(a: float, b: float) -> float:
    """`a // b` of interval ends, b >= 1."""
    if a in (INF, -INF):
        return a
    return (0 if a >= 0 else -1) if b == INF else a // b


def range_of(kind: str, a: Interval, b: Interval) -> Interval:
    """The values of an atom of that kind, of operands in `a` and `b`."""
    (alo, ahi), (blo, bhi) = a, b
    if kind == "max":
        return max(alo, blo), max(ahi, bhi)
    if kind == "min":
        return min(alo, blo), min(ahi, bhi)
    if kind == "mod" and blo >= 1:
        return 0, bhi - 1
    if kind == "floordiv" and blo >= 1:
        return floordiv(alo, bhi if alo >= 0 else blo), floordiv(ahi, blo if ahi >= 0 else bhi)
    return -INF, INF


def solution(op: str, scale: int, offset: int) -> Interval:
    """The interval of the integers p with `scale*p + offset op 0`, op not "ne"."""
    if op in ("lt", "ge"):  # d < 0 is d + 1 <= 0; d >= 0 is -d <= 0
        scale, offset = (scale, offset + 1) if op == "lt" else (-scale, -offset)
    elif op == "gt":
        scale, offset = -scale, -offset + 1
    if op == "eq":
        return -(offset // scale), -offset // scale
    return (-INF, -offset // scale) if scale > 0 else (-(-offset // -scale), INF)
