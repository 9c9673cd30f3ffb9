"""Optimizers compiled as a step of their own: eager's parameters and state, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

import jitshape
from tests.programs.compare import assert_same

STEPS = 4


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes = ((4, 3), (4,), (2, 4), ())
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def train(
    make: Callable[..., Any], compiled: bool, between: Callable[[Any, int], None] | None = None
) -> tuple[Any, dict]:
    """Parameters and state after each step, and what was compiled."""
    jitshape.reset()
    params = parameters()
    optimizer = make(params)
    seen = []

    def step() -> None:
        optimizer.step()

    run = jitshape.compile(step) if compiled else step
    for number in range(STEPS):
        optimizer.zero_grad()
        sum((p * p * (number + 1)).sin().sum() for p in params).backward()
        run()
        states = [{k: v.clone() for k, v in optimizer.state[p].items() if torch.is_tensor(v)}
                  for p in params]  # fmt: skip
        seen.append(([p.detach().clone() for p in params], states))
        if between is not None:
            between(optimizer, number)
    return seen, jitshape.stats()


def check(make: Callable[..., Any], compiles: int = 2, **more: Any) -> dict:
    expected, _ = train(make, False, **more)
    found, stats = train(make, True, **more)
    assert_same(expected, found)
    assert stats["graph_breaks"] == stats["fallbacks"] == 0, stats["details"]
    assert stats["compiles"] == compiles, [str(r) for r in jitshape.history()]
    return stats


OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.1, foreach=False),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True, foreach=True),
    "adam": partial(Adam, lr=0.01, foreach=False),
    "amsgrad": partial(Adam, lr=0.01, amsgrad=True, weight_decay=0.1, foreach=True),
    "adamw": partial(AdamW, lr=0.01),
    "rmsprop": partial(RMSprop, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    """The first step makes the state, where there is some; all others share one entry."""
    check(OPTIMIZERS[name], compiles=1 if name == "sgd" else 2)


def test_lr_as_a_tensor() -> None:
    def halve(optimizer: Any, number: int) -> None:
        optimizer.param_groups[0]["lr"].mul_(0.5)

    check(lambda params: AdamW(params, lr=torch.tensor(0.01), foreach=False), between=halve)


def test_a_schedule_of_lr_is_compiled_once_more() -> None:
    def halve(optimizer: Any, number: int) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    check(partial(SGD, lr=0.1, momentum=0.9), compiles=2, between=halve)


def test_frozen_parameters_and_groups() -> None:
    def make(params: Any) -> Any:
        params[1].requires_grad_(False)
        groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:]}]
        return SGD(groups, lr=0.01, momentum=0.5)

    check(make)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("by", ["norm", "inf", "value"])
def test_gradient_clipping(by: str, foreach: bool) -> None:
    def clip(params: Any) -> Any:
        if by == "value":
            return nn.utils.clip_grad_value_(params, 0.3, foreach=foreach)
        kind = float("inf") if by == "inf" else 2.0
        return nn.utils.clip_grad_norm_(params, 0.3, norm_type=kind, foreach=foreach)

    rows = []
    jitshape.reset()
    for run in (clip, jitshape.compile(clip)):
        params = parameters()
        for scale in (1.0, 100.0):
            for p in params:
                p.grad = (p * scale).detach()
            rows.append((run(params), [p.grad.clone() for p in params]))
    assert_same(rows[:2], rows[2:])
    stats = jitshape.stats()
    assert stats["graph_breaks"] == stats["fallbacks"] == 0 and stats["compiles"] == 1


def test_parameters_written_while_autograd_is_on_outside() -> None:
    """The program is without autograd only inside, its compiled form as a whole."""
    w = nn.Parameter(torch.ones(4, 4))

    def f(x: torch.Tensor) -> tuple:
        with torch.no_grad():
            w.mul_(2)
            solved = torch.linalg.solve(w + torch.eye(4), x)
        return solved, w.view(-1)

    jitshape.reset()
    compiled = jitshape.compile(f)
    for number, x in enumerate((torch.ones(4, 2), torch.ones(4, 3))):
        solved, flat = compiled(x)
        assert not solved.requires_grad and flat.requires_grad and flat._base is w
        assert w[0, 0] == 2.0 ** (number + 1)
    assert jitshape.stats()["fallbacks"] == 0
    assert w.is_leaf and w.requires_grad and w.grad_fn is None


FUSED = {
    "adam": partial(Adam, lr=0.1, weight_decay=0.1, fused=True),
    "adam, amsgrad": partial(Adam, lr=0.1, amsgrad=True, maximize=True, fused=True),
    "adamw": partial(AdamW, lr=0.1, fused=True),
    "adamw, a tensor": partial(AdamW, lr=torch.tensor(0.1), fused=True),
    "sgd": partial(SGD, lr=0.1, weight_decay=0.1, fused=True),
    "sgd, momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "sgd, dampening": partial(SGD, lr=0.1, momentum=0.9, dampening=0.5, fused=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.1, fused=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_steps_are_arithmetic(name: str) -> None:
    check(FUSED[name])
