"""Loads whose value the next instructions only hand on: to a call, a result, a display, a variable.

In: a load of a Program, and the instructions that follow it.  Out: whether the one that takes the
value off the stack does not look at it.
Invariant: in doubt it does.  So a value is handed on only where no jump lies between, and where all
that the instructions between take off was put on by them.
"""

from __future__ import annotations

from collections.abc import Callable

from jitshape.frontend.instructions import Program
from jitshape.frontend.opcodes.registry import OPCODES, VERSION

_NOTHING = frozenset(["NOP", "RESUME", "PRECALL", "KW_NAMES", "CACHE", "EXTENDED_ARG"])
_ONE = frozenset(["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_DEREF", "PUSH_NULL"])

# Raw instructions: how many values they take and give, by their argument.
_EFFECTS: dict[str, Callable[[int], tuple[int, int]]] = {
    **dict.fromkeys(_NOTHING, lambda arg: (0, 0)),
    **dict.fromkeys(_ONE, lambda arg: (0, 1)),
    "LOAD_FAST_LOAD_FAST": lambda arg: (0, 2),
    "LOAD_GLOBAL": lambda arg: (0, 1 + (arg & 1)),
    "LOAD_METHOD": lambda arg: (1, 2),
    "CALL": lambda arg: (arg + 2, 1),
    "CALL_KW": lambda arg: (arg + 3, 1),
    "BUILD_MAP": lambda arg: (2 * arg, 1),
    "BUILD_CONST_KEY_MAP": lambda arg: (arg + 1, 1),
}
if VERSION >= (3, 12):  # one opcode for attributes and methods
    _EFFECTS["LOAD_ATTR"] = lambda arg: (1, 1 + (arg & 1))

# Who hands values on: which of them, by how many lie above on the stack, and by the argument.
_HANDS_ON: dict[str, Callable[[int, int], bool]] = {
    "RETURN_VALUE": lambda above, arg: True,
    "STORE_FAST": lambda above, arg: True,
    "POP_TOP": lambda above, arg: True,
    "CALL": lambda above, arg: above < arg,
    "CALL_KW": lambda above, arg: 0 < above <= arg,
    "BUILD_TUPLE": lambda above, arg: True,
    "BUILD_MAP": lambda above, arg: above % 2 == 0,
    "BUILD_CONST_KEY_MAP": lambda above, arg: above > 0,
    # these look at the class alone
    "POP_JUMP_IF_NONE": lambda above, arg: True,
    "POP_JUMP_IF_NOT_NONE": lambda above, arg: True,
    "POP_JUMP_FORWARD_IF_NONE": lambda above, arg: True,
    "POP_JUMP_FORWARD_IF_NOT_NONE": lambda above, arg: True,
}
_TAKES_ONE = {name for name in _HANDS_ON if name.startswith(("RETURN", "STORE", "POP"))}


def is_handed_on(program: Program, index: int, above: int = 0) -> bool:
    """Whether the value that the load at `index` leaves under `above` others is."""
    for instruction in program.instructions[index + 1 :]:
        name, arg = instruction.opname, instruction.arg
        taken = 1 if name in _TAKES_ONE else None
        effect = _effect(name, arg)
        if taken is None and effect is None:
            return False
        pops, pushes = (taken, 0) if effect is None else effect
        if pops > above:
            return name in _HANDS_ON and _HANDS_ON[name](above, arg)
        if name in _TAKES_ONE and name != "STORE_FAST":
            return False  # control may go elsewhere
        above += pushes - pops
    return False


def _effect(name: str, arg: int) -> tuple[int, int] | None:
    """How many values an instruction takes and gives; None: that is not known here."""
    if name in _EFFECTS:
        return _EFFECTS[name](arg)
    opcode = OPCODES.get(name)
    if opcode is None or opcode.pops is None:
        return None
    return (arg if opcode.pops < 0 else opcode.pops), opcode.pushes
