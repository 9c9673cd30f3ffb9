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
from jitshape.ir.ops.registry import OPS
from jitshape.ir.strides import end_of, is_dense, less
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType

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


def check_inside(env: Any, source: Value, seen: TensorType) -> None:
    """What lies beside an argument in its storage is nothing that the graph gets or gives back."""
    root = source
    while root.node is not None and (found := OPS.get(root.node.op)) is not None:
        if found.family not in ("view", "inplace"):
            return
        root = found.alias(root.node.args)
    own = tensor_type(root)
    a, b = own.dtype.itemsize, seen.dtype.itemsize
    inside = env.evaluate(compare("le", own.offset * a, seen.offset * b))
    if not inside or not env.evaluate(compare("le", end_of(seen) * b, end_of(own) * a)):
        raise DataDependent(
            "a view that reaches beyond the argument that it was made from",
            because="the memory beside it may be another argument's, or nobody's",
            avoid="give the function the larger tensor",
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


def check_partial_overlap(env: Any, target: Value, operand: Value) -> None:
    """An operand that is neither the tensor written nor apart from it cannot be read."""
    if operand.storage is not target.storage:
        return
    a, b = tensor_type(target), tensor_type(operand)
    if (a.shape, a.strides, a.offset) == (b.shape, b.strides, b.offset):
        return
    if not all(is_dense(env, t.shape, t.strides) for t in (a, b)) or _lie_apart(env, a, b):
        return
    raise RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer "
        f"to a single memory location. {_CLONE}"
    )


def check_no_overlap(env: Any, target: Value, operand: Value) -> None:
    """An operand of a write to chosen places, in the memory of the tensor written: eager refuses
    some of these ops, and others read what they have written before."""
    if operand.storage is not target.storage:
        return
    if not _lie_apart(env, tensor_type(target), tensor_type(operand)):
        raise DataDependent(
            "a write to chosen places that reads the tensor that it writes",
            because="the order of reads and writes decides the result",
            avoid=_CLONE,
        )


def _lie_apart(env: Any, a: TensorType, b: TensorType) -> bool:
    """Whether one of two tensors in one storage ends before the other begins."""
    rows = [(t.offset * t.dtype.itemsize, end_of(t) * t.dtype.itemsize) for t in (a, b)]
    (a_start, a_end), (b_start, b_end) = rows
    return env.evaluate(compare("le", a_end, b_start)) or env.evaluate(
        compare("le", b_end, a_start)
    )
