"""The backward graph for calls whose `backward()` stands in an autocast region.

    t0 = mm(dy, t(w))                                               # f32[s0, 4]
-->
    t1 = mm(dy as bf16, t(w) as bf16);  t0 = t1 as f32              # f32[s0, 4]

Formulas call ops as a program does, so autocast lowers their operands; autograd then brings each
gradient to the dtype of what it belongs to.  Which ops autocast lowers, torch is asked.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from jitshape.ir.evaluate import runner
from jitshape.ir.graph import Graph, Node, Value, map_leaves
from jitshape.ir.ops.composing import cast
from jitshape.ir.rewrite import Rewriter, rewriting
from jitshape.ir.types import TensorType

Lowered = tuple[tuple[str, torch.dtype], ...]  # by device: what autocast lowers operands to


def lowered_now() -> Lowered:
    """The regions that this thread is in."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    return tuple((device, torch.get_autocast_dtype(device)) for device in devices)


def under_autocast(graph: Graph, lowered: Lowered) -> None:
    """Compute in the lower dtypes what `lowered` has autocast lower."""
    dtypes = dict(lowered)
    with rewriting(graph) as g:
        for node in g.walk():
            dtype = _lowered_to(node, dtypes)
            if dtype is None:
                g.keep(node)
            else:
                g.replace(node, _in_dtype(g, node, dtype))


def _in_dtype(g: Rewriter, node: Node, dtype: torch.dtype) -> Value:
    args, kwargs = map_leaves(
        lambda x: cast(g, x, dtype) if _is_wide(x) else x, (node.args, node.kwargs)
    )
    return cast(g, g.call(node.op, *args, **kwargs), node.outs[0].type.dtype)


def _lowered_to(node: Node, dtypes: dict[str, torch.dtype]) -> torch.dtype | None:
    """The dtype in which autocast computes a node of backward, if not in its own."""
    if not node.backward or not node.op.startswith("aten.") or len(node.outs) != 1:
        return None
    operands = [x for x in node.inputs() if isinstance(x.type, TensorType)]
    if not operands or not any(map(_is_wide, operands)):
        return None
    device = operands[0].type.device.type
    dtype = dtypes.get(device)
    plain = all(isinstance(x, Value | int | float | None) for x in node.args) and not node.kwargs
    if dtype is None or not plain:
        return None
    ranks = tuple(x.type.ndim if isinstance(x, Value) else None for x in node.args)
    return dtype if _is_lowered(node.op, ranks, device, dtype) else None


def _is_wide(x: Any) -> bool:
    return isinstance(x, Value) and x.type.dtype == torch.float32


@cache
def _is_lowered(op: str, ranks: tuple[int | None, ...], device: str, dtype: torch.dtype) -> bool:
    """Whether torch's autocast lowers this op on tensors."""
    args = [1 if rank is None else torch.ones((1,) * rank, device=device) for rank in ranks]
    with torch.no_grad(), torch.autocast(device, dtype, cache_enabled=False):
        try:
            result = runner(op)(*args)
        except (RuntimeError, TypeError):  # these numbers are no arguments of a product
            return False
    return isinstance(result, torch.Tensor) and result.dtype == dtype
