"""A tensor without data: what the user's torch calls run on while tracing.

In: a graph Value.  Out: a torch.Tensor with symbolic sizes and strides, on which C++ autograd
works.  Invariant: `value` is the tensor's present content; an in-place op moves it on, so views
of the same memory keep Values of the same storage.  The numbers in it cannot be read: whatever
would is a DataDependent error, which the frontend turns into a graph break.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from jitshape.errors import DataDependent
from jitshape.ir.graph import Value
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.torch_numbers import to_torch


class SymbolicTensor(torch.Tensor):
    """Made by a Trace only."""

    value: Value
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("symbolic tensors are made by a Trace")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called on a symbolic tensor outside its trace")

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SymbolicTensor({self.value.name}: {self.value.type})"

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """As `detach`, with a version counter of its own."""
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined]

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        raise DataDependent(
            "a tensor's .data is assigned",
            because="the assignment gives it other memory, which autograd does not see",
            avoid="x.copy_(new) under torch.no_grad(), or assign outside the compiled function",
        )


def make_symbolic(value: Value, env: Any, requires_grad: bool = False) -> SymbolicTensor:
    """The tensor of `value`, a leaf for autograd."""
    type_ = value.type
    offset = type_.offset
    tensor = torch.Tensor._make_wrapper_subclass(
        SymbolicTensor,
        _torch_sizes(type_.shape, env),
        strides=_torch_sizes(type_.strides, env),
        storage_offset=offset if type(offset) is int else to_torch(offset, env),
        dtype=type_.dtype,
        layout=torch.strided,
        device=type_.device,
        requires_grad=requires_grad,
        storage_size=0,  # nobody reads it, and C++ would compute it size by size
    )
    tensor.value = value
    return tensor


def _torch_sizes(sizes: tuple[Size, ...], env: Any) -> Sequence[Any]:
    """Ints, and SymInts for expressions."""
    if all(type(s) is int for s in sizes):
        return sizes
    return [to_torch(s, env) if type(s) is IntExpr else s for s in sizes]


def _needs_value(tensor: SymbolicTensor, what: str) -> DataDependent:
    return DataDependent(
        what,
        because=f"{tensor.value.name} is {tensor.value.type}, computed in the graph and unknown "
        "while tracing",
        avoid="torch.where for a choice of values; a static or symbolic size instead",
    )


def _refuse(name: str, what: str) -> Callable[..., Any]:
    def method(self: SymbolicTensor, *args: Any, **kwargs: Any) -> Any:
        raise _needs_value(self, what)

    method.__name__ = name
    return method


def _truth(self: SymbolicTensor) -> bool:
    """Of a bool, as of the Python bool that it holds: code of torch's that only raises on it."""
    if self.dtype is not torch.bool or self.numel() != 1:
        raise _needs_value(self, "a Python `if` needs the value of a tensor")
    truth = self.item()
    return truth if isinstance(truth, bool) else truth.node.decide(sys._getframe(1))


SymbolicTensor.__bool__ = _truth  # type: ignore[method-assign]

_READS = {
    "__contains__": "`in` needs the values of a tensor",
    "tolist": "tolist() needs the values of a tensor",
    "numpy": "numpy() needs the values of a tensor",
    "__array__": "numpy needs the values of a tensor",
}
for _name, _what in _READS.items():
    setattr(SymbolicTensor, _name, _refuse(_name, _what))
