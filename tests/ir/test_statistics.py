"""Covariance and correlation, and what else C++ decides by numbers of run time."""

from __future__ import annotations

import pytest
import torch

import jitshape
from tests.programs.compare import check

ROWS = {
    "rows": lambda n: torch.rand(3, n),
    "one row": lambda n: torch.rand(1, n),
    "a vector": torch.rand,
    "integers": lambda n: torch.randint(0, 9, (3, n)),
    "complex": lambda n: torch.randn(3, n, dtype=torch.complex64),
    "with gradients": lambda n: torch.rand(3, n, requires_grad=True),
}


@pytest.mark.parametrize("name", ROWS)
def test_covariance_and_correlation(name) -> None:
    def f(x):
        return torch.cov(x), x.cov(correction=0), torch.corrcoef(x)

    for n in (4, 7):
        x = ROWS[name](n)
        jitshape.reset()
        compiled = jitshape.compile(f, dynamic=True, fullgraph=True)
        torch.testing.assert_close(compiled(x), f(x))


def test_too_few_observations_warn_as_in_eager() -> None:
    compiled = jitshape.compile(lambda x: torch.cov(x))
    with pytest.warns(UserWarning, match="degrees of freedom"):
        compiled(torch.rand(3, 1))


@pytest.mark.parametrize("function", [torch.var, torch.std, torch.var_mean, torch.std_mean])
def test_spread_of_complex_numbers(function) -> None:
    def f(x):
        return function(x), function(x, 1)

    jitshape.reset()
    compiled = jitshape.compile(f, fullgraph=True)
    for n in (3, 5, 6):
        x = torch.randn(n, 4, dtype=torch.complex64)
        torch.testing.assert_close(compiled(x), f(x))
    assert jitshape.stats()["compiles"] == 2


def test_the_average_over_all_batches_is_kept_by_number() -> None:
    compiled = jitshape.compile(torch.nn.BatchNorm1d(5, momentum=None))
    eager = torch.nn.BatchNorm1d(5, momentum=None)
    jitshape.reset()
    for n in (4, 6, 7):
        x = torch.rand(n, 5)
        torch.testing.assert_close(compiled(x), eager(x))
    torch.testing.assert_close(dict(compiled.named_buffers()), dict(eager.named_buffers()))
    assert jitshape.stats()["graph_breaks"] == 0


def test_a_range_of_integers_between_floats() -> None:
    check(lambda: torch.arange(0.1, -7.9, -4.0, dtype=torch.int64), ())
    check(lambda n: torch.arange(0.6, n, 1.5, dtype=torch.int32), (5,), (6,), (9,))
