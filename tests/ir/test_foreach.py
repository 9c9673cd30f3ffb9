"""Ops on lists of tensors give what eager's give, one by one, in one graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.programs.compare import check

PROGRAMS: dict[str, Callable] = {
    "scalar": lambda a, b: torch._foreach_add(a, 2.0),
    "scalars": lambda a, b: torch._foreach_mul(a, [2.0, 3.0]),
    "lists": lambda a, b: torch._foreach_sub(a, b, alpha=2),
    "tensor": lambda a, b: torch._foreach_mul(a, b[0].sum()),
    "unary": lambda a, b: (torch._foreach_neg(a), torch._foreach_sqrt(b)),
    "pow": lambda a, b: (torch._foreach_pow(b, 2.0), torch._foreach_pow(2.0, a)),
    "bounds": lambda a, b: (torch._foreach_maximum(a, b), torch._foreach_clamp_min(a, 0.1)),
    "minimum": lambda a, b: torch._foreach_minimum(a, [0.2, 0.3]),
    "norm": lambda a, b: (torch._foreach_norm(a), torch._foreach_norm(a, 1)),
    "lerp": lambda a, b: (torch._foreach_lerp(a, b, 0.3), torch._foreach_lerp(a, b, b)),
    "addcmul": lambda a, b: torch._foreach_addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch._foreach_addcdiv(a, a, b, [0.5, 2.0]),
    "addcdiv_tensor": lambda a, b: torch._foreach_addcdiv(a, a, b, torch.tensor([0.5, 2.0])),
}


def written(a, b):
    torch._foreach_add_(a, b, alpha=0.5)
    torch._foreach_maximum_(b, a)
    torch._foreach_copy_(a, b)
    torch._foreach_zero_(b)
    return a


def call(n: int) -> tuple:
    return [torch.randn(n, 4), torch.randn(3)], [torch.rand(n, 4) + 0.1, torch.rand(3) + 0.1]


@pytest.mark.parametrize("program", [*PROGRAMS.values(), written], ids=[*PROGRAMS, "written"])
def test_program(program: Callable) -> None:
    torch.manual_seed(0)
    check(program, call(2), call(5), compiles=1, dynamic=True)


def test_gradients() -> None:
    def f(a, b):
        return torch._foreach_addcdiv(torch._foreach_mul(a, 2.0), a, b, value=0.5)

    def leaves(n: int) -> tuple:
        return [[t.requires_grad_() for t in tensors] for tensors in call(n)]

    check(f, *(tuple(leaves(n)) for n in (2, 5)), compiles=1, dynamic=True)
