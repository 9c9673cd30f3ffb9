"""Tensors that become leaves of autograd inside of a program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import check


def doubled(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    return x * 2


def by_attribute(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    x.requires_grad = True
    return x * y


def without_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.requires_grad_()
    return x * 2


def force(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_(True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x)
    return -gradient


def energy_and_force(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x.requires_grad_()
    energy = (x**3).sum()
    return energy, -torch.autograd.grad(energy, x, create_graph=True)[0]


def seen(x: torch.Tensor) -> tuple[Any, ...]:
    before = x.requires_grad
    x.requires_grad_()
    return before, x.requires_grad, x.is_leaf, x * 2


def attack(x: torch.Tensor) -> torch.Tensor:
    change = torch.zeros_like(x, requires_grad=True)
    for _ in range(2):
        ((x + change) ** 2).sum().backward()
        with torch.no_grad():
            change.add_(change.grad.sign() * 0.1)
        change.grad.zero_()
    return (x + change).detach()


def gradient_of_a_copy(x: torch.Tensor) -> tuple[Any, ...]:
    y = x.detach().clone().requires_grad_()
    (y * y).sum().backward()
    gradient, y.grad = y.grad, None
    return gradient * 2, y.grad


IN_GRAPH = [
    *(doubled, by_attribute, without_grad, force, energy_and_force, seen, attack),
    gradient_of_a_copy,
]


@pytest.mark.parametrize("program", IN_GRAPH)
def test_is_in_the_graph(program: Any) -> None:
    check(program, (torch.randn(4),), (torch.randn(6),), compiles=2)


def of_a_view(x: torch.Tensor) -> torch.Tensor:
    v = x.view(2, 2)
    x.requires_grad_()
    return v * x.view(2, 2)


def returned(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(4, requires_grad=True)


def behind_a_result(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(4, requires_grad=True) * x


def turned_off(x: torch.Tensor) -> torch.Tensor:
    x.requires_grad_()
    x.requires_grad_(False)
    return x * 2


@pytest.mark.parametrize("program", [of_a_view, returned, behind_a_result, turned_off])
def test_is_left_to_eager(program: Any) -> None:
    check(program, (torch.randn(4),), breaks=1)


def test_the_same_argument_twice_is_seen() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.requires_grad_()
        return x * 2, y * 2

    compiled = jitshape.compile(f)
    for shared in (False, True, False):
        x = torch.ones(3)
        y = x if shared else torch.ones(3)
        results = compiled(x, y)
        assert [t.requires_grad for t in (x, y, *results)] == [True, shared, True, shared]


def test_a_view_whose_base_becomes_a_leaf_later_is_seen() -> None:
    base = torch.ones(4)
    view = base.view(2, 2)
    compiled = jitshape.compile(lambda v: v * 2)
    assert not compiled(view).requires_grad
    base.requires_grad_()
    assert compiled(view).requires_grad
    assert jitshape.stats()["fallbacks"] == 0
