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


MADE_INSIDE = {
    "arange": lambda x: torch.nn.functional.embedding(torch.arange(x.shape[0]), TABLE),
    "arange + 1": lambda x: TABLE.index_select(0, torch.arange(x.shape[0]) + 1),
    "gather": lambda x: TABLE.gather(0, torch.arange(x.shape[0])[:, None]) * 2,
    "reversed": lambda x: TABLE.gather(0, torch.arange(x.shape[0])[:, None] * -1 + 8).sum(),
    "a number": lambda x: x.gather(0, torch.full((1, 1), 8)),
    "another": lambda x: x.index_select(0, torch.full((2,), 3)) + 1,
    "of a computed table": lambda x: (TABLE * 2).index_select(0, torch.arange(x.shape[0])),
    "in range": lambda x: x.index_select(0, torch.arange(x.shape[0])),
}


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("name", MADE_INSIDE)
def test_an_index_made_in_the_graph_is_checked(name, backend):
    function = MADE_INSIDE[name]
    compiled = jitshape.compile(function, dynamic=True, fullgraph=True, backend=backend)
    for rows in (8, 10, 11, 3, 9, 20):
        x = torch.randn(rows, 2)
        expected, actual = attempt(function, x), attempt(compiled, x)
        if isinstance(expected, tuple):
            assert actual == expected
        else:
            torch.testing.assert_close(actual, expected)


def test_nothing_is_written_before_the_error():
    def function(x, i, out):
        out.add_(x[i].sum())

    compiled, out = jitshape.compile(function, dynamic=True), torch.zeros(3)
    compiled(TABLE, torch.tensor([1, 2]), out)
    before = out.clone()
    with pytest.raises(IndexError):
        compiled(TABLE, torch.tensor([1, 20]), out)
    assert torch.equal(out, before)
