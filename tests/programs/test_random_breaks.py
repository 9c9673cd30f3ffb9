"""Random programs with breaks anywhere: eager is the judge of results, effects, and exceptions
with their chains and the lines of their tracebacks."""

import linecache
import traceback
import types

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same, clone
from tests.programs.random_programs import write_program

LOG: list = []
KINDS = (KeyError, ValueError, RuntimeError)
CALLS = (((2, 3), 1), ((3, 3), 2), ((2, 2), 1))


@jitshape.disable
def note(number, what):
    LOG.append((number, what.detach().clone() if isinstance(what, torch.Tensor) else what))
    return number % 3 + 1


@jitshape.disable
def fail(number, kind):
    LOG.append(("fail", number, kind))
    if kind:
        raise KINDS[kind - 1](number)


def load(seed):
    """The module of a seed, whose lines tracebacks find."""
    source, file = write_program(seed), f"<random {seed}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    module = types.ModuleType(f"random_{seed}")
    vars(module).update(note=note, fail=fail)
    exec(compile(source, file, "exec"), vars(module))
    return module


def chain(error):
    """Of an exception and of those behind it: class, text, places in the program."""
    while error is not None:
        places = [
            (frame.name, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename.startswith("<random")
        ]
        yield type(error).__name__, str(error), places, error.__suppress_context__
        error = error.__cause__ or error.__context__


def observed(module, call, args):
    LOG.clear()
    module.SEEN.clear()
    module.STATE["count"] = module.Thing.total = 0
    args = clone(args)
    try:
        result = ("returned", call(*args))
    except Exception as error:
        result = ("raised", list(chain(error)))
    state = module.STATE["count"], module.Thing.total, torch.is_grad_enabled()
    return result, list(LOG), list(module.SEEN), state, args


@pytest.mark.parametrize("seed", range(28))
def test_random_program(seed):
    module = load(seed)
    jitshape.reset()
    compiled = jitshape.compile(module.main, backend="eager")
    for turn in range(2):
        for size, k in CALLS:
            numbers = torch.arange(size[0] * size[1], dtype=torch.float64)
            args = (numbers.reshape(size) / 7 - 0.3, k)
            want, got = observed(module, module.main, args), observed(module, compiled, args)
            assert_same(want, got, f"seed {seed}, turn {turn}, size {size}")
    assert jitshape.stats()["graph_breaks"] > 0 or got[0][0] == "raised"
