"""Detached results: no gradient, and the memory of what they were detached from."""

from __future__ import annotations

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
