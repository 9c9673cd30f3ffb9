"""Bridges: functions that run one instruction in the middle of a function, and hand over.

In: a Position, and what makes the function that goes on at each way out.  Out: `bridge_code`, a
function that starts at the position, runs the instruction there natively (or calls its parameter
`thunk` in its place, which runs the frame inside) and returns a TailCall of what goes on.
Ways out: behind the instruction, where it jumps to, a handler of the function that catches what
it raises, and, where `thunk` returns a TailCall itself, the call that it stands for.
The whole original body stands in it: what no handler of the user's catches passes through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from bytecode import CellVar, Instr, Label, TryBegin, TryEnd

from jitshape.frontend._evalframe import TailCall
from jitshape.frontend.instructions import slot_names
from jitshape.frontend.positions import (
    ALWAYS_JUMPS,
    ENDS,
    NULL,
    SAVED,
    VALUE,
    VERSION,
    Position,
    State,
    apply_effect,
    handler_behind,
    unit_end,
)
from jitshape.frontend.resume import Builder

JUMP_IF_TRUE = "POP_JUMP_FORWARD_IF_TRUE" if VERSION == (3, 11) else "POP_JUMP_IF_TRUE"


@dataclass(frozen=True)
class Ways:
    """What goes on: `after` gives a callable for the parameters of a position, `within` one for
    those of the position of a call and the TailCall that its callee returned, which returns the
    TailCall that stands for both.  None: the callee does not return TailCalls."""

    after: Callable[[Position], Any]
    within: Callable[[Position], Any] | None = None


@dataclass
class Exit:
    """A way out of the bridged instruction.  kind: "after", "raised", "within"."""

    label: Label
    position: Position
    kind: str = "after"


def split_method_load(instr: Instr) -> list[Instr]:
    """Loads that push either (function, self) or (NULL, attribute), made to push the latter."""
    arg, location = instr.arg, instr.location
    if instr.name == "LOAD_METHOD":
        load = Instr("LOAD_ATTR", arg, location=location)
    elif instr.name in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and isinstance(arg, tuple) and arg[0]:
        load = Instr(instr.name, (False, *arg[1:]), location=location)
    else:
        return [instr]
    rest = [Instr("PUSH_NULL", location=location)]
    if VERSION < (3, 13):
        rest.append(Instr("SWAP", 2, location=location))
    return [load, *rest]


class Bridge(Builder):
    def __init__(self, position: Position, ways: Ways) -> None:
        """`position.index` is where the unit starts."""
        self.end = unit_end(position.code, position.index)
        super().__init__(position)
        self.ways = ways
        self.exits: list[Exit] = []

    def exit(self, index: int, state: State, kind: str = "after") -> Label:
        names = slot_names(self.position.code)
        bound = tuple(name for name in dict.fromkeys(names) if name in state.bound)
        after = Position(self.position.code, index, tuple(state.stack), bound)
        self.exits.append(Exit(Label(), after, kind))
        return self.exits[-1].label

    def state(self) -> State:
        return State(list(self.position.stack), set(self.position.bound))

    def native(self) -> list[Any]:
        """The unit with its ways out redirected."""
        unit = self.body.unit(self.end)
        *prepare, last = unit
        parts = [*prepare, *split_method_load(last)]
        if last.name in ENDS:
            return list(map(self.renamed, parts))
        out = list(map(self.renamed, parts[: len(prepare)]))
        if last.has_jump():
            state = self.state()
            apply_effect(state, unit, True)
            label = self.exit(self.body.target(self.end), state)
            if last.name in ALWAYS_JUMPS:
                return [*out, Instr("JUMP_FORWARD", label, location=last.location)]
            name = last.name.replace("BACKWARD", "FORWARD")  # exits stand behind the body
            out.append(Instr(name, label, location=last.location))
        else:
            out.extend(map(self.renamed, parts[len(prepare) :]))
        state = self.state()
        for part in parts[len(prepare) :]:
            apply_effect(state, [*prepare, part], False)
        label = self.exit(self.end + 1, state)
        return [*out, Instr("JUMP_FORWARD", label, location=last.location)]

    def thunk(self) -> list[Any]:
        """A call of the thunk in place of the unit, whose operands are not on the stack."""
        outer, self.out = self.out, []
        self.push_callable(lambda: self.op("LOAD_FAST", "thunk"))
        self.clear(["thunk"])
        self.call(0)
        if self.ways.within is not None:
            self.op("STORE_FAST", "thunk")
            self.push_callable(lambda: self.push_constant(type))
            self.op("LOAD_FAST", "thunk")
            self.call(1)
            self.push_constant(TailCall)
            self.op("IS_OP", 0)
            self.op(JUMP_IF_TRUE, self.exit(self.position.index, self.state(), "within"))
            self.op("LOAD_FAST", "thunk")
            self.clear(["thunk"])
        state = self.state()
        state.stack.append(VALUE)
        self.op("JUMP_FORWARD", self.exit(self.end + 1, state))
        out, self.out = self.out, outer
        return out

    # ---- exceptions of the unit

    def catching(self, inserted: list[Any]) -> list[Any]:
        """`inserted`, whose exceptions go to a way out if a handler of the user's waits for
        them, instead of to that handler."""
        row = handler_behind(self.position.code, self.end)
        if row is None:
            return inserted
        outer = self.open_try(self.position.index)
        assert outer is not None
        state = self.state()
        del state.stack[row.depth :]
        state.stack.extend([self.end, SAVED, VALUE] if row.lasti else [SAVED, VALUE])
        label = self.exit(row.target + 1, state, "raised")
        inside = TryBegin(label, row.lasti, row.depth)
        return [TryEnd(outer), inside, *inserted, TryEnd(inside), self.reopened(outer)]

    def open_try(self, index: int) -> TryBegin | None:
        """The innermost `try` of the body around the instruction at `index`."""
        found = None
        for item in self.body.items[: self.body.at[index]]:
            if isinstance(item, TryBegin):
                found = item
            elif isinstance(item, TryEnd):
                found = None
        return found

    def reopened(self, outer: TryBegin) -> TryBegin:
        """`outer` once more, up to where it ended before."""
        again = TryBegin(outer.target, outer.push_lasti, outer.stack_depth)
        items = self.body.items
        for place, item in enumerate(items):
            if isinstance(item, TryEnd) and item.entry is outer:
                items[place] = TryEnd(again)
        return again

    # ---- leaving

    def epilogue(self, way: Exit) -> None:
        """Take the frame apart and return what goes on for it."""
        position, source = way.position, self.body.instruction(self.end)
        self.out.append(way.label)
        if way.kind == "raised":
            self.op("PUSH_EXC_INFO")
        elif source.name == "FOR_ITER" and position.index != self.end + 1 and VERSION >= (3, 12):
            self.op("END_FOR")  # skipped by the interpreter
            if VERSION >= (3, 13):  # so is this, and the iterator is gone, which a POP_TOP awaits
                self.op("POP_TOP")
                self.op("LOAD_CONST", None)
        for depth in reversed(range(len(position.stack))):
            self.op("STORE_FAST", f"stack.{depth}")
        self.take_handled(position)
        extra = ["thunk"] if way.kind == "within" else []
        if extra:
            self.push_callable(lambda: self.push_constant(self.ways.within(position)))
        else:
            self.push_callable(lambda: self.push_constant(TailCall))
            self.push_constant(self.ways.after(position))
        for name in (*position.parameters, *extra):
            self.push_slot(name)
        temporaries = [f"stack.{i}" for i, kind in enumerate(position.stack) if kind != NULL]
        bound = (n for n in position.locals if n not in self.cells)
        self.clear([*temporaries, *bound, *extra])
        self.call(len(position.parameters) + 1)
        self.op("RETURN_VALUE")
        self.stack_room = max(self.stack_room, len(position.parameters) + 8)

    def take_handled(self, position: Position) -> None:
        """Keep the handled exceptions in locals and leave their handlers.  The innermost is the
        thread's; each of the others was saved when the next one was caught."""
        saved = [i for i, kind in enumerate(position.stack) if kind == SAVED]
        if not saved:
            return
        self.push_callable(lambda: self.push_constant(sys.exception))
        self.call(0)
        self.op("STORE_FAST", f"handled.{len(saved) - 1}")
        for outer, depth in enumerate(saved[1:]):
            self.op("LOAD_FAST", f"stack.{depth}")
            self.op("STORE_FAST", f"handled.{outer}")
        for depth in reversed(saved):
            self.op("LOAD_FAST", f"stack.{depth}")
            self.op("POP_EXCEPT")

    def push_slot(self, name: str) -> None:
        """Push what a slot holds: of a cell variable the cell."""
        if name in self.cells and VERSION < (3, 13):
            self.op("LOAD_CLOSURE", CellVar(name))
        else:
            self.op("LOAD_FAST", self.fast(name))


def bridge_code(position: Position, ways: Ways, thunk: bool = False) -> CodeType:
    """A function that starts at `position`, runs the instruction there (or calls its parameter
    `thunk` in its place) and returns what goes on from where that leads."""
    bridge = Bridge(position, ways)
    if thunk:
        bridge.parameters.append("thunk")
    entry, over = Label(), Label()
    bridge.prologue(entry)
    inserted = bridge.catching(bridge.thunk() if thunk else bridge.native())
    skip = Instr("JUMP_FORWARD", over, location=bridge.location)
    bridge.append_body({position.index: [skip, entry, *inserted, over]})
    bridge.location = bridge.body.instruction(bridge.end).location or bridge.location
    for way in bridge.exits:
        bridge.epilogue(way)
    return bridge.assemble()
