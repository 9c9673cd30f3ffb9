"""Numbers in other clothes: tensors of one element, scalars of numpy."""

import math

import numpy as np
import pytest
import torch

import jitshape

HALF, THREE, FLAG = np.float64(0.5), np.int64(3), np.bool_(True)


def written_elsewhere(x):
    n = torch.tensor(1)
    n.view(()).add_(1)
    return x[:, : n.item()]


PROGRAMS = {
    "view": lambda x: x.view(x.size(0), torch.div(x.size(1), 8, rounding_mode="trunc"), 8),
    "reshape": lambda x: x.reshape((x.size(0), torch.div(x.size(1), 4, rounding_mode="floor"), 4)),
    "expand": lambda x: x[:, :1].expand(-1, torch.add(x.size(1), 1)),
    "zeros": lambda x: x.new_zeros(torch.sub(x.size(1), 2), x.size(0)),
    "sum of sizes": lambda x: torch.mul(x.size(0), x.size(1)).item() + x,
    "true division": lambda x: torch.div(x.size(1), 3) * x,
    "floats": lambda x: (torch.add(x.size(1), 2.5), torch.mul(2, 0.5)),
    "written elsewhere": written_elsewhere,
    "operators": lambda x: (HALF * x, x - THREE, x / HALF, x > THREE, x**THREE),
    "ufuncs": lambda x: x * -(np.log(float(10000)) / 7) + int(np.ceil(HALF)),
    "ufunc of a size": lambda x: (np.sqrt(x.size(1)), x * np.add(x.size(1), THREE)),
    "sizes": lambda x: (x.reshape(THREE, -1), x.new_ones(THREE, 2), torch.zeros((THREE, 1))),
    "compared": lambda x: x + 1 if x.size(1) < THREE * 5 and FLAG else x,
    "made": lambda x: (x * np.float32(1.1), np.int64(x.size(1)), float(HALF) + math.sqrt(THREE)),
    "dtype is the scalar's": lambda x: torch.tensor(HALF) + x.amax(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers(name):
    function = PROGRAMS[name]
    compiled = jitshape.compile(function, fullgraph=True)
    for n in (16, 32, 8):
        x = torch.randn(6, n)
        found, expected = compiled(x), function(x)
        assert type(found) is type(expected)
        if not isinstance(found, tuple):
            found, expected = (found,), (expected,)
        for a, b in zip(found, expected, strict=True):
            assert type(a) is type(b)
            torch.testing.assert_close(a, b)


def test_a_quotient_of_sizes_stays_symbolic():
    jitshape.reset()
    compiled = jitshape.compile(PROGRAMS["view"], fullgraph=True)
    for n in (16, 32, 64, 8):
        assert compiled(torch.ones(2, n)).shape == (2, n // 8, 8)
    assert jitshape.stats()["compiles"] == 2
