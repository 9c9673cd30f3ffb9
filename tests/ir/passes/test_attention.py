"""Whatever way a program writes attention, it becomes one op; what only looks like it stays."""

import math

import pytest
import torch
from torch.nn.functional import softmax

from jitshape.ir.evaluate import evaluate
from jitshape.ir.passes import attention as pass_of_attention
from jitshape.ir.passes import run_passes
from jitshape.ir.passes.attention import attention
from jitshape.ir.passes.order import OPTIMIZE
from tests.ir.passes.programs import trace

INF, LOWEST = math.inf, torch.finfo(torch.float32).min
B, H, T, S, D = 2, 3, 5, 7, 8


@pytest.fixture(autouse=True)
def any_size_is_worth_it(monkeypatch):
    monkeypatch.setattr(pass_of_attention, "WORTH", 0)


def operands(b=B, h=H, t=T, s=S, d=D, dtype=torch.float32):
    torch.manual_seed(0)
    q, k, v = (torch.randn(b, h, n, d).to(dtype) for n in (t, s, s))
    mask = torch.rand(b, 1, t, s) > 0.4
    mask[..., 0] = True
    return q, k, v, mask


def optimized(f, inputs, more=()):
    """The graph of `f`, whose results are those of `f`."""
    graph = trace(f, inputs)
    run_passes(graph, (*OPTIMIZE, attention), debug=True)
    for real in (inputs, *more):
        found = evaluate(graph, real, check=True)[: graph.returned]
        loose = 2e-2 if real[0].dtype == torch.bfloat16 else 1e-5
        expected = f(*real)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=loose, atol=loose, equal_nan=True)
    return graph


def is_fused(graph):
    ops = [node.op for node in graph.nodes]
    assert ("aten.bmm.default" in ops) is ("jitshape.attention.default" not in ops)
    return "aten.bmm.default" not in ops


def heads(x):
    """(batch, length, width) to (batch, heads, length, width / heads)"""
    return x.view(x.shape[0], x.shape[1], 2, x.shape[2] // 2).transpose(1, 2)


def einsum(q, k, v, m):
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(8)
    return torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v)


def causal(q, k, v, m):
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.mT * 0.3).masked_fill(later, -INF).softmax(3) @ v


def by_hand(q, k, v, m):
    scores = q @ k.mT
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def grouped(q, k, v, m):
    k, v = (x[:, :1, None].expand(-1, 1, 3, -1, -1).flatten(1, 2) for x in (k, v))
    return softmax(q @ k.mT, -1) @ v


WAYS = {
    "plain": lambda q, k, v, m: (q @ k.transpose(-1, -2)).softmax(-1) @ v,
    "times": lambda q, k, v, m: (0.25 * (q @ k.mT)).softmax(-1) @ v,
    "twice": lambda q, k, v, m: (q @ k.mT / 2 * 0.5).softmax(-1) @ v,
    "size": lambda q, k, v, m: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v,
    "query": lambda q, k, v, m: ((q / 3) @ k.mT).softmax(-1) @ v,
    "key": lambda q, k, v, m: (q @ (k * 0.2).permute(0, 1, 3, 2)).softmax(-1) @ v,
    "matmul": lambda q, k, v, m: torch.matmul(softmax(torch.matmul(q, k.mT), 3), v),
    "three": lambda q, k, v, m: torch.bmm((q[0] @ k[0].mT).softmax(-1), v[0]),
    "einsum": einsum,
    "by hand": by_hand,
    "grouped": grouped,
    "causal": causal,
    "fill": lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -1e9).softmax(-1) @ v,
    "where": lambda q, k, v, m: torch.where(m, q @ k.mT / 2, LOWEST).softmax(-1) @ v,
    "infinite": lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -INF).softmax(-1) @ v,
    "padding": lambda q, k, v, m: (q @ k.mT).masked_fill(~m[:, :, :1], -INF).softmax(-1) @ v,
    "added": lambda q, k, v, m: (q @ k.mT * 0.3 + (1.0 - m.float()) * -1e4).softmax(-1) @ v,
    "biased": lambda q, k, v, m: (q @ k.mT + k[0, 0, :, 0] + m.float()).softmax(-1) @ v,
    "wide": lambda q, k, v, m: softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype) @ v,
    "wider": lambda q, k, v, m: (q @ k.mT).softmax(-1) @ torch.cat([v, v], -1),
    "turned": lambda q, k, v, m: (q @ k.mT.contiguous()).softmax(-1) @ v.mT.contiguous().mT,
    "merged": lambda q, k, v, m: ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2).exp(),
}


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_one_op(way):
    other = operands(3, 3, 6, 9, 8)
    graph = optimized(WAYS[way], operands(), [other])
    assert is_fused(graph) and any(note.endswith("attention: one op") for note in graph.notes)
    assert not any(node.op == "aten.exp.default" for node in graph.nodes) or way == "merged"


@pytest.mark.parametrize("way", ["times", "wide", "infinite", "fill"])
def test_bf16_too(way):
    assert is_fused(optimized(WAYS[way], operands(dtype=torch.bfloat16)))


def test_no_scores_are_copied_and_heads_are_read_where_they_lie():
    def projected(x):
        q, k, v = heads(x * 2), heads(x * 3), heads(x * 4)
        return ((q @ k.mT) * 0.125).softmax(-1) @ v

    graph = optimized(projected, [torch.randn(2, 5, 8)])
    (node,) = [node for node in graph.nodes if node.op == "jitshape.attention.default"]
    assert [x.node.op.split(".")[1] for x in node.args[:3]] == ["transpose"] * 3
    assert [n.op.split(".")[1] for n in graph.nodes].count("clone") == 1  # of the result


@pytest.mark.parametrize("way", ["infinite", "fill", "where", "padding"])
def test_rows_without_any_score_are_eagers(way):
    q, k, v, mask = operands()
    mask[1, :, :2] = False
    out = WAYS[way](q, k, v, mask)
    assert out.isnan().any() == (way in ("infinite", "padding"))
    assert is_fused(optimized(WAYS[way], (q, k, v, mask)))


def test_an_added_mask_of_infinities_alone_gives_nan():
    q, k, v, mask = operands()
    mask[1, :, 2] = False
    added = torch.zeros(mask.shape).masked_fill(~mask, -INF)
    f = lambda q, k, v, a: (q @ k.mT + a).softmax(-1) @ v  # noqa: E731
    assert f(q, k, v, added).isnan().any() and is_fused(optimized(f, (q, k, v, added)))


def returned_weights(q, k, v, m):
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def returned_scores(q, k, v, m):
    scores = q @ k.mT
    return (scores * 2).softmax(-1) @ v, scores


STAYS = {
    "small number": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(~m, -10.0).softmax(-1) @ v,
        "-10.0 is filled in, which leaves masked scores a weight",
    ),
    "scores": (returned_scores, "is used elsewhere"),
    "function": (
        lambda q, k, v, m: (q @ k.mT).tanh().softmax(-1) @ v,
        "aten.tanh.default on the scores",
    ),
    "tensor": (
        lambda q, k, v, m: (q @ k.mT * k.mean()).softmax(-1) @ v,
        "scores are scaled by a tensor",
    ),
    "after": (
        lambda q, k, v, m: ((q @ k.mT).masked_fill(m, -INF) * 2).softmax(-1) @ v,
        "masked scores are scaled or masked again",
    ),
    "two": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(m, -INF).masked_fill(~m, -INF).softmax(-1) @ v,
        "masked scores are scaled or masked again",
    ),
    "column": (
        lambda q, k, v, m: (q @ k.mT).masked_fill(m[..., :1], -INF).softmax(-1) @ v,
        "a mask of another shape",
    ),
    "double": (
        lambda q, k, v, m: (q.double() @ k.double().mT).softmax(-1) @ v.double(),
        "no kernel for torch.float64 on cpu",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_differs_stays_and_says_why(name):
    way, reason = STAYS[name]
    graph = optimized(way, operands())
    assert not is_fused(graph) and graph.notes[0].endswith(reason)


@pytest.mark.parametrize(
    "way",
    [
        returned_weights,
        lambda q, k, v, m: (q @ k.mT).softmax(2) @ v,
        lambda q, k, v, m: (q @ k.mT).sigmoid() @ v,
        lambda q, k, v, m: (q @ k.mT).log_softmax(-1) @ v,
    ],
)
def test_other_products_of_products_stay(way):
    graph = optimized(way, operands())
    assert not is_fused(graph) and not graph.notes


def test_backward_keeps_the_weights():
    q, k, v, mask = operands()
    graph = trace(WAYS["times"], [q.requires_grad_(), k, v, mask])
    run_passes(graph, (*OPTIMIZE, attention), debug=True)
    assert graph.gradients and not is_fused(graph)
    assert graph.notes[0].endswith("backward needs the weights")


def test_few_scores_stay_in_kernels(monkeypatch):
    q, k, v, mask = operands()
    count = B * H * T * S * 4
    monkeypatch.setattr(pass_of_attention, "WORTH", count)
    assert is_fused(optimized(WAYS["times"], (q, k, v, mask)))
    monkeypatch.setattr(pass_of_attention, "WORTH", count + 1)
    graph = optimized(WAYS["times"], (q, k, v, mask))
    assert not is_fused(graph) and f"scores of {count} bytes" in graph.notes[0]
