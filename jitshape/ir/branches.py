"""Which way of a branch only raises.

In: a code object and the place of a conditional jump in it.  Out: the truth that leads to an
exception, if one does.  A program that asks `if n == 1: raise ...` of a number which exists only
at run time goes on as if it did not, under a run-time assert.
Invariant: the answer is advice: what is assumed by it is checked when the graph runs.
"""

from __future__ import annotations

import dis
from functools import lru_cache
from types import CodeType

_LIMIT = 80  # instructions of a message
_ASK = ("COMPARE_OP", "TO_BOOL")  # ask for the truth that the jump behind them tests
_LEAVE = ("JUMP", "RETURN", "YIELD", "STORE", "FOR_ITER", "SEND", "DELETE", "RERAISE")


@lru_cache(maxsize=256)
def raising_truth(code: CodeType, offset: int) -> bool | None:
    """The truth at the conditional jump at byte `offset` with which `code` only raises; None
    where there is no such jump, or both ways go on."""
    instructions = list(dis.get_instructions(code))
    place = {i.offset: number for number, i in enumerate(instructions)}
    here = place.get(offset, len(instructions))
    while here < len(instructions) and instructions[here].opname in _ASK:
        here += 1
    jump = instructions[here] if here < len(instructions) else None
    if jump is None or not jump.opname.startswith("POP_JUMP"):
        return None
    if not jump.opname.endswith(("_IF_TRUE", "_IF_FALSE")):
        return None
    jumps_if = jump.opname.endswith("_IF_TRUE")
    ways = {jumps_if: place[jump.argval], not jumps_if: here + 1}
    raising = [truth for truth, start in ways.items() if _only_raises(instructions, start)]
    return raising[0] if len(raising) == 1 else None


def _only_raises(instructions: list[dis.Instruction], start: int) -> bool:
    for instruction in instructions[start : start + _LIMIT]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if any(part in instruction.opname for part in _LEAVE):
            return False
    return False
