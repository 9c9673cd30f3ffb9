"""What is recorded: each op of the program once, for forward and backward together; a hit runs
no Python but the entry."""

from __future__ import annotations

import sys

import torch

import jitshape
from jitshape.observe import records


def test_each_op_is_traced_once_for_forward_and_backward():
    runs = []

    @jitshape.allow_in_graph
    def counted(x):
        runs.append(1)
        return torch.tanh(x) * torch.sin(x)

    def f(x, w):
        return counted(x @ w).sum()

    jitshape.reset()
    compiled = jitshape.compile(f)
    x, w = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    with records.detailed():
        compiled(x, w).backward()
    reference = w.detach().clone().requires_grad_()
    (torch.tanh(x @ reference) * torch.sin(x @ reference)).sum().backward()
    torch.testing.assert_close(w.grad, reference.grad)
    (record,) = jitshape.history()
    assert runs == [1]
    for op in ("tanh(", "sin(", "cos(", "tanh_backward("):
        assert record.graph.count(f" {op}") == 1, record.graph
    compiled(x, w).backward()
    assert runs == [1]
    assert jitshape.stats()["backward_compiles"] == 1


def test_a_hit_runs_no_python_frame_but_the_entrys():
    def f(x, scale):
        return x * scale

    compiled = jitshape.compile(f)
    x = torch.ones(3)
    compiled(x, 2.0)
    frames = []

    def profile(frame, event, arg):
        if event == "call":
            frames.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        compiled(x, 2.0)
    finally:
        sys.setprofile(None)
    assert frames == ["f", "program"]  # the emitted code and the graph's program
