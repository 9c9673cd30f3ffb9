"""What the user, or an earlier compile, said of the sizes of one tensor.

In: marks (mark_dynamic and its relatives) and the outputs of a compile whose sizes were symbolic.
Out: `marks_of` and `varying_dims`, which the policy reads before it decides.
Invariant: marks of one tensor never contradict each other or its sizes; they die with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jitshape.dims import check_range
from jitshape.errors import BadMark

INF = float("inf")
CALLS = {
    "dynamic": "mark_dynamic",
    "maybe_dynamic": "maybe_mark_dynamic",
    "static": "mark_static",
    "unbacked": "mark_unbacked",
}
_ATTRIBUTE = "_jitshape_marks"


@dataclass(frozen=True)
class Mark:
    """The user's word on one dimension of a tensor."""

    kind: str
    min: int | None = None
    max: int | None = None
    hint: int | None = None

    def __str__(self) -> str:
        bounds = [f"{k}={v}" for k, v in (("min", self.min), ("max", self.max)) if v is not None]
        return ", ".join([CALLS[self.kind], *bounds])

    def admits(self, size: int) -> bool:
        return (self.min or 0) <= size <= (INF if self.max is None else self.max)


def mark(
    tensor: Any,
    dim: int,
    kind: str,
    min: int | None = None,
    max: int | None = None,
    hint: int | None = None,
) -> None:
    """Set the mark of one dimension.  Raises BadMark."""
    call = f"{CALLS[kind]}(tensor, {dim})"
    check_range(call, min, max, BadMark)
    new = Mark(kind, min, max, hint)
    size = tensor.shape[dim]
    if not new.admits(size):
        raise BadMark(
            f"{call} excludes the tensor that it marks: size({dim}) is {size}",
            because=f"the range given is [{min or 0}, {INF if max is None else max}]",
            avoid="widen min and max",
        )
    if hint is not None and (type(hint) is not int or not new.admits(hint)):
        raise BadMark(f"{call}: hint={hint!r} is no size in the range given")
    marks = marks_of(tensor)
    if dim in marks:
        _check_compatible(call, marks[dim], new)
    setattr(tensor, _ATTRIBUTE, {**marks, dim: new})


def _check_compatible(call: str, old: Mark, new: Mark) -> None:
    """Of two marks of one dimension the later counts, if both can be meant."""
    apart = (
        (old.kind == "static") != (new.kind == "static")
        or (old.max is not None and old.max < (new.min or 0))
        or (new.max is not None and new.max < (old.min or 0))
    )
    if apart:
        raise BadMark(
            f"{call} contradicts an earlier mark",
            because=f"this dimension was marked: {old}; and now: {new}",
            avoid="mark each dimension once; t.detach() is a tensor without marks",
        )


def marks_of(tensor: Any) -> dict[int, Mark]:
    """By dimension."""
    return getattr(tensor, _ATTRIBUTE, {})


# ---- results of compiled code

_varying: dict[int, tuple[weakref.ref[Any], frozenset[int]]] = {}


def note_varying(tensor: Any, dims: Iterable[int]) -> None:
    """These sizes of a result were symbolic where it was computed."""
    key = id(tensor)
    reference = weakref.ref(tensor, lambda _: _varying.pop(key, None))
    _varying[key] = reference, frozenset(dims)


def varying_dims(tensor: Any) -> frozenset[int]:
    """The dimensions noted of this very tensor."""
    known = _varying.get(id(tensor))
    return known[1] if known is not None and known[0]() is tensor else frozenset()
