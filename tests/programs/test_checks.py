"""Calls that eager refuses are refused, also where an earlier call of other sizes was right."""

import pytest
import torch
import torch.nn.functional as F

import jitshape


def attempt(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def check(function, *calls):
    """As eager at each of the calls; at least one of them raises."""
    jitshape.reset()
    compiled = jitshape.compile(function)
    refused = 0
    for args in calls:
        expected, actual = attempt(function, *args), attempt(compiled, *args)
        if isinstance(expected, tuple) and isinstance(expected[0], type):
            refused += 1
            assert actual == expected
        else:
            torch.testing.assert_close(actual, expected, equal_nan=True)
    assert refused


def images(*shapes):
    return [(torch.randn(shape),) for shape in shapes]


SIZES = {
    "layer_norm": (lambda x: F.layer_norm(x, (3,)), images((2, 3), (4, 3), (1, 2), (5, 3))),
    "max_pool": (lambda x: F.max_pool2d(x, 3), images((2, 3, 7, 7), (2, 3, 9, 8), (2, 3, 2, 8))),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3), images((2, 3, 7, 7), (2, 3, 9, 8), (2, 3, 2, 8))),
    "pad": (lambda x: F.pad(x, (-3, -2)), images((2, 7), (2, 9), (2, 4))),
    "complex": (torch.view_as_complex, images((2, 2), (4, 2), (4, 3))),
    "max": (lambda x: x.max(), images((2, 2), (4, 3), (0, 3))),
    "amax": (lambda x: x.amax(0), images((2, 2), (4, 3), (0, 3))),
    "argmin": (lambda x: x.argmin(1), images((2, 2), (4, 3), (4, 0))),
    "norm": (lambda x: torch.linalg.vector_norm(x, float("inf")), images((2,), (4,), (0,))),
    "from the end": (lambda x: x[x.shape[0] - 3], images((5, 2), (4, 2), (2, 2), (1, 2))),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_does_not_fit(name):
    function, calls = SIZES[name]
    check(function, *calls)


def test_weights_that_do_not_fit():
    def function(x, w):
        return F.layer_norm(x, x.shape[1:], w)

    rows = [(2, 3, 3), (4, 4, 4), (4, 5, 1), (4, 4, 3)]
    check(function, *((torch.randn(a, b), torch.randn(c)) for a, b, c in rows))


def test_targets_that_do_not_fit():
    def function(x, target):
        return F.cross_entropy(x, target)

    rows = [(2, 3, 2), (4, 3, 4), (5, 3, 4)]
    check(function, *((torch.randn(a, b), torch.zeros(c).long()) for a, b, c in rows))


@pytest.mark.parametrize("get", [lambda x, c: x.select(0, c), lambda x, c: x[c]])
def test_an_index_below_the_first(get):
    check(get, *((torch.randn(4, 2), c) for c in (1, 2, 3, -1, -4, -5, 5)))


@pytest.mark.parametrize("step", [2, 100])
def test_a_split_of_nothing_is_one_part(step):
    def function(x):
        return x.split(step)

    compiled = jitshape.compile(function)
    for size in (4, 5, 0, 7):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("power", [lambda x: 2**x, lambda x: torch.float_power(2, x)])
def test_a_power_of_a_number_is_contiguous(power):
    x = torch.randn(4, 3).t()
    actual, expected = jitshape.compile(power)(x), power(x)
    torch.testing.assert_close(actual, expected, check_stride=True)
