"""Building blocks of decompositions, over the Rewriter `g`.

In: values of the graph.  Out: values, computed in f32 or wider where the inputs are half types.
Invariant: a decomposition ends with `finish`, so that its results have the dtype and strides of
the node it replaces, as eager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.graph import Node, Value, tensor_type
from jitshape.ir.strides import is_contiguous, same_layout
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
NONE, MEAN, SUM = 0, 1, 2  # reductions of losses
MASKED = 0  # of an unwanted gradient


def cast(g: Any, x: Value, dtype: torch.dtype) -> Value:
    """`x` in another dtype."""
    return x if x.type.dtype == dtype else g.call("aten._to_copy.default", x, dtype=dtype)


def widen(g: Any, x: Value) -> Value:
    """`x` in the dtype that sums of it are computed in."""
    return cast(g, x, WIDE.get(x.type.dtype, x.type.dtype))


def finish(g: Any, node: Node, value: Value, index: int = 0) -> Value:
    """`value` with the dtype and strides of output `index` of `node`."""
    type_ = node.outs[index].type
    assert isinstance(type_, TensorType)
    value = cast(g, value, type_.dtype)
    if same_layout(tensor_type(value), type_):
        return value
    contiguous = is_contiguous(type_.shape, type_.strides)
    format = torch.contiguous_format if contiguous else torch.channels_last
    return g.emit("aten.clone.default", (value,), {"memory_format": format}, type_)


def add(g: Any, a: Any, b: Any) -> Value:
    return g.call("aten.add.Tensor", a, b)


def sub(g: Any, a: Any, b: Any) -> Value:
    return g.call("aten.sub.Tensor", a, b)


def mul(g: Any, a: Any, b: Any) -> Value:
    return g.call("aten.mul.Tensor", a, b)


def div(g: Any, a: Value, b: Any) -> Value:
    return g.call("aten.div.Tensor" if isinstance(b, Value) else "aten.div.Scalar", a, b)


def call(g: Any, name: str, *args: Any, **kwargs: Any) -> Value:
    """An op by its plain name, such as "exp"."""
    return g.call(f"aten.{name}.default", *args, **kwargs)


def where(g: Any, condition: Value, yes: Any, no: Any) -> Value:
    """Numbers take the dtype of the other branch."""
    if isinstance(yes, Value) and isinstance(no, Value):
        return g.call("aten.where.self", condition, yes, no)
    if isinstance(no, Value):
        return g.call("aten.masked_fill.Scalar", no, condition, yes)
    return g.call("aten.masked_fill.Scalar", yes, call(g, "logical_not", condition), no)


def total(g: Any, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    return g.call("aten.sum.dim_IntList", x, list(dims), keepdim)


def average(g: Any, x: Value, dims: Sequence[int], keepdim: bool = False) -> Value:
    return div(g, total(g, x, dims, keepdim), count(x, dims))


def count(x: Value, dims: Sequence[int]) -> Size:
    """How many elements lie along `dims`."""
    product: Size = 1
    for dim in dims:
        product = product * x.type.shape[dim]
    return product


def view(g: Any, x: Value, shape: Sequence[Size]) -> Value:
    same = tuple(x.type.shape) == tuple(shape)
    return x if same else g.call("aten.view.default", x, list(shape))
