"""Checkpointed regions: backward computes them again, with the randomness of forward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import jitshape
from tests.programs.compare import assert_same

SIZES = (3, 5, 6)


class Block(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(8), drop
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(F.gelu(self.a(self.norm(x))), self.drop, self.training)
        return x + self.b(h)


class Stack(nn.Module):
    def __init__(self, wrap: Callable, drop: float = 0.0) -> None:
        super().__init__()
        self.blocks, self.wrap = nn.ModuleList(Block(drop) for _ in range(3)), wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.wrap(block, x)
        return x.square().mean()


def plain(block: Callable, x: torch.Tensor) -> torch.Tensor:
    return block(x)


def reentrant(block: Callable, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=True)


def not_reentrant(block: Callable, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)


def made(wrap: Callable, drop: float = 0.0) -> Stack:
    torch.manual_seed(0)
    return Stack(wrap, drop)


def train(model: Stack, call: Callable) -> list:
    rows = []
    for n in SIZES:
        torch.manual_seed(n)
        x = torch.randn(n, 8, requires_grad=True)
        model.zero_grad()
        loss = call(x)
        loss.backward()
        rows.append([loss, x.grad, [p.grad.clone() for p in model.parameters()]])
    return rows


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("wrap", [reentrant, not_reentrant])
def test_gradients(wrap: Callable, drop: float) -> None:
    jitshape.reset()
    expected = train(model := made(wrap, drop), model)
    assert_same(expected, train(model := made(wrap, drop), jitshape.compile(model)))
    stats = jitshape.stats()
    assert stats["graph_breaks"] == stats["fallbacks"] == 0, stats["details"]
    assert stats["compiles"] == 2 and stats["backward_compiles"] == 2


def saved_bytes(model: Stack, drop: float = 0.0) -> int:
    """Bytes that the compiled forward keeps for backward, beside parameters and the argument."""
    x = torch.randn(64, 8, requires_grad=True)
    own = {t.data_ptr() for t in (x, *model.parameters())}
    loss = jitshape.compile(model)(x)  # held: without it, what it saved may go
    saved = loss.grad_fn.saved_tensors
    return sum(
        t.nbytes for t in {t.data_ptr(): t for t in saved if t.data_ptr() not in own}.values()
    )


def test_only_what_passes_between_regions_is_saved() -> None:
    between = 64 * 8 * 4
    assert saved_bytes(made(not_reentrant)) == 3 * between
    assert saved_bytes(made(plain)) > 8 * between


def test_nested_and_sequential() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return (y @ w).sin()

        def outer(y: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, y, use_reentrant=False).exp() * y

        halves = checkpoint_sequential([outer, torch.tanh], 2, x, use_reentrant=False)
        return halves.sum()

    jitshape.reset()
    rows = []
    for call in (f, jitshape.compile(f)):
        torch.manual_seed(0)
        w = torch.randn(8, 8, requires_grad=True)
        for n in SIZES:
            x = torch.randn(n, 8, requires_grad=True)
            call(x, w).backward()
            rows.append([x.grad, w.grad.clone()])
    assert_same(rows[:3], rows[3:])
    assert jitshape.stats()["fallbacks"] == 0


def test_a_region_that_writes_to_what_exists_outside_runs_as_in_eager() -> None:
    """Eager updates the running statistics twice."""
    rows = []
    for compiled in (False, True):
        torch.manual_seed(0)
        norm, calls = nn.BatchNorm1d(8), []

        def block(x: torch.Tensor, norm=norm, calls=calls) -> torch.Tensor:
            calls.append(1)
            return norm(x).tanh()

        def f(x: torch.Tensor, block=block) -> torch.Tensor:
            return checkpoint(block, x * 2, use_reentrant=False).sum()

        call = jitshape.compile(f) if compiled else f
        for n in SIZES:
            x = torch.randn(n, 8, requires_grad=True)
            call(x).backward()
            rows.append([x.grad, norm.running_mean.clone(), len(calls)])
    assert_same(rows[:3], rows[3:])


def test_a_break_inside_a_region() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        def block(y: torch.Tensor) -> torch.Tensor:
            print(end="")
            return y.sin() * y

        return checkpoint(block, x * 2, use_reentrant=False).sum()

    rows = []
    for call in (f, jitshape.compile(f)):
        torch.manual_seed(0)
        for n in SIZES:
            x = torch.randn(n, requires_grad=True)
            call(x).backward()
            rows.append(x.grad)
    assert_same(rows[:3], rows[3:])
