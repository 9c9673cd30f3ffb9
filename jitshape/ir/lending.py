"""Floats that C++ hands through: symbolic where torch takes a C double.

In: calls of functions whose `double` argument reaches the op that is recorded as it is (a norm's
eps, a loss's delta).  Out: the same calls with a number in place of the symbolic float; the trace
puts the float back into every op that the number arrives at, in backward too.
Invariant: only arguments that no C++ code computes with are lent; what C++ tests of one is asked of
the ShapeEnv first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from jitshape.ir.composites import replaces
from jitshape.ir.symnode import from_torch


def lends(function: Any, names: Sequence[str], positive: bool = False) -> None:
    """The arguments `names` of `function` may be symbolic; `positive`: eager demands it of them."""
    places = {name: place for place, name in enumerate(_parameters(function))}

    @replaces(function)
    def lending(*given: Any, **kwargs: Any) -> Any:
        lent: list[tuple[Any, Any, Any, Any]] = []
        args = list(given)
        for name in names:
            place = places[name]
            inside: Any = args if place < len(args) else kwargs
            key: Any = place if place < len(args) else name
            number = inside[key] if inside is args or key in kwargs else None
            if isinstance(number, torch.SymFloat):
                if positive and not bool(number > 0.0):  # type: ignore[operator]
                    return NotImplemented
                inside[key] = _number(number)
                lent.append((inside, key, number, inside[key]))
        if not lent:
            return NotImplemented
        result = function(*args, **kwargs)
        env = lent[0][2].node.shape_env
        if all(type(token) is not float or token in env.returned for *_, token in lent):
            return result
        for inside, key, number, _ in lent:  # C++ computed with one: it gets the floats themselves
            inside[key] = number
        return function(*args, **kwargs)


def _parameters(function: Callable) -> list[str]:
    return list(inspect.signature(function).parameters)


def _number(number: torch.SymFloat) -> Any:
    """What C++ gets; the float itself, which is specialised, where only a run can tell it."""
    env = number.node.shape_env
    found = env.lend(from_torch(number))
    return number if found is None else found


for _function, _names in (
    (F.layer_norm, ["eps"]),
    (F.group_norm, ["eps"]),
    (F.batch_norm, ["eps", "momentum"]),
    (F.instance_norm, ["eps", "momentum"]),
    (F.pad, ["value"]),
):
    lends(_function, _names)
lends(F.huber_loss, ["delta"], positive=True)
lends(F.smooth_l1_loss, ["beta"], positive=True)
