"""Matrix products that become kernels: which, what shares their kernel, what they compute."""

from __future__ import annotations

import pytest
import torch

import jitshape
from jitshape.backend.contractions import contracted, left_to_aten
from jitshape.backend.schedule import schedule
from tests.backend.graphs import build, call, check, new_env, tensor

pytest.importorskip("triton")
HALF = torch.bfloat16
SIZES = [(5, 7, 3), (37, 50, 70), (300, 17, 33), (1, 2, 1), (4, 4, 0), (0, 3, 4), (16, 16, 64)]


def product_graph(body, dtype=torch.float32, turned=True):
    """`body(g, bias, a, b, residual)` over symbolic sizes m, n, k; b is [n, k] if `turned`."""
    env = new_env()
    m, n, k = (env.algebra.symbol(name, 2) for name in "mnk")
    shapes = (n,), (m, k), (n, k) if turned else (k, n), (m, n)
    return build(env, [tensor(*shape, dtype=dtype) for shape in shapes], body)


def inputs(m, n, k, dtype=torch.float32, turned=True):
    shapes = (n,), (m, k), (n, k) if turned else (k, n), (m, n)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def mlp(g, bias, a, b, residual):
    hidden = call(g, "relu", call(g, "addmm", bias, call(g, "relu", a), call(g, "t", b)))
    return call(g, "add.Tensor", hidden, residual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, HALF])
def test_bias_activation_and_residual_share_the_kernel_of_the_product(dtype):
    torch.manual_seed(0)
    calls = [inputs(*sizes, dtype) for sizes in SIZES]
    program = check(product_graph(mlp, dtype), calls, targets=("triton",), tolerance=1e-4)
    assert len(program.kernels) == 1 and program.externs == {}
    assert program.kernels[0].source.count("tl.dot(") == 2  # full blocks, and the last one


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_products_run_on_numpy_as_the_sums_they_are(dtype, monkeypatch):
    """The loop IR says all of a product: its oracle needs no case for it."""
    monkeypatch.setattr("jitshape.backend.compile.CONTRACTING", ("interpret",))
    calls = [inputs(*sizes, dtype) for sizes in [(5, 7, 3), (1, 2, 1), (4, 4, 0)]]
    program = check(product_graph(mlp, dtype), calls, targets=("interpret",), tolerance=1e-4)
    assert program.externs == {}


@pytest.mark.parametrize("beta, alpha", [(1, 1), (0, 2), (0.5, -1)])
def test_scales(beta, alpha):
    def body(g, bias, a, b, residual):
        return call(g, "addmm", bias, a, b, beta=beta, alpha=alpha)

    calls = [inputs(*sizes, turned=False) for sizes in SIZES[:3]]
    calls[0][0].fill_(torch.nan if beta == 0 else 1)
    check(product_graph(body, turned=False), calls, targets=("triton",), tolerance=1e-4)


def test_batches():
    env = new_env()
    batch, m, k = (env.algebra.symbol(name, 2) for name in "bmk")
    types = [tensor(batch, m, k), tensor(batch, k, m), tensor(batch, 1, m)]

    def body(g, a, b, bias):
        return call(g, "tanh", call(g, "baddbmm", bias, a, b))

    calls = [
        [torch.randn(n, p, q), torch.randn(n, q, p), torch.randn(n, 1, p)]
        for n, p, q in [(2, 5, 9), (1, 17, 40), (3, 1, 1)]
    ]
    program = check(build(env, types, body), calls, targets=("triton",), tolerance=1e-4)
    assert len(program.kernels) == 1 and program.externs == {}


def test_what_is_left_to_aten():
    def reasons(dtype, *shapes):
        graph = build(
            new_env(),
            [tensor(*shape, dtype=dtype) for shape in shapes],
            lambda g, a, b: call(g, "mm", a, b),
        )
        return left_to_aten(graph.nodes[0]), contracted(graph)

    why, found = reasons(torch.float64, (32, 32), (32, 32))
    assert why == "no matrix instructions for torch.float64"
    assert found.log == ["t0: a call of ATen: no matrix instructions for torch.float64"]
    assert reasons(HALF, (1, 32), (32, 32))[0] == "1x32x32 is thinner than matrix instructions"
    why, found = reasons(HALF, (64, 32), (32, 64))
    assert why is None and len(found.sums) == 1 and found.log == []


def test_the_graph_that_was_given_keeps_its_products():
    graph = product_graph(mlp)
    before = [node.op for node in graph.nodes]
    found = contracted(graph)
    assert [node.op for node in graph.nodes] == before
    assert "aten.addmm.default" not in [node.op for node in found.graph.nodes]


# ---- fusion


def groups_of(body, **kwargs):
    found = contracted(product_graph(body, **kwargs))
    return schedule(found.graph, found)


def test_a_reduction_behind_a_product_has_a_kernel_of_its_own():
    plan = groups_of(lambda g, c, a, b, r: call(g, "sum.dim_IntList", call(g, "mm", a, b), [1]),
                     turned=False)  # fmt: skip
    assert len(plan.groups) == 2
    assert any("not computed element by element of a matrix product" in x for x in plan.log)


def test_two_products_have_two_kernels():
    def body(g, c, a, b, r):
        return call(g, "add.Tensor", call(g, "mm", a, b), call(g, "mm", a, call(g, "neg", b)))

    plan = groups_of(body, turned=False)
    assert len(plan.groups) == 2
    assert any("is a matrix product, which does not fit" in line for line in plan.log)


def test_a_factor_that_is_dear_or_read_twice_is_made_in_memory():
    def dear(g, c, a, b, r):
        return call(g, "mm", call(g, "exp", call(g, "tanh", a)), b)

    def twice(g, c, a, b, r):
        return call(g, "mm", call(g, "add.Tensor", a, call(g, "neg", r)), b)

    for body in (dear, twice):
        env = new_env()
        m, n = (env.algebra.symbol(name, 2) for name in "mn")
        graph = build(
            env,
            [tensor(n), tensor(m, n), tensor(n, n), tensor(m, n)],
            body,
        )
        found = contracted(graph)
        plan = schedule(found.graph, found)
        assert len(plan.groups) == 2
        assert any("made in memory, since a matrix product reads it" in line for line in plan.log)


# ---- whole functions


class Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / 8).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width)) + x


def test_attention_forward_and_backward():
    torch.manual_seed(0)
    model = Attention(32, 2)
    compiled = jitshape.compile(model, backend="triton", dynamic=True)
    jitshape.reset()
    for shape in ((2, 5, 32), (3, 9, 32)):
        x = torch.randn(shape)
        got = compiled(x)
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)
        got.sum().backward()
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        for gradient, parameter in zip(ours, model.parameters()):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-3)
        model.zero_grad()
    stats = jitshape.stats()
    assert stats["extern_ops"] == {} and stats["compiles"] == 1
