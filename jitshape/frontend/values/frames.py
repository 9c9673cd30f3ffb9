"""Frames as objects: what `sys._getframe()` gives, and what tracebacks stand on.

In: frames of the machine.  Out: one FrameValue each, which tells code, line, globals and caller.
Invariant: a frame that leaves is a stand-in, for the frame itself existed in the machine only.
One that has ended looks like the interpreter's: its line, its variables and what they hold.  One
that the program asked for has to exist from the start: where it leaves, `sys._getframe` is called
natively.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from types import CellType, CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from bytecode import Bytecode, Instr
from bytecode.instr import InstrLocation

from jitshape.frontend.emit import CALL_PREFIX, Constant, place_constants
from jitshape.frontend.instructions import decode, slot_names
from jitshape.frontend.positions import origin_of
from jitshape.frontend.values.base import CLOCK, Cell, Value
from jitshape.frontend.values.classes import GETTERS
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.unobserved import observed

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.frame import Frame
    from jitshape.frontend.machine import Machine


class FrameValue(Value):
    """A frame of the machine.  `asked`: the program has it from `sys._getframe`."""

    asked = False

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def __repr__(self) -> str:
        return f"FrameValue({self.code().co_qualname})"

    def python_type(self) -> type:
        return FrameType

    def truth(self, m: Machine) -> bool:
        return True

    def hash_key(self, m: Machine) -> Any:
        return self

    def code(self) -> CodeType:
        """The user's: of a piece of a function that of the function."""
        code = self.frame.callee.code
        origin = origin_of(code)
        return code if origin is None else origin.code

    def line(self) -> int | None:
        return self.frame.program.lines[self.frame.standing()]

    def held(self) -> dict[str, Value]:
        """What the variables of a frame that has ended hold: values, cells of closures."""
        if not self.frame.ended:
            return {}
        names = slot_names(self.frame.callee.code)
        return {n: observed(v) for n, v in zip(names, self.frame.slots) if isinstance(v, Value)}

    def children(self) -> Iterable[Value]:
        return self.held().values()

    def reconstruct(self, e: Emitter) -> None:
        if self.asked:
            self.cannot_leave("a frame of the machine cannot leave the compiled code")
        code, held = self.code(), self.held()
        values = [_plain(held.get(name)) for name in code.co_varnames]
        values = [v if v is None or _may_be_pushed(e, v, self) else None for v in values]
        unbound = [name for name, v in zip(code.co_varnames, values) if v is None]
        e.begin_call()
        e.const(stand_in)
        e.const(stand_in_code(code, self.frame.raised_at, self.frame.standing(), unbound, self))
        e.const(self.frame.callee.globals)
        cells = [held.get(name) for name in free_names(code)]
        for cell in cells:
            e.value(cell if isinstance(cell, Cell) else Cell())
        e.build("tuple", len(cells))
        for value in values:
            if value is None:
                e.const(None)
            else:
                e.value(value)
        e.end_call(3 + len(values))

    def place(self, index: int) -> int:
        """What `tb_lasti` is in the stand-in for an exception raised at this instruction."""
        return 2 * (bool(free_names(self.code())) + 1 + self.frame.raised_at.index(index))


def frame_value(frame: Frame) -> FrameValue:
    """The one Value of a frame, as long as anything has it."""
    found = None if frame.value is None else frame.value()
    if found is None:
        found = FrameValue(frame)
        frame.value = weakref.ref(found)
    return found


def _plain(value: Value | None) -> Value | None:
    """What a variable that is an argument of a function holds, which may be in a cell."""
    return value.content if isinstance(value, Cell) else value


def _may_be_pushed(e: Emitter, value: Value, frame: Value) -> bool:
    """Not what refers to the frame itself and is not made yet, as a traceback kept in one of its
    own frames."""
    if e.knows(value):
        return True
    seen, stack = {id(value)}, [value]
    while stack:
        found = stack.pop()
        if found is frame:
            return False
        parts = [getattr(found, n, None) for n in ("traceback", "context", "cause")]
        for part in (*found.children(), *(p for p in parts if isinstance(p, Value))):
            if id(part) not in seen and not e.knows(part):
                seen.add(id(part))
                stack.append(part)
    return True


# ---- stand-ins


def stand_in(code: CodeType, globals: dict[str, Any], cells: tuple[CellType, ...], *values: Any):
    """Called by compiled code: a finished frame with these variables."""
    return FunctionType(code, globals, code.co_name, None, cells or None)(*values)


def free_names(code: CodeType) -> tuple[str, ...]:
    """The variables that the stand-in has as free ones."""
    return (*(n for n in code.co_cellvars if n not in code.co_varnames), *code.co_freevars)


def stand_in_code(
    code: CodeType, raised_at: Sequence[int], stands: int, unbound: Sequence[str], value: FrameValue
) -> CodeType:
    """Code whose call gives its own frame, which looks like one of `code`: first an instruction
    for each that exceptions were raised at, then the place where it stands."""
    own = value.frame.callee.code
    location = location_of(own, stands)
    free = free_names(code)
    body = [
        *(Instr("COPY_FREE_VARS", len(free), location=location) for _ in free[:1]),
        Instr("RESUME", 0, location=location),
        *(Instr("NOP", location=location_of(own, index)) for index in raised_at),
        *(Instr("DELETE_FAST", name, location=location) for name in unbound),
        *(Instr("PUSH_NULL", location=location) for _ in range(sys.version_info < (3, 13))),
        Instr("LOAD_CONST", Constant(sys._getframe), location=location),
        *(Instr("PUSH_NULL", location=location) for _ in range(sys.version_info >= (3, 13))),
        *(Instr(name, 0, location=location) for name in (*CALL_PREFIX, "CALL")),
        Instr("RETURN_VALUE", location=location),
    ]
    made = Bytecode(body)
    made.name, made.qualname, made.filename = code.co_name, code.co_qualname, code.co_filename
    made.first_lineno, made.flags = code.co_firstlineno, inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
    made.argnames, made.argcount = list(code.co_varnames), len(code.co_varnames)
    made.freevars = list(free)
    return place_constants(made.to_code())


def location_of(code: CodeType, index: int) -> InstrLocation:
    place = decode(code).instructions[index].offset // 2
    return InstrLocation(*next(islice(code.co_positions(), place, None)))


# ---- what programs ask of frames


def frame_above(m: Machine, depth: int) -> Value:
    """`sys._getframe(depth)`."""
    frame = m.frame
    for _ in range(depth):
        frame = None if frame is None else frame.back
    if frame is None or frame.generator is not None:
        m.stop("frame", "a frame outside of the compiled code is asked for")
    value = frame_value(frame)
    if not value.asked:
        value.asked, value.made_at = True, CLOCK.step()
    return value


def variables(m: Machine, frame: Frame) -> Value:
    """Up to 3.12 one dict a frame, brought up to date by each call; later a new one each time."""
    if frame.locals is None or sys.version_info >= (3, 13):
        frame.locals = DictValue()
    origin = origin_of(frame.callee.code)
    names = slot_names(origin.code if origin is not None else frame.callee.code)
    slots = dict(zip(frame.program.slot_names, frame.slots))
    for name in names:
        value = observed(slots.get(name))
        if isinstance(value, Cell):
            value = m.load_cell(value)
        if value is not None:
            frame.locals.set_named(m, name, value)
        else:
            frame.locals.delete_named(m, name)
    return frame.locals


def _locals(m: Machine, value: FrameValue) -> Value:
    if sys.version_info >= (3, 13):
        m.stop("frame", "what f_locals gives writes to the variables")
    return variables(m, value.frame)


def _code(m: Machine, value: FrameValue) -> Value:
    return m.wrap(value.code(), None)


def _line(m: Machine, value: FrameValue) -> Value:
    m.bound_by = "where code stands"
    return m.const(value.line())


def _globals(m: Machine, value: FrameValue) -> Value:
    return m.namespace(value.frame.scope)


def _back(m: Machine, value: FrameValue) -> Value:
    back = value.frame.back
    if back is None or value.frame.ended or value.frame.generator is not None:
        m.stop("frame", "a frame outside of the compiled code is asked for")
    found = frame_value(back)
    if not found.asked:
        found.asked, found.made_at = True, value.made_at
    return found


def _of_machine(read: Callable[[Any, FrameValue], Value]) -> Callable[[Any, Value], Value]:
    """The getter of frames of the machine; what others hold changes as they run."""

    def getter(m: Machine, value: Value) -> Value:
        if not isinstance(value, FrameValue):
            m.stop("frame", "a frame outside of the compiled code is looked at")
        return read(m, value)

    return getter


for _name, _read in (
    ("f_code", _code),
    ("f_lineno", _line),
    ("f_globals", _globals),
    ("f_back", _back),
    ("f_locals", _locals),
):
    GETTERS[FrameType.__dict__[_name]] = _of_machine(_read)
