"""Detached results: no gradient, and the memory of what they were detached from."""

from __future__ import annotations

import pytest
import torch

import jitshape
from tests.programs.compare import check


def test_requires_grad_of_each_result():
    def f(x):
        y = x * 2
        return y.detach(), y, x.detach(), y.detach().exp()

    check(f, (torch.randn(3, requires_grad=True),), (torch.randn(4, requires_grad=True),))


def test_memory_is_shared():
    def f(x):
        y = x * 2
        return y.detach(), y, x.detach()

    x = torch.ones(3, requires_grad=True)
    below, y, same = jitshape.compile(f)(x)
    assert below.data_ptr() == y.data_ptr() and same.data_ptr() == x.data_ptr()


def test_write_to_a_detached_copy():
    def f(x, y):
        a = (x * 2).detach()
        a.add_(1)
        return a * y

    check(f, *((torch.randn(n, requires_grad=True), torch.randn(n)) for n in (3, 4)))


def test_nothing_but_a_detached_input():
    check(lambda x: x.detach(), (torch.randn(3, requires_grad=True),))
    check(lambda x: x.detach()[1:], (torch.randn(3, requires_grad=True),))


# ---- views that are made while autograd is off


def views_untracked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    with torch.no_grad():
        of_input, of_result, computed = x.view(-1), y[1], x * 3
        with torch.enable_grad():
            tracked, doubled = x.t(), y * 2 + of_input.view_as(y)
    return of_input, of_result, computed, tracked, doubled, y


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("enabled", [True, False])
def test_views_made_while_autograd_is_off_are_leaves(leaf: bool, enabled: bool) -> None:
    jitshape.reset()
    compiled = jitshape.compile(views_untracked, fullgraph=True)
    for n in (3, 4, 5):
        rows = []
        for f in (views_untracked, compiled):
            torch.manual_seed(n)
            base = torch.rand(n, 2).requires_grad_()
            x = base if leaf else base * 1
            with torch.set_grad_enabled(enabled):
                results = f(x)
            for result in results:
                if result.requires_grad:
                    (result.sum() * 3).backward(retain_graph=True)
            made = [(r.requires_grad, r.is_leaf, r._is_view(), r._base is x) for r in results]
            rows.append((made, [r.grad if r.is_leaf else None for r in results], base.grad))
        (made, grads, grad), (wanted, wanted_grads, wanted_grad) = rows[1], rows[0]
        assert made == wanted
        torch.testing.assert_close(grads, wanted_grads)
        torch.testing.assert_close(grad, wanted_grad)
    assert jitshape.stats()["compiles"] <= 2
