"""Calls that C++ refuses because sizes are symbolic: made again with numbers.

In: a torch callable with its arguments.  Out: its result.  Where C++ is not ready for symbolic
sizes, those of the arguments become static; where it took a size of 1 for a larger one, and finds
that others do not fit, what it asks of sizes is answered as it is at this call.  Both are facts.
Invariant: what the refused call recorded is gone; a call that had an effect is not made again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from jitshape.ir.graph import map_leaves
from jitshape.ir.passes.dce import has_effect
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.torch_numbers import from_torch

WHY = "C++ needs the number"

# What C++ says where it has no code for symbolic sizes.
UNREADY = re.compile(
    r"SymIntArrayRef expected|invalid shape dimension|Cannot call \w+\(\) on tensor with symbolic|"
    r"operator aten::(stride|size|numel|dim) does not exist|"
    r"Expected a value of type '(int|List\[int\]|Optional\[List\[int\]\])'"
)
# What it says where sizes do not fit each other.
MISFIT = re.compile(r"must match the (size|existing size)|non-singleton dimension|not broadcast")


def persist(trace: Any, function: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    """`function(*args, **kwargs)`, with numbers where it has to be."""
    start, moved = len(trace.graph.nodes), len(trace.graph.moved)
    try:
        return function(*args, **kwargs)
    except (RuntimeError, TypeError) as error:
        text = str(error)
        again = _exactly if MISFIT.search(text) else _statically if UNREADY.search(text) else None
        written = len(trace.graph.moved) > moved
        if again is None or written or any(map(has_effect, trace.graph.nodes[start:])):
            raise
    del trace.graph.nodes[start:]
    return again(trace, function, args, kwargs)


def _exactly(trace: Any, function: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    trace.env.exact = True
    try:
        return function(*args, **kwargs)
    finally:
        trace.env.exact = False


def _statically(trace: Any, function: Callable, args: Any, kwargs: dict[str, Any]) -> Any:
    def leaf(x: Any) -> Any:
        if type(x) is SymbolicTensor:
            return _static(trace, x)
        return trace.env.specialize(from_torch(x), WHY) if isinstance(x, torch.SymInt) else x

    args, kwargs = map_leaves(leaf, (list(args), kwargs))
    return function(*args, **kwargs)


def _static(trace: Any, x: SymbolicTensor) -> SymbolicTensor:
    """`x` with a shape, strides and an offset that are numbers."""
    old, env = x.value.type, trace.env
    shape, strides = (
        tuple(env.specialize(size, WHY) for size in sizes) for sizes in (old.shape, old.strides)
    )
    type_ = replace(old, shape=shape, strides=strides, offset=env.specialize(old.offset, WHY))
    return x if type_ == old else _Static.apply(x, trace, type_)  # type: ignore[return-value]


class _Static(torch.autograd.Function):
    """The same memory under a type without symbols."""

    @staticmethod
    def forward(ctx: Any, x: SymbolicTensor, trace: Any, type_: Any) -> SymbolicTensor:
        row = (x.value, list(type_.shape))
        (seen,) = trace.record("aten.view.default", row, {}, (type_,), x.value.storage)
        return trace.wrap(seen)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad, None, None
