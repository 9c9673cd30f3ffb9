"""The stages as one compile."""

import gc
import sys

import torch

import jitshape
from jitshape import parts


def test_no_collection_within_a_compile(monkeypatch):
    collecting = []
    compile_call = parts.compile_call

    def observed(*args):
        collecting.append(gc.isenabled())
        return compile_call(*args)

    monkeypatch.setattr(parts, "compile_call", observed)
    compiled = jitshape.compile(lambda x: x * 2 + 1)
    assert compiled(torch.ones(3)).tolist() == [3, 3, 3]
    assert collecting == [False] and gc.isenabled()


def test_a_trace_function_of_the_programs_sees_every_line():
    def traced(x):
        y = x + 1
        return y * 2

    def program(x):
        lines = []

        def note(frame, event, arg):
            if event == "line" and frame.f_code is traced.__code__:
                lines.append(frame.f_lineno - traced.__code__.co_firstlineno)
            return note

        former = sys.gettrace()
        sys.settrace(note)
        try:
            result = traced(x)
        finally:
            sys.settrace(former)
        return result, lines

    assert jitshape.compile(program)(3) == (8, [1, 2])
