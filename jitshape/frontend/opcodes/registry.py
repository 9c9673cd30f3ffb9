"""Registry of instruction handlers, and their binding to the instructions of a Program.

`@inst` declares a handler `f(m, arg, *operands)`: its parameters are popped (the last one is the
top of the stack), what it returns is pushed: nothing for `-> None`, one value, or a tuple with
`pushes=n`.  A parameter `*items` takes as many operands as `arg` says.  The operands leave the
stack only when the handler returns, so a Break or an exception leaves the stack as it was.
`@raw` declares a handler `f(m, frame, arg)` that changes the frame itself, under the same rule.
Either returns control to the next instruction; a raw one may give an index to go on at, or LEAVE.
Versions by registration: a handler exists from `since` until (not including) `until`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitshape.frontend.instructions import Instruction, Program

LEAVE = -1  # the frame is left: `frame.result` holds what it returns or yields
Run = Callable[[Any, Any, Any], "int | None"]
Resolve = Callable[[Program, Instruction], Any]


@dataclass(frozen=True)
class Opcode:
    """`pops` -1: as many as the argument says; None: a raw handler, its effect is only
    observed.  `resolve` turns the instruction's argument into what the handler gets."""

    run: Run
    resolve: Resolve
    pops: int | None = None
    pushes: int = 0
    fallthrough: bool = True


OPCODES: dict[str, Opcode] = {}
UNSUPPORTED: dict[str, str] = {}
VERSION = sys.version_info[:2]


def number(program: Program, instruction: Instruction) -> int:
    """The argument as it stands; of jumps the index they go to."""
    return instruction.arg if instruction.target is None else instruction.target


def name(program: Program, instruction: Instruction) -> str:
    """The argument is an index into co_names."""
    return program.names[instruction.arg]


def runs_here(since: tuple[int, int], until: tuple[int, int] | None) -> bool:
    """Whether a handler of these versions is for the running interpreter."""
    return VERSION >= since and (until is None or VERSION < until)


def inst(
    *names: str,
    since: tuple[int, int] = (3, 11),
    until: tuple[int, int] | None = None,
    arg: Resolve = number,
    pushes: int | None = None,
) -> Callable[[Callable], Callable]:
    """Register a handler whose signature is its stack effect."""

    def register(handler: Callable) -> Callable:
        if runs_here(since, until):
            parameters = list(inspect.signature(handler).parameters.values())[2:]
            variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
            pops = -1 if variadic else len(parameters)
            annotation = handler.__annotations__.get("return")
            count = (0 if annotation in (None, "None") else 1) if pushes is None else pushes
            make = _SHAPES.get((pops, count if pushes is None else -1), _general)
            run = make(handler) if make is not _general else _general(handler, pops, count)
            for opname in names:
                OPCODES[opname] = Opcode(run, arg, pops, count)
        return handler

    return register


def raw(
    *names: str,
    since: tuple[int, int] = (3, 11),
    until: tuple[int, int] | None = None,
    arg: Resolve = number,
) -> Callable[[Run], Run]:
    """Register a handler that changes the frame itself."""

    def register(handler: Run) -> Run:
        if runs_here(since, until):
            for opname in names:
                OPCODES[opname] = Opcode(handler, arg)
        return handler

    return register


def unsupported(
    reason: str,
    *names: str,
    since: tuple[int, int] = (3, 11),
    until: tuple[int, int] | None = None,
) -> None:
    """List opcodes that end the graph, or that never appear in code the machine is given."""
    if runs_here(since, until):
        UNSUPPORTED.update(dict.fromkeys(names, reason))


def _push(handler: Callable) -> Run:
    def run(m: Any, frame: Any, arg: Any) -> None:
        frame.stack.append(handler(m, arg))

    return run


def _replace(handler: Callable) -> Run:
    def run(m: Any, frame: Any, arg: Any) -> None:
        stack = frame.stack
        stack[-1] = handler(m, arg, stack[-1])

    return run


def _combine(handler: Callable) -> Run:
    def run(m: Any, frame: Any, arg: Any) -> None:
        stack = frame.stack
        result = handler(m, arg, stack[-2], stack[-1])
        stack.pop()
        stack[-1] = result

    return run


def _consume(handler: Callable) -> Run:
    def run(m: Any, frame: Any, arg: Any) -> None:
        stack = frame.stack
        handler(m, arg, stack[-1])
        stack.pop()

    return run


def _general(handler: Callable, pops: int, pushes: int) -> Run:
    def run(m: Any, frame: Any, arg: Any) -> None:
        stack = frame.stack
        base = len(stack) - (arg if pops < 0 else pops)
        result = handler(m, arg, *stack[base:])
        if pushes == 1 and type(result) is not tuple:
            stack[base:] = (result,)
        else:
            stack[base:] = result or ()

    return run


_SHAPES: dict[tuple[int, int], Callable[[Callable], Run]] = {
    (0, 1): _push,
    (1, 1): _replace,
    (2, 1): _combine,
    (1, 0): _consume,
}


def bind(program: Program) -> list[tuple[Run, Any]]:
    """The handlers of a Program's instructions with their resolved arguments, once."""
    if program.steps is None:
        program.steps = [_step(program, instruction) for instruction in program.instructions]
    return program.steps


def _step(program: Program, instruction: Instruction) -> tuple[Run, Any]:
    opcode = OPCODES.get(instruction.opname)
    if opcode is not None:
        return opcode.run, opcode.resolve(program, instruction)
    reason = UNSUPPORTED.get(instruction.opname, "the instruction is unknown to jitshape")
    return _unsupported_step, (instruction.opname, reason)


def _unsupported_step(m: Any, frame: Any, arg: tuple[str, str]) -> None:
    m.stop("unsupported_instruction", f"{arg[0]}: {arg[1]}")
