"""Floats that C++ hands through: symbolic where torch takes a C double.

In: calls of functions whose `double` argument reaches the op that is recorded as it is (a norm's
eps, a loss's delta).  Out: the same calls with a number in place of the symbolic float; the trace
puts the float back into every op that the number arrives at, in backward too.
Invariant: only arguments that no C++ code computes with are lent; what C++ tests of one is asked of
the ShapeEnv first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from jitshape.ir.composites import replaces
from jitshape.ir.torch_numbers import from_torch


def lends(
    function: Any,
    names: Sequence[str],
    parameters: str = "",
    within: Mapping[str, tuple[float, ...]] = {},
    methods: Sequence[str] = (),
) -> None:
    """The arguments `names` of `function` may be symbolic.  `within`: between which two neighbours
    of these numbers C++ takes all for the same case.  `parameters`: those of a function of C, as
    far as the last that is lent; `methods`: of tensors, with the same ones."""
    places = {name: place for place, name in enumerate(parameters.split() or _known_to(function))}

    @replaces(function, methods=methods)
    def lending(*given: Any, **kwargs: Any) -> Any:
        lent: list[tuple[Any, Any, Any, Any]] = []
        args = list(given)
        for name in names:
            place = places[name]
            inside: Any = args if place < len(args) else kwargs
            key: Any = place if place < len(args) else name
            number = inside[key] if inside is args or key in kwargs else None
            if isinstance(number, torch.SymFloat):
                if name in within and not _lies_between(number, *within[name]):
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


def _known_to(function: Callable) -> list[str]:
    return list(inspect.signature(function).parameters)


def _lies_between(number: Any, lo: float, *rest: float) -> bool:
    *inner, hi = rest
    between = bool(number > lo) and (hi == math.inf or bool(number < hi))
    return between and all(bool(number != special) for special in inner)


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
    (F.margin_ranking_loss, ["margin"]),
    (F.hinge_embedding_loss, ["margin"]),
    (F.cosine_embedding_loss, ["margin"]),
    (F.poisson_nll_loss, ["eps"]),
):
    lends(_function, _names)
_POSITIVE = 0.0, math.inf
lends(F.huber_loss, ["delta"], within={"delta": _POSITIVE})
lends(F.smooth_l1_loss, ["beta"], within={"beta": _POSITIVE})
lends(F.triplet_margin_loss, ["margin", "p"], within={"margin": _POSITIVE})
lends(torch.cosine_similarity, ["eps"], "x1 x2 dim eps")
lends(torch.pairwise_distance, ["p", "eps"], "x1 x2 p eps")
lends(torch.normal, ["mean", "std"], "mean std", {"std": _POSITIVE})
for _function, _parameters, _within, _method in (
    (torch.isclose, "input other rtol atol", {"rtol": _POSITIVE, "atol": _POSITIVE}, "isclose"),
    (torch.logit, "input eps", {"eps": (0.0, 1.0)}, "logit"),
    (torch.quantile, "input q", {"q": (0.0, 1.0)}, "quantile"),
    (torch.nanquantile, "input q", {"q": (0.0, 1.0)}, "nanquantile"),
    (torch.nan_to_num, "input nan posinf neginf", {}, "nan_to_num"),
    (torch.bernoulli, "input p", {"p": (0.0, 1.0)}, "bernoulli"),
    (torch.Tensor.bernoulli_, "input p", {"p": (0.0, 1.0)}, "bernoulli_"),
    (torch.Tensor.normal_, "input mean std", {"std": _POSITIVE}, "normal_"),
):
    _names = [name for name in _parameters.split() if name not in ("input", "other")]
    lends(_function, _names, _parameters, _within, [_method])
lends(torch.functional.cdist, ["p"], within={"p": (0.0, 1.0, 2.0, math.inf)})
lends(torch.pdist, ["p"], "input p", {"p": (0.0, 1.0, 2.0, math.inf)})
