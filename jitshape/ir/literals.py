"""`torch.tensor` of numbers that are symbolic.

In: a number, or nested lists of numbers.  Out: the tensor, made of one scalar for each element.
Invariant: the dtype is the one that torch infers: of all elements together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from jitshape.ir.composites import replaces

_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat)
_SYMBOLIC = (torch.SymInt, torch.SymFloat)


def _elements(data: Any) -> Iterator[Any]:
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from _elements(item)
    else:
        yield data


@replaces(torch.tensor)
def tensor(data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    elements = list(_elements(data))
    plain = all(isinstance(x, _NUMBERS) for x in elements)
    if kwargs or not plain or not any(isinstance(x, _SYMBOLIC) for x in elements):
        return NotImplemented
    if dtype is None:
        floats = any(isinstance(x, (float, torch.SymFloat)) for x in elements)
        dtype = torch.get_default_dtype() if floats else torch.int64
    return _built(data, dtype, device)


def _built(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if not isinstance(data, (list, tuple)):
        return torch.ops.aten.scalar_tensor(data, dtype=dtype, device=device)
    return torch.stack([_built(item, dtype, device) for item in data])
