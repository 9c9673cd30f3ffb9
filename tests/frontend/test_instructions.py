"""Decoding against `dis`, over the code of whole library modules."""

import argparse
import ast
import contextlib
import dis
import gc
import types

import pytest

from jitshape.frontend import instructions
from jitshape.frontend.instructions import decode


def codes_of(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_of(const)


@pytest.mark.parametrize(
    "module", [argparse, ast, contextlib, dis, types], ids=lambda m: m.__name__
)
def test_agrees_with_dis(module):
    with open(module.__file__, encoding="utf-8") as file:
        top = compile(file.read(), module.__file__, "exec")
    for code in codes_of(top):
        expected = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
        program = decode(code)
        got = program.instructions
        assert [(i.offset, i.opname) for i in got] == [(i.offset, i.opname) for i in expected]
        assert [i.arg for i in got if i.arg] == [i.arg for i in expected if i.arg]
        offsets = {i.offset: i.index for i in got}
        for mine, theirs in zip(got, expected):
            if theirs.opcode in dis.hasjrel:
                after = min(o for o in offsets if o >= theirs.argval)
                assert mine.target == offsets[after]
        assert program.lines == [i.positions.lineno for i in expected]


def test_exception_table():
    def f():
        try:
            g()  # noqa: F821
        except ValueError:
            return 1

    entries = dis._parse_exception_table(f.__code__)
    program = decode(f.__code__)
    for instruction, handler in zip(program.instructions, program.handlers):
        rows = [e for e in entries if e.start <= instruction.offset < e.end]
        if not rows:
            assert handler is None
            continue
        target = program.instructions[handler.target].offset
        assert (target, handler.depth, handler.lasti) == (
            rows[0].target,
            rows[0].depth,
            rows[0].lasti,
        )


def test_cached_by_identity_and_weakly():
    source = "def f():\n    return 1\n"
    spaces = [{}, {}]
    for space in spaces:
        exec(source, space)
    one, two = (space["f"].__code__ for space in spaces)
    assert decode(one) is decode(one)
    assert decode(one) is not decode(two)
    key = id(one)
    assert key in instructions._programs
    del one, spaces, space
    gc.collect()
    assert key not in instructions._programs


def test_calls_start_before_what_prepares_them():
    def f(g, x):
        return g(x, k=1)

    program = decode(f.__code__)
    (call,) = [i for i in program.instructions if i.opname in ("CALL", "CALL_KW")]
    first = program.instructions[program.starts[call.index]].opname
    assert first in ("KW_NAMES", "CALL_KW")
    if call.opname == "CALL":
        assert program.kwnames[call.index] == ("k",)
