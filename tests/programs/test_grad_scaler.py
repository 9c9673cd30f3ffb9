"""Gradient scaling: whole steps under autocast with a GradScaler, also where one is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW

import jitshape
from tests.programs.compare import assert_same, check

STEPS = 5
BAD_STEP = 2  # its gradients are not finite


def train(make: Callable, compiled: bool, clip: bool) -> tuple[list, dict[str, Any]]:
    """Losses, parameters and the state of the scaler after each step; what was compiled."""
    jitshape.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    run = jitshape.compile(step) if compiled else step
    rows = []
    for number in range(STEPS):
        x = torch.randn(3, 4)
        if number == BAD_STEP:
            x[0, 0] = float("inf")
        loss = run(x)
        state = [v for p in model.parameters() for v in optimizer.state[p].values()]
        state = [v.clone() for v in state if torch.is_tensor(v)]
        parameters = [p.detach().clone() for p in model.parameters()]
        tracker = scaler._growth_tracker.clone()
        rows.append([loss, parameters, state, scaler.get_scale(), tracker])
    return rows, jitshape.stats()


FUSED = {
    "adam": partial(Adam, lr=0.1, fused=True),
    "adamw, amsgrad": partial(AdamW, lr=0.1, amsgrad=True, fused=True),
    "sgd, momentum": partial(SGD, lr=0.1, momentum=0.9, fused=True),
    "adagrad": partial(Adagrad, lr=0.1, fused=True),
}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", FUSED)
def test_a_step_that_may_be_left_out_is_one_graph(name: str, clip: bool) -> None:
    expected, _ = train(FUSED[name], False, clip)
    found, stats = train(FUSED[name], True, clip)
    for number, rows in enumerate(zip(expected, found)):
        for one, other in zip(*rows):
            torch.testing.assert_close(other, one, rtol=2e-2, atol=2e-3, equal_nan=True, msg=number)
    assert stats["graph_breaks"] == stats["fallbacks"] == 0, stats["details"]


@pytest.mark.parametrize("make", [partial(SGD, lr=0.1), partial(Adam, lr=0.1)])
def test_a_step_that_asks_ends_the_graph_there_once(make: Callable) -> None:
    """`scaler.step` takes a Python decision by the gradients."""
    expected, _ = train(make, False, False)
    found, stats = train(make, True, False)
    for rows in zip(expected, found):
        for one, other in zip(*rows):
            torch.testing.assert_close(other, one, rtol=2e-2, atol=2e-3, equal_nan=True)
    reasons = stats["details"]["break_reasons"]
    assert len(reasons) == 1 and "data_dependent" in next(iter(reasons)), reasons
    assert stats["graph_breaks"] <= 2


def unscaled(*tensors: torch.Tensor) -> tuple:
    *gradients, found_inf, inverse = tensors
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse)
    return gradients[0] + 1, found_inf


@pytest.mark.parametrize("value", [1.0, float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("inverse", [1.0, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_unscaling(value: float, inverse: float, dtype: torch.dtype) -> None:
    calls = [
        (
            *(torch.randn(n, 2).to(dtype), torch.full((n,), value).to(dtype)),
            *(torch.zeros(()), torch.tensor(inverse)),
        )
        for n in (3, 5)
    ]
    check(unscaled, *calls, compiles=2)


def updated(scale: torch.Tensor, tracker: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    return torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 3)


@pytest.mark.parametrize("scale", [1024.0, 3e38])
@pytest.mark.parametrize("found", [0.0, 1.0, 2.0])
def test_scales(scale: float, found: float) -> None:
    calls = [
        (torch.tensor([scale]), torch.tensor([n], dtype=torch.int32), torch.tensor([found]))
        for n in range(4)
    ]
    check(updated, *calls, compiles=1)


def test_a_table_by_the_address_of_an_object() -> None:
    """As the scaler's of its optimizers."""
    holder, table = nn.Module(), defaultdict(list)
    holder.key = nn.Module()

    def f(x: torch.Tensor) -> torch.Tensor:
        table[id(holder.key)].append(x.shape[0])
        return x + len(table)

    check(f, (torch.ones(2),), compiles=1)
    assert list(table) == [id(holder.key)] and table[id(holder.key)] == [2, 2]
    compiled = jitshape.compile(f)
    for _ in range(2):
        assert_same(f(torch.ones(2)), compiled(torch.ones(2)))
        holder.key = nn.Module()
    assert_same(compiled(torch.ones(2)), torch.ones(2) + len(table))


def test_a_new_table_at_each_call_is_no_new_entry() -> None:
    def f(table: defaultdict, x: torch.Tensor) -> torch.Tensor:
        table["shapes"].append(x.shape[0])
        return x + len(table["shapes"])

    jitshape.reset()
    compiled = jitshape.compile(f)
    for _ in range(3):
        table: defaultdict = defaultdict(list)
        assert_same(compiled(table, torch.ones(2)), torch.ones(2) + 1)
        assert table == {"shapes": [2]}
    assert jitshape.stats()["compiles"] == 1
    table = defaultdict(lambda: [7])
    assert_same(compiled(table, torch.ones(2)), torch.ones(2) + 2)
    with pytest.raises(KeyError):
        compiled(defaultdict(), torch.ones(2))
