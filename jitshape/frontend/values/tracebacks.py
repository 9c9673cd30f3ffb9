"""Tracebacks: the frames that an exception was raised in or came through while tracing.

In: frames of the machine, as exceptions leave instructions (`ExceptionValue.passes`).  Out: a
chain of TracebackValues, the outermost frame first, as `__traceback__` shows it.
Invariant: a traceback that leaves names the user's code, lines, columns and variables.  Its frame
objects are stand-ins, for the frames themselves existed in the machine only; they are finished.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from itertools import islice
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

from bytecode import Bytecode, Instr
from bytecode.instr import InstrLocation

from jitshape.frontend.emit import CALL_PREFIX, Constant, Emitter, place_constants
from jitshape.frontend.instructions import decode
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.classes import GETTERS
from jitshape.frontend.values.functions import HANDLERS

if TYPE_CHECKING:
    from jitshape.frontend.frame import Frame
    from jitshape.frontend.machine import Machine


class TracebackValue(Value):
    """One entry: a frame that stands at instruction `index`, and the entries inside it."""

    def __init__(self, frame: Frame, inner: Value | None) -> None:
        self.code, self.globals = frame.callee.code, frame.callee.globals
        self.frame, self.index, self.inner = frame, frame.index, inner

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
        return () if self.inner is None else (self.inner,)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(traceback_entry)
        e.const(frame_maker(self.code, self.index, self.frame.standing(), self.globals))
        e.const(self.line())
        if self.inner is None:
            e.const(None)
        else:
            e.value(self.inner)
        e.end_call(3)


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


def traceback_entry(make_frame: FunctionType, line: int, inner: TracebackType | None) -> Any:
    return TracebackType(inner, make_frame(), 0, line)


def frame_maker(code: CodeType, raised: int, stands: int, globals: dict[str, Any]) -> FunctionType:
    """A function whose call gives its own frame, which looks like one of `code`: its first
    instruction has the place of the one that raised, and it stands at that of `stands`."""
    location = location_of(code, stands)
    body = [
        Instr("RESUME", 0, location=location_of(code, raised)),
        *(Instr("PUSH_NULL", location=location) for _ in range(sys.version_info < (3, 13))),
        Instr("LOAD_CONST", Constant(sys._getframe), location=location),
        *(Instr("PUSH_NULL", location=location) for _ in range(sys.version_info >= (3, 13))),
        *(Instr(name, 0, location=location) for name in (*CALL_PREFIX, "CALL")),
        Instr("RETURN_VALUE", location=location),
    ]
    made = Bytecode(body)
    made.name, made.qualname, made.filename = code.co_name, code.co_qualname, code.co_filename
    made.first_lineno = code.co_firstlineno
    names = code.co_varnames  # which suggestions are made from
    plain = place_constants(made.to_code()).replace(co_varnames=names, co_nlocals=len(names))
    return FunctionType(plain, globals, code.co_name)


def location_of(code: CodeType, index: int) -> InstrLocation:
    place = decode(code).instructions[index].offset // 2
    return InstrLocation(*next(islice(code.co_positions(), place, None)))


# ---- what programs do with tracebacks


def _inner(m: Machine, value: Any) -> Value:
    return value.inner or m.const(None) if isinstance(value, TracebackValue) else _unknown(value)


def _line(m: Machine, value: Any) -> Value:
    m.bound_by = "where code stands"
    return m.const(value.line()) if isinstance(value, TracebackValue) else _unknown(value)


def _unknown(value: Value) -> Value:
    raise Break("exception", "the traceback of an exception raised outside the graph is read")


GETTERS[TracebackType.__dict__["tb_next"]] = _inner
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
