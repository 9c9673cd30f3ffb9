"""Indices that change, indices computed by the graph, constants made inside."""

from __future__ import annotations

import pytest
import torch

import jitshape
from tests.programs.compare import check


def leaf(n: int) -> torch.Tensor:
    return torch.rand(n, 4, 5, requires_grad=True)


PLACES = ((8, 2, 3), (5, 1, 2), (3, 0, 1), (6, 2, 0))


def test_symbolic_integers_select() -> None:
    def f(x: torch.Tensor, i: int, j: int) -> tuple:
        return x[i], x[i, j], x[..., i, :], x[None, i, :, None], x[1:, j], x[:, None, j], x[-1 - i]

    check(f, *[(leaf(n), i, j) for n, i, j in PLACES], compiles=2, dynamic=True)


def test_symbolic_integers_write() -> None:
    def f(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
        y = x * 2
        y[i] = 1.0
        y[:, j] = x[:, j] * 3
        y[..., i, 0] += 1
        y[None, 0, ..., j] = 5.0
        return y

    check(f, *[(leaf(n), i, j) for n, i, j in PLACES], compiles=2, dynamic=True)


def test_an_index_out_of_range_is_eagers_error() -> None:
    compiled = jitshape.compile(lambda x, i: x[i] * 2, dynamic=True)
    x = torch.arange(4.0)
    assert [compiled(x, i).item() for i in (1, 3, -1)] == [2.0, 6.0, 6.0]
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(x, 4)


def test_constants_made_inside_beside_symbols() -> None:
    def f(x: torch.Tensor, s: float) -> tuple:
        index = torch.tensor([1, 0, 1])
        weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        return x[index] * s, x[[0, 1]], weights * x.shape[0], x[-1:] @ torch.ones(4, 2) @ weights

    check(f, *[(torch.rand(n, 4), n / 2) for n in (3, 5, 6)], compiles=2)


def test_constants_made_inside_are_new_each_time() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        counts = torch.tensor([1.0, 2.0])
        counts[0] += x.sum()
        return counts

    check(f, (torch.ones(2),), (torch.ones(3),), (torch.ones(4),), (torch.ones(3),), compiles=2)


def test_views_by_attribute() -> None:
    def f(x: torch.Tensor) -> tuple:
        return x.T * 2, x.mT.sum(), x.real + 1, x.data * 2, x.H

    calls = [(torch.rand(n, 8, requires_grad=True),) for n in (8, 5, 1)]
    check(f, *calls, compiles=2, dynamic=True)


def test_limits_of_dtypes_and_named_results() -> None:
    def f(x: torch.Tensor, shape: tuple) -> tuple:
        full = torch.full(shape, torch.finfo(torch.float16).min)
        return full, x * torch.finfo(x.dtype).eps + torch.iinfo(torch.int8).max, x.max(0)

    check(f, *[(torch.rand(n, 3), (n, 2)) for n in (3, 4, 5)], compiles=1, dynamic=True)


def test_an_item_as_an_index() -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        i = index.item()
        torch._check(i >= 0)
        torch._check(i < x.size(0))
        return x[i] * 2

    compiled = jitshape.compile(f, fullgraph=True)
    x = torch.arange(9.0).view(3, 3)
    for i in (1, 2, 0):
        assert compiled(x, torch.tensor(i)).tolist() == (x[i] * 2).tolist()


def test_a_loop_from_a_symbolic_start() -> None:
    def f(x: torch.Tensor, start: int) -> torch.Tensor:
        out = torch.zeros(x.shape[1])
        for i in range(start, start + 6, 2):
            out = out + x[i] * i
        return out

    check(f, *[(torch.rand(20, 7), start) for start in range(6)], compiles=2)


def test_sizes_that_depend_on_data() -> None:
    def f(x: torch.Tensor) -> tuple:
        counts = torch.bincount(x.abs().view(-1))
        runs = torch.unique_consecutive(x.sort()[0])
        return x.unique(), x.unique().sum(), x.unique(return_counts=True), counts, runs

    check(f, *[(torch.randint(-9, 9, (n, 4)),) for n in (3, 5, 6)], compiles=2)


def test_views_of_a_size_that_specialises() -> None:
    def f(x: torch.Tensor) -> tuple:
        return torch.meshgrid(x, x, indexing="ij"), torch.tensor(x.shape[0])

    check(f, *[(torch.randn(n),) for n in (3, 5, 8)], compiles=3)


# What is found at an index is read in part, or not at all.
UNREAD = {
    "x[i]": lambda x, i: (x[i], x + 1)[1],
    "gather": lambda x, i: (x.gather(0, i[:, None]), x + 1)[1],
    "embedding": lambda x, i: (torch.nn.functional.embedding(i, x), x + 1)[1],
    "index_select": lambda x, i: (x.index_select(0, i), x + 1)[1],
    "index_put": lambda x, i: (x.index_put((i,), x[0]), x + 1)[1],
    "scatter": lambda x, i: (x.scatter(0, i[:, None], 1.0), x + 1)[1],
    "index_add": lambda x, i: (x.index_add(0, i, x[: i.shape[0]]), x + 1)[1],
    "the first row": lambda x, i: torch.nn.functional.embedding(i, x)[:1] * 2,
    "a row": lambda x, i: x.index_select(0, i)[0] + 1,
    "a column": lambda x, i: x.gather(0, i[:, None]).select(0, 0) + 1,
    "at another index": lambda x, i: torch.nn.functional.embedding(i, x)[i[:1] * 0] + 1,
}


@pytest.mark.parametrize("name", UNREAD)
def test_an_index_tensor_out_of_range_fails_unread(name: str) -> None:
    f, x = UNREAD[name], torch.arange(12.0).reshape(4, 3)
    compiled = jitshape.compile(f)
    for places in ([0, 1], [2, 0], [0, 9], [1, 1], [0, -9]):
        i = torch.tensor(places)
        try:
            expected = f(x, i)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error), match=r"out of (bounds|range)"):
                compiled(x, i)
        else:
            assert torch.equal(expected, compiled(x, i))
