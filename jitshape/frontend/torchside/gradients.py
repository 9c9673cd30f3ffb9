"""Autograd called by the program: `loss.backward()`, `torch.autograd.grad`, reads and writes of
`.grad`.

In: calls on tensors of the graph.  Out: the nodes of backward, recorded where the call stands, and
for `backward` the new `.grad` of each leaf, written at the end of the trace as any other effect.
Invariant: every leaf that backward reaches is a real leaf that the guards name, without hooks;
whatever else autograd would do ends the graph before the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.builtins_.registry import is_none
from jitshape.frontend.checks import Distinct
from jitshape.frontend.dynamic import held_by_module
from jitshape.frontend.sources import Getter, Held, Source
from jitshape.frontend.torchside.tensors import MODELS, TensorValue, call_native
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.sequences import SequenceValue
from jitshape.ir.ops.registry import OPS
from jitshape.ir.strides import same_layout
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.types import TensorType

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine

HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class GradientSlot(Value):
    """`owner.grad` once the program has written it."""

    def __init__(self, owner: TensorValue, value: Value) -> None:
        self.owner_tensor, self.value = owner, value

    def python_type(self) -> type:
        return GradientSlot

    def write_back(self, e: Emitter) -> None:
        e.value(self.value)
        e.value(self.owner_tensor)
        e.store_attr("grad")


def read_gradient(m: Machine, tensor: TensorValue) -> Value:
    """`tensor.grad` of a tensor that exists outside, or of a leaf that the program made."""
    if tensor.gradient is not None:
        return tensor.gradient.value
    if tensor.real is None:
        return m.const(None)
    _note(m, tensor)
    assert tensor.real is not None and tensor.source is not None
    return m.wrap(tensor.real.grad, Getter(tensor.source, "grad"))


def write_gradient(m: Machine, tensor: TensorValue, value: Value) -> None:
    """`tensor.grad = value`."""
    own = any(tensor is leaf for leaf, _ in m.tracer.made_leaves)
    if tensor.source is None and not own:
        raise Break("tensor_attribute", "assignment to .grad of a tensor of the graph")
    if isinstance(value, TensorValue):
        old, new = tensor.tensor.value.type, value.tensor.value.type
        if (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            raise Break("tensor_attribute", "assignment of a .grad unlike its tensor")
    elif not (value.is_constant() and value.constant() is None):
        raise Break("tensor_attribute", "assignment to .grad of what is no tensor")
    if not own:
        _note(m, tensor)
    m.mutated(tensor)
    if tensor.gradient is None:
        tensor.gradient = GradientSlot(tensor, value)
        if not own:
            m.effects.touch(tensor.gradient)
    tensor.gradient.value = value


def _note(m: Machine, tensor: TensorValue) -> None:
    """Two tensors whose `.grad` is read and written must not be one under two names."""
    known: list[TensorValue] = m.tracer.with_gradients
    if tensor in known:
        return
    for other in known:
        first, second = tensor.source, other.source
        if not (_pinned(first) and _pinned(second)):
            m.guard(first, Distinct(second))
    known.append(tensor)


def _pinned(source: Source | None) -> bool:
    """Objects held by the entry are two; state of modules is tied by its owner, as traced."""
    return isinstance(source, Held) or (source is not None and held_by_module(source))


# ---- the calls


def backward(
    m: Machine,
    tensors: Value,
    gradient: Value | None = None,
    retain_graph: Value | None = None,
    create_graph: Value | None = None,
    inputs: Value | None = None,
) -> Value:
    """`tensor.backward(...)` and `torch.autograd.backward(...)`."""
    if _flag(create_graph):
        raise Break("autograd", "backward(create_graph=True) leaves a graph behind in .grad")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise Break("autograd", "hooks of a distributed run may wait for gradients")
    roots = _tensors(tensors)
    grads = _tangents(m, roots, gradient)
    wanted = None if is_none(inputs) else {id(t.tensor) for t in _tensors(inputs)}
    leaves = [leaf for leaf in _leaves(m, roots) if wanted is None or id(leaf.tensor) in wanted]
    if wanted is not None and len(leaves) != len(wanted):
        raise Break("autograd", "backward(inputs=...) of tensors that are no leaves")
    for leaf in leaves:
        _refuse_hooks(m, leaf)
    targets = [leaf.tensor for leaf in leaves]
    found = gradients_of(m, roots, grads, targets, _flag(retain_graph), False)
    used: set[Any] = set()
    for leaf, new in zip(leaves, found):
        if new is not None:
            _accumulate(m, leaf, new, used)
    return m.const(None)


def grad(
    m: Machine,
    outputs: Value,
    inputs: Value,
    grad_outputs: Value | None = None,
    retain_graph: Value | None = None,
    create_graph: Value | None = None,
    only_inputs: Value | None = None,
    allow_unused: Value | None = None,
    is_grads_batched: Value | None = None,
    materialize_grads: Value | None = None,
) -> Value:
    """`torch.autograd.grad(...)`."""
    if _flag(is_grads_batched):
        raise Break("autograd", "grad(is_grads_batched=True) runs under vmap")
    roots, wanted = _tensors(outputs), _tensors(inputs)
    grads = _tangents(m, roots, grad_outputs)
    create = _flag(create_graph)
    retain = create if is_none(retain_graph) else _flag(retain_graph)
    targets = [value.tensor for value in wanted]
    if not all(target.requires_grad for target in targets):
        raise Break("raises", "grad of a tensor that does not require grad")
    for value in wanted:
        _refuse_hooks(m, value)
    found = gradients_of(m, roots, grads, targets, retain, create)
    fill = _flag(materialize_grads)
    if any(g is None for g in found) and not (fill or _flag(allow_unused)):
        raise Break("raises", "one of the tensors was not used in the graph")
    items: list[Value] = []
    for target, gradient in zip(wanted, found):
        if gradient is not None:
            items.append(m.tracer.tensor_value(gradient))
        else:
            items.append(call_native(m, torch.zeros_like, [target]) if fill else m.const(None))
    return m.new_tuple(items)


MODELS[torch.Tensor.backward] = backward
MODELS[torch.autograd.backward] = backward
MODELS[torch.autograd.grad] = grad
MODELS["read .grad"], MODELS["write .grad"] = read_gradient, write_gradient


def gradients_of(
    m: Machine,
    roots: Sequence[TensorValue],
    grads: Sequence[SymbolicTensor],
    inputs: Sequence[SymbolicTensor],
    retain: bool,
    create: bool,
) -> list[SymbolicTensor | None]:
    """Autograd on the symbolic tensors; an error of the program's becomes a break."""
    if not inputs:
        return []
    trace = m.tracer.trace
    mark = len(trace.graph.nodes)

    def gradients() -> list[SymbolicTensor | None]:
        return trace.gradients([r.tensor for r in roots], grads, inputs, retain, create)

    try:
        return m.tracer.run(gradients, [], {})
    except RuntimeError as error:
        del trace.graph.nodes[mark:]
        if isinstance(error, m.tracer.internal_errors):
            raise
        raise Break("raises", f"backward raises {type(error).__name__}: {error}") from None


def _flag(value: Value | None) -> bool:
    if value is None:
        return False
    if not value.is_constant():
        raise Break("torch_argument", "a flag of autograd that is no constant")
    return bool(value.constant())


def _tensors(value: Value) -> list[TensorValue]:
    """One tensor, or a sequence of them."""
    items = value.items if isinstance(value, SequenceValue) else [value]
    if not items or not all(isinstance(item, TensorValue) for item in items):
        raise Break("torch_argument", "an argument of autograd that is no tensor or sequence")
    return list(items)


def _tangents(
    m: Machine, roots: Sequence[TensorValue], given: Value | None
) -> list[SymbolicTensor]:
    """The gradients of the roots: those given, else ones for a root of one element."""
    if not all(root.tensor.requires_grad for root in roots):
        raise Break("raises", "backward of a tensor that does not require grad")
    values: list[Value | None] = [None] * len(roots)
    if not is_none(given):
        values = list(given.items) if isinstance(given, SequenceValue) else [given]
    if len(values) != len(roots):
        raise Break("raises", "not one gradient for each tensor")
    found = []
    for root, value in zip(roots, values):
        own = root.tensor.value.type
        if is_none(value):
            if any(size != 1 for size in own.shape) or not own.dtype.is_floating_point:
                raise Break("raises", "a gradient can be made for scalars only")
            made = call_native(m, torch.ones_like, [root])
            assert isinstance(made, TensorValue)
            found.append(made.tensor)
            continue
        if not isinstance(value, TensorValue):
            raise Break("torch_argument", "a gradient that is no tensor")
        new = value.tensor.value.type
        if (own.shape, own.dtype) != (new.shape, new.dtype) or value.tensor.requires_grad:
            raise Break("autograd", "a gradient unlike its tensor, or one that requires grad")
        found.append(value.tensor)
    return found


# ---- what backward reaches


def _leaves(m: Machine, roots: Sequence[TensorValue]) -> list[TensorValue]:
    """The leaves that a backward from `roots` accumulates into, in the order of the inputs."""
    reached = {id(variable) for variable in variables_behind([root.tensor for root in roots])}
    found = []
    for entry in m.tracer.inputs:
        if id(entry.tensor) in reached:
            reached.discard(id(entry.tensor))
            found.append(m.tracer.tensor_value(entry.tensor))
    for value, _ in m.tracer.made_leaves:
        if id(value.tensor) in reached:
            reached.discard(id(value.tensor))
            found.append(value)
    if reached:
        raise Break("autograd", "backward goes on outside the graph, or ends at a leaf made in it")
    return found


def variables_behind(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors that the accumulating nodes behind `tensors` belong to."""
    todo: list[Any] = []
    for tensor in tensors:
        if tensor.grad_fn is None:
            yield tensor
        else:
            todo.append(tensor.grad_fn)
    seen = set(todo)
    while todo:
        node = todo.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        for behind, _ in node.next_functions:
            if behind is not None and behind not in seen:
                seen.add(behind)
                todo.append(behind)


def _refuse_hooks(m: Machine, leaf: TensorValue) -> None:
    """Hooks on the real leaf would run; without any, the guards say so."""
    if leaf.real is None:
        return
    for name in HOOKS:
        if getattr(leaf.real, name):
            raise Break("autograd", f"{leaf.source} has hooks, which backward would call")
        m.wrap(getattr(leaf.real, name), Getter(leaf.source, name))


def _accumulate(m: Machine, leaf: TensorValue, new: SymbolicTensor, used: set[Any]) -> None:
    """What autograd does with a leaf's gradient: it becomes `.grad`, or is added to it."""
    present = read_gradient(m, leaf)
    with torch.no_grad():
        if isinstance(present, TensorValue):
            m.mutated()
            call_native(m, torch.Tensor.add_, [present, m.tracer.tensor_value(new)])
            return
        own = leaf.tensor.value.type
        if not same_layout(own, new.value.type):
            like = call_native(m, torch.empty_like, [leaf])
            value = call_native(m, torch.Tensor.copy_, [like, m.tracer.tensor_value(new)])
        elif _is_fresh(new, used):
            value = m.tracer.tensor_value(new)
        else:
            value = call_native(m, torch.clone, [m.tracer.tensor_value(new)])
    write_gradient(m, leaf, value)


def _is_fresh(new: SymbolicTensor, used: set[Any]) -> bool:
    """Whether nothing else of the program is in the memory of this gradient."""
    value = new.value
    definition = OPS.get(value.node.op) if value.node is not None else None
    made = definition is not None and definition.family != "view" and not definition.mutates
    fresh = made and value.node is not None and value.node.backward and value.storage not in used
    used.add(value.storage)
    return fresh and isinstance(value.type, TensorType)
