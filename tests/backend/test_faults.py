"""Indices out of range raise eager's errors; nothing is written before."""

from __future__ import annotations

import pytest
import torch

import jitshape

TABLE = torch.randn(10, 4)


def attempt(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error).splitlines()[0]


FUNCTIONS = {
    "index": lambda x, i: x[i] * 2,
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 4)) + 1,
    "index_select": lambda x, i: x.index_select(0, i).sum(),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x) + 1,
    "reduced": lambda x, i: x[i].mean(0),
    "scan": lambda x, i: x[i].cumsum(0),
    "two": lambda x, i: x[i, i % 4] - x[:, i % 4].sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_index_out_of_range_raises_as_in_eager(name):
    function = FUNCTIONS[name]
    jitshape.reset()
    compiled = jitshape.compile(function, dynamic=True, fullgraph=True)
    for index in ([1, 2, 3], [0, 9, 3, 2], [1, 10, 3], [1, -1, 3], [1, -11, 3], [1, 2] * 40):
        index = torch.tensor(index)
        expected, actual = attempt(function, TABLE, index), attempt(compiled, TABLE, index)
        if isinstance(expected, tuple):
            assert actual == expected
        else:
            torch.testing.assert_close(actual, expected)
    assert not jitshape.stats()["extern_ops"]


def test_nothing_is_written_before_the_error():
    def function(x, i, out):
        out.add_(x[i].sum())

    compiled, out = jitshape.compile(function, dynamic=True), torch.zeros(3)
    compiled(TABLE, torch.tensor([1, 2]), out)
    before = out.clone()
    with pytest.raises(IndexError):
        compiled(TABLE, torch.tensor([1, 20]), out)
    assert torch.equal(out, before)
