"""Training as modules do it: which parameters get gradients, modes, and what eager refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitshape
from tests.programs.compare import assert_same


class Tied(nn.Module):
    """One weight in two places, batch statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.norm(self.embed(tokens))))


class LowRank(nn.Module):
    """A frozen layer with a trained correction."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Branches(nn.Module):
    """Each call uses one of two layers, and never the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.which = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[self.which](x).relu()


def rows(n: int) -> torch.Tensor:
    return torch.randn(n, 4)


def tokens(n: int) -> torch.Tensor:
    return torch.randint(7, (n,))


Step = Callable[[Any], Any]


def trained(
    kind: type, inputs: Callable[[int], torch.Tensor], changes: list[Step], compiled: bool
) -> list[list[Any]]:
    """Result, gradients (which accumulate) and buffers after a backward behind each change."""
    torch.manual_seed(0)
    model = kind()
    call = jitshape.compile(model) if compiled else model
    found = []
    for number, change in enumerate(changes):
        change(model)
        torch.manual_seed(number)
        result = call(inputs(3 + number))
        result.square().sum().backward()
        grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        found.append([result.detach(), grads, [b.clone() for b in model.buffers()]])
    return found


def nothing(model: Any) -> None:
    pass


PROGRAMS: dict[str, tuple[type, Callable, list[Step], int]] = {
    "tied, train and eval": (
        Tied,
        tokens,
        [nn.Module.train, nn.Module.eval, nn.Module.train, nn.Module.eval, nn.Module.train],
        4,
    ),
    "low rank": (LowRank, rows, [nothing] * 3, 2),
    "frozen, then not": (
        LowRank,
        rows,
        [nothing, lambda m: m.base.requires_grad_(True), lambda m: m.down.requires_grad_(False)],
        3,
    ),
    "layers without a gradient": (
        Branches,
        rows,
        [nothing, lambda m: setattr(m, "which", 1), lambda m: setattr(m, "which", 0)],
        3,
    ),
    "gradients set to None": (LowRank, rows, [nothing, nn.Module.zero_grad, nothing], 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_accumulate_as_in_eager(name: str) -> None:
    kind, inputs, changes, compiles = PROGRAMS[name]
    expected = trained(kind, inputs, changes, False)
    jitshape.reset()
    assert_same(expected, trained(kind, inputs, changes, True))
    stats = jitshape.stats()
    assert stats["graph_breaks"] == stats["fallbacks"] == 0
    assert stats["compiles"] <= compiles, [str(r) for r in jitshape.history()]


SAVED: dict[str, tuple[Callable, int]] = {
    "an argument": (lambda x, w: (x * w).sin(), 0),
    "a weight": (lambda x, w: x @ w, 1),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_tensor_that_was_written_is_an_error(name: str) -> None:
    f, place = SAVED[name]
    for call in (f, jitshape.compile(f)):
        args = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
        result = call(*args)
        with torch.no_grad():
            args[place].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_a_result_that_was_written_is_no_error_where_it_is_computed_again() -> None:
    """Eager saves the result of exp; backward computes it from what stays as it was."""
    compiled = jitshape.compile(lambda x, w: (x * w).exp())
    x, w = (torch.randn(3, requires_grad=True) for _ in range(2))
    result = compiled(x, w)
    expected = w.detach() * result.detach()
    with torch.no_grad():
        result.mul_(5)
    result.sum().backward()
    torch.testing.assert_close(x.grad, expected)


def by_grad(loss: torch.Tensor, x: torch.Tensor) -> None:
    torch.autograd.grad(loss, x, create_graph=True)


def by_backward(loss: torch.Tensor, x: torch.Tensor) -> None:
    loss.backward(create_graph=True)


def by_hessian(loss: torch.Tensor, x: torch.Tensor) -> None:
    torch.autograd.functional.hessian(lambda y: jitshape.compile(lambda z: (z**3).sum())(y), x)


@pytest.mark.parametrize("way", [by_grad, by_backward, by_hessian])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_of_a_gradient_is_an_error_of_the_catalogue(way: Callable) -> None:
    x = torch.randn(3, requires_grad=True)
    loss = jitshape.compile(lambda z: (z**3).sum())(x)
    with pytest.raises(jitshape.errors.DoubleBackward, match="create_graph=True"):
        way(loss, x)


def test_the_way_around_a_gradient_of_a_gradient() -> None:
    """What the error says to do."""
    x = torch.randn(3, requires_grad=True)
    compiled = jitshape.compile(lambda z: (z**3).sum())
    with jitshape.set_stance("force_eager"):
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    first.sum().backward()
    torch.testing.assert_close(x.grad, 6 * x.detach())
