"""Backward called by the compiled function itself: captured, with eager's `.grad`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import jitshape
from tests.programs.compare import assert_same

SIZES = (3, 5, 6)


def run(program: Callable, compiled: bool, breaks: int = 0, compiles: int = 2) -> list:
    """What each call gives, and the `.grad` of the leaves after it."""
    torch.manual_seed(0)
    jitshape.reset()
    w, b = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    call = jitshape.compile(program) if compiled else program
    seen = []
    for n in SIZES:
        results = call(torch.randn(n, 4), w, b)
        grads = [None if t.grad is None else t.grad.clone() for t in (w, b)]
        seen.append((results, grads))
    if compiled:
        stats = jitshape.stats()
        assert stats["graph_breaks"] == breaks and stats["fallbacks"] == 0, stats["details"]
        assert stats["compiles"] <= compiles, [str(r) for r in jitshape.history()]
    return seen


def check(program: Callable, **expected: int) -> None:
    assert_same(run(program, False), run(program, True, **expected))


def accumulated(x, w, b):
    (x @ w + b).sin().sum().backward()
    return w.grad.sum()


def emptied(x, w, b):
    w.grad = b.grad = None
    loss = (x @ w + b).square().mean()
    loss.backward()
    return loss.detach(), w.grad


def twice(x, w, b):
    loss = (x @ w).tanh().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def only_some(x, w, b):
    (x @ w + b).exp().sum().backward(inputs=[w])
    return b.grad is None


def weighted(x, w, b):
    y = x @ w + b
    y.backward(torch.full_like(y, 0.5))
    return y.detach()


def of_two_roots(x, w, b):
    y, z = (x @ w).sum(), (b * b).sum()
    torch.autograd.backward([y, z])
    return y.detach() + z.detach()


def gradients(x, w, b):
    loss = (x @ w + b).sin().sum()
    g, h = torch.autograd.grad(loss, [w, b])
    return g * 2, h, loss.detach()


def unused(x, w, b):
    g, h = torch.autograd.grad((x @ w).sum(), [w, b], allow_unused=True)
    (m,) = torch.autograd.grad((x @ w).sum(), [b], materialize_grads=True, allow_unused=True)
    return g, h, m


def of_an_intermediate(x, w, b):
    y = x @ w
    (g,) = torch.autograd.grad(y.exp().sum(), [y])
    return g + b.detach()


def penalty(x, w, b):
    loss = (x @ w + b).pow(3).sum()
    (g,) = torch.autograd.grad(loss, [w], create_graph=True)
    (loss + g.square().sum()).backward()
    return g.detach()


def under_no_grad(x, w, b):
    loss = (x @ w).cos().sum()
    with torch.no_grad():
        loss.backward()
        w.grad.mul_(2)
    return loss.detach()


def same_gradient_twice(x, w, b):
    total = (w[0] + b).sum()
    total.backward()
    b.grad.mul_(3)
    return total.detach()


PROGRAMS = [
    accumulated, emptied, twice, only_some, weighted, of_two_roots, gradients, unused,
    of_an_intermediate, penalty, under_no_grad, same_gradient_twice,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_captured(program: Callable) -> None:
    """A first call without `.grad`, and one for each further kind of sizes and `.grad`."""
    check(program, compiles=3)


def test_accumulation_is_in_place() -> None:
    compiled = jitshape.compile(accumulated)
    w, b = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled(torch.randn(3, 4), w, b)
    kept = w.grad
    compiled(torch.randn(3, 4), w, b)
    assert w.grad is kept and not kept.requires_grad


def test_gradients_that_differ_only_by_a_second_use_have_memories_of_their_own() -> None:
    compiled = jitshape.compile(lambda x, y: (x + y).sum().backward())
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled(x, y)
    assert x.grad.stride() == (1,) and x.grad.data_ptr() != y.grad.data_ptr()


def test_a_result_whose_graph_was_used_up() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        loss = x.sin().sum()
        loss.backward()
        return loss

    compiled = jitshape.compile(f)
    for call in (f, compiled):
        x = torch.ones(3, requires_grad=True)
        loss = call(x)
        assert loss.requires_grad and not loss.is_leaf
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


def test_a_result_whose_graph_was_kept() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        loss = x.sin().sum()
        loss.backward(retain_graph=True)
        return loss

    compiled = jitshape.compile(f)
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(torch.ones(3)))


def test_hooks_on_leaves_run() -> None:
    seen: list[float] = []

    def f(x: torch.Tensor) -> None:
        (x * 2).sum().backward()

    compiled = jitshape.compile(f)
    x = torch.ones(3, requires_grad=True)
    compiled(x)
    x.register_hook(lambda g: seen.append(float(g.sum())) or g * 10)
    compiled(x)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.sum())))
    compiled(x)
    assert seen == [6.0, 6.0, 126.0] and x.grad.tolist() == [42.0] * 3


def test_what_goes_on_outside_the_graph() -> None:
    compiled = jitshape.compile(lambda y: (y * 3).sum().backward())
    x = torch.ones(3, requires_grad=True)
    compiled(x * 2)
    assert x.grad.tolist() == [6.0] * 3


def test_errors_are_eagers() -> None:
    w = torch.ones(2, requires_grad=True)
    for program in (
        lambda: (w * 2).backward(),
        lambda: torch.autograd.grad(w.sum(), [torch.ones(2, requires_grad=True)]),
        lambda: w.detach().sum().backward(),
    ):
        for call in (program, jitshape.compile(program)):
            with pytest.raises(RuntimeError):
                call()
    assert w.grad is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_training_step(kind: type) -> None:
    def train(compiled: bool) -> list:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        optimizer = kind(model.parameters(), lr=0.01)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss.detach()

        jitshape.reset()
        call = jitshape.compile(step) if compiled else step
        rows = [call(torch.randn(n, 4)) for n in (3, 5, 6, 7)]
        return [rows, [p.detach().clone() for p in model.parameters()]]

    assert_same(train(False), train(True))
    stats = jitshape.stats()
    assert stats["graph_breaks"] == stats["fallbacks"] == 0, stats["details"]
    assert stats["compiles"] == 2, [str(r) for r in jitshape.history()]
