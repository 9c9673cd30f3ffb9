"""Decoding: a code object becomes a Program, once per code object.

In: a code object of CPython 3.11, 3.12 or 3.13.  Out: its instructions without CACHE and
EXTENDED_ARG, jumps as indices into that list, the exception table and the lines by the same
indices.  Invariant: a Program does not keep its code object alive and is never changed, but for
`steps`, which opcodes/registry.py binds on first use.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

from jitshape.frontend.values.base import Break

CACHE, EXTENDED_ARG = dis.opmap["CACHE"], dis.opmap["EXTENDED_ARG"]
_JUMPS = frozenset(dis.hasjrel)
_PREPARE_CALL = ("KW_NAMES", "PRECALL")  # 3.11 and 3.12: always directly before their CALL


class Instruction(NamedTuple):
    """`offset` is in bytes, of the operation itself (behind its EXTENDED_ARGs); `target` is the
    index that a jump goes to."""

    index: int
    offset: int
    opname: str
    arg: int
    target: int | None


@dataclass(frozen=True, slots=True)
class Handler:
    """A row of the exception table: the stack is cut to `depth`, `lasti` is pushed if asked
    for, then the exception, and execution goes on at index `target`."""

    target: int
    depth: int
    lasti: bool


class Program:
    """A decoded code object."""

    __slots__ = (
        "consts",
        "file",
        "flags",
        "handlers",
        "instructions",
        "kwnames",
        "lines",
        "name",
        "names",
        "slot_names",
        "starts",
        "steps",
    )

    def __init__(self, code: CodeType) -> None:
        self.consts, self.names, self.flags = code.co_consts, code.co_names, code.co_flags
        self.file, self.name = code.co_filename, code.co_qualname
        self.slot_names = slot_names(code)
        index_of, raw = _split(code)
        names = dis.opname
        self.instructions = [
            Instruction(
                i, at, names[op], arg, _target(index_of, op, arg, after) if op in _JUMPS else None
            )
            for i, (at, op, arg, after) in enumerate(raw)
        ]
        self.handlers = _handlers(code, index_of, len(raw))
        self.lines = _lines(code, [offset for offset, *_ in raw])
        self.starts, self.kwnames = _call_groups(self.instructions, code)
        self.steps: list[Any] | None = None


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of the fast locals in the interpreter's order: locals, cells, free variables."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars


_programs: dict[int, tuple[weakref.ref[CodeType], Program]] = {}


def decode(code: CodeType) -> Program:
    """The Program of `code`.  By identity: equal code objects may differ in their lines."""
    found = _programs.get(id(code))
    if found is not None and found[0]() is code:
        return found[1]
    try:
        program, key = Program(code), id(code)
    except (LookupError, ValueError) as error:
        reason = f"{code.co_qualname} has bytecode that no compiler makes: {error!r}"
        raise Break("code_object", reason, "compile the function from source") from error

    def forget(ref: weakref.ref[CodeType], known: dict = _programs) -> None:
        if known.get(key, (None,))[0] is ref:  # the interpreter may be ending, names be gone
            del known[key]

    _programs[key] = (weakref.ref(code, forget), program)
    return program


def _split(code: CodeType) -> tuple[dict[int, int], list[tuple[int, int, int, int]]]:
    """Index by byte offset, and (offset, opcode, arg, offset of what follows) by index.  A jump
    to an EXTENDED_ARG is a jump to the instruction that it extends."""
    text = code.co_code
    index_of: dict[int, int] = {}
    raw: list[tuple[int, int, int, int]] = []
    extended, at, end = 0, 0, len(text)
    while at < end:
        op, arg = text[at], text[at + 1] | extended
        index_of[at] = len(raw)
        after = at + 2
        if op == EXTENDED_ARG:
            extended = arg << 8
        else:
            extended = 0
            while after < end and text[after] == CACHE:
                after += 2
            raw.append((at, op, arg, after))
        at = after
    index_of[end] = len(raw)
    return index_of, raw


def _target(index_of: dict[int, int], op: int, arg: int, after: int) -> int:
    back = "JUMP_BACKWARD" in dis.opname[op]
    return index_of[after - 2 * arg if back else after + 2 * arg]


def _varints(table: bytes) -> Iterator[int]:
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            yield value
            value = 0


def _handlers(code: CodeType, index_of: dict[int, int], count: int) -> list[Handler | None]:
    """The exception table row of every instruction."""
    handlers: list[Handler | None] = [None] * count
    numbers = _varints(code.co_exceptiontable)
    for start, length, target, depth in zip(numbers, numbers, numbers, numbers):
        row = Handler(index_of[2 * target], depth >> 1, bool(depth & 1))
        for index in range(index_of[2 * start], index_of[2 * (start + length)]):
            handlers[index] = row
    return handlers


def _lines(code: CodeType, offsets: list[int]) -> list[int | None]:
    lines: list[int | None] = []
    ranges = code.co_lines()
    end, line = 0, None
    for offset in offsets:
        while offset >= end:
            _, end, line = next(ranges, (0, sys.maxsize, None))
        lines.append(line)
    return lines


def _call_groups(
    instructions: list[Instruction], code: CodeType
) -> tuple[list[int], dict[int, tuple[str, ...]]]:
    """Where to resume each instruction, and the keyword names of the calls that have some."""
    starts, kwnames = list(range(len(instructions))), {}
    for i, instruction in enumerate(instructions):
        if instruction.opname == "CALL":
            first = i
            while first and instructions[first - 1].opname in _PREPARE_CALL:
                first -= 1
                if instructions[first].opname == "KW_NAMES":
                    kwnames[i] = code.co_consts[instructions[first].arg]
            starts[i] = first
    return starts, kwnames
