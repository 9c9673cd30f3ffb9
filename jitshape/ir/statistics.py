"""Covariance and correlation, whose checks C++ makes on numbers that exist when a graph runs.

Invariant: weights, which eager looks into, and too few observations, of which it warns, are left
to eager.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.composites import current_env, replaces
from jitshape.ir.conditions import compare
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.torch_numbers import from_torch


@replaces(torch.cov, methods=["cov"])
def cov(input: Any, *, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Of rows of observations: (x - mean) (x - mean)^H / (count - correction)."""
    plain = fweights is None and aweights is None
    if type(input) is not SymbolicTensor or not plain or input.ndim > 2:
        return NotImplemented
    rows = input if input.ndim == 2 else input.reshape(1, -1)
    degrees = rows.size(1) - correction
    if input.dtype is torch.bool or not _is_positive(degrees):
        return NotImplemented
    apart = rows - (rows.sum(1) / rows.size(1)).unsqueeze(1)
    return (torch.mm(apart, apart.t().conj()) / degrees).squeeze()


def _is_positive(number: Any) -> bool:
    return current_env().evaluate(compare("gt", from_torch(number), 0), "covariance")


@replaces(torch.corrcoef, methods=["corrcoef"])
def corrcoef(input: Any) -> Any:
    """The covariance over the standard deviations, cut to [-1, 1]."""
    found = cov(input) if type(input) is SymbolicTensor and input.ndim <= 2 else NotImplemented
    if found is NotImplemented:
        return NotImplemented
    if found.ndim == 0:
        return found / found
    variances = found.diag()
    deviations = (variances.real if found.is_complex() else variances).sqrt()
    found = found / deviations.view(-1, 1) / deviations.view(1, -1)
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)
