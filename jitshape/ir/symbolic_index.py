"""Indexing by symbolic integers: `x[i, :]` selects, where C++ would make `i` a plain number.

In: a symbolic tensor and a key of integers, slices, None and an ellipsis.  Out: the tensor and
the key that is left once each symbolic integer has become a `select`.  Keys with tensors, lists
or bools are left to torch, which broadcasts integers among them.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.composites import replaces

_PLAIN = (int, slice, torch.SymInt, type(None), type(Ellipsis))


def _selected(x: Any, key: Any) -> tuple[Any, tuple] | None:
    """`x` after all selects and the rest of `key`; None where torch does it."""
    parts = key if type(key) is tuple else (key,)
    if not any(isinstance(part, torch.SymInt) for part in parts):
        return None
    if any(isinstance(part, bool) or not isinstance(part, _PLAIN) for part in parts):
        return None
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if taken > x.dim() or parts.count(Ellipsis) > 1:
        return None
    rest: list[Any] = []
    dim = 0
    for part in parts:
        if isinstance(part, torch.SymInt):
            x = x.select(dim, part)
            continue
        rest.append(part)
        if part is Ellipsis:
            dim = x.dim() - _behind(parts)
        elif part is not None:
            dim += 1
    return x, tuple(rest)


def _behind(parts: tuple) -> int:
    """How many dimensions the parts behind the ellipsis take."""
    place = parts.index(Ellipsis)
    return sum(part is not None for part in parts[place + 1 :])


@replaces(torch.Tensor.__getitem__, methods=["__getitem__"])
def getitem(x: Any, key: Any) -> Any:
    found = _selected(x, key)
    if found is None:
        return NotImplemented
    selected, rest = found
    return selected[rest] if rest else selected


@replaces(torch.Tensor.__setitem__, methods=["__setitem__"])
def setitem(x: Any, key: Any, value: Any) -> Any:
    found = _selected(x, key)
    if found is None:
        return NotImplemented
    selected, rest = found
    selected[rest if rest else ...] = value
    return None
