"""Functions that C++ decides by numbers compile once for all sizes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import jitshape
from tests.programs.compare import check


def test_a_tensor_is_split_at_places_in_a_tensor() -> None:
    def f(x, places):
        return torch.tensor_split(x, places, 1)

    rows = [(2, 4), (0, 3), (5, 5)]
    check(f, *((torch.rand(3, 6), torch.tensor(places)) for places in rows), compiles=1)


def test_one_hot_of_classes() -> None:
    def f(x, n):
        return F.one_hot(x, n), F.one_hot(x % 2, num_classes=2)

    rows = [(torch.arange(12).view(3, 4) % n, n) for n in (3, 5, 8)]
    check(f, *rows, compiles=2)


SIZES = (4, 6, 9, 14)
PROGRAMS = {
    "linspace": lambda x: torch.linspace(0.5, 2, x.shape[0]) + x[:, 0],
    "linspace to a size": lambda x: torch.linspace(0, x.shape[0], x.shape[0], dtype=torch.float64),
    "kron": lambda x: torch.kron(x, x[0]),
    "kron with a matrix": lambda x: x[0].kron(x[:2]),
    "tensor_split": lambda x: x.tensor_split(3),
    "tensor_split of columns": lambda x: torch.tensor_split(x, 2, -1)[1],
    "max_pool1d": lambda x: F.max_pool1d(x.mT.contiguous(), 3, 2, 1),
    "max_pool1d of batches": lambda x: torch.max_pool1d(x.t()[None].contiguous(), [2]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("gradients", [False, True])
def test_one_compile_serves_all_sizes(name, gradients) -> None:
    rows = [(torch.rand(n, 5, requires_grad=gradients),) for n in SIZES]
    check(PROGRAMS[name], *rows, compiles=2)


def test_a_negative_number_of_steps_is_eagers_error() -> None:
    compiled = jitshape.compile(lambda n: torch.linspace(0, 1, n), dynamic=True)
    assert compiled(3).tolist() == [0, 0.5, 1]
    with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
        compiled(-1)
