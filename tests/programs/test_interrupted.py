"""Errors inside the compiler, and Ctrl-C: whenever they come, handlers of the program run, and
nothing of the compile is left behind."""

import contextlib
import gc
import sys

import pytest
import torch

import jitshape
from jitshape import pipeline, programs
from jitshape.frontend import capture as capturing
from jitshape.frontend._evalframe import hook_state
from jitshape.frontend.machine import Machine
from tests.programs.pieces import note

SEEN: list = []


@contextlib.contextmanager
def managed(name):
    SEEN.append(("open", name))
    try:
        yield
    except BaseException as error:
        SEEN.append((type(error).__name__, name))
        raise
    finally:
        SEEN.append(("close", name))


def inner(x):
    with managed("inner"):
        y = x * 2
        note(y)
        y = y.sin()
    return y


def program(x):
    with managed("outer"), torch.no_grad():
        try:
            y = inner(x + 1) + 1
        finally:
            SEEN.append(torch.is_grad_enabled())
    return y


def state():
    return (
        hook_state()["installed"],
        gc.isenabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_cache_enabled(),
        torch._C._len_torch_dispatch_stack(),
        sys.getrecursionlimit(),
        jitshape.is_compiling(),
    )


class Countdown:
    """Raises in the call of `function` with this number."""

    def __init__(self, owner, name, error, number):
        self.function, self.error, self.left = getattr(owner, name), error, number

    def __get__(self, instance, owner=None):
        return self if instance is None else lambda *args, **kw: self(instance, *args, **kw)

    def __call__(self, *args, **kwargs):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.function(*args, **kwargs)


PLACES = [  # and the number of calls before it
    (Machine, "load_global", (1, 9, 15, 13)),
    (capturing, "trace", (1, 4, 2)),
    (pipeline, "leave", (3, 2)),
    (pipeline, "finish_graph", (3, 2)),
    (pipeline, "shared_graph", (1,)),
    (programs, "compile_graph", (3, 2)),
    (pipeline, "assemble", (1, 4, 2)),
]


def interrupted(owner, name, error, number):
    """What the program had opened when the error came; it came out with the handlers run."""
    jitshape.reset()
    backend = "cpu" if name == "compile_graph" else "eager"
    compiled, opened = jitshape.compile(program, backend=backend), None
    x, before = torch.ones(3), state()
    SEEN.clear()
    with pytest.MonkeyPatch.context() as patch:
        countdown = Countdown(owner, name, error, number)
        patch.setattr(owner, name, countdown)
        try:
            compiled(x)
        except BaseException as caught:
            assert caught is error or caught.__cause__ is error
            opened = [s[1] for s in SEEN if isinstance(s, tuple) and s[0] == "open"]
            kind = type(caught).__name__
            told = [i for i, s in enumerate(SEEN) if isinstance(s, tuple) and s[0] == kind]
            before_it = SEEN[: told[0]] if told else SEEN
            for what in opened:
                closed = ("close", what)
                assert closed in before_it or ((kind, what) in SEEN and closed in SEEN)
    assert state() == before
    SEEN.clear()
    torch.testing.assert_close(compiled(x), program(x))
    assert SEEN[: len(SEEN) // 2] == SEEN[len(SEEN) // 2 :]
    return opened


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("owner, name, numbers", PLACES, ids=[p[1] for p in PLACES])
def test_whatever_is_interrupted(owner, name, numbers, error):
    opened = [interrupted(owner, name, error(), number) for number in numbers]
    assert None not in opened
    assert opened[-1] or numbers == (1,)
