"""Autocast: regions round the call, inside it and round `backward()`, each as in eager."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitshape
from tests.programs.compare import assert_same


def region() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


class Product(torch.autograd.Function):
    """Its formula calls products on what it saved in float32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w = ctx.saved_tensors
        return g @ w, x @ g


def switched_off(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        y = torch.baddbmm(x[None], x[None], w[None])
    return y.sin()


def inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with region():
        y = x @ w
    return y.float() + x


PROGRAMS: dict[str, Callable] = {
    "a product": lambda x, w: (x @ w).sin(),
    "a layer": lambda x, w: F.linear(x, w, w[0]).relu(),
    "a batch": lambda x, w: torch.bmm(x[None], w[None]).softmax(-1),
    "a formula": Product.apply,
    "no product": lambda x, w: (x * w).exp(),
    "a region inside": inside,
    "a region that is off inside": switched_off,
}
REGIONS = {"outside": nullcontext, "inside": region}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_forward_and_backward_in_any_region(name: str, backend: str) -> None:
    jitshape.reset()
    compiled = jitshape.compile(PROGRAMS[name], backend=backend)
    for forward in REGIONS.values():
        for backward in REGIONS.values():
            rows = []
            for call in (PROGRAMS[name], compiled):
                generator = torch.Generator().manual_seed(3)
                x, w = (torch.randn(6, 6, generator=generator).requires_grad_() for _ in "xw")
                with forward():
                    y = call(x, w)
                with backward():
                    y.square().sum().backward()
                rows.append([y, x.grad, w.grad])
            assert_same(*rows)
    assert jitshape.stats()["graph_breaks"] == 0
    assert jitshape.stats()["backward_compiles"] <= 4


def test_backward_in_a_region_is_compiled_once() -> None:
    jitshape.reset()
    compiled = jitshape.compile(lambda x: x @ x, dynamic=True)
    for size in (3, 5, 6):
        for number in range(2):
            y = compiled(torch.randn(size, size, requires_grad=True)).sum()
            with region() if number else nullcontext():
                y.backward()
    assert jitshape.stats()["backward_compiles"] == 2
