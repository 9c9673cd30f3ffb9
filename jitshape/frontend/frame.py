"""Frames: the state of one call inside the machine, and what is left of it at a break.

In: a Callee (what a function value knows of itself) and its bound argument slots.  Out: after a
break, FrameSnapshots, outermost first, from which frontend/breaks.py rebuilds real frames.
Invariant: while an instruction runs, the operand stack still holds its operands; it changes only
when the instruction succeeds.  So every instruction can be left and resumed before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

from jitshape.frontend.instructions import Program, decode
from jitshape.frontend.values.base import Cell, Value


class Null:
    """The NULL that calls and comprehensions keep on the operand stack.  One instance: NULL."""

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()


@dataclass(frozen=True)
class SavedException:
    """Stack entry made by PUSH_EXC_INFO: the exception that was being handled before."""

    exception: Value | None


@dataclass(frozen=True)
class Lasti:
    """Stack entry of an exception table row with `lasti`: the instruction that raised."""

    index: int


class LastiNumber(int):
    """Pushed by the prologue of a resume function in place of a Lasti: what the interpreter
    takes as one.  `index` is that instruction's."""

    index: int


StackEntry = Value | Null | SavedException | Lasti


@dataclass(frozen=True)
class Callee:
    """What is needed to run a Python function: its parts as of now, guarded by the function
    value that gives it.  `function` is that value itself, None for the outermost frame."""

    code: CodeType
    globals: dict[str, Any]
    qualname: str
    defaults: tuple[Value, ...] = ()
    kwdefaults: dict[str, Value] | None = None
    closure: tuple[Cell, ...] = ()
    function: Value | None = None


@dataclass(frozen=True)
class FrameSnapshot:
    """A frame that stopped before an instruction.

    The innermost snapshot stopped before the instruction that cannot be captured.  In every
    other one the instruction is a call, and its result will be what the next inner frame
    returns; its operands (callable and arguments) are still on the stack.

    code, globals, function, closure: as in Callee.
    index: the instruction, an index into `decode(code).instructions`, which are those of
        `dis.get_instructions(code)` without CACHE and EXTENDED_ARG.
    start: where to resume so that `index` runs again: earlier than `index` where instructions
        that only prepare it precede it (KW_NAMES, PRECALL).
    stack: operand stack, bottom first: Value, NULL, SavedException or Lasti.
    slots: by local index as the interpreter lays them out (names: `code.co_varnames`, then cell
        variables that are no arguments, then free variables; see `decode(code).slot_names`):
        Value, Cell (from MAKE_CELL or COPY_FREE_VARS on), or None if unbound.
    handled: the exception being handled in this frame (sys.exc_info() inside an except block),
        None outside; the ones below it are the SavedException entries of the stack.
    """

    code: CodeType
    globals: dict[str, Any]
    function: Value | None
    closure: tuple[Cell, ...]
    index: int
    start: int
    stack: tuple[StackEntry, ...]
    slots: tuple[Value | Cell | None, ...]
    handled: Value | None
    line: int


class Frame:
    """The mutable state of one call.  `slots` are locals, cells and free variables in the
    interpreter's order; `index` is the instruction being executed."""

    __slots__ = (
        "back",
        "callee",
        "calling",
        "ended",
        "generator",
        "index",
        "locals",
        "program",
        "raised_at",
        "result",
        "resumable",
        "rounds",
        "scope",
        "slots",
        "stack",
        "step",
        "value",
    )

    def __init__(
        self, callee: Callee, slots: list[Any], scope: Any, back: Frame | None, resumable: bool
    ) -> None:
        self.program: Program = decode(callee.code)
        self.callee, self.slots, self.scope, self.back = callee, slots, scope, back
        self.resumable = resumable  # its return value is what the caller's instruction pushes
        self.stack: list[Any] = []
        self.index = 0
        self.result: Value | None = None
        self.calling: Value | None = None  # the callable of a call instruction, see forward
        self.step = 0  # number of the instruction that runs while an inner frame does
        self.generator: Any = None
        self.locals: Any = None  # the dict that `locals()` gave
        self.ended = False  # it returned, or an exception left it
        self.raised_at: list[int] = []  # the instructions that exceptions were raised at
        self.value: Any = None  # weakly, the frame as an object of the program
        self.rounds: dict[int, int] = {}  # of loops, by the index they jump back to

    def standing(self) -> int:
        """The instruction whose line the frame shows: an exception that is raised once more at
        the end of a handler stands where it was raised."""
        instruction = self.program.instructions[self.index]
        if instruction.opname == "RERAISE" and instruction.arg:
            entry = self.stack[-1 - instruction.arg]
            return entry.index if isinstance(entry, Lasti) else self.index
        return self.index

    def snapshot(self, handled: Value | None) -> FrameSnapshot:
        """What is left at a break: `handled` is the exception being handled in this frame."""
        program = self.program
        return FrameSnapshot(
            code=self.callee.code,
            globals=self.callee.globals,
            function=self.callee.function,
            closure=self.callee.closure,
            index=self.index,
            start=program.starts[self.index],
            stack=tuple(self.stack),
            slots=tuple(self.slots),
            handled=handled,
            line=program.lines[self.index] or self.callee.code.co_firstlineno,
        )
