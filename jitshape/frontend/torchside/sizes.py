"""Numbers that a program gives as tensors where torch wants sizes: `x.view(b, n // 2, -1)` with a
0-dimensional `n`.

In: the arguments of a call of torch.  Out: the same with such tensors replaced by their elements,
as C++ does with real ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.torchside.numbers import SymbolicInt
from jitshape.frontend.torchside.numpy_scalars import SCALARS
from jitshape.frontend.values.base import Value
from jitshape.frontend.values.sequences import SequenceValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

_METHODS = (
    *("view", "reshape", "expand", "repeat", "tile", "permute", "unflatten"),
    *("new_zeros", "new_ones", "new_empty"),
)
_FACTORIES = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)
# Functions whose numbers are sizes, one by one or in a sequence.
TAKE_SIZES = {*_FACTORIES, *(getattr(torch.Tensor, name) for name in _METHODS)}


def with_sizes(m: Machine, function: Any, args: list[Value]) -> list[Value]:
    """The arguments of `function`, numbers for tensors in the places of sizes."""
    if getattr(function, "__hash__", None) is None or function not in TAKE_SIZES:
        return args
    first = 0 if function in _FACTORIES else 1
    return [*args[:first], *(_size(m, a) for a in args[first:])]


def _size(m: Machine, value: Value) -> Value:
    if isinstance(value, SequenceValue) and value.is_exact():
        items = value.items
        sizes = [_size(m, item) for item in items]
        changed = any(a is not b for a, b in zip(items, sizes))
        return m.new_tuple(sizes) if changed else value
    if value.is_constant():
        number = value.constant()
        whole = type(number) in SCALARS and isinstance(number.item(), int)
        return m.const(number.item()) if whole else value
    return value if isinstance(value, SymbolicInt) else _element(m, value)


def _element(m: Machine, value: Value) -> Value:
    from jitshape.frontend.torchside.tensors import TensorValue, call_native

    if not isinstance(value, TensorValue):
        return value
    tensor = value.tensor
    whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    if tensor.dim() or not whole or tensor.dtype is torch.bool:
        return value
    return call_native(m, torch.Tensor.item, [value])
