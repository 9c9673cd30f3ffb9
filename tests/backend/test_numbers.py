"""Numbers that exist only at run time: items of tensors, sizes that depend on data, floats."""

from __future__ import annotations

import math

import pytest
import torch

import jitshape


def check(function, *calls, fullgraph=True):
    jitshape.reset()
    compiled = jitshape.compile(function, fullgraph=fullgraph, dynamic=True)
    for args in calls:
        expected, actual = function(*args), compiled(*args)
        if not isinstance(expected, tuple):
            expected, actual = (expected,), (actual,)
        for want, got in zip(expected, actual, strict=True):
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want)
                long = [d for d, size in enumerate(want.shape) if size > 1]
                assert [got.stride(d) for d in long] == [want.stride(d) for d in long]
            else:
                assert got == want and type(got) is type(want)
    stats = jitshape.stats()
    assert stats["compiles"] == 1 and not stats["fallbacks"]


def test_an_item_is_a_size():
    def function(x):
        count = x.sum().item()
        return torch.zeros(count) + 1, count

    check(function, (torch.tensor([1, 2]),), (torch.tensor([3, 4, 0]),))


def test_a_float_item_is_an_operand():
    def function(x):
        most = x.max().item()
        return x / most, most, x * (most + 1)

    check(function, (torch.rand(5) + 1,), (torch.rand(7) + 1,))


def test_the_size_of_a_result_that_depends_on_data():
    def function(x):
        places = x.nonzero()
        return places * 2, places.shape[0], x[x > 0] + 1

    check(function, (torch.tensor([[1, 0, 3], [0, 1, 0]]),), (torch.tensor([[0, 0], [1, 1]]),))


def test_a_size_is_known_though_the_result_is_not_used():
    def function(x):
        return torch.ones(x.nonzero().shape[0])

    check(function, (torch.tensor([1, 0, 3]),), (torch.tensor([0, 0, 1, 1]),))


def test_floats_of_sizes():
    def function(x):
        return x / math.sqrt(x.shape[1]), x * (1 / x.shape[0]) + x.shape[1] ** -0.5

    check(function, (torch.randn(3, 5),), (torch.randn(4, 9),))


def test_conversions_of_tensors_and_sizes():
    def function(x, y):
        scale = 1 / math.sqrt(y.shape[1])
        return (
            torch.arange(int(x.sum())) * 2,
            y * float(x.sum()) * scale,
            math.floor(y.shape[0] / 2),
        )

    check(
        function,
        (torch.tensor([1, 2]), torch.randn(3, 5)),
        (torch.tensor([3, 1]), torch.randn(6, 7)),
    )


def test_what_was_relied_on_is_checked():
    def function(x, y):
        return y.narrow(0, 0, x.sum().item()) * 2

    jitshape.reset()
    compiled = jitshape.compile(function, fullgraph=True, dynamic=True)
    y = torch.randn(6)
    torch.testing.assert_close(compiled(torch.tensor([4, 2]), y), y * 2)
    with pytest.raises(RuntimeError, match="exceeds dimension size"):
        compiled(torch.tensor([4, 3]), y)
