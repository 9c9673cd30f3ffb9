"""Graph breaks: leave the compiled code in the middle of a stack of frames, and go on from there.

In: FrameSnapshots, outermost first, and an Emitter that has emitted the graph so far and the
effects.  Out: code that rebuilds every frame as a real one and returns the outermost's result.
The innermost frame runs the instruction that could not be captured natively; each caller finds
what its callee returns in place of its call, inside its own handlers.  After that instruction or
call a frame goes on in a resume function, which is compiled in turn (`Continuations`).
Invariant: handlers, tracebacks and order of evaluation are those of plain execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from jitshape.frontend._evalframe import TailCall, call_finished
from jitshape.frontend.frame import FrameSnapshot, Lasti, LastiNumber, Null, SavedException
from jitshape.frontend.instructions import slot_names
from jitshape.frontend.resume import (
    KEPT_FREE,
    NULL,
    SAVED,
    VALUE,
    Kind,
    Origin,
    Position,
    bridge_code,
    native_effect,
    origin_of,
    resume_code,
    unsupported,
)
from jitshape.frontend.values.base import Break, Cell, Value
from jitshape.frontend.values.constants import FRESH

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter


@dataclass
class Continuations:
    """The compiled resume functions of one user function, made once per position.  `varying`: by
    function, the sources in its frames whose numbers were symbolic at a break."""

    compile: Callable[[FunctionType], Callable]
    made: dict[tuple, tuple[Callable, Any]] = field(default_factory=dict)
    varying: dict[CodeType, set[str]] = field(default_factory=dict)

    def get(self, position: Position, globals: dict[str, Any], cells: tuple) -> Callable:
        key = (*position.key, id(globals), *map(id, cells))
        if key not in self.made:
            function = make_function(resume_code(position), globals, cells)
            # what the key's ids name is kept alive
            self.made[key] = self.compile(function), (position, globals, cells)
        return self.made[key][0]

    def varying_of(self, code: CodeType) -> Collection[str]:
        """Of a resume function, what was symbolic where it goes on."""
        origin = origin_of(code)
        return () if origin is None else self.varying.get(origin.code, ())


def make_function(code: Any, globals: dict[str, Any], cells: tuple) -> FunctionType:
    return FunctionType(code, globals, code.co_name, None, cells or None)


def build_break(frames: Sequence[FrameSnapshot], e: Emitter, continuations: Continuations) -> None:
    """Emit the end of an entry: rebuild `frames` and return what the outermost returns."""
    for frame in frames:
        reason = unsupported(frame.code)
        if reason is not None:
            raise Break("resume", f"{frame.code.co_qualname}: {reason}")
    e.line(frames[0].line)
    frames = (original_frame(frames[0]), *frames[1:])
    rebuilt = [Rebuilt(f, f is not frames[-1], continuations) for f in frames]
    e.begin_call()
    e.const(TailCall)
    e.const(rebuilt[0].function)
    nargs = push_arguments(e, rebuilt)
    e.drop_locals()
    e.end_call(1 + nargs)
    e.op("RETURN_VALUE")


def original_frame(frame: FrameSnapshot) -> FrameSnapshot:
    """The frame of a resume function as one of the function that it resumes, so that pieces of
    pieces are pieces of the function."""
    origin = origin_of(frame.code)
    if origin is None:
        return frame
    index, start = origin.index(frame.index), origin.index(frame.start)
    if index is None or start is None:
        raise Break("resume", "the trace ended before the resumed instruction")
    held = dict(zip(slot_names(frame.code), frame.slots))
    return replace(
        frame,
        code=origin.code,
        index=index,
        start=start,
        slots=tuple(held.get(name) for name in slot_names(origin.code)),
        stack=tuple(map(partial(_original_entry, origin), frame.stack)),
    )


def _original_entry(origin: Origin, entry: Any) -> Any:
    return Lasti(origin.indices[entry.index]) if isinstance(entry, Lasti) else entry


# a stack entry of the machine rather than a value
FRESH[LastiNumber] = lambda m, number: Lasti(number.index)  # type: ignore[assignment]


def push_arguments(e: Emitter, rebuilt: Sequence[Rebuilt]) -> int:
    """The arguments of the first frame's bridge; the last one runs the frames inside it."""
    frame, inner = rebuilt[0], rebuilt[1:]
    for value in frame.arguments:
        e.value(value)
    if inner:
        e.begin_call()
        e.const(partial)
        e.const(call_finished)
        e.const(inner[0].function)
        e.end_call(2 + push_arguments(e, inner))
    return len(frame.arguments) + bool(inner)


class Rebuilt:
    """One frame: the bridge that goes on in it, and the Values to call it with."""

    def __init__(self, frame: FrameSnapshot, caller: bool, continuations: Continuations) -> None:
        stack = frame.stack[: callee_depth(frame)] if caller else frame.stack
        names = slot_names(frame.code)
        slots = {name: v for name, v in zip(names, frame.slots) if v is not None}
        kinds = tuple(map(kind_of, stack))
        self.position = Position(frame.code, frame.start, kinds, tuple(slots))
        cells = kept_cells(frame)

        def continuation(position: Position) -> Callable:
            return continuations.get(position, frame.globals, cells)

        code = bridge_code(self.position, continuation, thunk=caller)
        self.function = make_function(code, frame.globals, cells)
        self.arguments = [
            *(slots[name] for name in self.position.locals),
            *(stack[depth] for depth in self.position.live),
            *handled_exceptions(frame, stack),
        ]


def kind_of(entry: Any) -> Kind:
    return KINDS[type(entry)](entry) if type(entry) in KINDS else VALUE


KINDS: dict[type, Callable[[Any], Kind]] = {
    Null: lambda entry: NULL,
    SavedException: lambda entry: SAVED,
    Lasti: lambda entry: entry.index,
}


def callee_depth(frame: FrameSnapshot) -> int:
    """How much of a caller's stack lies below the operands of its call."""
    return len(frame.stack) + native_effect(frame.code, frame.index) - 1


def handled_exceptions(frame: FrameSnapshot, stack: Sequence[Any]) -> list[Value]:
    """Outermost first.  Each handler saved the exception that was handled before it."""
    saved = [entry.exception for entry in stack if isinstance(entry, SavedException)]
    found = [*saved[1:], frame.handled] if saved else []
    if None in found:
        raise Break("resume", "an exception handler without its exception")
    return found  # type: ignore[return-value]


def kept_cells(frame: FrameSnapshot) -> tuple[CellType, ...]:
    """The cell of `__class__`, which has to stay a free variable."""
    if KEPT_FREE not in frame.code.co_freevars:
        return ()
    cell = frame.slots[slot_names(frame.code).index(KEPT_FREE)]
    if not isinstance(cell, Cell) or cell.real is None:
        raise Break("resume", "a method of a class that was defined while tracing")
    return (cell.real,)
