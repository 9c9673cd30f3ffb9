"""Scatters into a part of a tensor whose memory has gaps: eager's result has the same gaps.

    y = select_scatter(x, s, 0, 1)  -->  y = new_empty_strided(x, ...); copy_(y, x)
                                         copy_(select(y, 0, 1), s)

Only where the program calls them: what functionalization makes of writes is dense.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.ops.registry import OPS
from jitshape.ir.strides import preserved_strides
from jitshape.ir.trace import Trace, block, intercept

aten = torch.ops.aten
_PARTS = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
}


@intercept(*_PARTS)
def _scatter(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    x, source, *place = args
    type_ = trace.unwrap(x).type
    dense = preserved_strides(trace.env, type_.shape, type_.strides)
    if tuple(dense) == tuple(type_.strides) or 0 in type_.strides:  # eager clones what overlaps
        return block(OPS[str(func)], trace, func, args, kwargs)

    def call(op: Any, *given: Any, **named: Any) -> Any:
        return trace.__torch_dispatch__(op, (), given, named)

    result = call(aten.new_empty_strided.default, x, list(x.size()), list(x.stride()))
    call(aten.copy_.default, result, x)
    call(aten.copy_.default, call(_PARTS[func], result, *place, **kwargs), source)
    return result
