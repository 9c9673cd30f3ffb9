"""Storages of arguments that a program empties and fills: what sharded training does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same


def shrink(x: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    y = x * 2
    x.untyped_storage().resize_(0)
    return y


def grow(x: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(x.numel() * x.element_size())
    x.copy_(full)
    return x * 2


def grow_use_shrink(x: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    storage = x.untyped_storage()
    if storage.size() != x.numel() * 4:
        storage.resize_(x.numel() * 4)
    x.copy_(full)
    y = x @ x.t()
    storage.resize_(0)
    return y


def ask(x: torch.Tensor, full: torch.Tensor) -> tuple[torch.Tensor, int]:
    return full + 1, x.untyped_storage().nbytes()


def no_change(x: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(x.untyped_storage().size())
    return full * 2


def argument(n: int, empty: bool) -> torch.Tensor:
    x = torch.arange(3.0 * n).view(n, 3)
    if empty:
        x.untyped_storage().resize_(0)
    return x


def outcome(call: Any, n: int, empty: bool) -> list[Any]:
    x, full = argument(n, empty), torch.randn(n, 3, generator=torch.Generator().manual_seed(n))
    result = call(x, full)
    size = x.untyped_storage().nbytes()
    return [result, size, x.clone() if size else None]


@pytest.mark.parametrize(
    "program, empty",
    [
        *((shrink, False), (grow, True), (grow_use_shrink, True), (grow_use_shrink, False)),
        *((ask, True), (ask, False), (no_change, False), (no_change, True)),
    ],
)
def test_is_in_the_graph(program: Any, empty: bool) -> None:
    jitshape.reset()
    compiled = jitshape.compile(program)
    for n in (4, 5, 7):
        assert_same(outcome(program, n, empty), outcome(compiled, n, empty))
    assert jitshape.stats()["graph_breaks"] == 0
    assert jitshape.stats()["compiles"] <= 2


def test_whether_there_is_memory_is_guarded() -> None:
    jitshape.reset()
    compiled = jitshape.compile(ask)
    for empty in (True, False, True, False):
        assert_same(outcome(ask, 4, empty), outcome(compiled, 4, empty))
    assert jitshape.stats()["graph_hits"] == 1  # another entry with the same graph


def of_a_part(x: torch.Tensor, full: torch.Tensor) -> tuple[torch.Tensor, int]:
    return full * 2, full[1:].untyped_storage().nbytes()


def other_size(x: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    y = full * 2
    x.untyped_storage().resize_(128)
    return y


def taken_and_given(x: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(x.numel() * 4)
    return x.copy_(full) * 2


@pytest.mark.parametrize("program", [of_a_part, other_size, taken_and_given])
def test_is_left_to_eager(program: Any) -> None:
    jitshape.reset()
    compiled = jitshape.compile(program)
    expected, found = (outcome(call, 4, False) for call in (program, compiled))
    assert_same(expected[:2], found[:2])
    assert jitshape.stats()["graph_breaks"] >= 1


def test_training_on_memory_that_is_there_for_a_while() -> None:
    weight = torch.empty(3, 3, requires_grad=True)
    full = torch.randn(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight.untyped_storage().resize_(36)
            weight.copy_(full)
        y = (x @ weight).sin()
        weight.untyped_storage().resize_(0)
        return y

    weight.untyped_storage().resize_(0)
    x = torch.randn(4, 3)
    y = jitshape.compile(f)(x)
    assert weight.untyped_storage().nbytes() == 0
    y.sum().backward()
    expected = full.clone().requires_grad_()
    (x @ expected).sin().sum().backward()
    torch.testing.assert_close(weight.grad, expected.grad)
