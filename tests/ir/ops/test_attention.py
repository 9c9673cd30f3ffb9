"""Attention where ATen's own function computes, as on GPUs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import jitshape
from jitshape.ir.ops import attention
from jitshape.ir.ops.attention import SDPA, SDPABackward


@pytest.fixture
def left_whole(monkeypatch):
    """As if the CPU were another device."""
    monkeypatch.setattr(attention, "_left_whole", lambda q: True)


@pytest.mark.parametrize("args", [row for row, _ in SDPA.samples()], ids=range(4))
def test_results_and_gradients_are_those_of_the_other_ways(args, monkeypatch):
    out, lse = SDPA.run(*args)
    grad = torch.randn_like(out)
    gradients = SDPABackward.run(grad, *args[:3], out, lse, *args[3:])
    monkeypatch.setattr(attention, "_left_whole", lambda q: True)
    same, unused = SDPA.run(*args)
    torch.testing.assert_close(same, out)
    assert same.stride() == out.stride()
    assert (unused.shape, unused.stride(), unused.dtype) == (lse.shape, lse.stride(), lse.dtype)
    with torch.no_grad():
        found = SDPABackward.run(grad, *args[:3], same, unused, *args[3:])
    for ours, theirs in zip(found, gradients):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()


def test_compiled_programs(left_whole):
    jitshape.reset()

    def attend(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True).sin()

    compiled = jitshape.compile(attend, dynamic=True, options={"cache": False})
    for length in (5, 9):
        ours = [torch.randn(2, 3, length, 8, requires_grad=True) for _ in range(3)]
        theirs = [x.detach().clone().requires_grad_() for x in ours]
        compiled(*ours).sum().backward()
        attend(*theirs).sum().backward()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.grad, b.grad)
    assert jitshape.stats()["compiles"] == 1
