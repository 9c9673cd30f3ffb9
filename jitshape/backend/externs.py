"""Extern calls: the fastest way to call ATen for an op from a Python program.

In: the op of a node that no kernel computes.  Out: the callable, bound once, and whether it takes
`out=` for a preallocated result.  Invariant: arguments are passed as the op's schema has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.ir.graph import Node
from jitshape.ir.ops.registry import OPS

# Python bindings with out=: half the cost of a call through torch.ops.
OUT_VARIANTS: dict[str, Callable[..., Any]] = {
    "aten.mm.default": torch.mm,
    "aten.bmm.default": torch.bmm,
    "aten.addmm.default": torch.addmm,
    "aten.baddbmm.default": torch.baddbmm,
}


def has_out(node: Node) -> bool:
    """Whether the program allocates the result."""
    return node.op in OUT_VARIANTS


def extern_callable(op: str) -> tuple[Callable[..., Any], bool]:
    """What the program calls for `op`, and whether with `out=`."""
    if op in OUT_VARIANTS:
        return OUT_VARIANTS[op], True
    definition = OPS.get(op)
    if definition is not None and definition.has("run"):
        return definition.run, False
    namespace, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return _binding(packet, namespace, name) or getattr(packet, overload)._op, False


def _binding(packet: Any, namespace: str, name: str) -> Callable[..., Any] | None:
    """torch's own Python function, at two thirds of the cost of a call through torch.ops, where
    no other overload could be meant."""
    functional = [overload for overload in packet.overloads() if not overload.endswith("out")]
    if namespace != "aten" or functional != ["default"]:
        return None
    return getattr(torch._C._VariableFunctions, name, None)


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """`tensor`, or where it lies otherwise a copy with these strides.  Kernels rely on them, and
    the layout of an op without a rule may depend on its data."""
    found = tensor.stride()
    if found == strides or all(n <= 1 or a == b for n, a, b in zip(tensor.shape, found, strides)):
        return tensor
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def gives_row(node: Node) -> bool:
    """Whether the call gives a tuple or list, of however many tensors."""
    definition = OPS.get(node.op)
    if definition is not None and definition.has("run"):
        return definition.block.row if definition.has("row") else len(node.outs) > 1
    namespace, name, overload = node.op.split(".")
    returns = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema.returns
    return len(returns) > 1 or any(str(r.type).startswith("List") for r in returns)


def may_alias(node: Node) -> bool:
    """Whether a result may share memory with an operand."""
    definition = OPS.get(node.op)
    return definition is None or definition.family != "extern"
