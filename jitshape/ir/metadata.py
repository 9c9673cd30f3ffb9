"""Tensors that are given other memory, or another size of it: resize_, set_, .data.

In: such a call on a symbolic tensor.  Out: the same object, which shows another Value from now on.
Invariant: an argument of the program never gets other memory, and never more of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.families import fresh
from jitshape.ir.ops.registry import OPS
from jitshape.ir.plain_ops import other_memory, show
from jitshape.ir.strides import row_major
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.symint import Size
from jitshape.ir.torch_numbers import to_torch
from jitshape.ir.trace import Trace, intercept
from jitshape.ir.types import numel

aten = torch.ops.aten


@intercept(aten.set_.source_Tensor)
def set_(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    target, source = args
    if trace.argument(target) is not None:
        raise other_memory("an argument")
    return show(trace, target, _seen(trace, trace.unwrap(source)))


@intercept(aten.resize_.default)
def resize_(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Fewer elements are the first of the memory; a tensor without any gets new memory."""
    target, sizes = args[0], [trace.unwrap(s) for s in args[1]]
    old, env = target.value.type, trace.env
    shape = tuple(sizes)
    if _is_shape(env, old.shape, shape):
        return target
    if kwargs.get("memory_format") not in (None, torch.contiguous_format):
        raise other_memory("a tensor that is resized to another memory format")
    torch_sizes = [s if type(s) is int else to_torch(s, env) for s in sizes]
    with trace:
        if env.evaluate(compare("le", numel(shape), numel(old.shape))):
            strides = [s if type(s) is int else to_torch(s, env) for s in row_major(shape)]
            return show(trace, target, aten.as_strided(target, torch_sizes, strides))
        if not env.evaluate(compare("eq", numel(old.shape), 0)):
            raise other_memory("a tensor that grows")
        made = torch.empty(torch_sizes, dtype=old.dtype, device=old.device)
    assert made.value.type == fresh(shape, old.dtype, old.device)
    return show(trace, target, made)


def _is_shape(env: Any, old: tuple[Size, ...], new: tuple[Size, ...]) -> bool:
    """Whether both are the same, by facts; then nothing happens, and nobody sees a write."""
    if len(old) != len(new):
        return False
    pairs = list(zip(old, new))
    alike = all(env.actual(a) == env.actual(b) for a, b in pairs)
    return alike and all(env.equal(a, b) for a, b in pairs)


@intercept(aten.resize_as_.default)
def resize_as_(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    target, like = args
    return resize_(trace, func, (target, [*like.shape]), kwargs)


def give_memory(target: SymbolicTensor, source: SymbolicTensor) -> None:
    """`target.data = source`: its memory, while autograd goes on with `target` and does not see it.
    Where `target` is an argument, whoever calls sees to it that the real one gets it."""
    trace = _get_current_dispatch_mode()
    assert isinstance(trace, Trace)
    seen = _seen(trace, source.value)
    torch.Tensor.data.__set__(target, seen)  # type: ignore[attr-defined]
    target.value = seen.value


def _seen(trace: Trace, source: Value) -> SymbolicTensor:
    """Another tensor in the same memory, with a version counter of its own."""
    return trace.wrap(trace.call(OPS["aten.alias.default"], [source], {}))
