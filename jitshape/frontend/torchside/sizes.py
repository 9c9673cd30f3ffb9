"""torch.Size, and numbers that a program gives as tensors where torch wants sizes:
`x.view(b, n // 2, -1)` with a 0-dimensional `n`.

In: the arguments of a call of torch.  Out: the same with such tensors replaced by their elements,
as C++ does with real ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.builtins_.registry import models
from jitshape.frontend.sources import Source
from jitshape.frontend.torchside.numbers import SymbolicInt
from jitshape.frontend.torchside.numpy_scalars import SCALARS
from jitshape.frontend.values.base import Break, Value, unpack_sized, wraps
from jitshape.frontend.values.functions import CallableValue
from jitshape.frontend.values.sequences import SequenceValue, TupleValue
from jitshape.frontend.values.storage import guard_type

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


class SizeValue(TupleValue):
    """torch.Size: a tuple of ints, some of them symbolic."""

    def __init__(self, items: Iterable[Value] = (), cls: type = torch.Size, **known: Any) -> None:
        super().__init__(items, cls, **known)

    def inherits(self, *names: str) -> bool:
        return True  # its own methods differ from tuple's in the class of the result only

    def is_constant(self) -> bool:
        return all(value.is_constant() for value in self.items)

    def constant(self) -> Any:
        return torch.Size(value.constant() for value in self.items)

    def concatenate(self, m: Machine, other: Value) -> Any:
        if not isinstance(other, TupleValue):
            return NotImplemented
        return SizeValue(self.items + other.items)

    def getattr(self, m: Machine, name: str) -> Value:
        return SizeMethod(self, name) if name == "numel" else m.default_getattr(self, name)

    def reconstruct(self, e: Any) -> None:
        e.begin_call()
        e.const(torch.Size)
        for value in self.items:
            e.value(value)
        e.build("tuple", len(self.cells))
        e.end_call(1)


class SizeMethod(CallableValue):
    """`size.numel`, bound."""

    def __init__(self, owner: SizeValue, name: str) -> None:
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return type(torch.Size(()).numel)

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        total = m.const(1)
        for value in self.owner.items:
            total = m.binary("*", total, value)
        return total


@wraps(torch.Size)
def wrap_size(m: Machine, real: torch.Size, source: Source | None) -> Value:
    value = SizeValue(object=real, source=guard_type(m, real, source), m=m)
    value.sized = source is None
    return value


@models(torch.Size)
def new_size(m: Machine, iterable: Value | None = None, /) -> Value:
    items = unpack_sized(m, iterable) if iterable is not None else []
    if any(item.python_type() is not int for item in items):
        raise Break("builtin_arguments", "torch.Size of what are no ints")
    return SizeValue(items)


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
