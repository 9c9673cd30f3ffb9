"""Identities vanish where nobody can tell, and only there."""

import pytest
import torch

from jitshape.ir.evaluate import evaluate
from jitshape.ir.passes import run_passes
from jitshape.ir.passes.cse import cse
from jitshape.ir.passes.dce import dce
from jitshape.ir.passes.functionalize import functionalize
from jitshape.ir.passes.simplify import simplify
from tests.ir.passes.programs import trace

SPECIAL = torch.tensor([[-0.0, float("nan")], [float("inf"), -1.5], [0.0, 3.0]])


def simplified(f, inputs, more=()):
    """Names of the ops that are left; the values stay, bit for bit."""
    graph = trace(f, [x.clone() for x in inputs])
    run_passes(graph, (functionalize, simplify, cse, dce), debug=True)
    for real in (inputs, *more):
        expected = f(*(x.clone() for x in real))
        expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
        found = evaluate(graph, [x.clone() for x in real], check=True)[: graph.returned]
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(torch.signbit(a), torch.signbit(b))
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return [node.op.split(".")[1] for node in graph.nodes]


@pytest.mark.parametrize(
    "f,left",
    [
        (lambda x: (x * 1).exp(), ["exp"]),
        (lambda x: (x / 1 - 0).exp(), ["exp"]),
        (lambda x: (x + 0).exp(), ["add", "exp"]),  # -0.0 + 0 is 0.0
        (lambda x: (x * 0).exp(), ["mul", "exp"]),  # nan * 0 is nan
        (lambda x: x.t().t().exp(), ["exp"]),
        (lambda x: x.permute(1, 0).permute(1, 0).exp(), ["exp"]),
        (lambda x: x.view(-1).view(x.shape).exp(), ["exp"]),
        (lambda x: x.double().float().exp(), ["exp"]),
        (lambda x: x.bfloat16().float().exp(), ["_to_copy", "_to_copy", "exp"]),
        (lambda x: torch.where(torch.ones_like(x, dtype=torch.bool), x, x * 2).exp(), ["exp"]),
        (lambda x: x[:, :].exp(), ["exp"]),
        (lambda x: x.clone().exp(), ["exp"]),
    ],
)
def test_identities(f, left):
    assert simplified(f, [SPECIAL], [[torch.randn(5, 4)]]) == left


def test_a_fresh_output_stays_fresh():
    assert simplified(lambda x: x * 1, [SPECIAL]) == ["mul"]
    assert simplified(lambda x: [y := x.exp(), y.clone()], [SPECIAL]) == ["exp", "clone"]


def test_promotion_and_broadcast_are_no_identities():
    wide = torch.ones(3, 2, dtype=torch.float64)
    assert simplified(lambda x, y: (x * 1 + y, x.double() * 1), [SPECIAL, wide])[-1] == "_to_copy"
    kept = simplified(lambda x: (x[0] * x.new_ones(x.shape)).exp(), [SPECIAL])
    assert kept == ["select", "new_ones", "mul", "exp"]


def test_integers_lose_zeros():
    assert simplified(lambda x: (x + 0) * 3, [torch.arange(6).view(3, 2)]) == ["mul"]


def test_equal_nodes_are_shared_but_not_equal_outputs():
    def f(x):
        return (x + 1).exp() * (x + 1).exp()

    assert simplified(f, [SPECIAL]) == ["add", "exp", "mul"]
    assert simplified(lambda x: (x + 1, x + 1), [SPECIAL]) == ["add", "add"]
    assert simplified(lambda x: (x + 1.0).exp() * (x + True).exp(), [SPECIAL]).count("add") == 2


def test_random_ops_are_neither_shared_nor_dropped():
    graph = trace(lambda x: torch.rand_like(x) * torch.rand_like(x), [SPECIAL])
    graph.outputs, graph.returned = graph.inputs[:], 1
    run_passes(graph, (functionalize, cse, dce))
    assert [(n.op, n.token) for n in graph.nodes] == [("aten.rand_like.default", t) for t in (0, 1)]
