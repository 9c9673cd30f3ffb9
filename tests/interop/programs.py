"""Programs for the ways out of and into torch's tools, and the check against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def views_and_writes(x, y, n):
    h = (x @ y).relu()
    x.add_(1).mul_(2)
    row = h.reshape(-1)[: x.shape[0] * 2 + n]
    return h.t(), row.sum() / x.shape[0], x[1:], torch.cat([h, h]), max(x.shape[0], n)


def of_two_kinds(x, y, n):
    kept = y.detach()
    return x.view(torch.int32), kept, (x * n).to(torch.int64), x.expand(2, *x.shape), y


def numbers(x, y, n):
    size = x.shape[0] // 2 * 3 % 7 + min(x.shape[0], 5)
    return y.new_zeros(size), x * (n**0.5), torch.full((size + 1,), x.shape[0] ** -0.5)


PROGRAMS = (views_and_writes, of_two_kinds, numbers)


def check(fn: Callable, compiled: Callable, sizes: tuple[int, ...] = (4, 5, 9, 1, 4)) -> None:
    """Results, written inputs, views and versions of `compiled` are those of `fn`."""
    for n in sizes:
        torch.manual_seed(n)
        x, y = torch.randn(n, 3), torch.randn(3, 6)
        mine, theirs = (x.clone(), y.clone()), (x.clone(), y.clone())
        expected, actual = fn(*mine, n), compiled(*theirs, n)
        for want, got in zip([*expected, *mine], [*actual, *theirs], strict=True):
            same(want, got)
        for want, got in zip(expected, actual):
            bases = [None, *mine], [None, *theirs]
            if isinstance(want, torch.Tensor):
                shown = [[t is r._base for t in b] for r, b in zip((want, got), bases)]
                assert shown[0] == shown[1]
        assert [t._version for t in mine] == [t._version for t in theirs]


def same(want: Any, got: Any) -> None:
    if not isinstance(want, torch.Tensor):
        assert want == got and type(want) is type(got)
        return
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride() and got.requires_grad == want.requires_grad


def check_training(compile: Callable[[nn.Module], Callable]) -> None:
    """Gradients of a small module are eager's, for some batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    compiled = compile(model)
    for n in (3, 5, 8, 1):
        x = torch.randn(n, 4)
        found = []
        for run in (model, compiled):
            model.zero_grad()
            run(x).square().mean().backward()
            found.append([p.grad.clone() for p in model.parameters()])
        for want, got in zip(*found, strict=True):
            torch.testing.assert_close(got, want)
