"""Which writes eager refuses because memory overlaps.

In: the tensor that is written and the operands of the write.  Out: nothing, or eager's error.
Invariant: as eager, only what lies in one piece without gaps is compared; the rest is let through.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jitshape.errors import DataDependent
from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value, tensor_type
from jitshape.ir.strides import is_dense, less
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType, numel

_CLONE = "Please clone() the tensor before performing the operation."


def check_internal_overlap(env: Any, target: TensorType) -> None:
    """A tensor that shows one element several times cannot be written."""
    for size, stride in zip(target.shape, target.strides):
        if type(stride) is int and stride == 0 and env.evaluate(compare("gt", size, 1)):
            if _is_empty(env, target):
                return
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers to "
                f"a single memory location. {_CLONE}"
            )
    if not _is_apart(env, target) and not _is_empty(env, target):
        raise DataDependent(
            "a write to memory that overlaps itself",
            because="an element that is shown twice is written twice, one time after the other",
            avoid=_CLONE,
        )


def _is_empty(env: Any, target: TensorType) -> bool:
    """Whether there is nothing to write, by a fact."""
    empty = (size for size in target.shape if env.actual(size) == 0)
    return any(env.equal(size, 0) for size in empty)


def check_arguments(env: Any, arguments: Iterable[TensorType]) -> None:
    """A write to memory that an argument shows twice cannot be brought back through it."""
    for type_ in arguments:
        if not _is_apart(env, type_):
            raise DataDependent(
                "a write to an argument whose memory overlaps itself",
                because="an element that is shown twice can be written through one of its places",
                avoid=_CLONE,
            )


def _is_apart(env: Any, target: TensorType) -> bool:
    """Whether each element is shown once, which eager does not ask where no stride is 0."""
    rows = list(zip(target.shape, target.strides))
    if any(env.actual(n) is None for row in rows for n in row):
        return True
    if is_dense(env, target.shape, target.strides):
        return True
    reach: Size = 0
    for size, stride in sorted(rows, key=lambda row: env.actual(row[1])):
        if type(size) is int and size == 1:
            continue
        if env.actual(size) < 2 and env.actual(stride) <= env.actual(reach):
            env.evaluate(compare("lt", size, 2))
            continue
        if not less(env, reach, stride):
            return False
        reach = reach + (size - 1) * stride
    return True


def check_partial_overlap(env: Any, target: Value, operand: Any) -> None:
    """An operand that is neither the tensor written nor apart from it cannot be read."""
    if type(operand) is not Value or operand.storage is not target.storage:
        return
    a, b = tensor_type(target), tensor_type(operand)
    if (a.shape, a.strides, a.offset) == (b.shape, b.strides, b.offset):
        return
    if not all(is_dense(env, t.shape, t.strides) for t in (a, b)):
        return
    a_end, b_end = (t.offset + numel(t.shape) for t in (a, b))
    apart = env.evaluate(compare("le", a_end, b.offset))
    if apart or env.evaluate(compare("le", b_end, a.offset)):
        return
    raise RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer "
        f"to a single memory location. {_CLONE}"
    )
