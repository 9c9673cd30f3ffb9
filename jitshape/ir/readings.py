"""Numbers read from tensors: `item()` of a truth and `tolist()`.

In: a symbolic tensor.  Out: symbolic numbers, one run-time symbol for each element.
Invariant: types and nesting as eager's; a list has the length it has at every call, or the graph
ends before it.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.errors import DataDependent
from jitshape.ir.composites import replaces
from jitshape.ir.symbolic_tensor import SymbolicTensor

MOST_ELEMENTS = 256  # of a list: each is a number of its own in the graph


@replaces(torch.Tensor.item, methods=["item"])
def item(x: Any) -> Any:
    if type(x) is not SymbolicTensor or x.dtype is not torch.bool:
        return NotImplemented
    return torch.Tensor.item(x.to(torch.uint8)) != 0


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
