"""The layers of dispatch that transforms of torch.func put above a trace.

A call of torch passes through the open layers before it reaches the trace; in between, tensors are
wrapped: they stand for a slice of a batch, or for a variable of an inner derivative.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_C = torch._C._functorch
_SAVED = torch._C._autograd

_CLOSING = {
    _C.TransformType.Vmap: _C._vmap_decrement_nesting,
    _C.TransformType.Grad: _C._grad_decrement_nesting,
}


def is_wrapped(tensor: Any) -> bool:
    """Whether a tensor exists within a layer only."""
    return isinstance(tensor, torch.Tensor) and _C.is_functorch_wrapped_tensor(tensor)


@contextmanager
def below_layers() -> Iterator[None]:
    """Calls of torch are made as outside of all transforms."""
    taken = []
    while _C.maybe_current_level() is not None:
        taken.append(_C.pop_dynamic_layer_stack())
    try:
        yield
    finally:
        while taken:
            _C.push_dynamic_layer_stack(taken.pop())


@contextmanager
def layers_kept() -> Iterator[None]:
    """Layers, and what transforms set besides, are afterwards as before, whatever happens."""
    depth = _C.get_dynamic_layer_stack_depth()
    makes_leaves = _C.get_inplace_requires_grad_allowed()
    refusal = _SAVED._saved_tensors_hooks_get_disabled_error_message()
    try:
        yield
    finally:
        while _C.get_dynamic_layer_stack_depth() > depth:
            _CLOSING[_C.peek_interpreter_stack().key()]()
        _C.set_inplace_requires_grad_allowed(makes_leaves)
        if refusal is None:
            _SAVED._saved_tensors_hooks_enable()
        else:
            _SAVED._saved_tensors_hooks_disable(refusal)
