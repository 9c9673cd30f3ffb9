"""What eager refuses for the values that it finds is refused, whether the result is used or not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import jitshape

X = torch.rand(4, 5)
FAR = torch.tensor([0, 9])
TARGET = torch.tensor([0, 1, 9, 2])
ONES, ZEROS = torch.ones(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)

# (program, arguments that it refuses, arguments that it takes)
PROGRAMS = {
    "index": (lambda x, i: x[i], (X, FAR), (X, FAR % 4)),
    "gather": (lambda x, i: x.gather(0, i[None]), (X, FAR), (X, FAR % 4)),
    "embedding": (lambda x, i: F.embedding(i, x), (X, FAR), (X, FAR % 4)),
    "index_select": (lambda x, i: x.index_select(0, i), (X, FAR), (X, FAR % 4)),
    "take": (lambda x, i: x.take(i * 9), (X, FAR), (X, FAR % 2)),
    "scatter": (lambda x, i: x.scatter(0, i[None], 1.0), (X, FAR), (X, FAR % 4)),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (X, FAR), (X, FAR % 4)),
    "floor_divide": (lambda x, y: x // y, (ONES, ZEROS), (ONES, ONES)),
    "remainder": (lambda x, y: x % y, (ONES, ZEROS), (ONES, ONES)),
    "cross_entropy": (F.cross_entropy, (X, TARGET), (X, TARGET % 5)),
    "negative class": (F.cross_entropy, (X, TARGET - 3), (X, TARGET % 5)),
    "nll_loss": (lambda x, y: F.nll_loss(x, y, reduction="none"), (X, TARGET), (X, TARGET % 5)),
    "one_hot": (lambda i: F.one_hot(i, 6), (FAR,), (FAR % 6,)),
    "negative one_hot": (lambda i: F.one_hot(i, 30), (FAR - 1,), (FAR,)),
    "probability": (F.binary_cross_entropy, (X * 3, X), (X, X)),
    "no probability": (F.binary_cross_entropy, (X * torch.nan, X), (X, X)),
    "bincount": (lambda i: torch.bincount(i), (FAR - 1,), (FAR,)),
    "cholesky": (torch.linalg.cholesky, (X[:, :4] * 0 - 1,), (torch.eye(4),)),
}


def outcome(function, args) -> object:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("used", [True, False])
def test_the_error_is_eagers(name, used) -> None:
    program, refused, taken = PROGRAMS[name]

    def f(*args):
        result = program(*args)
        return result if used else args[0] + 1

    jitshape.reset()
    compiled = jitshape.compile(f)
    for args in (taken, refused, taken):
        expected = outcome(f, args)
        assert isinstance(expected, torch.Tensor) is (args is taken)
        got = outcome(compiled, args)
        torch.testing.assert_close(got, expected) if args is taken else None
        assert args is taken or got == expected
    assert jitshape.stats()["graph_breaks"] == 0


def test_a_loss_refuses_its_target_also_with_gradients() -> None:
    def f(x, y):
        return F.cross_entropy(x * 2, y)

    compiled, x = jitshape.compile(f), X.clone().requires_grad_()
    compiled(x, TARGET % 5).backward()
    expected = torch.autograd.grad(f(x, TARGET % 5), x)[0]
    torch.testing.assert_close(x.grad, expected)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        compiled(x, TARGET)


def test_what_cannot_fail_is_not_computed_for_nobody() -> None:
    def f(x, i):
        x.exp().sum(0)
        i // 2
        return x + 1

    jitshape.reset()
    compiled = jitshape.compile(f)
    torch.testing.assert_close(compiled(X, FAR), X + 1)
    assert jitshape.stats()["kernels"] == 1
