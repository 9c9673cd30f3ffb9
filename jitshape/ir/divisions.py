"""Tensors divided into parts: split and unbind, which are slices and selections.

In: a tensor and the sizes of its parts.  Out: one view each, recorded as such.
Invariant: the number of parts is known while tracing, by a fact where the program does not fix it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.graph import Value
from jitshape.ir.ops.families import wrap_dim
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.symint import Size
from jitshape.ir.trace import Trace, intercept
from jitshape.ir.types import TensorType

aten = torch.ops.aten


@intercept(aten.split.Tensor, aten.unsafe_split.Tensor)
def _split(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, step, dim = _split_arguments(trace, *args, **kwargs)
    size = x.type.shape[dim]
    count = 1 if step is size else max(trace.env.specialize(-((-size) // step)), 1)
    steps = [step] * (count - 1) + [size - step * (count - 1)]
    return _slices(trace, x, steps, dim)


@intercept(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def _split_with_sizes(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, steps, dim = _split_arguments(trace, *args, **kwargs)
    total: Size = 0
    for step in steps:
        total = total + step
    if not trace.env.agree(total, x.type.shape[dim]):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x.type.shape[dim]} "
            f"(input tensor's size at dimension {dim}), but got split_sizes={steps}"
        )
    return _slices(trace, x, steps, dim)


def _split_arguments(trace: Trace, x: Any, sizes: Any, dim: int = 0) -> tuple[Value, Any, int]:
    value = trace.unwrap(x)
    return value, trace.unwrap(sizes), wrap_dim(dim, value.type.ndim)


def _slices(trace: Trace, x: Value, steps: Sequence[Size], dim: int) -> list[SymbolicTensor]:
    """Neighbouring parts of `x` along `dim`, each recorded as a slice."""
    parts, start = [], 0
    old = x.type
    for step in steps:
        shape = (*old.shape[:dim], step, *old.shape[dim + 1 :])
        offset = old.offset + start * old.strides[dim]
        type_ = TensorType(shape, old.strides, old.dtype, old.device, offset)
        row = (x, dim, start, start + step, 1)
        (out,) = trace.record("aten.slice.Tensor", row, {}, (type_,), x.storage)
        parts.append(trace.wrap(out))
        start = start + step
    return parts


@intercept(aten.unbind.int)
def _unbind(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x = trace.unwrap(args[0])
    dim = wrap_dim(args[1] if len(args) > 1 else kwargs.get("dim", 0), x.type.ndim)
    count = trace.env.specialize(x.type.shape[dim])
    select = OPS["aten.select.int"]
    return [trace.wrap(trace.call(select, (x, dim, i), {})) for i in range(count)]
