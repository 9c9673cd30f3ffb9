"""Functions of torch's that C++ decides by numbers: on shapes, and by the classes in a tensor."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.composites import current_env, current_trace, replaces
from jitshape.ir.ops.registry import OPS
from jitshape.ir.strides import broadcast
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.symnode import from_torch, to_torch


@replaces(torch.functional.broadcast_shapes)
def broadcast_shapes(*shapes: Any) -> Any:
    """The shape that all of them broadcast to; a number is a shape of one dimension."""
    env = current_env()
    rows = [s if isinstance(s, (tuple, list)) else (s,) for s in shapes]
    sizes = [tuple(from_torch(n) for n in row) for row in rows]
    if any(type(n) is int and n < 0 for row in sizes for n in row):
        raise RuntimeError("Trying to create tensor with negative dimension")
    return torch.Size([to_torch(n, env) for n in broadcast(env, *sizes)])


@replaces(torch.nn.functional.one_hot)
def one_hot(tensor: Any, num_classes: Any = -1) -> Any:
    """A row of zeros with a 1 at each class."""
    if type(tensor) is not SymbolicTensor or tensor.dtype is not torch.int64:
        return NotImplemented
    if isinstance(num_classes, bool) or not num_classes > 0:
        return NotImplemented
    trace = current_trace()
    row = [tensor.value, 0, from_torch(num_classes) - 1, "class"]
    classes = trace.wrap(trace.call(OPS["jitshape.in_range.default"], row, {}))
    return (classes.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


@replaces(torch.tensor_split, methods=["tensor_split"])
def tensor_split(input: Any, places: Any, dim: int = 0) -> Any:
    """At places in a tensor: at the numbers in it."""
    if type(input) is not SymbolicTensor or type(places) is not SymbolicTensor:
        return NotImplemented
    if places.ndim != 1 or places.dtype is not torch.int64:
        return NotImplemented
    count = current_env().specialize(places.value.type.shape[0], "the number of parts")
    return torch.tensor_split(input, [places.select(0, i).item() for i in range(count)], dim)
