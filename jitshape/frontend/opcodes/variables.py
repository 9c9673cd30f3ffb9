"""Loads and stores: constants, locals, cells, globals, names of class bodies, stack shuffles."""

from __future__ import annotations

from typing import Any, NoReturn

from jitshape.frontend.frame import NULL, Frame
from jitshape.frontend.instructions import Instruction, Program
from jitshape.frontend.opcodes.handing_on import is_handed_on
from jitshape.frontend.opcodes.registry import inst, name, raw, unsupported
from jitshape.frontend.positions import origin_of
from jitshape.frontend.values.base import Cell, Value
from jitshape.frontend.values.unobserved import Unobserved, observed


def const(program: Program, instruction: Instruction) -> Any:
    return program.consts[instruction.arg]


def slot_pair(program: Program, instruction: Instruction) -> tuple[int, int]:
    return instruction.arg >> 4, instruction.arg & 15


def loaded(program: Program, instruction: Instruction) -> tuple[int, bool]:
    """The slot, and whether what is loaded from it is only handed on."""
    return instruction.arg, is_handed_on(program, instruction.index)


def loaded_pair(program: Program, instruction: Instruction) -> tuple[tuple[int, bool], ...]:
    first, second = slot_pair(program, instruction)
    index = instruction.index
    return (first, is_handed_on(program, index, above=1)), (second, is_handed_on(program, index))


def global_name(program: Program, instruction: Instruction) -> tuple[str, bool]:
    return program.names[instruction.arg >> 1], bool(instruction.arg & 1)


# ---- the stack


@raw("NOP", "RESUME", "PRECALL", "KW_NAMES", "CACHE", "EXTENDED_ARG")
def nop(m: Any, frame: Frame, arg: int) -> None:
    pass


@raw("POP_TOP")
def pop_top(m: Any, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if isinstance(value, Value):
        m.let_go(value)
    frame.stack.pop()


@raw("PUSH_NULL")
def push_null(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(NULL)


@raw("COPY")
def copy(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


@raw("SWAP")
def swap(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


@raw("LOAD_CONST", arg=const)
def load_const(m: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(m.literal(arg))


@inst("LOAD_ASSERTION_ERROR")
def load_assertion_error(m: Any, arg: int) -> Value:
    return m.wrap_type(AssertionError)


# ---- locals


@raw("LOAD_FAST", "LOAD_FAST_CHECK", arg=loaded)
def load_fast(m: Any, frame: Frame, arg: tuple[int, bool]) -> None:
    slot, handed_on = arg
    value = frame.slots[slot]
    if value is None:
        unbound_local(m, frame, slot)
    if type(value) is Unobserved and not handed_on:
        value = frame.slots[slot] = value.observed()
    frame.stack.append(value)


@raw("LOAD_CLOSURE", until=(3, 13))
def load_closure(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.slots[arg])


@raw("LOAD_FAST_AND_CLEAR", since=(3, 12))
def load_fast_and_clear(m: Any, frame: Frame, arg: int) -> None:
    value = observed(frame.slots[arg])
    frame.stack.append(NULL if value is None else value)
    frame.slots[arg] = None


@raw("STORE_FAST")
def store_fast(m: Any, frame: Frame, arg: int) -> None:
    m.let_go(observed(frame.slots[arg]))
    value = frame.stack.pop()
    frame.slots[arg] = None if value is NULL else value


@raw("DELETE_FAST")
def delete_fast(m: Any, frame: Frame, arg: int) -> None:
    former = observed(frame.slots[arg])
    if former is None:
        unbound_local(m, frame, arg)
    if "." not in frame.program.slot_names[arg]:  # not a resume's parameter
        m.let_go(former)
    frame.slots[arg] = None


@raw("LOAD_FAST_LOAD_FAST", since=(3, 13), arg=loaded_pair)
def load_fast_load_fast(m: Any, frame: Frame, arg: tuple[tuple[int, bool], ...]) -> None:
    for one in arg:
        load_fast(m, frame, one)


@raw("STORE_FAST_LOAD_FAST", since=(3, 13), arg=slot_pair)
def store_fast_load_fast(m: Any, frame: Frame, arg: tuple[int, int]) -> None:
    frame.slots[arg[0]] = frame.stack[-1]
    frame.stack[-1] = frame.slots[arg[1]] = observed(frame.slots[arg[1]])


@raw("STORE_FAST_STORE_FAST", since=(3, 13), arg=slot_pair)
def store_fast_store_fast(m: Any, frame: Frame, arg: tuple[int, int]) -> None:
    frame.slots[arg[0]] = frame.stack.pop()
    frame.slots[arg[1]] = frame.stack.pop()


def unbound_local(m: Any, frame: Frame, slot: int) -> NoReturn:
    name = frame.program.slot_names[slot]
    m.throw(
        UnboundLocalError,
        f"cannot access local variable '{name}' where it is not associated with a value",
    )


# ---- cells


@raw("MAKE_CELL")
def make_cell(m: Any, frame: Frame, arg: int) -> None:
    frame.slots[arg] = Cell(observed(frame.slots[arg]))


@raw("COPY_FREE_VARS")
def copy_free_vars(m: Any, frame: Frame, arg: int) -> None:
    frame.slots[len(frame.slots) - arg :] = frame.callee.closure


@raw("LOAD_DEREF")
def load_deref(m: Any, frame: Frame, arg: int) -> None:
    value = m.load_cell(frame.slots[arg])
    if value is None:
        empty_cell(m, frame, arg)
    frame.stack.append(value)


@raw("STORE_DEREF")
def store_deref(m: Any, frame: Frame, arg: int) -> None:
    m.store_cell(frame.slots[arg], frame.stack[-1])
    frame.stack.pop()


@raw("DELETE_DEREF")
def delete_deref(m: Any, frame: Frame, arg: int) -> None:
    if m.load_cell(frame.slots[arg]) is None:
        empty_cell(m, frame, arg)
    m.store_cell(frame.slots[arg], None)


def empty_cell(m: Any, frame: Frame, slot: int) -> NoReturn:
    name, code = frame.program.slot_names[slot], frame.callee.code
    origin = origin_of(code)  # in a resume function the free variables are cells of its own
    if name not in (code if origin is None else origin.code).co_freevars:
        unbound_local(m, frame, slot)
    m.throw(
        NameError,
        f"cannot access free variable '{name}' where it is not associated with a value"
        " in enclosing scope",
    )


# ---- globals


@raw("LOAD_GLOBAL", until=(3, 13), arg=global_name)
def load_global(m: Any, frame: Frame, arg: tuple[str, bool]) -> None:
    scope = frame.scope
    value = scope.values.get(arg[0]) or m.load_global(scope, arg[0])
    if arg[1]:
        frame.stack.append(NULL)
    frame.stack.append(value)


@raw("LOAD_GLOBAL", since=(3, 13), arg=global_name)
def load_global_313(m: Any, frame: Frame, arg: tuple[str, bool]) -> None:
    scope = frame.scope
    frame.stack.append(scope.values.get(arg[0]) or m.load_global(scope, arg[0]))
    if arg[1]:
        frame.stack.append(NULL)


@raw("STORE_GLOBAL", arg=name)
def store_global(m: Any, frame: Frame, arg: str) -> None:
    m.store_global(frame.scope, arg, frame.stack[-1])
    frame.stack.pop()


@raw("DELETE_GLOBAL", arg=name)
def delete_global(m: Any, frame: Frame, arg: str) -> None:
    m.delete_global(frame.scope, arg)


# ---- names

unsupported(
    "class and module bodies run natively",
    *("LOAD_NAME", "STORE_NAME", "DELETE_NAME", "SETUP_ANNOTATIONS", "LOAD_CLASSDEREF"),
    *("LOAD_LOCALS", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS"),
    *("IMPORT_STAR", "PRINT_EXPR"),
)
unsupported(
    "never part of a code object: the compiler or the running interpreter uses it inside",
    *("INTERPRETER_EXIT", "ENTER_EXECUTOR", "RESERVED", "EXIT_INIT_CHECK", "POP_BLOCK", "JUMP"),
    *("JUMP_NO_INTERRUPT", "SETUP_CLEANUP", "SETUP_FINALLY", "SETUP_WITH"),
    *("STORE_FAST_MAYBE_NULL", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR"),
    "LOAD_ZERO_SUPER_METHOD",
)
unsupported(
    "never part of a code object: the compiler uses it inside", "LOAD_METHOD", since=(3, 12)
)
unsupported(
    "never part of a code object: the compiler uses it inside", "LOAD_CLOSURE", since=(3, 13)
)
