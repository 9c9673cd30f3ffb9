"""Functions of torch's that C++ decides by numbers: on shapes, and by the classes in a tensor."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.composites import current_env, current_trace, replaces
from jitshape.ir.ops.families import wrap_dim
from jitshape.ir.ops.registry import OPS
from jitshape.ir.strides import broadcast, is_contiguous
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.torch_numbers import from_torch, to_torch


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
    """At the numbers in a tensor; into a number of parts of which the first are longer by one."""
    if type(input) is not SymbolicTensor or not input.ndim:
        return NotImplemented
    env = current_env()
    if type(places) is SymbolicTensor and places.ndim == 1 and places.dtype is torch.int64:
        count = env.specialize(places.value.type.shape[0], "the number of parts")
        return torch.tensor_split(input, [places.select(0, i).item() for i in range(count)], dim)
    if type(places) is not int or places < 1 or type(dim) is not int:
        return NotImplemented
    size = input.value.type.shape[wrap_dim(dim, input.ndim)]
    lengths = [env.floordiv(size - place + places - 1, places) for place in range(places)]
    return input.split_with_sizes([to_torch(n, env) for n in lengths], dim)


@replaces(torch.linspace)
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """With a number of steps that may change."""
    ends = [from_torch(x) for x in (start, end)]
    if not isinstance(steps, torch.SymInt) or any(isinstance(x, torch.Tensor) for x in ends):
        return NotImplemented
    if any(isinstance(x, complex) for x in ends):
        return NotImplemented
    trace, row = current_trace(), {"dtype": dtype, "device": device}
    values = [*ends, from_torch(steps)]
    return trace.wrap(trace.call(OPS["aten.linspace.default"], values, row))


@replaces(torch.kron, methods=["kron"])
def kron(input: Any, other: Any) -> Any:
    """Each element of the one times all of the other."""
    if type(input) is not SymbolicTensor or type(other) is not SymbolicTensor:
        return NotImplemented
    rank = max(input.ndim, other.ndim)
    a, b = ([1] * (rank - t.ndim) + list(t.shape) for t in (input, other))
    outer = [n for size in a for n in (size, 1)]
    inner = [n for size in b for n in (1, size)]
    return (input.reshape(outer) * other.reshape(inner)).reshape([m * n for m, n in zip(a, b)])


@replaces(torch.max_pool1d, torch.nn.functional.max_pool1d)
def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Of images of one row."""
    if type(input) is not SymbolicTensor or return_indices or input.ndim not in (2, 3):
        return NotImplemented
    type_ = input.value.type
    if not type_.dtype.is_floating_point or not is_contiguous(type_.shape, type_.strides):
        return NotImplemented
    stride = stride if stride not in (None, (), []) else kernel_size
    pairs = [
        [default, *(n if isinstance(n, (tuple, list)) else (n,))]
        for default, n in ((1, kernel_size), (1, stride), (0, padding), (1, dilation))
    ]
    return torch.max_pool2d(input.unsqueeze(-2), *pairs, ceil_mode).squeeze(-2)
