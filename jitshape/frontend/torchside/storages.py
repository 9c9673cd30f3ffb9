"""Storages of arguments, as values of the machine: how large they are, and `resize_`.

In: `x.untyped_storage()`, which never reaches the dispatcher.  Out: its size, under a guard that
says whether the memory of `x` is there; memory that the program gives to an argument without any
is there before the graph runs, and memory that it takes away is gone after it.
Invariant: the graph reads and writes such an argument only while its memory is there; other sizes,
and storages of other tensors, end the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from jitshape.frontend.checks import HasMemory
from jitshape.frontend.torchside.numbers import SymbolicInt
from jitshape.frontend.torchside.tensors import MODELS, TensorValue, from_real
from jitshape.frontend.values.base import CLOCK, Break, Restart, Value
from jitshape.frontend.values.functions import CallableValue
from jitshape.ir.conditions import compare
from jitshape.ir.strides import is_contiguous
from jitshape.ir.symint import Size
from jitshape.ir.torch_numbers import to_torch
from jitshape.ir.types import numel

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class StorageValue(CallableValue):
    """The storage of an argument; `is_there` is its state at this point of the program.  The
    graph uses it between the nodes `first` and `last`."""

    def __init__(self, m: Machine, owner: TensorValue) -> None:
        assert owner.real is not None and owner.source is not None
        self.owner = owner
        self.was_there = self.is_there = owner.real.untyped_storage().nbytes() > 0
        self.first: int | None = None
        self.last: int | None = None
        self.made_at = CLOCK.step()
        m.guard(owner.source, HasMemory(self.was_there))

    def python_type(self) -> type:
        return torch.UntypedStorage

    def getattr(self, m: Machine, name: str) -> Value:
        if name in METHODS:
            return StorageMethod(self, name)
        raise Break("tensor_attribute", f"UntypedStorage.{name}: it must see real tensors")

    def bytes(self) -> Size:
        """Of all its elements."""
        type_ = self.owner.tensor.value.type
        return numel(type_.shape) * type_.dtype.itemsize

    def write_back(self, e: Emitter) -> None:
        if not self.was_there:
            e.before_graph(lambda e: self._call(e, give_memory))
        if not self.is_there:
            self._call(e, take_memory)

    def _call(self, e: Emitter, function: Callable[[torch.Tensor], None]) -> None:
        e.call(function, lambda: e.value(self.owner))
        e.pop()


def give_memory(tensor: torch.Tensor) -> None:
    """Memory for all elements of a contiguous tensor; what is in it is undefined."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())


def take_memory(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def untyped_storage(m: Machine, tensor: TensorValue) -> Value:
    """`tensor.untyped_storage()`."""
    symbolic = tensor.tensor
    trace = m.tracer.trace
    argument = trace.argument(symbolic)
    if argument is None or tensor.real is None:
        raise Break("torch_call", "untyped_storage: it must see real tensors")
    shared = [value for value in trace.graph.inputs if value.storage is argument.storage]
    type_, real = argument.type, tensor.real
    whole = is_contiguous(type_.shape, type_.strides) and real.storage_offset() == 0
    bytes_ = real.untyped_storage().nbytes()
    if len(shared) > 1 or not whole or bytes_ not in (0, real.numel() * real.element_size()):
        raise Break("torch_call", "untyped_storage of a tensor that is a part of its memory")
    m.tracer.require(compare("eq", type_.offset, 0))
    known = m.tracer.storages.get(argument)
    if known is None:
        known = m.tracer.storages[argument] = StorageValue(m, tensor)
    return known


MODELS[torch.Tensor.untyped_storage] = untyped_storage


class StorageMethod(CallableValue):
    """`storage.resize_` and such, bound."""

    def __init__(self, owner: StorageValue, name: str) -> None:
        self.owner, self.name = owner, name
        self.made_at = owner.made_at

    def python_type(self) -> type:
        return type(getattr(torch.UntypedStorage(0), self.name))

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or len(args) != (self.name == "resize_"):
            raise Break("builtin_arguments", f"UntypedStorage.{self.name}")
        return METHODS[self.name](m, self.owner, *args)


def _size(m: Machine, storage: StorageValue) -> Value:
    if not storage.is_there:
        return m.const(0)
    size = storage.bytes()
    return m.const(size) if type(size) is int else from_real(m, to_torch(size, m.tracer.env))


def _resize(m: Machine, storage: StorageValue, size: Value) -> Value:
    wanted: Size
    if isinstance(size, SymbolicInt):
        wanted = size.expr
    elif size.is_constant() and type(size.constant()) is int:
        wanted = size.constant()
    else:
        raise Break("torch_argument", "a size in bytes that is no number")
    env, nodes = m.tracer.env, len(m.tracer.trace.graph.nodes)
    if env.evaluate(compare("eq", wanted, storage.bytes())):
        if not storage.is_there and storage.was_there:
            raise Break("torch_call", "memory that was taken away is given again")
        if not storage.is_there:
            m.mutated(storage)
            storage.is_there, storage.first = True, nodes
            m.effects.touch(storage)
        return storage
    if not env.evaluate(compare("eq", wanted, 0)):
        raise Break("torch_call", "a storage gets the size of a part of its tensor")
    if storage.is_there:
        m.mutated(storage)
        storage.is_there, storage.last = False, nodes
        m.effects.touch(storage)
    return storage


METHODS: dict[str, Callable[..., Value]] = {"resize_": _resize, "size": _size, "nbytes": _size}


def check_storages(m: Machine) -> None:
    """The graph uses memory only while it is there."""
    nodes = m.tracer.trace.graph.nodes
    for argument, storage in m.tracer.storages.items():
        outside = [*nodes[: storage.first or 0]]
        outside += [] if storage.last is None else nodes[storage.last :]
        if any(v.storage is argument.storage for n in outside for v in n.inputs()):
            cause = Break("torch_call", "a tensor is used while its storage is empty")
            raise Restart(storage.made_at or 0, cause)
