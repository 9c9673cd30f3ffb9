"""Ops on lists of tensors: each is the same op on every element.

    _foreach_add_([a, b], [c, d], alpha=2)  -->  a.add_(c, alpha=2); b.add_(d, alpha=2)

In: a call of `aten._foreach_*` that reached the trace.  Out: the elements' calls, recorded in the
order of the lists.  Invariant: which arguments go element by element follows from the schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.ir.trace import Trace, family

aten = torch.ops.aten
PREFIX = "aten::_foreach_"
_LISTS = ("List[Tensor]", "List[number]")
_NAMED = {"alpha": "alpha", "value": "value", "non_blocking": "non_blocking", "dtype": "dtype"}
# Ops whose form for one tensor has another name: by the argument that differs.
_OTHERS = {
    ("minimum", "scalar"): "clamp_max",
    ("minimum", "scalars"): "clamp_max",
    ("maximum", "scalar"): "clamp_min",
    ("maximum", "scalars"): "clamp_min",
    ("norm", "ord"): "linalg_vector_norm",
}
_VALUED = ("addcmul", "addcdiv")  # their scalars are keyword arguments of the op


@family(PREFIX)
def each(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call the op behind `func` once for each element."""
    declared = func._schema.arguments
    given = dict(zip((a.name for a in declared), args)) | kwargs
    lists = {a.name for a in declared if str(a.type) in _LISTS or a.name == "scalars"}
    count = len(next(given[a.name] for a in declared if str(a.type) == _LISTS[0]))
    call = _single(func, given)
    with trace:
        results = [
            call({name: x[i] if name in lists else x for name, x in given.items()})
            for i in range(count)
        ]
    return results if func._schema.returns else None


def _single(func: Any, given: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """The call for one element, with arguments by the names that the list's op has for them."""
    name = func.name().removeprefix(PREFIX).partition(".")[0]
    stem = name.rstrip("_")
    valued = stem in _VALUED
    for argument in given:
        other = _OTHERS.get((stem, argument))
        if other is not None:
            name = name.replace(stem, other)
    packet = getattr(aten, name, None) or _written(getattr(aten, name.rstrip("_")))

    def call(arguments: dict[str, Any]) -> Any:
        positional, named = [], {}
        for key, value in arguments.items():
            if key in _NAMED:
                named[key] = value
            elif valued and key == "scalars":
                named["value"] = value.item() if isinstance(value, torch.Tensor) else value
            else:
                positional.append(value)
        return packet(*positional, **named)

    return call


def _written(functional: Callable[..., Any]) -> Callable[..., Any]:
    """The op in place, where there is none for one tensor."""

    def call(target: Any, *positional: Any, **named: Any) -> Any:
        return target.copy_(functional(target, *positional, **named))

    return call
