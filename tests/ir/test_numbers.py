"""Calls that C++ refuses for symbolic sizes are made again with numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import jitshape
from tests.programs.compare import check


def rows(*shape: int) -> torch.Tensor:
    return torch.rand(shape, requires_grad=True)


def pooled_backward(x, kernel):
    y, places = F.max_pool2d(x, kernel, return_indices=True)
    pads = [0, 0], [1, 1], False
    stride = [kernel, kernel]
    return torch.ops.aten.max_pool2d_with_indices_backward(
        y, x.detach(), stride, stride, *pads, places
    )


# (program, arguments of two calls): for sizes of 1, and for C++ that needs numbers.
PROGRAMS = {
    "cosine_similarity": (
        lambda x, y: F.cosine_similarity(x, y, dim=-1),
        [(rows(1, 2, 3), rows(2, 1, 3)), (rows(1, 4, 3), rows(3, 1, 3))],
    ),
    "take_along_dim": (
        lambda x, i: torch.take_along_dim(x, i, 1),
        [(rows(1, 5), torch.tensor([[1], [3]])), (rows(1, 6), torch.tensor([[0], [5], [2]]))],
    ),
    "stft": (
        lambda x: torch.view_as_real(
            torch.stft(x, 16, 4, window=torch.ones(16), center=False, return_complex=True)
        ),
        [(rows(2, 40),), (rows(3, 40),)],
    ),
    "stft of a part": (
        lambda x: torch.stft(x[1:], 8, window=torch.ones(8), return_complex=True).abs(),
        [(rows(3, 40),), (rows(3, 48),)],
    ),
    "max_pool2d backward": (pooled_backward, [(rows(1, 2, 6, 6), 2), (rows(1, 2, 6, 6), 3)]),
    "unflatten": (lambda x, n: x.unflatten(0, (n, 2)), [(rows(6, 2), -1), (rows(8, 2), 4)]),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=1.7, recompute_scale_factor=True),
        [(rows(2, 3, 4),), (rows(2, 3, 7),)],
    ),
    "broadcast_shapes": (
        lambda x, y: (torch.broadcast_shapes(x.shape, y.shape, 1), x + y),
        [(rows(3, 1), rows(1, 4)), (rows(5, 1), rows(1, 6))],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_eagers(name) -> None:
    program, calls = PROGRAMS[name]
    check(program, *calls, compiles=len(calls), dynamic=True)


def test_a_misfit_stays_eagers_error() -> None:
    def f(x, y):
        x.add_(1)
        return F.cosine_similarity(x, y)

    for function in (f, jitshape.compile(f, dynamic=True)):
        x = torch.zeros(2, 3)
        with pytest.raises(RuntimeError, match=r"tensor a \(3\) must match"):
            function(x, torch.zeros(2, 4))
        assert x.sum() == 6


def test_shapes_that_do_not_broadcast_stay_eagers_error() -> None:
    def f(x, y):
        return torch.broadcast_shapes(x.shape, y.shape)

    for function in (f, jitshape.compile(f, dynamic=True)):
        with pytest.raises(RuntimeError, match=r"broadcast|must match"):
            function(torch.zeros(2), torch.zeros(3))
