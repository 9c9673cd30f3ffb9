"""torch.utils.checkpoint: a region of the graph whose values backward computes again.

In: a call of `checkpoint(function, *args)`.  Out: the nodes of `function`, marked as a region; the
partition saves what goes into a region and comes out of it, and none of the rest but random
numbers, which backward must find as forward drew them.
Invariant: a function that writes to what exists outside of it ends the graph before the call,
since eager runs it a second time in backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.utils.checkpoint as torch_checkpoint

from jitshape.frontend.builtins_.registry import is_none, models
from jitshape.frontend.torchside.tensors import TensorValue
from jitshape.frontend.values.base import Break, Value
from jitshape.ir.passes.functionalize import written_outside

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

IGNORED = ("preserve_rng_state", "determinism_check", "debug", "early_stop")


@models(torch_checkpoint.checkpoint.__wrapped__)
def checkpoint(
    m: Machine,
    function: Value,
    *args: Value,
    use_reentrant: Value | None = None,
    context_fn: Value | None = None,
    **kwargs: Value,
) -> Value:
    """`function(*args, **kwargs)` as a region."""
    if is_none(use_reentrant) or not use_reentrant.is_constant():
        raise Break("checkpoint", "checkpoint warns without a constant use_reentrant")
    if context_fn is not None:
        raise Break("checkpoint", "checkpoint with a context_fn of the user's")
    if use_reentrant.constant() and not _tracked(args):
        raise Break("checkpoint", "reentrant checkpoint of arguments without grad")
    named = {key: value for key, value in kwargs.items() if key not in IGNORED}
    trace = m.tracer.trace
    start, touched = len(trace.graph.nodes), len(list(m.effects.touched()))
    outer, trace.region = trace.region, trace.new_region()
    try:
        result = m.call(function, list(args), named)
    finally:
        trace.region = outer
    nodes = trace.graph.nodes[start:]
    if len(list(m.effects.touched())) > touched or written_outside(nodes):
        m.mutated()
        raise Break("checkpoint", "a checkpointed function writes to what exists outside of it")
    return result


def _tracked(args: tuple[Value, ...]) -> bool:
    return any(isinstance(a, TensorValue) and a.tensor.requires_grad for a in args)
