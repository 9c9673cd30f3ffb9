"""Programs whose sizes change: every order of sizes, exact numbers of compiles."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitshape
from tests.programs.compare import check

SIZES = (2, 1, 0, 3, 17, 64)


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * y + x.relu()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.5, -1)


def layer_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (16,), w) + x


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / 4.0
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ k


def shuffles(sizes: tuple[int, ...], count: int = 3) -> list[list[int]]:
    """`count` orders of `sizes`, the same ones in every run."""
    return [random.Random(seed).sample(sizes, len(sizes)) for seed in range(count)]


@pytest.mark.parametrize("order", [*shuffles(SIZES), [0, 1, 2], [1, 5], [5, 1], [7, 0]], ids=str)
def test_pointwise_needs_two_compiles_in_any_order(order: list[int]) -> None:
    check(pointwise, *[(torch.randn(n, 3), torch.randn(n, 3)) for n in order], compiles=2)


@pytest.mark.parametrize("order", shuffles(SIZES), ids=str)
def test_softmax_needs_two_compiles_in_any_order(order: list[int]) -> None:
    check(softmax, *[(torch.randn(3, n),) for n in order], compiles=2)


@pytest.mark.parametrize("order", shuffles(SIZES), ids=str)
def test_layer_norm_needs_two_compiles_in_any_order(order: list[int]) -> None:
    calls = [
        (torch.randn(n, 16, requires_grad=True), torch.randn(16, requires_grad=True)) for n in order
    ]
    check(layer_norm, *calls, compiles=2)


@pytest.mark.parametrize("order", shuffles((2, 1, 3, 17, 32)), ids=str)
def test_attention_needs_two_compiles_in_any_order(order: list[int]) -> None:
    check(attention, *[(torch.randn(2, n, 8), torch.randn(2, n, 8)) for n in order], compiles=2)


@pytest.mark.parametrize("order", shuffles(SIZES), ids=str)
def test_mlp_training_needs_two_compiles_in_any_order(order: list[int]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), y, reduction="sum")

    calls = [(torch.randn(n, 6), torch.randn(n, 4)) for n in order]
    check(loss, *calls, compiles=2, parameters=lambda: list(model.parameters()))


def test_two_sizes_that_change_one_after_the_other() -> None:
    sizes = itertools.product((4, 6, 9), (3, 5))
    check(pointwise, *[(torch.randn(n, m), torch.randn(n, m)) for n, m in sizes], compiles=3)


def test_static_compiles_once_a_size() -> None:
    calls = [(torch.randn(n, 3), torch.randn(n, 3)) for n in (4, 5, 4, 6, 5)]
    check(pointwise, *calls, dynamic=False)
    assert jitshape.stats()["compiles"] == 3


@pytest.mark.parametrize("order", shuffles((2, 3, 17, 64)), ids=str)
def test_dynamic_from_the_start_compiles_once(order: list[int]) -> None:
    calls = [(torch.randn(n, 3), torch.randn(n, 3)) for n in order]
    check(pointwise, *calls, dynamic=True)
    assert jitshape.stats()["compiles"] == 1


def test_dynamic_from_the_start_serves_zero_and_one() -> None:
    calls = [(torch.randn(n, 3), torch.randn(n, 3)) for n in (1, 0, 2, 9)]
    check(pointwise, *calls, dynamic=True, compiles=2)


def test_broadcasting_against_one() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    pairs = [(4, 4), (4, 1), (1, 4), (6, 1), (1, 7), (6, 6), (1, 1)]
    check(add, *[(torch.randn(a, 3), torch.randn(b, 3)) for a, b in pairs])


def test_large_and_odd_sizes() -> None:
    calls = [(torch.randn(n), torch.randn(n)) for n in (100_003, 7, 65_536)]
    check(pointwise, *calls, compiles=2)


def test_ranks_compile_apart() -> None:
    calls = [(torch.randn(s), torch.randn(s)) for s in ((), (3,), (3, 2), (2, 3, 2), (4,), (5,))]
    check(pointwise, *calls)
    assert jitshape.stats()["compiles"] == 5


def test_sizes_in_arithmetic_and_results() -> None:
    def f(x: torch.Tensor) -> tuple:
        n, m = x.shape
        return x.reshape(m, n), n * m, n // 2, x.numel() % 3, x.shape

    check(f, *[(torch.randn(n, 4),) for n in (5, 6, 9)], compiles=2)


def test_branch_on_a_size_guards_both_sides() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 8 else x - 1

    check(f, *[(torch.randn(n),) for n in (4, 5, 9, 12, 8, 100)], compiles=3)


def test_chunk_cat_and_slice() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([b, a[:, 1:], x[:, ::2]], -1)

    check(f, *[(torch.randn(3, n),) for n in (8, 10, 14, 20)], compiles=2)


def test_range_over_a_size() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for i in range(x.shape[0]):
            total = total + x[i] * i
        return total

    check(f, *[(torch.randn(n),) for n in (2, 3, 4)], compiles=3)


@pytest.mark.parametrize("backend", ["eager", "cpu"])
def test_backends_agree(backend: str) -> None:
    calls = [(torch.randn(n, 16, requires_grad=True), torch.randn(16)) for n in (3, 5, 8)]
    check(layer_norm, *calls, compiles=2, backend=backend)


def test_modules_of_different_classes_learn_apart() -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Triple(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 3

    check(Double(), (torch.randn(4),))
    compiled = jitshape.compile(Triple())
    compiled(torch.randn(5))
    assert jitshape.stats()["symbols"] == 0
    jitshape.compile(Triple())(torch.randn(6))
    assert jitshape.stats()["symbols"] == 1


@pytest.mark.parametrize("one", [(4, 1, 8), (1, 4, 8), (1, 1, 8), (4, 8, 1), (0, 1, 8)], ids=str)
def test_a_size_of_one_says_nothing_of_the_order_of_strides(one: tuple[int, ...]) -> None:
    """(4, 1, 8) lies in memory as a transposed (1, 4, 8) would; it is taken as it is written."""
    calls = [(torch.randn(s),) for s in ((2, 3, 5), one, (6, 7, 9), (1, 9, 4))]
    check(lambda x: x.transpose(0, 1) + 1, *calls)
    assert jitshape.stats()["compiles"] <= 3
    check(lambda x: x.transpose(0, 1) + 1, *calls[1:], dynamic=True, compiles=1)


class Stepping(nn.Module):
    """Numbers in attributes: a counter, a schedule, a configured width."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.step, self.rate, self.width = 0, 1.0, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.rate = self.rate * 0.5
        return x[:, : self.width] * self.rate + self.step


def test_counters_and_schedules_of_a_module_become_symbolic() -> None:
    jitshape.reset()
    module, reference = Stepping(), Stepping()
    compiled = jitshape.compile(module)
    for n in range(8):
        x = torch.randn(3, 8)
        torch.testing.assert_close(compiled(x), reference(x))
        if n == 5:
            module.width = reference.width = 2
    assert (module.step, module.rate) == (8, 2.0**-8)
    assert jitshape.stats()["compiles"] == 3


def test_instances_that_differ_in_a_number_share_the_second_compile() -> None:
    jitshape.reset()
    for width in (4, 2, 3, 1, 7):
        x = torch.randn(3, 8)
        torch.testing.assert_close(jitshape.compile(Stepping(width))(x), Stepping(width)(x))
    assert jitshape.stats()["compiles"] == 2


TALLY = {"calls": 0, "scale": 0.5}


def test_numbers_in_globals_become_symbolic() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        TALLY["calls"] += 1
        return x * TALLY["scale"] + TALLY["calls"]

    jitshape.reset()
    compiled = jitshape.compile(f)
    for calls in range(1, 6):
        TALLY["scale"] += 0.25
        expected = torch.ones(2) * TALLY["scale"] + calls
        torch.testing.assert_close(compiled(torch.ones(2)), expected)
    assert jitshape.stats()["compiles"] == 2


def test_numbers_behind_a_graph_break_become_symbolic() -> None:
    @jitshape.disable
    def outside() -> None:
        pass

    def f(x: torch.Tensor, scale: float, n: int) -> torch.Tensor:
        y = x * scale
        outside()
        return y[:n] + n * scale

    jitshape.reset()
    compiled = jitshape.compile(f)
    for k in range(1, 6):
        x = torch.randn(7 + k, 3)
        torch.testing.assert_close(compiled(x, k / 4, k), f(x, k / 4, k))
    assert jitshape.stats()["compiles"] == 4
