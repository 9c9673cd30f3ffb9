"""What must hold before anything is timed: right values where kernels like to be wrong.

A gate is a function of a device ("cuda", or "cpu" for Triton's interpreter) that raises where
something is wrong.  `LARGE` ones need a GPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import jitshape

BACKENDS = {"cuda": "auto", "cpu": "triton"}


def compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    return jitshape.compile(function, dynamic=True, backend=BACKENDS[device])


def poison(device: str, count: int = 2**20) -> None:
    """The memory that is handed out next holds nan."""
    for _ in range(4):
        torch.full((count,), float("nan"), device=device)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    tolerance = 1e-3 if got.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


def sizes_of_every_kind(device: str) -> None:
    """0, 1, below, at and above 16, two rows; at most two binaries a kernel."""
    add = compiled(lambda x, y: F.gelu(x) + y, device)
    norm = compiled(lambda x: x.softmax(-1), device)
    for n in (0, 1, 15, 16, 17, 130):
        poison(device)
        x, y = (torch.randn(n, device=device, dtype=torch.bfloat16) for _ in range(2))
        close(add(x, y), F.gelu(x.double()) + y.double())
        rows = torch.randn(3, n, device=device)
        close(norm(rows), rows.double().softmax(-1))


def misaligned_views(device: str) -> None:
    add = compiled(lambda x: x * 2 + 1, device)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        whole = torch.arange(100, device=device).to(dtype)
        for view in (whole[1:], whole[3:67], whole[1:].view(3, 33)[:, 1:]):
            poison(device)
            close(add(view), view.double() * 2 + 1 if dtype != torch.uint8 else view * 2 + 1)


def strides_and_broadcasts(device: str) -> None:
    f = compiled(lambda x, y: (x - y) * x, device)
    for x, y in (((5, 1), (1, 7)), ((5, 7), (7,)), ((1, 1), (3, 4)), ((4, 0), (4, 1))):
        a, b = torch.randn(*x, device=device), torch.randn(*y, device=device)
        close(f(a, b), (a.double() - b.double()) * a.double())
    a = torch.randn(6, 9, device=device)
    close(f(a.t(), a.t()[:, :1]), (a.double().t() - a.double().t()[:, :1]) * a.double().t())


def gradients(device: str) -> None:
    f = compiled(lambda x, w: F.rms_norm(x, w.shape, w, 1e-6).square().sum(), device)
    for rows in (1, 9):
        x = torch.randn(rows, 48, device=device, requires_grad=True)
        w = torch.randn(48, device=device, requires_grad=True)
        got = torch.autograd.grad(f(x, w), (x, w))
        x64, w64 = (t.detach().double().requires_grad_() for t in (x, w))
        want = F.rms_norm(x64, w64.shape, w64, 1e-6).square().sum()
        for one, other in zip(got, torch.autograd.grad(want, (x64, w64))):
            close(one, other)


def more_elements_than_32_bits(device: str) -> None:
    n = 2**31 + 17
    x = torch.zeros(n, dtype=torch.uint8, device=device)
    out = compiled(lambda x: x + 1, device)(x)
    assert int(out[0]) == int(out[-1]) == 1 and bool((out == 1).all())


def far_storage_offset(device: str) -> None:
    whole = torch.zeros(2**31 + 4096, dtype=torch.uint8, device=device)
    view = whole[2**31 + 5 :]
    assert bool((compiled(lambda x: x + 2, device)(view) == 2).all())


def many_rows(device: str) -> None:
    """More programs than the second axis of a grid has."""
    x = torch.randn(65537, 40, device=device)
    close(compiled(lambda x: x.softmax(-1), device)(x), x.double().softmax(-1))
    close(compiled(lambda x: x.sum(1), device)(x), x.double().sum(1))


GATES = (sizes_of_every_kind, misaligned_views, strides_and_broadcasts, gradients)
LARGE = (more_elements_than_32_bits, far_storage_offset, many_rows)
