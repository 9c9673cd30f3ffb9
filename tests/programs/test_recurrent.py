"""Recurrent modules: in one graph for sequences of any length, with eager's gradients, and weights
that are exchanged or die are seen."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same, check


def gradients_of(call: Callable, model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model.zero_grad()
    x = x.clone().requires_grad_()
    result, _ = call(x)
    (result * result).sum().backward()
    return [result, x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize(
    "model, lengths, compiles",
    [
        (torch.nn.LSTM(4, 5), (7, 9, 12), 2),
        (torch.nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True), (7, 9), 2),
        (torch.nn.LSTM(4, 5, 2, dropout=0.5), (7, 9), 2),
        (torch.nn.GRU(4, 5), (3, 4), 2),
        (torch.nn.RNN(4, 5, nonlinearity="relu"), (3,), 1),
    ],
)
def test_training(model: torch.nn.Module, lengths: tuple[int, ...], compiles: int) -> None:
    jitshape.reset()
    compiled = jitshape.compile(model)
    for length in lengths:
        x = torch.randn(length, 3, 4)
        assert_same(gradients_of(model, model, x), gradients_of(compiled, model, x))
    assert jitshape.stats()["graph_breaks"] == 0
    assert jitshape.stats()["compiles"] <= compiles


def test_inference() -> None:
    model = torch.nn.LSTM(4, 5)
    with torch.no_grad():
        check(model, (torch.randn(7, 3, 4),), (torch.randn(9, 3, 4),), compiles=2)


def test_an_exchanged_weight_is_seen() -> None:
    model = torch.nn.LSTM(4, 5)
    compiled, x = jitshape.compile(model), torch.randn(7, 3, 4)
    for _ in range(3):
        assert_same(gradients_of(model, model, x), gradients_of(compiled, model, x))
        model.weight_hh_l0 = torch.nn.Parameter(torch.randn(20, 5))


def test_weak_references() -> None:
    class Owner:
        factor = 2.0

    owners = [Owner(), Owner()]
    references = [weakref.ref(owner) for owner in owners]

    def f(x: torch.Tensor, owner: Owner, reference: weakref.ref) -> torch.Tensor:
        return x * owner.factor if reference() is owner else x

    jitshape.reset()
    compiled = jitshape.compile(f)
    x = torch.ones(3)
    assert_same(compiled(x, owners[0], references[0]), x * 2)
    assert_same(compiled(x, owners[1], references[1]), x * 2)
    assert jitshape.stats()["compiles"] == 1
    assert_same(compiled(x, owners[0], references[1]), x)
    dead = weakref.ref(Owner())
    assert_same(compiled(x, owners[0], dead), x)
    assert_same(compiled(x, owners[0], references[0]), x * 2)
    del owners[:]
    assert references[0]() is None
