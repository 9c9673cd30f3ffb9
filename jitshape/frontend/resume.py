"""Functions that go on in the middle of a function.

In: a Position, and for a caller the resume function of what it called there.  Out: `resume_code`,
a function body that starts at the position; a caller first calls the other resume function, in
place of the call that it stands at, and hands on the parameters that are that one's.
`raising_code` raises an exception there instead.
The whole original body stands in it, so that handlers, loops and line numbers are its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from bytecode import Bytecode, CellVar, FreeVar, Instr, Label
from bytecode.instr import InstrLocation

from jitshape.frontend.emit import Constant, place_constants
from jitshape.frontend.frame import LastiNumber
from jitshape.frontend.instructions import decode
from jitshape.frontend.positions import (
    KEPT_FREE,
    NULL,
    PAIRS,
    SAVED,
    SUSPENDS,
    TEMPORARIES,
    VALUE,
    VERSION,
    Origin,
    Position,
    note_origin,
    unit_end,
    variable,
)

ERROR = "error.0"  # the parameter of a function that raises it


_apart: dict[int, tuple[weakref.ref[CodeType], list[Any]]] = {}


def taken_apart(code: CodeType) -> list[Any]:
    """The items of a code object, once per object: each piece of a function is made of them."""
    key = id(code)
    found = _apart.get(key)
    if found is None or found[0]() is not code:
        items = list(Bytecode.from_code(code, conserve_exception_block_stackdepth=True))
        found = _apart[key] = weakref.ref(code, lambda _: _apart.pop(key, None)), items
    return found[1]


class Body:
    """The code of a function taken apart; instructions keep their indices."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.items = list(taken_apart(code))
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


def split_pair(item: Any) -> list[Any]:
    """Instructions of two variables as two: `bytecode` miscompiles the 17th variable in them."""
    if not isinstance(item, Instr) or item.name not in PAIRS:
        return [item]
    return [
        Instr(name, arg, location=item.location) for name, arg in zip(PAIRS[item.name], item.arg)
    ]


class Builder:
    """Writes one function that starts at a position; `suspends`: a generator function."""

    suspends = False

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

    def enter(self) -> None:
        """The first instructions."""
        if self.free:
            self.op("COPY_FREE_VARS", len(self.free))
        if self.suspends:
            self.op("RETURN_GENERATOR")
            self.op("POP_TOP")
        self.op("RESUME", 0)

    def prologue(self, target: Label, *pushed: Any) -> None:
        """Rebuild the operand stack, with `pushed` on it, and the handled exceptions; jump."""
        self.enter()
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
        self.clear(self.position.temporaries)
        for constant in pushed:
            self.push_constant(constant)
        self.op("JUMP_FORWARD", target)
        if VERSION < (3, 13):  # what shows locals takes cells for such where this stands before
            for name in self.cells:
                if name in self.position.code.co_freevars:
                    self.op("MAKE_CELL", CellVar(name))

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
        flags = code.co_flags & ~(4 | 8)
        result.flags = flags if self.suspends else flags & ~SUSPENDS
        result.first_lineno = code.co_firstlineno
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
        origins = [places.get(id(item)) for item in self.built()]
        return {i: place for i, place in enumerate(origins) if place is not None}

    def built(self) -> list[Instr]:
        """The instructions of the code to be built, by index; one that is split counts twice."""
        real = [item for item in self.out if isinstance(item, Instr)]
        return [item for item in real for _ in split_pair(item)]

    def append_body(self, inserted: dict[int, list[Any]]) -> None:
        """The original instructions, with those of `inserted` before the one at each index."""
        before = {self.body.at[index]: items for index, items in inserted.items()}
        for i, item in enumerate(self.body.items):
            self.out.extend(before.get(i, ()))
            self.out.append(self.renamed(item))
            if isinstance(item, Instr):
                self.placed.append(self.out[-1])


class Resume(Builder):
    """`inner`: the resume function of what is called at the position; `names`: its parameters, by
    what they are called here.  Of a function that suspends these are generator functions, which
    the machine runs as pieces (frontend/suspension.py)."""

    def __init__(self, position: Position, inner: FunctionType | None = None) -> None:
        self.suspends = bool(position.code.co_flags & SUSPENDS)
        self.inner, self.names = inner, names_outside(position, inner)
        super().__init__(position, tuple(self.names))

    def raise_error(self) -> list[Any]:
        """What stands at the position of a function that raises its last parameter there."""
        outer, self.out = self.out, []
        self.op("LOAD_FAST", ERROR)
        self.op("RAISE_VARARGS", 1)
        out, self.out = self.out, outer
        return out

    def inner_call(self) -> list[Any]:
        """The call of `inner`; its result is on the stack behind it."""
        outer, self.out = self.out, []
        extra = self.parameters[len(self.position.parameters) :]
        self.push_callable(lambda: self.push_constant(self.inner))
        for name in extra:
            self.op("LOAD_FAST", name)
        self.clear(extra)
        self.call(len(extra))
        out, self.out = self.out, outer
        return out

    def build(self) -> CodeType:
        """The code, with its Origin noted."""
        position, target = self.position, Label()
        self.prologue(target)
        if self.inner is None:
            self.append_body({position.index: [target]})
            origin = Origin(position, self.places())
        else:
            call = self.append_call(target)
            place = next(i for i, item in enumerate(self.built()) if item is call)
            places = {**self.places(), place: unit_end(position.code, position.index)}
            origin = Origin(position, places, place, self.inner.__code__, self.names)
        built = self.assemble()
        note_origin(built, origin)
        return built

    def append_call(self, target: Label) -> Instr:
        """The body with the call of `inner` in place of that at the position."""
        position, over, after = self.position, Label(), Label()
        call, behind = self.inner_call(), unit_end(position.code, position.index) + 1
        skip, done = (Instr("JUMP_FORWARD", x, location=self.location) for x in (over, after))
        self.append_body({position.index: [skip, target, *call, done, over], behind: [after]})
        return call[-1]


def names_outside(position: Position, inner: FunctionType | None) -> dict[str, str]:
    """The parameters of `inner` in order, by their names in a function that stands at `position`
    and calls it.  That of a variable is `forward.h`, and stays so further outside as long as no
    other parameter has it."""
    if inner is None:
        return {}
    code, taken = inner.__code__, set(position.parameters)
    found: dict[str, str] = {}
    for name in code.co_varnames[: code.co_argcount]:
        inherited = "." in name and not name.startswith(TEMPORARIES)
        outside = name if inherited else f"{code.co_name}.{name}"
        while outside in taken:
            outside = f"{code.co_name}.{outside}"
        taken.add(outside)
        found[outside] = name
    return found


def raising_code(position: Position, inner: FunctionType | None = None) -> CodeType:
    """A function that raises its last parameter at `position`, inside the handlers there; with
    `inner`, another such function, out of the call of that."""
    builder, target = Resume(position, inner), Label()
    if inner is None:
        builder.parameters.append(ERROR)
    builder.prologue(target)
    if inner is None:
        over = Label()
        skip = Instr("JUMP_FORWARD", over, location=builder.location)
        builder.append_body({position.index: [skip, target, *builder.raise_error(), over]})
    else:
        builder.append_call(target)
    return builder.assemble()


def resume_code(position: Position, inner: FunctionType | None = None) -> CodeType:
    """A function that goes on at `position`; with `inner`, behind the call of that."""
    return Resume(position, inner).build()


class Suspended(Builder):
    """A generator function."""

    suspends = True


def suspended_code(position: Position) -> CodeType:
    """A generator function whose generator goes on at `position`, with None on the stack: at a
    YIELD_VALUE its first `next` gives that None, and leaves it suspended there."""
    builder, target = Suspended(position), Label()
    builder.prologue(target, None)
    builder.append_body({position.index: [target]})
    return builder.assemble()
