"""Numbers read from tensors: `item()` of a truth, `tolist()`, comparisons that give a bool.

In: a symbolic tensor.  Out: symbolic numbers, one run-time symbol for each element.
Invariant: types and nesting as eager's; a list has the length it has at every call, or the graph
ends before it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from jitshape.errors import DataDependent
from jitshape.ir.composites import current_trace, replaces
from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.externs import at_call, run
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.torch_numbers import from_torch, to_torch_bool
from jitshape.ir.types import ScalarType

MOST_ELEMENTS = 256  # of a list: each is a number of its own in the graph


@replaces(torch.Tensor.item, methods=["item"])
def item(x: Any) -> Any:
    if type(x) is not SymbolicTensor or x.dtype is not torch.bool:
        return NotImplemented
    number = torch.Tensor.item(x.to(torch.uint8))
    current_trace().env.refine(from_torch(number), 0, 1)  # no count, which may be taken for more
    return number > 0


def _compares(function: Any, name: str, op: Any) -> None:
    """`function(x, y, ...)` gives a Python bool: 0 or 1, a number of run time."""

    @replaces(function, methods=[name])
    def comparison(*args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        values = [trace.unwrap(a) for a in args]
        named = {key: trace.unwrap(a) for key, a in kwargs.items()}
        if not any(type(x) is Value for x in (*values, *named.values())):
            return NotImplemented
        run(trace.env, op, values, named, partial(at_call, trace.env))  # it may refuse
        symbol = trace.env.unbacked(0, 1)
        trace.record(str(op), values, named, (ScalarType(torch.int64, symbol),))
        return to_torch_bool(compare("gt", symbol, 0), trace.env)


_compares(torch.equal, "equal", torch.ops.aten.equal.default)
_compares(torch.allclose, "allclose", torch.ops.aten.allclose.default)


@replaces(torch.Tensor.tolist, methods=["tolist"])
def tolist(x: Any) -> Any:
    if type(x) is not SymbolicTensor:
        return NotImplemented
    count = 1
    for size in x.value.type.shape:
        count *= size if type(size) is int else MOST_ELEMENTS + 1
    if count > MOST_ELEMENTS:
        raise DataDependent(
            "a list of a tensor's elements is needed",
            because=f"{x.value.name} is {x.value.type}: its elements are unknown while tracing, "
            "and it has too many or not always as many",
            avoid="keep it a tensor",
        )
    return _listed(x)


def _listed(x: Any) -> Any:
    if not x.dim():
        return x.item()
    return [_listed(x.select(0, place)) for place in range(x.value.type.shape[0])]
