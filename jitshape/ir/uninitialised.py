"""Memory that nobody has written: torch.empty and the like.

In: such a call.  Out: a node without elements of its own or, where torch is to be deterministic,
what eager fills it with.  Invariant: whoever reads the trace can tell that it asked which
(`asks_for_filling`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from jitshape.ir.graph import Node
from jitshape.ir.ops.registry import OPS
from jitshape.ir.trace import Trace, block, intercept

aten = torch.ops.aten
fills = torch._C._get_deterministic_fill_uninitialized_memory


def asks_for_filling(nodes: Iterable[Node]) -> bool:
    return any(
        (definition := OPS.get(node.op)) is not None and definition.has("uninitialised")
        for node in nodes
    )


@intercept(
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
def empty(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Filled, where it is, with the largest integer or with nan."""
    made = block(OPS[str(func)], trace, func, args, kwargs)
    if not (torch.are_deterministic_algorithms_enabled() and fills()):
        return made
    number: Any = True
    if made.dtype.is_floating_point or made.dtype.is_complex:
        number = float("nan")
    elif made.dtype is not torch.bool:
        number = torch.iinfo(made.dtype).max
    return trace.wrap(trace.call(OPS["aten.fill.Scalar"], [made.value, number], {}))
