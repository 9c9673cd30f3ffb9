"""Graph breaks: leave the compiled code in the middle of a stack of frames, and go on from there.

In: FrameSnapshots, outermost first, and an Emitter that has emitted the graph so far and the
effects.  Out: code that rebuilds every frame as a real one and returns the outermost's result.
The innermost frame runs the instruction that could not be captured natively; each caller calls
its callee's bridge in place of its call, inside its own handlers.  Behind that instruction the
frames are taken apart again, and the whole stack goes on in one resume function, which is
compiled in turn (`Continuations`): that of the outermost frame calls that of the next one.
Invariant: handlers, tracebacks and order of evaluation are those of plain execution.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from jitshape.frontend._evalframe import TailCall, WithRoom, call_finished
from jitshape.frontend.bridges import Ways, bridge_code
from jitshape.frontend.frame import NULL as NO_VALUE
from jitshape.frontend.frame import FrameSnapshot, Lasti, LastiNumber, Null, SavedException
from jitshape.frontend.hook import call_unrouted
from jitshape.frontend.instructions import slot_names
from jitshape.frontend.own_builtins import with_own_builtins
from jitshape.frontend.positions import (
    KEPT_FREE,
    NULL,
    SAVED,
    VALUE,
    Kind,
    Origin,
    Position,
    native_effect,
    origin_of,
    unit_end,
    unsupported,
)
from jitshape.frontend.resume import raising_code, resume_code, suspended_code
from jitshape.frontend.suspension import build_suspension, is_suspension
from jitshape.frontend.values.base import Break, Cell, Value
from jitshape.frontend.values.constants import FRESH

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.generators import GeneratorValue


Home = tuple[Any, ...]  # of a function: its globals, and the cells that stay free variables
FRAMES_TOGETHER = 16  # more of a deep recursion go on in pieces of their own


@dataclass
class Continuations:
    """The resume functions of one user function, made once per position, and compiled where they
    are called as such.  `bridges`: the functions that lead to them.  `varying`: by function, the
    sources in its frames whose numbers were symbolic at a break.  `vain` counts calls that the
    entries there were did not serve; `graphs`: some entry has a graph."""

    compile: Callable[[FunctionType], Callable]
    made: dict[tuple, FunctionType] = field(default_factory=dict)
    bridges: dict[tuple, tuple[FunctionType, Any]] = field(default_factory=dict)
    compiled: dict[int, Callable] = field(default_factory=dict)  # by id of the resume function
    parts: dict[int, tuple] = field(default_factory=dict)  # what it was made of
    raisers: dict[tuple, tuple] = field(default_factory=dict)  # the same, by key
    varying: dict[CodeType, set[str]] = field(default_factory=dict)
    vain: int = 0
    graphs: bool = False

    def resume(self, position: Position, home: Home, inner: FunctionType | None) -> FunctionType:
        """What goes on at a position in a function; with `inner`, behind the call that it stands
        at."""
        key = (*position.key, *map(id, home), id(inner))
        if key not in self.made:
            code = unseen(resume_code, position, inner)
            function = self.made[key] = make_function(code, *home)
            self.parts[id(function)] = position, home, inner  # keeps alive what ids name
        return self.made[key]

    def entry(self, function: FunctionType) -> Callable:
        """A resume function, compiled."""
        if id(function) not in self.compiled:
            self.compiled[id(function)] = unseen(self.compile, function)
        return self.compiled[id(function)]

    def raising(self, function: FunctionType) -> FunctionType | None:
        """For a resume function one that raises where it would go on: it has one more parameter,
        the exception."""
        if id(function) not in self.parts:
            return None
        position, home, inner = self.parts[id(function)]
        return self.raiser(position, home, None if inner is None else self.raising(inner))

    def raiser(self, position: Position, home: Home, inner: FunctionType | None) -> FunctionType:
        """What raises its last argument at a position; with `inner`, another such function, out
        of the call of that."""
        key = ("raises", *position.key, *map(id, home), id(inner))
        if key not in self.made:
            code = unseen(raising_code, position, inner)
            self.made[key] = make_function(code, *home)
            self.raisers[key] = position, home, inner  # keeps alive what ids name
        return self.made[key]

    def varying_of(self, code: CodeType) -> Collection[str]:
        """Of a resume function, what was symbolic where it goes on."""
        origin = origin_of(code)
        if origin is None:
            return ()
        found = set(self.varying.get(origin.code, ()))
        if origin.inner is not None:
            inside = self.varying_of(origin.inner)
            found.update(text for x in inside for text in origin.from_inside(x))
        return found

    def lines(self, function: FunctionType) -> list[tuple[str, int]]:
        """Where a resume function goes on: file and line of each frame, outermost first."""
        if id(function) not in self.parts:
            return []
        position, _, inner = self.parts[id(function)]
        here = (position.code.co_filename, position.line)
        return [here, *(self.lines(inner) if inner is not None else ())]


@dataclass(frozen=True, eq=False)
class After:
    """A way out of a bridge, made when it is first taken."""

    make: Callable[[], Callable]

    def __call__(self, *arguments: Any) -> TailCall:
        return TailCall(self.make(), *arguments)


@dataclass(frozen=True, eq=False)
class Within:
    """Joins a caller to what its callee goes on with.

    Called with the parameters of the caller's position and a TailCall of the callee's After, it
    gives a TailCall for both: of the caller's resume function, which calls the callee's."""

    make: Callable[[FunctionType], Callable]

    def __call__(self, *arguments: Any) -> TailCall:
        *own, (inner, *theirs) = arguments
        after = After(lambda: self.make(inner.callable.make()))
        return TailCall(WithRoom(after), *own, *theirs)


def unseen(call: Callable[..., Any], *args: Any) -> Any:
    """`call(*args)`: the compiler at work in the middle of the program."""
    return call_unrouted(with_own_builtins, call, *args)


def make_function(code: CodeType, globals: dict[str, Any], *cells: CellType) -> FunctionType:
    return FunctionType(code, globals, code.co_name, None, cells or None)


def home_of(frame: FrameSnapshot) -> Home:
    return frame.globals, *kept_cells(frame)


def build_break(frames: Sequence[FrameSnapshot], e: Emitter, continuations: Continuations) -> None:
    """Emit the end of an entry: rebuild `frames` and return what the outermost returns."""
    if is_suspension(tuple(frames)):
        build_suspension(frames[0], e, continuations)
        return
    for frame in frames:
        reason = unsupported(frame.code)
        if reason is not None:
            raise Break("resume", f"{frame.code.co_qualname}: {reason}")
    e.line(frames[0].line)
    calls = inner_call(frames[-1])
    frames = [original_frame(frame) for frame in frames]
    rebuilt = [
        Rebuilt(frame, continuations, depth, frame is not frames[-1] or calls is not None)
        for depth, frame in enumerate(frames)
    ]
    e.begin_call()
    e.const(TailCall)
    e.const(rebuilt[0].function)
    nargs = push_arguments(e, rebuilt, continuations, calls)
    e.drop_locals()
    e.end_call(1 + nargs)
    e.op("RETURN_VALUE")


def original_frame(frame: FrameSnapshot) -> FrameSnapshot:
    """The frame of a resume function as one of the function that it resumes, so that pieces of
    pieces are pieces of the function."""
    origin = origin_of(frame.code)
    if origin is None:
        return frame
    held = dict(zip(slot_names(frame.code), frame.slots))
    slots = tuple(held.get(name) for name in slot_names(origin.code))
    if frame.index == origin.call:
        start = origin.position.index
        index = unit_end(origin.code, start)
        operands = (NO_VALUE,) * (1 - native_effect(origin.code, index))
        stack = frame.stack[: len(origin.position.stack)] + operands
    else:
        found = origin.index(frame.index), origin.index(frame.start)
        if found[0] is None or found[1] is None:
            raise Break("resume", "the trace ended before the resumed instruction")
        index, start, stack = *found, frame.stack
    stack = tuple(map(partial(_original_entry, origin), stack))
    return replace(frame, code=origin.code, index=index, start=start, slots=slots, stack=stack)


def inner_call(frame: FrameSnapshot) -> tuple[Any, ...] | None:
    """Resume function and arguments, where the frame stopped before it called its callee's."""
    origin = origin_of(frame.code)
    if origin is None or frame.index != origin.call:
        return None
    return tuple(x for x in frame.stack[len(origin.position.stack) :] if x is not NO_VALUE)


def _original_entry(origin: Origin, entry: Any) -> Any:
    return Lasti(origin.indices[entry.index]) if isinstance(entry, Lasti) else entry


# a stack entry of the machine rather than a value
FRESH[LastiNumber] = lambda m, number: Lasti(number.index)  # type: ignore[assignment]


def push_arguments(
    e: Emitter,
    rebuilt: Sequence[Rebuilt],
    continuations: Continuations,
    calls: tuple[Any, ...] | None,
) -> int:
    """The arguments of the first frame's bridge; the last one runs the frames inside it: `calls`
    inside the innermost one."""
    frame, inside = rebuilt[0], rebuilt[1:]
    for value in frame.arguments:
        e.value(value)
    if not inside and calls is None:
        return len(frame.arguments)
    e.begin_call()
    e.const(partial)
    if inside and not inside[0].is_head:
        e.const(inside[0].function)
        nargs = 1
    else:
        e.const(call_finished)
        e.const(inside[0].function if inside else continuations.entry(calls[0].object))
        nargs = 2
    if inside:
        nargs += push_arguments(e, inside, continuations, calls)
    else:
        for value in calls[1:]:
            e.value(value)
        nargs += len(calls) - 1
    e.end_call(nargs)
    return len(frame.arguments) + 1


class Rebuilt:
    """One frame: the bridge that goes on in it, and the Values to call it with.

    Frames go on together, as one piece of code, in groups; `is_head`: the outermost of one."""

    def __init__(
        self, frame: FrameSnapshot, continuations: Continuations, depth: int, calls: bool
    ) -> None:
        """`calls`: it runs a frame inside it."""
        stack = frame.stack[: callee_depth(frame)] if calls else frame.stack
        names = slot_names(frame.code)
        slots = {name: v for name, v in zip(names, frame.slots) if v is not None}
        kinds = tuple(map(kind_of, stack))
        self.position = Position(frame.code, frame.start, kinds, tuple(slots))
        self.is_head = depth % FRAMES_TOGETHER == 0
        ends = calls and (depth + 1) % FRAMES_TOGETHER == 0
        self.function = self.bridge(home_of(frame), continuations, calls, calls and not ends)
        self.arguments = [
            *(slots[name] for name in self.position.locals),
            *(stack[depth] for depth in self.position.live),
            *handled_exceptions(frame, stack),
        ]

    def bridge(
        self, home: Home, continuations: Continuations, calls: bool, joins: bool
    ) -> FunctionType:
        """The one function for this position."""
        key = (*self.position.key, *map(id, home), self.is_head, calls, joins)
        found = continuations.bridges.get(key)
        if found is None:
            ways = self.ways(home, continuations, joins)
            made = make_function(bridge_code(self.position, ways, thunk=calls), *home)
            found = continuations.bridges[key] = made, self.position  # alive: what ids name
        return found[0]

    def ways(self, home: Home, continuations: Continuations, joins: bool) -> Ways:
        """`joins`: the frame inside goes on together with this one.  What runs them keeps the
        continuations alive; code objects, which no collector sees through, must not."""
        is_head, known = self.is_head, weakref.ref(continuations)

        def go_on(position: Position, inner: FunctionType | None = None) -> Callable:
            continuations = known()
            assert continuations is not None
            function = continuations.resume(position, home, inner)
            return continuations.entry(function) if is_head else function

        def after(position: Position) -> Callable:
            return WithRoom(After(partial(go_on, position)))

        def within(position: Position) -> Callable:
            return WithRoom(Within(partial(go_on, position)))

        return Ways(after, within if joins else None)


ADVANCE = methodcaller("send", None)


def push_generator(e: Emitter, generator: GeneratorValue) -> None:
    """Push a real generator that stands where the machine's does."""
    frame = generator.frame.snapshot(generator.handling.value)
    slots = {n: v for n, v in zip(slot_names(frame.code), frame.slots) if v is not None}
    index = frame.index if generator.started else frame.index + 1
    position = Position(frame.code, index, tuple(map(kind_of, frame.stack)), tuple(slots))
    arguments = [
        *(slots[name] for name in position.locals),
        *(frame.stack[depth] for depth in position.live),
        *handled_exceptions(frame, frame.stack),
    ]
    e.begin_call()
    e.const(make_function(suspended_code(position), *home_of(frame)))
    for value in arguments:
        e.value(value)
    e.end_call(len(arguments))
    e.bind(generator)
    if generator.started:
        e.call(ADVANCE, lambda: e.value(generator))
        e.pop()
    name_generator(e, generator)


def name_generator(e: Emitter, generator: GeneratorValue) -> None:
    """It is called what its function was called, which the code of a piece does not tell."""
    function = generator.function
    for attribute in ("__name__", "__qualname__"):
        if attribute in generator.names:
            e.value(generator.names[attribute])
        elif getattr(function, "object", None) is not None:
            e.value(function)
            e.load_attr(attribute)
        else:
            continue
        e.value(generator)
        e.store_attr(attribute)


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
