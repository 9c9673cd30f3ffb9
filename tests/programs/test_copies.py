"""What eager copies at some sizes and views at others, where a program can tell."""

import pytest
import torch

import jitshape

SHAPES = ((3, 4), (5, 2), (1, 3), (4, 1), (6, 7), (0, 3), (2, 2))
LAYOUTS = {
    "gaps": lambda r, c: torch.zeros(r, 2 * c)[:, ::2],
    "turned": lambda r, c: torch.zeros(c, r).t(),
    "spread": lambda r, c: torch.zeros(r, 1).expand(r, c),
    "dense": lambda r, c: torch.zeros(r, c),
}
COPIES = {
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "of sizes": lambda x: torch.reshape(x, (x.shape[0] * x.shape[1],)),
    "other sizes": lambda x: x.reshape(x.shape[1], x.shape[0]),
    "contiguous": lambda x: x.contiguous(),
}


def both(function, *tensors):
    """(given to eager, given to the compiled function, results) of each call."""
    jitshape.reset()
    compiled = jitshape.compile(function)
    for theirs in tensors:
        room = theirs.untyped_storage().nbytes() // theirs.itemsize
        ours = torch.zeros(room).as_strided(theirs.shape, theirs.stride())
        expected, actual = function(theirs), compiled(ours)
        yield theirs, ours, expected, actual


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "spread"])
def test_a_write_reaches_what_eager_views(layout, copy):
    def function(x):
        y = COPIES[copy](x)
        y.add_(1)
        return y

    for x, own, expected, actual in both(function, *(LAYOUTS[layout](*s) for s in SHAPES)):
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(own, x)


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_share_memory_as_in_eager(layout, copy):
    for x, own, expected, actual in both(COPIES[copy], *(LAYOUTS[layout](*s) for s in SHAPES)):
        shared = expected.data_ptr() == x.data_ptr(), actual.data_ptr() == own.data_ptr()
        assert shared[0] == shared[1] or not x.numel()
        assert (expected is x) == (actual is own)


def test_a_later_write_to_the_source_is_seen():
    def function(x):
        y = (x * 2).t()
        z = y.reshape(-1)
        y.add_(1)
        return z + 0

    for _, _, expected, actual in both(function, *(LAYOUTS["dense"](*s) for s in SHAPES)):
        torch.testing.assert_close(actual, expected)


def test_nobody_can_tell():
    def function(x):
        y = (x * 2).transpose(0, 1)
        return y.reshape(-1) + 1, y.contiguous() * 3

    for _, _, expected, actual in both(function, *(LAYOUTS["dense"](*s) for s in SHAPES)):
        torch.testing.assert_close(actual, expected)
    assert jitshape.stats()["compiles"] == 2


def test_an_ellipsis_is_a_view():
    def function(x):
        return x[...]

    x = torch.ones(3)
    y = jitshape.compile(function)(x)
    assert y is not x and y._base is x
    y.add_(1)
    assert x.tolist() == [2.0] * 3
