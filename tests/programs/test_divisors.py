"""Divisors and exponents of integer tensors that are symbolic numbers: C++ looks at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same

X = torch.tensor([6, -7])
BY: dict[str, Callable[[Any, Any], Any]] = {
    "//": lambda x, n: x // n,
    "%": lambda x, n: x % n,
    "fmod": torch.fmod,
    "trunc": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "true division": lambda x, n: x / n,
    "of floats": lambda x, n: x.float() // n,
    "in place": lambda x, n: x.clone().remainder_(n),
}


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except RuntimeError as error:
        return str(error)


def compare(f: Callable[..., Any], *calls: tuple) -> None:
    compiled = jitshape.compile(f)
    for args in calls:
        assert_same(outcome(f, *args), outcome(compiled, *args))
    assert jitshape.stats()["fallbacks"] == 0


@pytest.mark.parametrize("name", BY)
def test_a_divisor_that_becomes_zero(name: str) -> None:
    compare(BY[name], *((X, n) for n in (2, 3, 0, -4, 0, 5)))


def test_a_size_as_divisor() -> None:
    compare(lambda x: x // (x.shape[0] - 3), *((torch.arange(n),) for n in (4, 5, 3, 6, 2)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_an_exponent_that_becomes_negative(dtype: torch.dtype) -> None:
    compare(lambda x, n: x**n, *((X.to(dtype), n) for n in (2, 3, -1, 4, -2)))
