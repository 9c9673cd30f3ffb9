"""Copies that eager makes at some sizes only: `reshape` and `contiguous` view where they can.

In: the layout of a tensor and the shape wanted.  Out: what eager does at this call, where each
question about sizes becomes a fact; and whether a program can tell a copy from a view at all.
Invariant: a program that cannot is traced without these facts, always with the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Storage, Value
from jitshape.ir.ops.registry import OPS
from jitshape.ir.strides import Shape, row_major
from jitshape.ir.symint import Size
from jitshape.ir.types import numel

if TYPE_CHECKING:
    from jitshape.ir.trace import Trace


def _asks(env: Any, op: str, a: Size, b: Size) -> bool:
    return env.evaluate(compare(op, a, b), "a view or a copy")


def strides_at_call(env: Any, shape: Shape, strides: Shape, new: Sequence[Size]) -> Shape | None:
    """The strides of the view that reshaping to `new` gives at this call; None: a copy."""
    if _asks(env, "eq", numel(shape), 0):
        return row_major(tuple(new))
    out: list[Size] = [1] * len(new)
    dim = len(new) - 1
    for size, stride in _runs_at_call(env, shape, strides):
        covered: Size = 1
        while dim >= 0 and _asks(env, "lt", covered, size):
            out[dim] = stride * covered
            covered = covered * new[dim]
            dim -= 1
        if not _asks(env, "eq", covered, size):
            return None
    return tuple(out)


def _runs_at_call(env: Any, shape: Shape, strides: Shape) -> list[tuple[Size, Size]]:
    """(size, stride) of dimensions that lie in memory as one, from the last on."""
    runs: list[tuple[Size, Size]] = []
    for size, stride in zip(reversed(shape), reversed(strides)):
        if _asks(env, "eq", size, 1):
            continue
        if runs and _asks(env, "eq", stride, runs[-1][0] * runs[-1][1]):
            runs[-1] = (runs[-1][0] * size, runs[-1][1])
        else:
            runs.append((size, stride))
    return runs


def is_contiguous_at_call(env: Any, shape: Shape, strides: Shape) -> bool:
    if _asks(env, "eq", numel(shape), 0):
        return True
    expected: Size = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if _asks(env, "eq", size, 1):
            continue
        if not _asks(env, "eq", stride, expected):
            return False
        expected = expected * size
    return True


def decides(trace: Trace, x: Value) -> bool:
    """Whether a copy or a view of `x` is chosen as eager does at this call."""
    sizes = (*x.type.shape, *x.type.strides)
    if any(trace.env.actual(size) is None for size in sizes):
        return False
    return trace.exact_copies or all(type(size) is int for size in sizes)


def note_copy(trace: Trace, x: Value, copy: Value) -> None:
    """A copy was made where eager may view."""
    trace.copies.append((x.storage, copy.storage, len(trace.graph.nodes)))


def is_told(trace: Trace, outputs: Sequence[Value]) -> bool:
    """Whether the program can tell some copy from a view: one of both sides is written while the
    other is there, or both are seen outside."""
    seen = {value.storage for value in outputs}
    outside = seen | {value.storage for value in trace.graph.inputs}
    written = _last_writes(trace)
    for source, copy, place in trace.copies:
        if copy in seen and source in outside:
            return True
        if any(written.get(storage, -1) >= place for storage in (source, copy)):
            return True
    return False


def _last_writes(trace: Trace) -> dict[Storage | None, int]:
    """The place of the last node that writes to a memory."""
    written: dict[Storage | None, int] = {}
    for place, node in enumerate(trace.graph.nodes):
        definition = OPS.get(node.op)
        if definition is None:
            continue
        places = definition.writes(node.args) if definition.has("writes") else ()
        for position in places or ((0,) if definition.mutates else ()):
            target = node.args[position]
            if isinstance(target, Value):
                written[target.storage] = place
    return written
