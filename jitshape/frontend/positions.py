"""Places in the middle of a function, and what one instruction makes of them.

In: a Position: code, instruction, what lies on the operand stack, which local slots are bound.
Out: the names of the parameters of a function that starts there, and (`apply_effect`) stack and
slots after an instruction.
Parameters: the bound slots in slot order (so that `super()` finds `self` first; a cell is passed
as the cell), then the stack, then the exceptions being handled, outermost first.
"""

from __future__ import annotations

import dis
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import Instr

from jitshape.frontend.instructions import Handler, decode, slot_names

VERSION = sys.version_info[:2]
ASYNC_GENERATOR = 0x200
SUSPENDS = 0x20 | 0x80 | 0x100 | ASYNC_GENERATOR  # generator, coroutine, iterable coroutine
KEPT_FREE = "__class__"  # zero-argument super() looks for a free variable of this name

# Kinds of stack entries.  An int stands for the `lasti` of that instruction.
VALUE, NULL, SAVED = "value", "null", "saved exception"
Kind = str | int
TEMPORARIES = ("stack.", "handled.")  # what names of parameters that are no variables start with


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
    def line(self) -> int:
        return decode(self.code).lines[self.index] or self.code.co_firstlineno

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
    def temporaries(self) -> list[str]:
        """The parameters that are no variables of the function."""
        handled = [f"handled.{i}" for i in range(self.handled)]
        return [*(f"stack.{i}" for i in self.live), *handled]

    @property
    def parameters(self) -> list[str]:
        return [*self.locals, *self.temporaries]

    def is_kept_free(self, name: str) -> bool:
        return name == KEPT_FREE and name in self.code.co_freevars


@dataclass(frozen=True, eq=False)
class Origin:
    """What a resume function is a piece of: `indices` gives for an instruction of it the index
    in `code`, but for those of the prologue.  Where it starts by resuming the function that it
    called, `call` is the index of that call, which stands for the one at `position`, and `inner`
    the code of the resume function called; `names`: its parameters, by what they are here."""

    position: Position
    indices: dict[int, int]
    call: int | None = None
    inner: CodeType | None = None
    names: dict[str, str] = field(default_factory=dict)

    @property
    def code(self) -> CodeType:
        return self.position.code

    def index(self, index: int) -> int | None:
        return self.indices.get(index)

    def from_inside(self, text: str) -> Iterator[str]:
        """The text of a source that starts at a parameter of `inner`, as it is here."""
        for here, inside in self.names.items():
            if text == inside or text.startswith((f"{inside}.", f"{inside}[")):
                yield here + text[len(inside) :]


_origins: dict[int, tuple[weakref.ref[CodeType], Origin]] = {}


def note_origin(code: CodeType, origin: Origin) -> None:
    key = id(code)
    _origins[key] = weakref.ref(code, lambda _: _origins.pop(key, None)), origin


def origin_of(code: CodeType) -> Origin | None:
    """Set for the code of resume functions; by identity, as frontend/instructions.decode."""
    found = _origins.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def unsupported(code: CodeType) -> str | None:
    """Why no function of this code can be resumed."""
    if code.co_flags & ASYNC_GENERATOR:
        return "asynchronous generators cannot be resumed"
    return None


def is_piece(code: CodeType) -> bool:
    """Whether this is a piece of a function that suspends (frontend/suspension.py)."""
    return bool(code.co_flags & SUSPENDS) and origin_of(code) is not None


def whole_body(code: CodeType) -> Position:
    """The start of a function, once its cells are made."""
    index = next(i.index for i in decode(code).instructions if i.opname == "RESUME")
    cells = {*code.co_cellvars, *code.co_freevars}
    given = code.co_varnames[: count_arguments(code)]
    bound = tuple(name for name in slot_names(code) if name in cells or name in given)
    return Position(code, index, (), bound)


def count_arguments(code: CodeType) -> int:
    """How many of the local variables are arguments."""
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + more


def body_arguments(body: Position, function: FunctionType, slots: Sequence[Any]) -> tuple[Any, ...]:
    """The argument slots of a call of `function` as a function of its `whole_body` takes them:
    variables of cells as cells."""
    code = body.code
    values: dict[str, Any] = dict(zip(code.co_varnames, slots))
    for name in code.co_cellvars:
        values[name] = CellType(values[name]) if name in values else CellType()
    values.update(zip(code.co_freevars, function.__closure__ or ()))
    return tuple(values[name] for name in body.locals)


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


def handler_behind(code: CodeType, index: int) -> Handler | None:
    """The handler in the function of an exception at `index`, where it is one of the user's:
    others only clean up and pass it on."""
    program = decode(code)
    row = program.handlers[index]
    if row is None or program.instructions[row.target].opname != "PUSH_EXC_INFO":
        return None
    return row


def unit_end(code: CodeType, index: int) -> int:
    """Index of the instruction that `index` prepares or is."""
    starts = decode(code).starts[: index + 3]  # at most KW_NAMES, PRECALL, CALL
    return max(i for i in range(index, len(starts)) if starts[i] <= index)
