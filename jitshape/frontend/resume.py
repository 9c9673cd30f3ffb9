"""Code that goes on in the middle of a function.

In: a Position: code, instruction, what lies on the operand stack, which local slots are bound.
Out: `resume_code`, a function body that starts there, and `bridge_code`, one that starts there,
runs a single instruction natively (or calls a thunk in its place) and hands over to a callable
per way out of it.  The whole original body stands in both, so that handlers, loops and line
numbers are the function's own; a bridge whose instruction raises stays in it.
Parameters: the bound slots in slot order (so that `super()` finds `self` first; a cell is passed
as the cell), then the stack, then the exceptions being handled, outermost first, then the thunk.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label
from bytecode.instr import InstrLocation

from jitshape.frontend._evalframe import TailCall
from jitshape.frontend.emit import Constant, place_constants
from jitshape.frontend.frame import LastiNumber
from jitshape.frontend.instructions import decode, slot_names

VERSION = sys.version_info[:2]
SUSPENDING = 0x20 | 0x80 | 0x200  # generator, coroutine, asynchronous generator
KEPT_FREE = "__class__"  # zero-argument super() looks for a free variable of this name

# Kinds of stack entries.  An int stands for the `lasti` of that instruction.
VALUE, NULL, SAVED = "value", "null", "saved exception"
Kind = str | int


@dataclass(frozen=True)
class Position:
    """`index` counts instructions as frontend/instructions.py does; `bound` are slot names in
    slot order; `stack` bottom first."""

    code: CodeType
    index: int
    stack: tuple[Kind, ...] = ()
    bound: tuple[str, ...] = ()

    @property
    def key(self) -> tuple:
        """Identifies the position; code objects by identity."""
        return id(self.code), self.index, self.stack, self.bound

    @property
    def locals(self) -> tuple[str, ...]:
        """The bound slots that are parameters."""
        return tuple(name for name in self.bound if not self.is_kept_free(name))

    @property
    def live(self) -> tuple[int, ...]:
        """Depths of the stack entries that are parameters."""
        return tuple(i for i, kind in enumerate(self.stack) if kind == VALUE)

    @property
    def handled(self) -> int:
        """How many exceptions are being handled."""
        return self.stack.count(SAVED)

    @property
    def parameters(self) -> list[str]:
        handled = [f"handled.{i}" for i in range(self.handled)]
        return [*self.locals, *(f"stack.{i}" for i in self.live), *handled]

    def is_kept_free(self, name: str) -> bool:
        return name == KEPT_FREE and name in self.code.co_freevars


@dataclass(frozen=True, eq=False)
class Origin:
    """What a resume function is a piece of: `indices` gives for an instruction of it the index
    in `code`, but for those of the prologue."""

    code: CodeType
    indices: dict[int, int]

    def index(self, index: int) -> int | None:
        return self.indices.get(index)


_origins: dict[int, tuple[weakref.ref[CodeType], Origin]] = {}


def origin_of(code: CodeType) -> Origin | None:
    """Set for the code of resume functions; by identity, as frontend/instructions.decode."""
    found = _origins.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def unsupported(code: CodeType) -> str | None:
    """Why no function of this code can be resumed."""
    return "generators cannot be resumed" if code.co_flags & SUSPENDING else None


# ---- what an instruction does to the stack and the slots

ONLY_POPS = frozenset(
    "POP_TOP STORE_FAST STORE_GLOBAL STORE_NAME STORE_DEREF STORE_ATTR STORE_SUBSCR STORE_SLICE "
    "DELETE_SUBSCR DELETE_ATTR LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE "
    "DICT_MERGE POP_EXCEPT END_FOR PRINT_EXPR STORE_FAST_STORE_FAST".split()
)
TOUCHES_NO_STACK = frozenset(
    "NOP RESUME COPY_FREE_VARS MAKE_CELL DELETE_FAST DELETE_DEREF DELETE_GLOBAL DELETE_NAME "
    "SETUP_ANNOTATIONS KW_NAMES PRECALL JUMP_FORWARD JUMP_BACKWARD".split()
)
ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RAISE_VARARGS"))
ALWAYS_JUMPS = frozenset(
    ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE")
)


PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}


@dataclass
class State:
    """Stack kinds and bound slots while one instruction is followed."""

    stack: list[Kind]
    bound: set[str] = field(default_factory=set)

    def store(self, name: str) -> None:
        (self.bound.discard if self.stack.pop() == NULL else self.bound.add)(name)

    def load(self, name: str) -> None:
        self.stack.append(VALUE)


def variable(arg: Any) -> str:
    return arg if isinstance(arg, str) else arg.name


def swap(s: State, arg: Any) -> None:
    s.stack[-1], s.stack[-arg] = s.stack[-arg], s.stack[-1]


def load_and_clear(s: State, arg: Any) -> None:
    name = variable(arg)
    s.stack.append(VALUE if name in s.bound else NULL)
    s.bound.discard(name)


def store_store(s: State, arg: Any) -> None:
    s.store(variable(arg[0])), s.store(variable(arg[1]))


def store_load(s: State, arg: Any) -> None:
    s.store(variable(arg[0])), s.load(variable(arg[1]))


def load_global(s: State, arg: Any) -> None:
    null = isinstance(arg, tuple) and arg[0]
    pushed = [NULL, VALUE] if VERSION < (3, 13) else [VALUE, NULL]
    s.stack.extend(pushed if null else [VALUE])


def push_exception(s: State, arg: Any) -> None:
    s.stack[-1:] = [SAVED, VALUE]


SPECIAL: dict[str, Callable[[State, Any], None]] = {
    "SWAP": swap,
    "COPY": lambda s, arg: s.stack.append(s.stack[-arg]),
    "PUSH_NULL": lambda s, arg: s.stack.append(NULL),
    "LOAD_GLOBAL": load_global,
    "LOAD_FAST_AND_CLEAR": load_and_clear,
    "PUSH_EXC_INFO": push_exception,
    "STORE_FAST": lambda s, arg: s.store(variable(arg)),
    "STORE_FAST_STORE_FAST": store_store,
    "STORE_FAST_LOAD_FAST": store_load,
    "DELETE_FAST": lambda s, arg: s.bound.discard(variable(arg)),
    "MAKE_CELL": lambda s, arg: s.bound.add(variable(arg)),
}


def apply_effect(s: State, unit: list[Instr], jump: bool) -> None:
    """Change `s` as the instructions of `unit` do, of which only the last one counts for what is
    on the stack (in 3.11 PRECALL is said to pop what in fact CALL pops)."""
    last = unit[-1]
    if last.name in SPECIAL:
        SPECIAL[last.name](s, last.arg)
        return
    if last.name == "FOR_ITER" and jump:  # 3.13 leaves the iterator to a POP_TOP
        if VERSION < (3, 13):
            s.stack.pop()
        return
    effect = sum(i.stack_effect(jump=jump if i is last else None) for i in unit)
    if effect < 0:
        del s.stack[effect:]
    else:
        s.stack.extend([VALUE] * effect)
    keeps = last.name in ONLY_POPS or last.name in TOUCHES_NO_STACK or last.has_jump()
    if effect <= 0 and s.stack and not keeps:
        s.stack[-1] = VALUE


def native_effect(code: CodeType, index: int) -> int:
    """By how much the instruction at `index`, a call with what prepares it, changes the depth."""
    unit = decode(code).instructions[decode(code).starts[index] : index + 1]
    return sum(
        dis.stack_effect(dis.opmap[i.opname], i.arg if has_argument(i.opname) else None, jump=False)
        for i in unit
    )


def has_argument(opname: str) -> bool:
    op = dis.opmap[opname]
    return op >= dis.HAVE_ARGUMENT if VERSION < (3, 12) else op in dis.hasarg


# ---- building code


class Body:
    """The code of a function taken apart; instructions keep their indices."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.items = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
        self.at = [i for i, x in enumerate(self.items) if isinstance(x, Instr)]
        if len(self.at) != len(decode(code).instructions):
            raise AssertionError("instructions are counted differently")

    def instruction(self, index: int) -> Instr:
        return self.items[self.at[index]]

    def unit(self, index: int) -> list[Instr]:
        """The instruction at `index` with what prepares it before it."""
        start = decode(self.code).starts[index]
        return [self.instruction(i) for i in range(start, index + 1)]

    def target(self, index: int) -> int:
        """Index of the instruction that a jump at `index` leads to."""
        target = decode(self.code).instructions[index].target
        assert target is not None
        if self.instruction(index).name == "FOR_ITER" and VERSION >= (3, 12):
            return target + 1  # the interpreter skips END_FOR
        return target


def unit_end(code: CodeType, index: int) -> int:
    """Index of the instruction that `index` prepares or is."""
    starts = decode(code).starts[: index + 3]  # at most KW_NAMES, PRECALL, CALL
    return max(i for i in range(index, len(starts)) if starts[i] <= index)


def split_pair(item: Any) -> list[Any]:
    """Instructions of two variables as two: `bytecode` miscompiles the 17th variable in them."""
    if not isinstance(item, Instr) or item.name not in PAIRS:
        return [item]
    return [
        Instr(name, arg, location=item.location) for name, arg in zip(PAIRS[item.name], item.arg)
    ]


class Builder:
    """Writes one function that starts at a position."""

    def __init__(self, position: Position, extra: tuple[str, ...] = ()) -> None:
        self.position, self.body = position, Body(position.code)
        self.parameters = [*position.parameters, *extra]
        code = position.code
        self.free = [name for name in code.co_freevars if name == KEPT_FREE]
        self.cells = [n for n in (*code.co_cellvars, *code.co_freevars) if n not in self.free]
        self.location = self.body.instruction(position.index).location or InstrLocation(
            code.co_firstlineno, None, None, None
        )
        self.out: list[Any] = []
        self.lasti: list[tuple[Constant, int]] = []
        self.placed: list[Instr] = []  # the original instructions, by index
        self.stack_room = len(position.stack) + len(self.parameters) + 8

    def op(self, name: str, *arg: Any) -> None:
        self.out.append(Instr(name, *arg, location=self.location))

    def call(self, nargs: int) -> None:
        if VERSION == (3, 11):
            self.op("PRECALL", nargs)
        self.op("CALL", nargs)

    def push_callable(self, push: Callable[[], None]) -> None:
        if VERSION < (3, 13):
            self.op("PUSH_NULL")
        push()
        if VERSION >= (3, 13):
            self.op("PUSH_NULL")

    def push_constant(self, object: Any) -> None:
        self.op("LOAD_CONST", Constant(object))

    def clear(self, names: list[str]) -> None:
        """Unbind parameters, so that `locals()` does not show them."""
        for name in names:
            self.op("DELETE_FAST", name)

    def prologue(self, target: Label) -> None:
        """Rebuild the operand stack and the handled exceptions, and jump."""
        if self.free:
            self.op("COPY_FREE_VARS", len(self.free))
        self.op("RESUME", 0)
        handled = 0
        for depth, kind in enumerate(self.position.stack):
            if kind == NULL:
                self.op("PUSH_NULL")
            elif kind == SAVED:
                self.op("LOAD_FAST", f"handled.{handled}")
                self.op("PUSH_EXC_INFO")
                self.op("POP_TOP")
                handled += 1
            elif kind == VALUE:
                self.op("LOAD_FAST", f"stack.{depth}")
            else:
                constant = Constant(0)
                self.lasti.append((constant, int(kind)))
                self.op("LOAD_CONST", constant)
        self.clear([p for p in self.parameters if p.startswith(("stack.", "handled."))])
        self.op("JUMP_FORWARD", target)

    def renamed(self, item: Any) -> Any:
        """An item of the body with variables named by their place here: all cells are cell
        variables, those among the parameters too."""
        if not isinstance(item, Instr):
            return item
        arg = item.arg
        if "FAST" in item.name:
            arg = tuple(map(self.fast, arg)) if isinstance(arg, tuple) else self.fast(arg)
        elif isinstance(arg, CellVar | FreeVar):
            arg = FreeVar(arg.name) if arg.name in self.free else CellVar(arg.name)
        return item if arg is item.arg else Instr(item.name, arg, location=item.location)

    def fast(self, arg: Any) -> Any:
        name = variable(arg)
        if VERSION < (3, 13) or name in self.parameters or name in self.position.code.co_varnames:
            return name
        if name not in (*self.cells, *self.free):
            return name
        return FreeVar(name) if name in self.free else CellVar(name)

    def assemble(self) -> CodeType:
        code = self.position.code
        self.out = [single for item in self.out for single in split_pair(item)]
        result = Bytecode(self.out)
        result.name, result.qualname, result.filename = (
            code.co_name,
            code.co_qualname,
            code.co_filename,
        )
        result.first_lineno, result.flags = code.co_firstlineno, code.co_flags & ~(4 | 8)
        result.argnames, result.argcount = self.parameters, len(self.parameters)
        result.cellvars, result.freevars = list(self.cells), list(self.free)
        built = result.to_code(
            stacksize=code.co_stacksize + self.stack_room, compute_exception_stack_depths=False
        )
        self.place_lasti(built)
        return place_constants(built)

    def place_lasti(self, built: CodeType) -> None:
        """Now that offsets are known, say where the re-raised exceptions were raised."""
        if self.lasti:
            real = [item for item in self.out if isinstance(item, Instr)]
            found = {id(x): i for x, i in zip(real, decode(built).instructions)}
            for constant, index in self.lasti:
                place = found[id(self.placed[index])]
                constant.object = LastiNumber(place.offset // 2)
                constant.object.index = place.index

    def places(self) -> dict[int, int]:
        """Index in the original code by index in the code to be built."""
        places = {id(item): i for i, item in enumerate(self.placed)}
        origins = [
            places.get(id(item))
            for item in self.out
            if isinstance(item, Instr)
            for _ in split_pair(item)
        ]
        return {i: place for i, place in enumerate(origins) if place is not None}

    def append_body(self, before: int, inserted: list[Any]) -> None:
        """The original instructions, with `inserted` before that at index `before`."""
        for i, item in enumerate(self.body.items):
            if i == self.body.at[before]:
                self.out.extend(inserted)
            self.out.append(self.renamed(item))
            if isinstance(item, Instr):
                self.placed.append(self.out[-1])


def resume_code(position: Position) -> CodeType:
    """A function that goes on at `position`."""
    builder = Builder(position)
    target = Label()
    builder.prologue(target)
    builder.append_body(position.index, [target])
    indices = builder.places()
    built = builder.assemble()
    key, origin = id(built), Origin(position.code, indices)
    _origins[key] = weakref.ref(built, lambda _: _origins.pop(key, None)), origin
    return built


# ---- bridges


@dataclass
class Exit:
    """A way out of the bridged instruction."""

    label: Label
    position: Position


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
    def __init__(self, position: Position, continuation: Callable[[Position], Any]) -> None:
        """`position.index` is where the unit starts; `continuation` gives what to call with the
        parameters of the position after it."""
        self.end = unit_end(position.code, position.index)
        super().__init__(position)
        self.continuation = continuation
        self.exits: list[Exit] = []

    def exit(self, index: int, state: State) -> Label:
        names = slot_names(self.position.code)
        bound = tuple(name for name in dict.fromkeys(names) if name in state.bound)
        after = Position(self.position.code, index, tuple(state.stack), bound)
        self.exits.append(Exit(Label(), after))
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
        state = self.state()
        state.stack.append(VALUE)
        self.op("JUMP_FORWARD", self.exit(self.end + 1, state))
        out, self.out = self.out, outer
        return out

    def epilogue(self, way: Exit) -> None:
        """Take the frame apart and return what the continuation returns for it."""
        position, source = way.position, self.body.instruction(self.end)
        self.out.append(way.label)
        if source.name == "FOR_ITER" and way.position.index != self.end + 1 and VERSION >= (3, 12):
            self.op("END_FOR")  # skipped by the interpreter
        for depth in reversed(range(len(position.stack))):
            self.op("STORE_FAST", f"stack.{depth}")
        self.take_handled(position)
        self.push_callable(lambda: self.push_constant(TailCall))
        self.push_constant(self.continuation(position))
        for name in position.parameters:
            self.push_slot(name)
        temporaries = [f"stack.{i}" for i, kind in enumerate(position.stack) if kind != NULL]
        self.clear([*temporaries, *(n for n in position.locals if n not in self.cells)])
        self.call(1 + len(position.parameters))
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


def bridge_code(
    position: Position, continuation: Callable[[Position], Any], thunk: bool = False
) -> CodeType:
    """A function that starts at `position`, runs the instruction there (or calls its parameter
    `thunk` in its place) and returns what `continuation` of the position reached returns."""
    bridge = Bridge(position, continuation)
    if thunk:
        bridge.parameters.append("thunk")
    entry, over = Label(), Label()
    bridge.prologue(entry)
    inserted = bridge.thunk() if thunk else bridge.native()
    skip = Instr("JUMP_FORWARD", over, location=bridge.location)
    bridge.append_body(position.index, [skip, entry, *inserted, over])
    bridge.location = bridge.body.instruction(bridge.end).location or bridge.location
    for way in bridge.exits:
        bridge.epilogue(way)
    return bridge.assemble()
