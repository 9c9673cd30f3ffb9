"""torch.Size from outside and made by the program, and what describes dtypes."""

import pytest
import torch

import jitshape

SIZE = torch.Size([2, 3])

PROGRAMS = {
    "argument": lambda x, s: (x + s[0], s[:1], s.numel(), s + (1,), len(s), s == x.shape),  # noqa: RUF005
    "global": lambda x, s: (x.new_zeros(SIZE), SIZE[1:], x.shape + SIZE),
    "made": lambda x, s: (torch.Size((2, x.shape[0])), torch.Size(), x.view(torch.Size([-1]))),
    "limits": lambda x, s: x.masked_fill(x > 0, torch.finfo(x.dtype).min),
    "returned": lambda x, s: (s, x.shape, s[-1:]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes(name):
    function = PROGRAMS[name]
    compiled = jitshape.compile(function, fullgraph=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 2)
        for size in (x.shape, torch.Size([7, 3])):
            found, expected = compiled(x, size), function(x, size)
            assert repr(found) == repr(expected)


def test_what_is_no_size_raises_as_in_eager():
    with pytest.raises(TypeError):
        jitshape.compile(lambda x: (x + 1, torch.Size([1.5])))(torch.ones(2))
