"""Automatic dynamic: which sizes, strides, ints and floats of a call become symbolic.

In: every number that a trace reads from its inputs, with its source.  Out: one `Decision` each,
with the reason in the user's words.
With `dynamic=None` a number is static at first, and symbolic once another value was seen at the
same source of the same code object; so is the first size of a tensor once another of it is.
`True`: sizes and arguments are symbolic from the start; `False`: static.  Marks on a tensor come
before that, then JITSHAPE_DYNAMIC_SOURCES and JITSHAPE_STATIC_SOURCES.  Parameters and buffers
are static unless marked.
Invariant: a decision depends only on the mode, the marks and the values seen before, in order.
"""

from __future__ import annotations

import struct
import weakref
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import CodeType
from typing import Any

from jitshape.frontend.sources import Held, InstanceDict, Key, Number, Slot, Source
from jitshape.options import environment

INF = float("inf")
KEPT_VALUES = 16  # a source's memory; older values pay for no guard any more
MARKS = ("dynamic", "maybe_dynamic", "static", "unbacked")
_MARKS_ATTRIBUTE = "_jitshape_marks"


@dataclass(frozen=True)
class Decision:
    """What becomes of one number.  `seen`: the values before this one; `strict`: the user
    promised that the program needs no single value of it."""

    source: str
    dynamic: bool
    reason: str
    seen: tuple[int | float, ...] = ()
    lo: int = 0
    hi: float = INF
    hint: int | None = None
    unbacked: bool = False
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.source} {self.reason}"


@dataclass(frozen=True)
class Mark:
    """The user's word on one dimension of a tensor."""

    kind: str
    min: int | None = None
    max: int | None = None
    hint: int | None = None


@dataclass
class History:
    """The values seen at each source of one code object, over all its compilations."""

    values: dict[str, list[int | float]] = field(default_factory=dict)

    def observe(self, text: str, value: int | float) -> tuple[int | float, ...]:
        """Note `value`; returns the different values before it, oldest first."""
        earlier = self.changes(text, value)
        values = self.values.setdefault(text, [])
        if len(earlier) == len(values):
            values.append(value)
            del values[:-KEPT_VALUES]
        return earlier

    def changes(self, text: str, value: int | float) -> tuple[int | float, ...]:
        """The values seen at a source that differ from `value`, oldest first."""
        return tuple(v for v in self.values.get(text, ()) if not same_number(v, value))


_histories: dict[int, tuple[weakref.ref[CodeType], History]] = {}


def history_of(code: CodeType) -> History:
    """The one history of a code object; it dies with the code."""
    known = _histories.get(id(code))  # by identity: equal code objects are different functions
    if known is None or known[0]() is not code:
        key = id(code)
        known = weakref.ref(code, lambda _: _histories.pop(key, None)), History()
        _histories[key] = known
    return known[1]


def forget_all() -> None:
    """Drop every history (jitshape.reset)."""
    _histories.clear()


def mark(
    tensor: Any,
    dim: int,
    kind: str,
    min: int | None = None,
    max: int | None = None,
    hint: int | None = None,
) -> None:
    """Set the mark of one dimension; it lives as long as the tensor."""
    assert kind in MARKS, kind
    marks = getattr(tensor, _MARKS_ATTRIBUTE, {})
    setattr(tensor, _MARKS_ATTRIBUTE, {**marks, dim: Mark(kind, min, max, hint)})


def marks_of(tensor: Any) -> dict[int, Mark]:
    return getattr(tensor, _MARKS_ATTRIBUTE, {})


def same_number(a: int | float, b: int | float) -> bool:
    """Equal type and value; floats bit by bit."""
    if type(a) is not type(b):
        return False
    return struct.pack("d", a) == struct.pack("d", b) if type(a) is float else a == b


class Policy:
    """Decides for one compilation of one code object.  `decisions` keeps what it said."""

    def __init__(self, history: History, mode: bool | None = None) -> None:
        self.history, self.mode = history, mode
        self.decisions: dict[str, Decision] = {}
        self._dynamic = _patterns("DYNAMIC_SOURCES")
        self._static = _patterns("STATIC_SOURCES")

    def size(self, source: Source, tensor: Any, dim: int) -> Decision:
        """Of `tensor.size(dim)`, the tensor found at `source`."""
        number = Number(source, "size", dim)
        marked = marks_of(tensor).get(dim)
        if marked is None and is_module_state(source, tensor):
            return self._say(number, False, "belongs to a parameter or buffer")
        behind = self._changed_behind(source, tensor, dim)
        return self._decide(number, tensor.shape[dim], self.mode is True, marked, behind)

    def _changed_behind(self, source: Source, tensor: Any, dim: int) -> str:
        """Why the first size is taken to vary though it has not: another size of the tensor
        does.  It is the batch as a rule, so one recompile serves batch and length."""
        for later in range(1, tensor.ndim if dim == 0 else 0):
            number = Number(source, "size", later)
            seen = self.history.changes(str(number), tensor.shape[later])
            if seen:
                return f"became dynamic with {number}: {_then((*seen, tensor.shape[later]))}"
        return ""

    def stride(self, source: Source, tensor: Any, dim: int) -> Decision:
        """Of a stride that no size explains.  Symbolic only on a change, since a layout is
        usually what the program is written for."""
        number = Number(source, "stride", dim)
        if is_module_state(source, tensor):
            return self._say(number, False, "belongs to a parameter or buffer")
        return self._decide(number, tensor.stride(dim), False)

    def offset(self, source: Source, tensor: Any) -> Decision:
        """Of the storage offset."""
        return self._decide(Number(source, "offset"), tensor.storage_offset(), False)

    def number(self, source: Source, value: int | float) -> Decision:
        """Of a Python int or float.  With dynamic=True arguments are symbolic from the start;
        attributes are configuration and wait for a change."""
        if type(value) is bool:
            return self._say(source, False, "is a bool")
        return self._decide(source, value, self.mode is True and is_argument(source))

    def became_dynamic(self) -> tuple[Decision, ...]:
        """The decisions worth telling: everything symbolic, in order of first use."""
        return tuple(d for d in self.decisions.values() if d.dynamic)

    def _decide(
        self,
        source: Source,
        value: int | float,
        from_start: bool,
        marked: Mark | None = None,
        also: str = "",
    ) -> Decision:
        text = str(source)
        seen = self.history.observe(text, value)
        known = self.decisions.get(text)
        if known is not None:
            return known
        if marked is not None:
            return self._marked(source, marked, seen)
        if _matches(text, self._static):
            return self._say(source, False, "is listed in JITSHAPE_STATIC_SOURCES")
        if self.mode is False:
            return self._say(source, False, "is static: dynamic=False")
        if _matches(text, self._dynamic):
            return self._say(source, True, "is listed in JITSHAPE_DYNAMIC_SOURCES", seen)
        if from_start:
            return self._say(source, True, "is dynamic: dynamic=True", seen)
        if seen:
            return self._say(source, True, f"became dynamic: {_then((*seen, value))}", seen)
        if also:
            return self._say(source, True, also, seen)
        return self._say(source, False, f"is static: always {value!r} so far")

    def _marked(self, source: Source, marked: Mark, seen: tuple[int | float, ...]) -> Decision:
        if marked.kind == "static":
            return self._say(source, False, "is static: mark_static")
        return self._say(
            source,
            True,
            f"is dynamic: {_MARK_NAMES[marked.kind]}",
            seen,
            lo=marked.min or 0,
            hi=INF if marked.max is None else marked.max,
            hint=marked.hint,
            unbacked=marked.kind == "unbacked",
            strict=marked.kind in ("dynamic", "unbacked"),
        )

    def _say(
        self,
        source: Source,
        dynamic: bool,
        reason: str,
        seen: tuple[int | float, ...] = (),
        **more: Any,
    ) -> Decision:
        text = str(source)
        decision = Decision(text, dynamic, reason, seen, **more)
        self.decisions[text] = decision
        return decision


_MARK_NAMES = {
    "dynamic": "mark_dynamic",
    "maybe_dynamic": "maybe_mark_dynamic",
    "unbacked": "mark_unbacked",
}
_STATE_DICTS = ("_parameters", "_buffers")


def _path(source: Source | None) -> list[Source]:
    """The source and its bases, outermost object last."""
    path: list[Source] = []
    while source is not None:
        path.append(source)
        source = getattr(source, "base", None)
    return path


def is_module_state(source: Source, tensor: Any) -> bool:
    """Whether the tensor is a parameter, or found among the parameters or buffers of a module."""
    kinds = {c.__name__ for c in type(tensor).__mro__}
    return held_by_module(source) or not kinds.isdisjoint(("Parameter", "Buffer"))


def held_by_module(source: Source) -> bool:
    """Whether the path goes through the parameters or buffers of a module."""
    return any(isinstance(s, Key) and s.key in _STATE_DICTS for s in _path(source))


def is_argument(source: Source) -> bool:
    """Whether a number came in as an argument, or in a container that did."""
    return not any(isinstance(s, (InstanceDict, Slot, Held)) for s in _path(source))


def _then(values: tuple[int | float, ...]) -> str:
    shown = values if len(values) <= 4 else values[-4:]
    text = " then ".join(repr(v) for v in shown)
    return text if shown is values else f"... {text}"


def _patterns(variable: str) -> tuple[str, ...]:
    return tuple(p.strip() for p in environment(variable).split(",") if p.strip())


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern is the number's own text, or names the tensor whose size it is."""
    return any(fnmatchcase(text, p) or text.startswith(f"{p}.size(") for p in patterns)
