"""The registry: every opcode of the running interpreter, and declared stack effects."""

import dis

import pytest

import jitshape.frontend.opcodes  # noqa: F401
from jitshape.frontend.opcodes.registry import OPCODES, UNSUPPORTED, inst, runs_here

NAMES = sorted(name for name in dis.opmap if not name.startswith("INSTRUMENTED_"))
PSEUDO = 256  # opcodes from here on exist inside the compiler only
ARGUMENTS = (0, 1, 2, 3)


def test_every_opcode_is_handled_or_has_a_reason():
    assert [n for n in NAMES if n not in OPCODES and n not in UNSUPPORTED] == []
    assert [n for n in NAMES if n in OPCODES and n in UNSUPPORTED] == []
    assert all(UNSUPPORTED.values())


@pytest.mark.parametrize("name", [n for n in NAMES if n in OPCODES and OPCODES[n].pops is not None])
def test_declared_effect_is_that_of_dis(name):
    opcode = OPCODES[name]
    op = dis.opmap[name]
    if op >= PSEUDO:
        pytest.skip("no code object has it")
    for number in ARGUMENTS if op >= dis.HAVE_ARGUMENT else (None,):
        if name == "BUILD_SLICE" and number not in (2, 3):
            continue
        pops = number if opcode.pops < 0 else opcode.pops
        assert dis.stack_effect(op, number, jump=False) == opcode.pushes - pops


def test_operands_stay_until_the_handler_returns():
    class Frame:
        def __init__(self, *stack):
            self.stack = list(stack)

    @inst("TEST_COMBINE")
    def combine(m, arg, a, b) -> object:
        if b == "bad":
            raise ValueError
        return (a, b, arg)

    @inst("TEST_CONSUME")
    def consume(m, arg, *items) -> None:
        assert len(items) == arg

    try:
        frame = Frame(0, 1, 2)
        OPCODES["TEST_COMBINE"].run(None, frame, 5)
        assert frame.stack == [0, (1, 2, 5)]
        frame = Frame(1, "bad")
        with pytest.raises(ValueError):
            OPCODES["TEST_COMBINE"].run(None, frame, 0)
        assert frame.stack == [1, "bad"]
        frame = Frame(1, 2, 3)
        OPCODES["TEST_CONSUME"].run(None, frame, 2)
        assert frame.stack == [1]
    finally:
        OPCODES.pop("TEST_COMBINE", None)
        OPCODES.pop("TEST_CONSUME", None)


def test_versions():
    assert runs_here((3, 11), None)
    assert not runs_here((3, 99), None)
    assert not runs_here((3, 0), (3, 11))
