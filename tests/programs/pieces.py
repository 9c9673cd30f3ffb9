"""Comparing programs with breaks with eager execution, piece by piece.

In: a program and its calls.  Out: an error where results, gradients, exceptions, written arguments
or what was noted meanwhile differ, or where a call is compiled twice.
"""

import traceback

import torch

import jitshape
from tests.programs.compare import assert_same, clone, gradients

SIZES = [(3, 4), (5, 4), (6, 7)]
LOG: list = []


@jitshape.disable
def note(*items):
    """Not captured: what is noted, and when, is compared with eager."""
    LOG.append([x.detach().clone() if isinstance(x, torch.Tensor) else x for x in items])
    return len(items)


def inputs(sizes=SIZES, grad=True):
    torch.manual_seed(0)
    return [(torch.randn(*size, requires_grad=grad),) for size in sizes]


def observed(call, args):
    """What a call gives: result or exception, what was noted, arguments, gradients."""
    LOG.clear()
    args = clone(args)
    try:
        result = call(*args)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)[1:]]
        return type(error).__name__, str(error), lines, list(LOG), args
    return result, list(LOG), args, gradients(result, args)


def check_pieces(program, *calls, breaks=1, fallbacks=0):
    """Eager and compiled, twice; the second time nothing is compiled."""
    jitshape.reset()
    compiled = jitshape.compile(program)
    for turn in range(2):
        before = jitshape.stats()["compiles"]
        for number, args in enumerate(calls):
            want, got = observed(program, args), observed(compiled, args)
            assert_same(want, got, f"turn {turn}, call {number}")
    stats = jitshape.stats()
    assert stats["fallbacks"] == fallbacks, stats["details"]
    assert stats["graph_breaks"] >= breaks, stats["details"]
    assert stats["compiles"] == before, [str(r) for r in jitshape.history()]
    return stats
