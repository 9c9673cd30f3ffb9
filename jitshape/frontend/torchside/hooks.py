"""Hooks on tensors of the graph and on autograd's nodes.

In: `tensor.register_hook(f)`, `tensor.grad_fn.register_hook(f)`, as nn.Module's backward hooks
use them.  Out: hooks on the symbolic tensor or node, which have the machine run `f` in backward.
Invariant: a tensor that exists outside, or that the program returns, has no such hook: the graph
ends before it gets one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.builtins_.registry import is_none
from jitshape.frontend.torchside.autograd_functions import called_by
from jitshape.frontend.torchside.called_back import CalledBack
from jitshape.frontend.torchside.tensors import MODELS, TensorValue, from_real
from jitshape.frontend.values.base import CLOCK, Break, Restart, Value
from jitshape.frontend.values.functions import CallableValue
from jitshape.frontend.values.sequences import TupleValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


class Hook(CalledBack):
    """A function of the program's that backward calls with gradients."""

    def __init__(self, m: Machine, function: Value) -> None:
        super().__init__(m, "a hook")
        self.function = function

    def of_tensor(self, gradient: Any) -> Any:
        """What a hook on a tensor gives back: another gradient, or None."""
        if self.probing:
            return None
        result = self._call([gradient])
        if not (isinstance(result, TensorValue) or is_none(result)):
            raise Restart(self.step, self.refuse("returns neither a tensor nor None"))
        found = result.tensor if isinstance(result, TensorValue) else None
        self.check_dependence([gradient], [found])
        return found

    def of_node(self, *groups: Any) -> Any:
        """What a hook on a node gives back: other gradients of its inputs, or None."""
        if self.probing:
            return None
        result = self._call(groups)
        if is_none(result):
            return None
        items = result.items if isinstance(result, TupleValue) else [result]
        if not all(isinstance(item, TensorValue) or is_none(item) for item in items):
            raise Restart(self.step, self.refuse("returns what is no gradient"))
        found = [item.tensor if isinstance(item, TensorValue) else None for item in items]
        self.check_dependence([g for group in groups for g in group], found)
        return tuple(found) if isinstance(result, TupleValue) else found[0]

    def _call(self, args: Sequence[Any]) -> Value:
        m = self.machine
        values = [from_real(m, a) for a in args]
        return self.run(lambda: m.call(self.function, values, {}))


class HandleValue(CallableValue):
    """What registering a hook gives; `remove()` takes the hook away again."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.made_at = CLOCK.step()

    def python_type(self) -> type:
        return torch.utils.hooks.RemovableHandle

    def getattr(self, m: Machine, name: str) -> Value:
        return HandleMethod(self) if name == "remove" else m.default_getattr(self, name)


class HandleMethod(CallableValue):
    """`handle.remove`, bound."""

    def __init__(self, owner: HandleValue) -> None:
        self.owner = owner
        self.made_at = owner.made_at

    def python_type(self) -> type:
        return type(self.owner.handle.remove)

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        m.mutated(self.owner)
        self.owner.handle.remove()
        return m.const(None)


def register_hook(m: Machine, tensor: TensorValue, hook: Value) -> Value:
    """`tensor.register_hook(hook)`."""
    symbolic = tensor.tensor
    if m.tracer.trace.argument(symbolic) is not None:
        raise Break("autograd", "a hook on a tensor that exists outside")
    if not symbolic.requires_grad:
        raise Break("raises", "a hook on a tensor that does not require grad")
    made = Hook(m, hook)
    handle = m.tracer.run(torch.Tensor.register_hook, [symbolic, made.of_tensor], {})
    m.tracer.hooked.append((symbolic, made))
    return HandleValue(handle)


MODELS[torch.Tensor.register_hook] = register_hook


class NodeValue(CallableValue):
    """`tensor.grad_fn` of a tensor that the program computed.  Where the program does more with it
    than is modelled here, the graph ends before the tensor is computed, so that it is eager's."""

    def __init__(self, node: Any, made_at: int | None) -> None:
        call = called_by(node)
        self.node = node
        self.name = node.name() if call is None else call.name
        self.made_at = made_at if call is None else call.step

    def python_type(self) -> type:
        return type(self.node)

    def getattr(self, m: Machine, name: str) -> Value:
        is_ours = isinstance(self.node, torch.autograd.function.BackwardCFunction)
        if name == "name" and (called_by(self.node) is not None or not is_ours):
            return NodeMethod(self, name)
        if name in ("register_hook", "register_prehook"):
            return NodeMethod(self, name)
        self.cannot_leave(f"grad_fn.{name} of a tensor of the graph")


class NodeMethod(CallableValue):
    """`grad_fn.register_hook` and such, bound."""

    def __init__(self, owner: NodeValue, name: str) -> None:
        self.owner, self.name = owner, name
        self.made_at = owner.made_at

    def python_type(self) -> type:
        return type(getattr(self.owner.node, self.name))

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.name == "name":
            return m.const(self.owner.name)
        if kwargs or len(args) != 1:
            raise Break("builtin_arguments", f"{self.name} takes one function")
        made = Hook(m, args[0])
        made.step = min(made.step, self.made_at or made.step)
        return HandleValue(getattr(self.owner.node, self.name)(made.of_node))


def read_node(m: Machine, tensor: TensorValue) -> Value:
    """`tensor.grad_fn`."""
    symbolic = tensor.tensor
    if m.tracer.trace.argument(symbolic) is not None and not symbolic.is_leaf:
        raise Break("tensor_attribute", "Tensor.grad_fn: what is behind an argument is not traced")
    node = symbolic.grad_fn
    if node is None:
        return m.const(None)
    known = m.tracer.nodes.get(node)
    if known is None:
        known = m.tracer.nodes[node] = NodeValue(node, tensor.made_at)
    return known


MODELS["read .grad_fn"] = read_node


def check_hooked(m: Any, results: Sequence[Any]) -> None:
    """No result of the program has a hook of the program's."""
    for symbolic, hook in m.tracer.hooked:
        if symbolic._backward_hooks and any(result is symbolic for result in results):
            raise Restart(hook.step, hook.refuse("is on a tensor that is returned"))
