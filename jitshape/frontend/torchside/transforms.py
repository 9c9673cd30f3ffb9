"""Transforms of torch.func: vmap, grad, vjp, jvp and what torch makes of them.

In: calls of such transforms.  Out: the ops that torch's own layers of dispatch make of the calls
in the transformed function.  The machine runs torch's Python code of the transform, and the
function in it; layers are opened and closed by torch's own functions, and what comes through them
reaches the trace below as it does for real tensors.
Invariant: a layer is open only while the machine runs the transform that opened it; where the
machine cannot go on in there, the graph ends before the transform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import autograd_function, eager_transforms, predispatch, vmap
from torch.utils import _pytree as pytree

from jitshape.frontend.builtins_.registry import is_none, models
from jitshape.frontend.sources import Held
from jitshape.frontend.torchside.gradients import gradients_of
from jitshape.frontend.torchside.natives import BREAKS
from jitshape.frontend.torchside.tensors import MODELS, TensorValue, call_native, call_torch
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.functions import wrap_function
from jitshape.frontend.values.sequences import SequenceValue
from jitshape.ir.layers import layers_kept

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

_LAYERS = torch._C._functorch
_SAVED = torch._C._autograd

# The functions of torch's that open layers; what else it offers calls these.
_OPENING = (
    vmap.vmap_impl,
    eager_transforms.grad_and_value_impl,
    eager_transforms._vjp_with_argnums,
)


def _opens_layers(function: Any) -> None:
    @models(function)
    def transform(m: Machine, *args: Value, **kwargs: Value) -> Value:
        value = wrap_function(m, function, Held(function, function.__qualname__))
        m.tracer.transforms += 1
        try:
            with layers_kept():
                return m.inline(value, list(args), kwargs)
        finally:
            m.tracer.transforms -= 1


for _function in _OPENING:
    _opens_layers(_function)


def _increments(nesting: Callable) -> None:
    def increment(m: Machine, *args: Value) -> Value:
        if not m.tracer.transforms:
            raise Break("torch_call", f"{nesting.__name__} opens a layer of torch.func by hand")
        return call_native(m, nesting, list(args))

    MODELS[nesting] = increment


for _nesting in (_LAYERS._vmap_increment_nesting, _LAYERS._grad_increment_nesting):
    _increments(_nesting)
for _function in (eager_transforms._jvp_with_argnums, _LAYERS._jvp_increment_nesting):
    BREAKS[_function] = "derivatives in forward mode are not traced"
for _function in (eager_transforms.functionalize, _LAYERS._func_increment_nesting):
    BREAKS[_function] = "it shows the program tensors that torch makes functional"


# ---- what torch's code of the transforms calls


def _looks_for_tracers(name: str, native: Callable) -> None:
    """A function of torch's that looks for a tracer of torch's before it calls C++."""

    @models(getattr(predispatch, name))
    def call(m: Machine, *args: Value, **kwargs: Value) -> Value:
        return call_torch(m, native, list(args), kwargs)


for _name in list(vars(predispatch)):
    _native = getattr(predispatch, f"{_name}_impl", None)
    if _native is not None:
        _looks_for_tracers(_name, _native)


@models(predispatch.lazy_load_decompositions)
def lazy_load_decompositions(m: Machine) -> None:
    """Rules in Python for a few ops: without them torch calls such an op for each element."""


@models(autograd_function.CustomFunctionHigherOrderOperator.__call__)
def call_formula(m: Machine, op: Value, cls: Value, *args: Value, **kwargs: Value) -> Value:
    raise Break("autograd", f"{cls} has a formula that a transform of torch.func goes through")


@models(pytree.tree_map_)
def tree_map_(m: Machine, function: Value, tree: Value, *rests: Value, **kwargs: Value) -> Value:
    """`function` at each leaf, for what it does."""
    m.call(
        m.wrap(pytree.tree_map, Held(pytree.tree_map, "tree_map")), [function, tree, *rests], kwargs
    )
    return tree


def _sets_for_a_transform(setter: Callable) -> None:
    MODELS[setter] = lambda m, *args: call_native(m, setter, list(args))


for _setter in (
    _LAYERS.set_inplace_requires_grad_allowed,
    _SAVED._saved_tensors_hooks_disable,
    _SAVED._saved_tensors_hooks_enable,
):
    _sets_for_a_transform(_setter)


@models(eager_transforms._set_tensor_requires_grad)
def set_requires_grad(m: Machine, tensor: Value) -> Value:
    """Of what a layer wraps: the tensor in it stays as it is."""
    return call_native(m, torch.Tensor.requires_grad_, [tensor])


@models(eager_transforms._autograd_grad)
def autograd_grad(
    m: Machine,
    outputs: Value,
    inputs: Value,
    grad_outputs: Value | None = None,
    retain_graph: Value | None = None,
    create_graph: Value | None = None,
) -> Value:
    """Gradients within a layer; zeros of what `outputs` do not depend on."""
    roots, wanted = _tensors(outputs), _tensors(inputs)
    given = [None] * len(roots) if is_none(grad_outputs) else _tensors(grad_outputs)
    rows = [(r, g) for r, g in zip(roots, given) if r.tensor.requires_grad]
    tangents = [
        call_native(m, torch.ones_like, [root]) if grad is None else grad for root, grad in rows
    ]
    create = create_graph is None or bool(create_graph.constant())
    found = gradients_of(
        m,
        [root for root, _ in rows],
        [tangent.tensor for tangent in tangents],
        [value.tensor for value in wanted] if rows else [],
        retain=create,
        create=create,
    ) or [None] * len(wanted)
    return m.new_tuple(
        [
            call_native(m, torch.zeros_like, [value])
            if gradient is None
            else m.tracer.tensor_value(gradient)
            for value, gradient in zip(wanted, found)
        ]
    )


def _tensors(value: Value | None) -> list[TensorValue]:
    items = value.items if isinstance(value, SequenceValue) else []
    if not all(isinstance(item, TensorValue) for item in items):
        raise Break("torch_argument", "an argument of autograd that is no sequence of tensors")
    return list(items)
