"""Arguments that the program gives the memory of another tensor: `x.data = y`, `x.set_(y)`.

In: such an assignment.  Out: the symbolic tensor shows that memory from there on, and the real one
gets it when the graph has run.  Invariant: what an argument shows at the end is what it was given:
if the program writes through it afterwards, or turns the other tensor, the graph ends before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jitshape.frontend.builtins_.registry import is_none
from jitshape.frontend.torchside.tensors import MODELS, TensorValue, call_native
from jitshape.frontend.values.base import CLOCK, Break, Restart, Value
from jitshape.ir.graph import Graph
from jitshape.ir.metadata import give_memory
from jitshape.ir.passes.functionalize import written_values
from jitshape.ir.passes.view_steps import viewed_values
from jitshape.ir.types import TensorType

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class GivenMemory(Value):
    """`owner` shows the memory of `value`; `by_set`: by `set_`, which autograd sees."""

    def __init__(self, graph: Graph, owner: TensorValue, value: TensorValue, by_set: bool) -> None:
        self.graph, self.start = graph, len(graph.nodes)
        self.owner, self.value, self.by_set = owner, value, by_set
        self.made_at = CLOCK.step()
        self.shown, self.geometry = owner.tensor.value, _geometry(value.tensor.value.type)

    def python_type(self) -> type:
        return GivenMemory

    def write_back(self, e: Emitter) -> None:
        """Reads the objects as they are at the end."""
        moved = _geometry(self.value.tensor.value.type) != self.geometry
        if moved or self.owner.tensor.value is not self.shown or self._is_written():
            cause = Break("tensor_attribute", "a tensor that was given other memory is written")
            raise Restart(self.made_at or 0, cause)
        if self.by_set:
            e.call(torch.Tensor.set_, lambda: e.value(self.owner), lambda: e.value(self.value))
            e.pop()
        else:
            e.value(self.value)
            e.value(self.owner)
            e.store_attr("data")

    def _is_written(self) -> bool:
        """Whether the program has written through the owner since."""
        targets = written_values(self.graph.nodes[self.start :])
        return any(self.shown in viewed_values(target) for target in targets)


def _geometry(type_: TensorType) -> tuple:
    return type_.shape, type_.strides, type_.offset


def give(m: Machine, tensor: TensorValue, value: Value, by_set: bool) -> None:
    """The memory of `value` for `tensor`."""
    if not isinstance(value, TensorValue):
        raise Break("tensor_attribute", "a tensor is given the memory of what is no tensor")
    trace = m.tracer.trace
    own, other = tensor.tensor, value.tensor
    if trace.argument(own) is None:
        storage, graph = own.value.storage, trace.graph
        changed = any(v.storage is storage for v in (*graph.moved, *written_values(graph.nodes)))
        if changed or own._is_view():
            reason = "a view, or a tensor that was written, is given other memory"
            raise Break("tensor_attribute", reason)
        call_native(m, torch.Tensor.set_ if by_set else give_memory, [tensor, value])
        return
    known = any(slot.owner is tensor for slot in m.tracer.given_memory)
    if known or own.value.storage is other.value.storage or own.dtype is not other.dtype:
        raise Break("tensor_attribute", "an argument is given a part of its own memory")
    if own.requires_grad and (by_set or own.value.type.shape != other.value.type.shape):
        raise Break("tensor_attribute", "an argument that requires grad is given other memory")
    m.mutated(tensor)
    with torch.no_grad():
        m.tracer.run(give_memory, [own, other], {})
    slot = GivenMemory(trace.graph, tensor, value, by_set)
    m.tracer.given_memory.append(slot)
    m.effects.touch(slot)


def assign(m: Machine, tensor: TensorValue, value: Value) -> None:
    """`tensor.data = value`."""
    give(m, tensor, value, False)


def set_(m: Machine, tensor: TensorValue, *args: Value, **kwargs: Value) -> Value:
    """`tensor.set_(value)`."""
    if kwargs or len(args) != 1 or not isinstance(args[0], TensorValue):
        return call_native(m, torch.Tensor.set_, [tensor, *args], kwargs)
    give(m, tensor, args[0], True)
    return tensor


def is_view(m: Machine, tensor: Value) -> Value:
    """Of an argument: whether it has a base."""
    if not isinstance(tensor, TensorValue) or tensor.real is None:
        return call_native(m, torch.Tensor._is_view, [tensor])
    return m.const(not is_none(tensor.getattr(m, "_base")))


MODELS[torch.Tensor._is_view] = is_view
MODELS["write .data"] = assign
MODELS[torch.Tensor.set_] = set_
