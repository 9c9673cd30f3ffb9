"""Functions that suspend, compiled: generators and coroutines that run from piece to piece.

In: a compiled generator or coroutine function.  Out: what its call gives (`starter`): a real
generator or coroutine, whose frame is a driver.  It calls the pieces that the function is compiled
in, each up to where the function suspends (Suspended) or ends (Done), and does the suspending: it
yields, or waits for what the function waits for.
A piece that runs natively is a generator function itself: the driver goes on in what it gives.
Invariant: what is sent or thrown into the driver arrives where the function waits, inside the
handlers there; between its pieces a function keeps nothing but what its frame would.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import CO_GENERATOR
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from jitshape.frontend._evalframe import TailCall, WithRoom, call_finished
from jitshape.frontend.coroutines import is_of_event_loop
from jitshape.frontend.emit import place_constants
from jitshape.frontend.frame import FrameSnapshot
from jitshape.frontend.generators import GeneratorValue
from jitshape.frontend.instructions import decode
from jitshape.frontend.positions import (
    KEPT_FREE,
    SUSPENDS,
    VALUE,
    VERSION,
    Position,
    body_arguments,
    is_piece,
    unsupported,
    whole_body,
)
from jitshape.frontend.resume import raising_code, resume_code
from jitshape.frontend.values.base import Value

if TYPE_CHECKING:
    from jitshape.frontend.breaks import Continuations, Home
    from jitshape.frontend.emit import Emitter


@dataclass(frozen=True, eq=False)
class Way:
    """How a function goes on.  `go_on` is called with the arguments of a piece, among them, at
    `place`, what was sent; `raising` gives what raises inside its handlers: it is called with
    `operands` times None there, and with the exception behind the arguments.  `delegates`: the
    function waits for another one rather than yields."""

    go_on: Callable[..., TailCall]
    raising: Callable[[], Callable[..., Any]]
    place: int
    operands: int
    delegates: bool


class Suspended:
    """What a piece returns where its function suspends: `value` is yielded or waited for."""

    __slots__ = ("arguments", "value", "way")

    def __init__(self, way: Way, value: Any, *arguments: Any) -> None:
        self.way, self.value, self.arguments = way, value, arguments

    def take(self) -> Any:
        """The value, which the function does not hold while it waits."""
        value, self.value = self.value, None
        return value

    def go_on(self, sent: Any) -> TailCall:
        """The next piece."""
        way, given, self.arguments = self.way, self.arguments, ()
        return TailCall(way.go_on, *given[: way.place], sent, *given[way.place :])

    def throw(self, error: BaseException) -> TailCall:
        """What raises `error` where the function waits."""
        way, given, self.arguments = self.way, self.arguments, ()
        operands = (None,) * way.operands
        rest = given[way.place :]
        return TailCall(way.raising(), *given[: way.place], *operands, *rest, error)


class Done:
    """What a piece returns where its function returns `value`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def drive(owner: Any, call: Any, *arguments: Any) -> Iterator[Any]:
    """The code of every driver.  `owner` is kept alive for the pieces; no variable holds what the
    function has let go of."""
    step = call_finished(call, *arguments)
    del call, arguments
    while type(step) is Suspended:
        error = None
        try:
            sent = (yield from step.take()) if step.way.delegates else (yield step.take())
        except BaseException as raised:
            error = raised
        if error is None:
            call = partial(step.go_on, sent)
            sent = None
        else:
            call = partial(step.throw, error)
            error = None
        step = call_finished(call)
        call = None
    if type(step) is Done:
        return step.value
    return (yield from step)


def is_driven(code: CodeType) -> bool:
    """Whether calls of a function of this code give a driver.  Asynchronous generators talk to
    the event loop's hooks, which have to see the real ones."""
    return bool(code.co_flags & SUSPENDS) and not unsupported(code) and not is_piece(code)


def driver(code: CodeType) -> FunctionType:
    """`drive` as the function of this code: tracebacks name it and its line, and it gives what
    that gives, a generator or a coroutine."""
    flags = drive.__code__.co_flags & ~CO_GENERATOR | code.co_flags & SUSPENDS
    made = drive.__code__.replace(
        co_flags=flags,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_linetable=first_line(len(drive.__code__.co_code) // 2),
    )
    return FunctionType(place_constants(made), drive.__globals__, code.co_name)


def first_line(units: int) -> bytes:
    """A table of locations in which all instructions stand on the first line."""
    table = bytearray()
    while units:
        length = min(units, 8)
        table += bytes((0x80 | 13 << 3 | length - 1, 0))  # a line without columns, no step
        units -= length
    return bytes(table)


def starter(function: FunctionType, continuations: Continuations) -> Callable[..., Any]:
    """What a call of the function comes to, as a function of its argument slots."""
    code = function.__code__
    body, make = whole_body(code), driver(code)
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    home = (function.__globals__, *(cells[n] for n in (KEPT_FREE,) if n in cells))
    first = WithRoom(Going(weakref.ref(continuations), body, home))

    def start(*slots: Any) -> Any:
        made = make(continuations, first, *body_arguments(body, function, slots))
        made.__name__, made.__qualname__ = function.__name__, function.__qualname__
        return made

    return start


@dataclass(frozen=True, eq=False)
class Going:
    """Goes on at a position.  Code objects hold this, which no collector sees through, so that it
    does not keep the continuations alive; without them it goes on natively."""

    continuations: weakref.ref[Continuations]
    position: Position
    home: Home

    def __call__(self, *arguments: Any) -> TailCall:
        known = self.continuations()
        if known is None:
            return TailCall(native(self.position, self.home), *arguments)
        return TailCall(known.entry(known.resume(self.position, self.home, None)), *arguments)


@dataclass(frozen=True, eq=False)
class Raising(Going):
    """Makes what raises at a position."""

    def __call__(self) -> Callable[..., Any]:  # type: ignore[override]
        known = self.continuations()
        if known is None:
            return native(self.position, self.home, raising_code)
        return known.raiser(self.position, self.home, None)


def native(
    position: Position, home: Home, write: Callable[[Position], CodeType] = resume_code
) -> FunctionType:
    """What starts there, of nobody."""
    from jitshape.frontend.breaks import make_function, unseen

    return make_function(unseen(write, position), *home)


# ---- leaving a trace


def is_suspension(frames: tuple[FrameSnapshot, ...]) -> bool:
    """Whether a trace ended where the function of a piece suspends."""
    if len(frames) != 1 or not is_piece(frames[0].code):
        return False
    return decode(frames[0].code).instructions[frames[0].index].opname in ("SEND", "YIELD_VALUE")


def build_suspension(frame: FrameSnapshot, e: Emitter, continuations: Continuations) -> None:
    """Emit the end of a piece: return what the driver needs to wait and to go on."""
    from jitshape.frontend.breaks import (
        handled_exceptions,
        home_of,
        kind_of,
        original_frame,
    )
    from jitshape.frontend.instructions import slot_names

    frame = original_frame(frame)
    code, index = frame.code, frame.index
    delegates = decode(code).instructions[index].opname == "SEND"
    operands = 2 if delegates else 1
    stack, waited = frame.stack[:-operands], frame.stack[-operands]
    slots = {n: v for n, v in zip(slot_names(code), frame.slots) if v is not None}
    kinds, bound = tuple(map(kind_of, stack)), tuple(slots)
    waiting = Position(code, index, (*kinds, *[VALUE] * operands), bound)
    after = Position(code, behind(code, index), (*kinds, VALUE), bound)
    given = [slots[n] for n in after.locals] + [stack[d] for d in after.live[:-1]]
    known, home = weakref.ref(continuations), home_of(frame)
    way = Way(
        WithRoom(Going(known, after, home)),
        Raising(known, waiting, home),
        len(given),
        operands,
        delegates,
    )
    e.line(frame.line)
    arguments = [*given, *handled_exceptions(frame, stack)]
    e.begin_call()
    e.const(Suspended)
    e.const(way)
    if delegates and isinstance(waited, GeneratorValue) and not waited.started:
        push_driven(e, waited, continuations)
    else:
        e.value(waited)
    for value in arguments:
        e.value(value)
    e.end_call(2 + len(arguments))
    e.op("RETURN_VALUE")


def behind(code: CodeType, index: int) -> int:
    """Where the function goes on with what was sent, or with what it waited for."""
    instruction = decode(code).instructions[index]
    if instruction.opname == "YIELD_VALUE":
        return index + 1
    assert instruction.target is not None
    return instruction.target + (VERSION >= (3, 12))  # what it waited for is gone: no END_SEND


def push_driven(e: Emitter, generator: GeneratorValue, continuations: Continuations) -> None:
    """Push a generator that was not started, as a compiled function gives it."""
    from jitshape.frontend.breaks import home_of, name_generator
    from jitshape.frontend.instructions import slot_names

    assert generator.frame is not None
    frame = generator.frame.snapshot(None)
    slots = {n: v for n, v in zip(slot_names(frame.code), frame.slots) if v is not None}
    body = whole_body(frame.code)
    if generator.leaves or set(body.bound) != set(slots) or is_of_event_loop(generator):
        e.value(generator)
        return
    generator.leaves = True
    e.begin_call()
    e.const(driver(frame.code))
    e.const(None)
    e.const(WithRoom(Going(weakref.ref(continuations), body, home_of(frame))))
    for name in body.locals:
        e.value(slots[name])
    e.end_call(2 + len(body.locals))
    e.bind(generator)
    name_generator(e, generator)


def push_done(e: Emitter, value: Value) -> None:
    """Push what a piece returns at the end of its function."""
    e.call(Done, lambda: e.value(value))
