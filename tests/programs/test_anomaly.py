"""Anomaly detection: eager's class of error, with the line of forward whose gradient is nan."""

from __future__ import annotations

import pytest
import torch

import jitshape
from jitshape.errors import GradientIsNan


def root_of_zero(x):
    y = x * 0  # the culprit
    z = y.sqrt()  # its gradient is infinite
    return z.exp().sum()


def division(x):
    y = x - x
    return (y / y).sum()  # the culprit


@pytest.mark.parametrize("program", [root_of_zero, division], ids=lambda f: f.__name__)
def test_the_line_is_named(program):
    compiled = jitshape.compile(program)
    for size in (3, 4, 5):
        x = torch.ones(size, requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            with pytest.raises(RuntimeError, match="returned nan values"), pytest.warns():
                program(x).backward()
            loss = compiled(x)
            nan = pytest.raises(GradientIsNan, match="returned nan values")
            with nan as caught, pytest.warns(UserWarning, match="CompiledGraphBackward"):
                loss.backward()
        assert "# the culprit" in str(caught.value), caught.value
        assert x.grad is None


def test_without_the_look_for_nan_and_without_the_mode_gradients_are_nan():
    compiled = jitshape.compile(root_of_zero)
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        compiled(x).backward()
    assert x.grad.isnan().all()
    x.grad = None
    compiled(x).backward()
    assert x.grad.isnan().all()


def test_what_is_a_number_passes():
    compiled = jitshape.compile(lambda x: (x * 2).sqrt().sum())
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        compiled(x).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 0.5**0.5))
    assert jitshape.stats()["fallbacks"] == 0
