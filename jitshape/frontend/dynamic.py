"""Automatic dynamic: which sizes, strides, ints and floats of a call become symbolic.

In: every number that a trace reads from its inputs, with its source.  Out: one `Decision` each,
with the reason in the user's words.
With `dynamic=None` a number is static at first, and symbolic once another value was seen at the
same source of the same code object; so is the first size of a tensor once another of it is.
`True`: sizes and arguments are symbolic from the start; `False`: static.  Marks on a tensor come
before that, then `dynamic_shapes`, then JITSHAPE_STATIC_SOURCES and JITSHAPE_DYNAMIC_SOURCES.
Parameters and buffers are static unless marked or listed.
Invariant: a decision depends only on the mode, what the user said, what was symbolic where the
number was computed, and the values seen before, in order.
"""

from __future__ import annotations

import functools
import re
import struct
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from jitshape import profile
from jitshape.dims import Promise, Relation
from jitshape.errors import BadMark
from jitshape.frontend.marks import CALLS, Mark, marks_of, varying_dims
from jitshape.frontend.sources import Getter, Held, InstanceDict, Key, Number, Slot, Source
from jitshape.options import environment

INF = float("inf")
KEPT_VALUES = 16  # a source's memory; older values pay for no guard any more


@dataclass(frozen=True)
class Decision:
    """What becomes of one number.  `seen`: the values before this one; `strict`: the user
    promised that the program needs no single value of it; `unbacked`: and takes no decision."""

    source: str
    dynamic: bool
    reason: str
    seen: tuple[int | float, ...] = ()
    lo: int = 0
    hi: float = INF
    hint: int | None = None
    unbacked: bool = False
    strict: bool = False
    served_from: int | None = None  # set if the range is the user's: all of it must be served
    relation: Relation | None = None

    def __str__(self) -> str:
        return f"{self.source} {self.reason}"


@dataclass
class History:
    """The values seen at each source of one code object, over all its compilations; `earlier`:
    in earlier runs, at those that changed."""

    values: dict[str, list[int | float]] = field(default_factory=dict)
    earlier: Mapping[str, Sequence[int | float]] = field(default_factory=dict)

    def observe(self, text: str, value: int | float) -> tuple[int | float, ...]:
        """Note `value`; returns the different values before it, oldest first."""
        values = self.values.setdefault(text, [])
        if not any(same_number(v, value) for v in values):
            values.append(value)
            del values[:-KEPT_VALUES]
        return self.changes(text, value)

    def changes(self, text: str, value: int | float) -> tuple[int | float, ...]:
        """The values seen at a source that differ from `value`, oldest first."""
        known = (*self.earlier.get(text, ()), *self.values.get(text, ()))
        return tuple(v for v in known if not same_number(v, value))

    def story(self, text: str, value: int | float) -> str:
        """Why a source that changed is dynamic."""
        here = [v for v in self.values.get(text, ()) if not same_number(v, value)]
        if here:
            return f"became dynamic: {_then((*here, value))}"
        return f"is dynamic: it was {_then(tuple(self.earlier[text]))} in an earlier run"


_histories: dict[int, tuple[weakref.ref[CodeType], History]] = {}


def history_of(code: CodeType) -> History:
    """The one history of a code object; it dies with the code."""
    known = _histories.get(id(code))  # by identity: equal code objects are different functions
    if known is None or known[0]() is not code:
        key = id(code)
        history = History(earlier=profile.active().values(code))
        known = weakref.ref(code, lambda _: _histories.pop(key, None)), history
        _histories[key] = known
    return known[1]


def forget_all() -> None:
    """Drop every history (jitshape.reset)."""
    _histories.clear()


def learn(code: CodeType) -> None:
    """Keep for later runs what changed in this one."""
    profile.active().learn(code, history_of(code).values)


def same_number(a: int | float, b: int | float) -> bool:
    """Equal type and value; floats bit by bit."""
    if type(a) is not type(b):
        return False
    return struct.pack("d", a) == struct.pack("d", b) if type(a) is float else a == b


class Policy:
    """Decides for one compilation of one code object.  `decisions` keeps what it said.
    `promises`: what `dynamic_shapes` says of this call; `varying`: the sources whose numbers were
    symbolic in the code that hands them on to this one.  Both by the text of the source."""

    def __init__(
        self,
        history: History,
        mode: bool | None = None,
        promises: Mapping[str, Promise] = {},
        varying: Collection[str] = (),
    ) -> None:
        self.history, self.mode = history, mode
        self.promises, self.varying = promises, varying
        self.decisions: dict[str, Decision] = {}
        self.observed: dict[str, Source] = {}  # by text, what the history has values of
        self._dynamic = Patterns.of_environment("DYNAMIC_SOURCES")
        self._static = Patterns.of_environment("STATIC_SOURCES")

    def size(self, source: Source, tensor: Any, dim: int) -> Decision:
        """Of `tensor.size(dim)`, the tensor found at `source`."""
        number, size = Number(source, "size", dim), tensor.shape[dim]
        marked = marks_of(tensor).get(dim)
        if marked is not None:
            return self._say_marked(number, size, marked)
        free = not is_module_state(source, tensor)
        if not free and not self._dynamic.match(str(number)):
            return self._say(number, False, "belongs to a parameter or buffer")
        also = self._changed_beside(source, tensor, dim)
        if dim in varying_dims(tensor):
            also = "is dynamic: it was symbolic where the tensor was computed"
        return self._decide(number, size, free and self.mode is True, also)

    def _changed_beside(self, source: Source, tensor: Any, dim: int) -> str:
        """Why a size is taken to vary though it has not: another one of the tensor does."""
        for other in varying_together(dim, tensor.shape):
            number = Number(source, "size", other)
            if self.history.changes(str(number), tensor.shape[other]):
                story = self.history.story(str(number), tensor.shape[other])
                return f"is dynamic with {number}, which {story}"
        return ""

    def stride(self, source: Source, tensor: Any, dim: int) -> Decision:
        """Of a stride that no size explains.  Symbolic only on a change, since a layout is
        usually what the program is written for."""
        number = Number(source, "stride", dim)
        if is_module_state(source, tensor):
            return self._say(number, False, "belongs to a parameter or buffer")
        return self._decide(number, tensor.stride(dim), False)

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
        self, source: Source, value: int | float, from_start: bool, also: str = ""
    ) -> Decision:
        text = str(source)
        self.observed[text] = source
        seen = self.history.observe(text, value)
        known = self.decisions.get(text)
        if known is not None:
            return known
        if text in self.promises:
            return self._say_promised(source, self.promises[text], seen)
        if self._static.match(text):
            return self._say(source, False, "is listed in JITSHAPE_STATIC_SOURCES")
        if self._dynamic.match(text):
            return self._say(source, True, "is listed in JITSHAPE_DYNAMIC_SOURCES", seen)
        if self.mode is False:
            return self._say(source, False, "is static: dynamic=False")
        if from_start:
            return self._say(source, True, "is dynamic: dynamic=True", seen)
        if seen:
            return self._say(source, True, self.history.story(text, value), seen)
        if text in self.varying:
            also = "is dynamic: it was symbolic before the graph break"
        if also:
            return self._say(source, True, also, seen)
        return self._say(source, False, f"is static: always {value!r} so far")

    def _say_marked(self, source: Source, size: int, marked: Mark) -> Decision:
        seen = self.history.observe(str(source), size)
        promised = self.promises.get(str(source))
        if promised is not None and (promised.kind == "static") != (marked.kind == "static"):
            raise BadMark(
                f"{CALLS[marked.kind]} contradicts dynamic_shapes, which says that {source} is "
                f"{promised}",
                avoid="remove one of them",
            )
        if marked.kind == "static":
            return self._say(source, False, "is static: mark_static")
        if not marked.admits(size):
            raise BadMark(f"{source} is {size}, outside of the range of its mark ({marked})")
        return self._say(
            source,
            True,
            f"is dynamic: {CALLS[marked.kind]}",
            seen,
            **bounds_of(marked),
            hint=marked.hint,
            unbacked=marked.kind == "unbacked",
            strict=marked.kind in ("dynamic", "unbacked"),
            relation=promised.relation if promised else None,
        )

    def _say_promised(
        self, source: Source, promised: Promise, seen: tuple[int | float, ...]
    ) -> Decision:
        if promised.kind == "static":
            return self._say(source, False, "is static: dynamic_shapes")
        return self._say(
            source,
            True,
            f"is dynamic: dynamic_shapes says {promised}",
            seen,
            **bounds_of(promised),
            strict=promised.kind == "dynamic",
            relation=promised.relation,
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
        known = self.decisions.get(text)
        if known is not None:
            return known
        decision = Decision(text, dynamic, reason, seen, **more)
        self.decisions[text] = decision
        return decision


def varying_together(dim: int, shape: Sequence[int]) -> Iterable[int]:
    """The dimensions that tell of `dim`, so that one recompile serves them all even if they start
    to change in different calls.  The first is the batch as a rule, which varies if anything
    does, and a length with it.  The columns of a matrix may be features, but those are held by the
    parameters that they meet.  Height and width of images vary together, not with the batch."""
    others = [d for d in range(len(shape)) if d != dim]
    if dim == 0:
        return others
    if shape[dim] <= 1:  # what may be there to broadcast waits for a change of its own
        return ()
    if dim == 1 and len(shape) <= 3:
        return others
    return [d for d in others if d >= 2] if dim >= 2 and len(shape) >= 4 else ()


def bounds_of(given: Mark | Promise) -> dict[str, Any]:
    """The fields of a Decision that the user's range fills."""
    hi = INF if given.max is None else given.max
    return {"lo": given.min or 0, "hi": hi, "served_from": served_from(given)}


def served_from(given: Mark | Promise) -> int | None:
    """The least size that compiled code must serve; sizes 0 and 1 only if they are asked for,
    since broadcasting and layouts may tell them apart."""
    if given.min is None:
        return None if given.max is None else 2
    return given.min


_STATE_DICTS = ("_parameters", "_buffers")


def _path(source: Source | None) -> list[Source]:
    """The source and its bases, outermost object last."""
    path: list[Source] = []
    while source is not None:
        path.append(source)
        source = getattr(source, "base", None)
    return path


def is_module_state(source: Source, tensor: Any) -> bool:
    """Whether the tensor is a parameter or its gradient, or found among the parameters or buffers
    of a module."""
    if isinstance(source, Getter) and source.name == "grad" and isinstance(source.base, Held):
        tensor = source.base.object  # gradients have their parameter's sizes
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


@dataclass(frozen=True)
class Patterns:
    """A list of sources.  `*` and `?` stand for any characters, brackets for themselves; a
    tensor's name stands for its sizes."""

    variable: str
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def of_environment(cls, variable: str) -> Patterns:
        listed = [p.strip() for p in environment(variable).split(",")]
        return cls(variable, tuple(_compiled(p) for p in listed if p))

    def match(self, text: str) -> bool:
        return any(e.fullmatch(text) for e in self.expressions)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    wild = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(rf"{wild}(\.size\(\d+\))?")
