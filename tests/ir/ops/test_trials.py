"""Calls that eager refuses for their dtypes, ranks or numbers, and those of integers by zero."""

import pytest
import torch
import torch.nn.functional as F

import jitshape

BOOL, INT, BYTE = torch.tensor([True, False]), torch.tensor([1, 2]), torch.tensor([1, 2]).byte()

REFUSED = {
    "softmax of ints": (lambda x: F.softmax(x, 0), INT),
    "mean of bools": (lambda x: x.mean(0), BOOL),
    "gelu of ints": (F.gelu, INT),
    "norm of ints": (lambda x: F.layer_norm(x, (2,)), INT),
    "lerp of ints": (lambda x: torch.lerp(x, x, 0.5), INT),
    "minus of bools": (lambda x: x - x, BOOL),
    "largest of bools": (lambda x: x.argmax(), BOOL),
    "where of ints": (lambda x: torch.where(x, x, x), INT),
    "mask of ints": (lambda x: x.masked_fill(x, 1), INT),
    "nan among ints": (lambda x: x.fill_(float("nan")), INT),
    "bits of floats": (lambda x: x & 1, INT.float()),
    "real factor": (lambda x: torch.add(x, x, alpha=0.5), INT),
    "no bound": (lambda x: x.clamp(), INT),
    "a dimension too many": (lambda x: x.flip(1), INT),
    "a dimension twice": (lambda x: x.flip(0, 0), INT),
    "rolled elsewhere": (lambda x: x.roll(1, 5), INT),
    "too large to fill": (lambda x: x.fill_(300), BYTE),
    "too large for a mask": (lambda x: x.masked_fill(x > 1, 300), BYTE),
    "too large for all": (lambda x: torch.full_like(x, 300), BYTE),
    "negative power": (lambda x: x**-1, INT),
    "divided by 0": (lambda x: x // 0, INT),
    "rest of 0": (lambda x: x % 0, INT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_as_eager_refuses(name):
    function, x = REFUSED[name]
    for wide in (x, x.repeat(9000)):
        with pytest.raises(Exception) as expected:
            function(wide.clone())
        with pytest.raises(type(expected.value)) as actual:
            jitshape.compile(function)(wide.clone())
        assert str(actual.value) == str(expected.value)


WRAPPED = {
    "sum": lambda x: x + 300,
    "product": lambda x: x * -1000,
    "compared": lambda x: (x == 300, x > 300),
    "bits": lambda x: (x & 511, x ^ 300),
    "written": lambda x: x.add_(300),
    "factor of integers": lambda x: torch.addcmul(x, x, x, value=1.5),
}


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("name", WRAPPED)
def test_numbers_beyond_the_dtype_wrap(name, backend):
    for dtype in (torch.int8, torch.uint8):
        x = torch.tensor([1, 2, 44], dtype=dtype)
        compiled = jitshape.compile(WRAPPED[name], backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(x.clone()), WRAPPED[name](x.clone()))


DIVISIONS = {
    "quotient": lambda x: 100 // x,
    "rest": lambda x: (100 % x).sum(),
    "truncated": lambda x: torch.div(x, x, rounding_mode="trunc") + 1,
    "fmod": lambda x: torch.fmod(x, x).cumsum(0),
    "joined": lambda x: torch.cat([x // x, x * 3]),
}


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_division_by_zero_raises(name, backend):
    function = DIVISIONS[name]
    compiled = jitshape.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for count in (3, 17, 64):
        x = torch.arange(1, count + 1)
        torch.testing.assert_close(compiled(x), function(x))
        x[count // 2] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x)


def test_a_range_whose_step_leads_away():
    def function(step):
        return torch.arange(0, 5, step)

    compiled = jitshape.compile(function)
    for step in (1, 2, 3):
        assert torch.equal(compiled(step), function(step))
    for step in (-1, 0):
        with pytest.raises(RuntimeError, match="step"):
            compiled(step)
