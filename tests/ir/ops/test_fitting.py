"""Sizes of results of ops without a rule, told from runs."""

import pytest
import torch

from jitshape.ir.printer import print_graph
from jitshape.ir.symint import IntExpr
from tests.ir.tracing import replay, trace_joint

SQUARE, WIDE = torch.randn(6, 6), torch.randn(4, 6)


def traced(f, *specs, **sizes):
    trace, _ = trace_joint(lambda trace: f, *specs, **sizes)
    return trace


def shapes(trace):
    return [str(out.type).partition("[")[2].partition("]")[0] for out in trace.graph.outputs]


def asserted(trace):
    """What is looked at when the graph runs: of custom ops, all sizes."""
    return [str(fact.condition) for fact in trace.env.asserts]


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: torch.fft.rfft(x), ["s0, (s1 // 2) + 1"]),
        (lambda x: torch.fft.irfft(x), ["s0, 2*s1 - 2"]),
        (lambda x: torch.linalg.qr(x), ["s0, min(s0, s1)", "min(s0, s1), s1"]),
        (lambda x: torch.histc(x, 7), ["7"]),
        (lambda x: torch.cdist(x, x[:2], p=1.0), ["s0, 2"]),
        (lambda x: torch.kthvalue(x, 2, 0), ["s1", "s1"]),
    ],
)
def test_sizes_are_expressions(f, expected):
    """They hold at other sizes too, and no fact is made of this call's."""
    trace = traced(f, (WIDE, {0: "s0", 1: "s1"}), s0=4, s1=6)
    assert shapes(trace) == expected
    assert not any(fact.specialised for fact in trace.env.facts)
    replay(trace.graph, [torch.randn(9, 8)])


def test_sizes_that_must_agree_are_made_to():
    """Only square matrices have an inverse: runs cannot tell rows from columns."""
    trace = traced(torch.linalg.inv, (SQUARE, {0: "s0", 1: "s1"}), s0=6, s1=6)
    (out,) = trace.graph.outputs
    assert trace.env.equal(*out.type.shape) and isinstance(out.type.shape[0], IntExpr)


def test_sizes_that_differ_are_told_apart():
    trace = traced(torch.linalg.qr, (SQUARE, {0: "s0", 1: "s1"}), s0=6, s1=6)
    assert shapes(trace) == ["s0, min(s0, s1)", "min(s0, s1), s1"]
    assert not trace.env.facts


def test_what_no_expression_fits_is_static():
    """The number of rows is a power of two."""

    @torch.library.custom_op("jitshape_tests::padded", mutates_args=())
    def padded(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(1 << (x.shape[0] - 1).bit_length(), x.shape[1])

    trace = traced(padded, (torch.randn(5, 3), {0: "s0", 1: "s1"}), s0=5, s1=3)
    assert asserted(trace) == ["u0 == 8", "u1 == 3"]
    assert [str(fact.condition) for fact in trace.env.facts] == ["s0 == 5", "s1 == 3"]


def test_a_rank_that_depends_on_sizes_makes_them_static():
    @torch.library.custom_op("jitshape_tests::squeezed", mutates_args=())
    def squeezed(x: torch.Tensor) -> torch.Tensor:
        return x.squeeze().clone()

    trace = traced(squeezed, (torch.randn(1, 3), {0: "s0", 1: "s1"}), s0=1, s1=3)
    assert asserted(trace) == ["u0 == 3"]


def test_runs_draw_no_random_numbers():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    trace = traced(lambda x: torch.poisson(x.abs()), (WIDE, {0: "s0"}), s0=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert trace.graph.nodes[-1].token == 0, print_graph(trace.graph)
