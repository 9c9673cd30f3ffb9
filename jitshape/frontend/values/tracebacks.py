"""Tracebacks: the frames that an exception was raised in or came through while tracing.

In: frames of the machine, as exceptions leave instructions (`ExceptionValue.passes`).  Out: a
chain of TracebackValues, the outermost frame first, as `__traceback__` shows it.
Invariant: a traceback that leaves names the user's code, lines and columns; its frames are those of
frames.py, one for all entries of the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.emit import Emitter
from jitshape.frontend.instructions import decode
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.classes import GETTERS
from jitshape.frontend.values.frames import frame_value
from jitshape.frontend.values.functions import HANDLERS

if TYPE_CHECKING:
    from jitshape.frontend.frame import Frame
    from jitshape.frontend.machine import Machine


class TracebackValue(Value):
    """One entry: a frame that stands at instruction `index`, and the entries inside it."""

    def __init__(self, frame: Frame, inner: Value | None) -> None:
        self.code = frame.callee.code
        self.frame, self.index, self.inner = frame_value(frame), frame.index, inner
        if self.index not in frame.raised_at:
            frame.raised_at.append(self.index)

    def __repr__(self) -> str:
        return f"TracebackValue({self.code.co_qualname}:{self.line()})"

    def python_type(self) -> type:
        return TracebackType

    def line(self) -> int:
        return decode(self.code).lines[self.index] or self.code.co_firstlineno

    def truth(self, m: Machine) -> bool:
        return True

    def hash_key(self, m: Machine) -> Any:
        return self

    def children(self) -> Iterable[Value]:
        return (self.frame,) if self.inner is None else (self.frame, self.inner)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(traceback_entry)
        e.value(self.frame)
        e.const(self.frame.place(self.index))
        e.const(self.line())
        if self.inner is None:
            e.const(None)
        else:
            e.value(self.inner)
        e.end_call(4)


class FormerTraceback(Value):
    """What an exception that existed before the trace had as its traceback then."""

    def __init__(self, exception: Value) -> None:
        self.exception = exception

    def python_type(self) -> type:
        return TracebackType

    def reconstruct(self, e: Emitter) -> None:
        e.value(self.exception)
        e.load_attr("__traceback__")


# ---- called by compiled code


def traceback_entry(frame: Any, place: int, line: int, inner: TracebackType | None) -> Any:
    return TracebackType(inner, frame, place, line)


# ---- what programs do with tracebacks


def _inner(m: Machine, value: Any) -> Value:
    return value.inner or m.const(None) if isinstance(value, TracebackValue) else _unknown(value)


def _line(m: Machine, value: Any) -> Value:
    m.bound_by = "where code stands"
    return m.const(value.line()) if isinstance(value, TracebackValue) else _unknown(value)


def _unknown(value: Value) -> Value:
    raise Break("exception", "the traceback of an exception raised outside the graph is read")


def _frame(m: Machine, value: Any) -> Value:
    return value.frame if isinstance(value, TracebackValue) else _unknown(value)


GETTERS[TracebackType.__dict__["tb_next"]] = _inner
GETTERS[TracebackType.__dict__["tb_frame"]] = _frame
GETTERS[TracebackType.__dict__["tb_lineno"]] = _line


def clear_frames(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`traceback.clear_frames`: frames of the machine that an exception left hold nothing."""
    entry = args[0] if len(args) == 1 and not kwargs else None
    while isinstance(entry, TracebackValue):
        entry = entry.inner
    if entry is not None and entry.python_type() is not type(None):
        raise Break("frame", "frames of an exception raised outside the graph are cleared")
    return m.const(None)


HANDLERS[traceback.clear_frames] = clear_frames
