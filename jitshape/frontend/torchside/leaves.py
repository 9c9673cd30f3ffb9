"""Tensors that become leaves of autograd inside of the program.

In: `x.requires_grad_()`, `x.requires_grad = True`, `torch.zeros(..., requires_grad=True)`.  Out:
the symbolic tensor is a leaf from there on.  An argument becomes one for real before the graph
runs, where what came before has not noticed; a tensor of the graph serves backward inside of the
program.  Invariant: no result of the program hangs on a leaf that exists in the graph only: the
graph ends before that leaf comes into being.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.torchside.gradients import variables_behind
from jitshape.frontend.torchside.tensors import MODELS, TensorValue
from jitshape.frontend.values.base import CLOCK, Break, Restart, Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine

_WHY = "a tensor becomes a leaf of autograd in the middle of the graph"


class LeafMark(Value):
    """An argument that requires grad from now on."""

    def __init__(self, owner: TensorValue) -> None:
        self.owner = owner

    def python_type(self) -> type:
        return LeafMark

    def write_back(self, e: Emitter) -> None:
        e.before_graph(self._mark)

    def _mark(self, e: Emitter) -> None:
        e.call(torch.Tensor.requires_grad_, lambda: e.value(self.owner))
        e.pop()


def requires_grad_(m: Machine, tensor: TensorValue, requires_grad: Value | None = None) -> Value:
    """`tensor.requires_grad_(requires_grad)`."""
    if requires_grad is not None and not requires_grad.is_constant():
        raise Break("torch_argument", "requires_grad_ of what is no constant")
    wanted = requires_grad is None or bool(requires_grad.constant())
    symbolic = tensor.tensor
    if symbolic.requires_grad == wanted:
        return tensor
    if not wanted:
        raise Break("autograd", "requires_grad_(False): a tensor leaves autograd")
    if not (symbolic.dtype.is_floating_point or symbolic.dtype.is_complex):
        raise Break("raises", f"requires_grad_ of a tensor of {symbolic.dtype}")
    if symbolic.is_inference() and not torch.is_inference_mode_enabled():
        raise Break("raises", "requires_grad_ of an inference tensor outside of inference mode")
    trace = m.tracer.trace
    argument = trace.argument(symbolic)
    if argument is None:
        _check_alone(m, symbolic)
        m.mutated(tensor)
        m.tracer.made_leaves.append((tensor, CLOCK.step()))
    else:
        if any(out.storage is argument.storage for n in trace.graph.nodes for out in n.outs):
            raise Break("autograd", "an argument that has views becomes a leaf of autograd")
        m.mutated(tensor)
        argument.requires_grad = True
        m.effects.touch(LeafMark(tensor))
    with torch.enable_grad():
        symbolic.requires_grad_()
    return tensor


def _check_alone(m: Machine, symbolic: Any) -> None:
    """The leaf is no view, and lies in memory of its own."""
    storages = {value.storage for value in m.tracer.trace.graph.inputs}
    if symbolic._base is not None or symbolic.value.storage in storages:
        raise Break("autograd", f"requires_grad_ of a view: {_WHY}")


def set_requires_grad(m: Machine, tensor: TensorValue, value: Value) -> None:
    """`tensor.requires_grad = value`."""
    requires_grad_(m, tensor, value)


MODELS[torch.Tensor.requires_grad_] = requires_grad_
MODELS["write .requires_grad"] = set_requires_grad


def check_leaves(m: Machine, results: Sequence[Any]) -> None:
    """No result of the program needs a leaf that it made."""
    if not m.tracer.made_leaves:
        return
    steps = {id(value.tensor): step for value, step in m.tracer.made_leaves}
    behind = variables_behind([result for result in results if result.requires_grad])
    found = [steps[id(v)] for v in behind if id(v) in steps]
    if found:
        raise Restart(min(found), Break("autograd", f"a result depends on it: {_WHY}"))
