"""Slices and ranges that a caller makes anew for each call: their ends are numbers like any."""

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same


def cut(x, s):
    return x[s].sin(), s.start


def count(x, r):
    return x.sum() + len(r) + r.stop, 3 in r


def spread(x, r):
    for i in r:
        x = x + i
    return x


CASES = [
    (cut, [slice(1, n) for n in range(3, 9)], 2),
    (cut, [slice(None, 3), slice(None, 4), slice(-3, None), slice(1, None, 2), slice(3)], 4),
    (count, [range(1, n) for n in range(3, 9)], 2),
    (spread, [range(1, n) for n in (3, 4, 5)], 3),  # as many rounds as the loop has
]


@pytest.mark.parametrize("function, bounds, compiles", CASES)
def test_ends_may_change(function, bounds, compiles):
    jitshape.reset()
    compiled, x = jitshape.compile(function), torch.randn(12)
    for given in bounds:
        assert_same(function(x, given), compiled(x, given), str(given))
    assert jitshape.stats()["compiles"] == compiles


def test_the_object_itself_is_passed_on():
    compiled = jitshape.compile(lambda x, s: (x[s], s, s is s, s == slice(1, 3)))
    for given in (slice(1, 3), slice(1, 3), slice(1, 4)):
        _, same, _, equal = compiled(torch.ones(5), given)
        assert same is given
        assert equal == (given == slice(1, 3))
