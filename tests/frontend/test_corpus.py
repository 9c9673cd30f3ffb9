"""Every program of the corpus: traced and plain runs give the same results, exceptions and
changes to the arguments, and every handler that ran has the stack effect that `dis` states."""

import dis
import importlib

import pytest

from jitshape.frontend import instructions
from jitshape.frontend.opcodes import registry
from jitshape.frontend.opcodes.registry import LEAVE
from tests.frontend.corpus.basics import CASES
from tests.frontend.tracing import check

MODULES = ("basics", "calls", "protocols", "errors", "generators", "coroutines", "patterns")
for _module in MODULES:
    importlib.import_module(f"tests.frontend.corpus.{_module}")

# Their effect is spread over several instructions, or differs from what the compiler assumes.
SPREAD = {
    "PRECALL": "3.11 counts the arguments here, the interpreter pops them in CALL",
    "CALL": "3.11: see PRECALL; 3.12 counts no result of KW_NAMES",
    "RERAISE": "never falls through",
    "SEND": "the jump effect is that of the interpreter, not of dis",
}


def checked(instruction, run):
    """The handler, with its stack effect compared after every success."""

    def step(m, frame, arg):
        depth = len(frame.stack)
        target = run(m, frame, arg)
        if instruction.opname not in SPREAD and target != LEAVE:
            number = instruction.arg if dis.opmap[instruction.opname] >= dis.HAVE_ARGUMENT else None
            expected = dis.stack_effect(
                dis.opmap[instruction.opname], number, jump=target is not None
            )
            assert len(frame.stack) - depth == expected, instruction
        return target

    return step


@pytest.fixture
def effects_checked(monkeypatch):
    plain = registry._step

    def step(program, instruction):
        run, arg = plain(program, instruction)
        return checked(instruction, run), arg

    monkeypatch.setattr(registry, "_step", step)


PROGRAMS = [
    pytest.param(function, args, id=f"{function.__name__}-{i}")
    for function, cases in CASES.items()
    for i, args in enumerate(cases)
]


@pytest.mark.parametrize("function, args", PROGRAMS)
def test_program(function, args, effects_checked):
    check(function, *args)


# Handlers that no program of the corpus reaches, with what would.
UNREACHED = {
    "CACHE": "decoding leaves it out",
    "EXTENDED_ARG": "decoding leaves it out",
    "CLEANUP_THROW": "a generator sees itself how what it delegates to ends",
    "RAISE_VARARGS": "never falls through",
    "RERAISE": "never falls through",
    "LOAD_BUILD_CLASS": "the call behind it is a break",
}


def test_every_handler_runs_in_some_program(monkeypatch):
    """So that its stack effect is compared; those of jumps both ways, those of all arguments."""
    seen = set()
    plain = registry._step

    def step(program, instruction):
        run, arg = plain(program, instruction)
        effect = checked(instruction, run)

        def observed(m, frame, arg):
            target = effect(m, frame, arg)
            seen.add(instruction.opname)
            return target

        return observed, arg

    monkeypatch.setattr(registry, "_step", step)
    monkeypatch.setattr(instructions, "_programs", {})
    for function, cases in CASES.items():
        for args in cases:
            check(function, *args)
    handled = {n for n in registry.OPCODES if dis.opmap.get(n, 256) < 256}
    assert sorted(handled - seen - UNREACHED.keys()) == []
