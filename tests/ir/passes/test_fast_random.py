"""Random numbers in kernels: what they are, that they follow the generator, what backward does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitshape
from jitshape.backend.interpret_ops import OPS
from jitshape.ir.ops.streams import BITS, philox
from jitshape.ir.passes.fast_random import fast_random
from jitshape.ir.passes.partition import partition
from tests.backend.graphs import build, call, check, new_env, tensor

FAST = {"fast_random": True}
TARGETS = ["cpu", "triton"]
BIG = (257, 389)


def compiled(function: Callable[..., Any], backend: str = "cpu", **options: Any) -> Any:
    if backend == "triton":
        pytest.importorskip("triton")
    return jitshape.compile(
        function, backend=backend, dynamic=True, fullgraph=True, options=FAST | options
    )


def test_known_answers():
    """Of the authors' test vectors, those of philox4x32-10."""
    zero, ones = torch.zeros(1, dtype=torch.int64), torch.full((1,), -1)
    assert philox(zero, 0, zero).item() == 0x6627E8D5
    assert philox(ones, -1, ones).item() == 0x408F276D


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_compute_the_formula_bit_for_bit(backend, dtype):
    if backend == "triton":
        pytest.importorskip("triton")
    env, bits = new_env(), BITS[dtype]
    rows, columns = (env.algebra.symbol(name, 2) for name in "mn")

    def body(g, seed, x):
        size = [rows, columns]
        return call(g, "add.Tensor", g.call("jitshape.random_uniform", seed, 3, size, bits), x)

    graph = build(env, [tensor(1, dtype=torch.int64), tensor(rows, columns, dtype=dtype)], body)
    calls = [
        [torch.tensor([seed]), torch.zeros(shape, dtype=dtype)]
        for seed in (0, -1, 2**62 + 12345)
        for shape in ((3, 5), (1, 33), (0, 4))
    ]
    check(graph, calls, targets=("interpret", backend), tolerance=0)


def test_the_oracle_of_the_loop_ir_is_the_formula():
    seed, at = torch.tensor([7]).numpy(), torch.arange(9).numpy()
    expected = philox(torch.tensor([7]), 2, torch.arange(9))
    assert OPS["philox"](seed, torch.tensor(2).numpy(), at).tolist() == expected.tolist()


# ---- functions


def test_numbers_follow_from_the_state_of_the_generator():
    f = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))
    x = torch.zeros(40, 50)
    torch.manual_seed(3)
    a, b = f(x)
    c, _ = f(x)
    torch.manual_seed(3)
    again, _ = f(x)
    assert torch.equal(a, again)
    assert not any(torch.equal(p, q) for p, q in [(a, b), (a, c), (b, c)])
    assert jitshape.stats()["compiles"] >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_distributions(dtype):
    def draws(x):
        low_high = torch.empty_like(x).uniform_(2, 5)
        return torch.rand_like(x), torch.randn_like(x), low_high, torch.empty_like(x).normal_(1, 2)

    torch.manual_seed(0)
    uniform, normal, wide, shifted = (
        t.double() for t in compiled(draws)(torch.zeros(BIG, dtype=dtype))
    )
    assert 0 <= uniform.min() and uniform.max() < 1 and 2 <= wide.min() and wide.max() <= 5
    for found, mean, deviation in [
        (uniform, 0.5, 12**-0.5),
        (normal, 0, 1),
        (wide, 3.5, 3 * 12**-0.5),
        (shifted, 1, 2),
    ]:
        assert abs(found.mean() - mean) < 0.02 * max(deviation, 1)
        assert abs(found.std() / deviation - 1) < 0.02
    assert abs((normal.abs() < 1).double().mean() - 0.6827) < 0.01
    neighbours = torch.corrcoef(torch.stack([uniform[:-1].ravel(), uniform[1:].ravel()]))
    assert abs(neighbours[0, 1]) < 0.02


@pytest.mark.parametrize("backend", TARGETS)
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_keeps_in_backward_what_it_kept_in_forward(backend, p):
    jitshape.reset()
    f = compiled(lambda x: torch.nn.functional.dropout(x.sin(), p) * 2, backend)
    torch.manual_seed(1)
    for shape in ((64, 33), (5, 1)):
        x = torch.rand(shape) + 0.5
        x.requires_grad_()
        y = f(x)
        y.sum().backward()
        assert x.grad is not None
        kept = y != 0
        scale = 0.0 if p == 1 else 2 / (1 - p)
        torch.testing.assert_close(y, torch.where(kept, x.sin() * scale, 0.0))
        torch.testing.assert_close(x.grad, torch.where(kept, x.cos() * scale, 0.0))
        if y.numel() > 1000:
            assert abs(kept.float().mean() - (1 - p)) < 0.05
    assert jitshape.stats()["compiles"] == 1


def test_backward_computes_the_numbers_again_from_the_seed(monkeypatch):
    splits = []

    def noted(graph):
        splits.append(partition(graph))
        return splits[-1]

    monkeypatch.setattr("jitshape.programs.partition", noted)
    f = compiled(lambda x: torch.nn.functional.dropout(x * 2, 0.5), cache=False)
    f(torch.rand(BIG, requires_grad=True))
    (saved,) = splits[0].backward.inputs[: splits[0].saved]
    assert saved.type.shape == (1,) and saved.type.dtype is torch.int64


def test_one_kernel_draws_and_uses():
    jitshape.reset()
    f = compiled(lambda x: torch.nn.functional.dropout(x.relu(), 0.1) + torch.rand_like(x))
    f(torch.ones(8, 9))
    stats = jitshape.stats()
    assert stats["kernels"] == 1 and stats["extern_ops"] == {"jitshape.random_seed.default": 1}


def test_what_has_no_way_is_drawn_by_aten():
    torch.manual_seed(5)
    expected = torch.randperm(10)
    torch.manual_seed(5)
    assert torch.equal(compiled(lambda x: torch.randperm(10) + x)(torch.tensor(0)), expected)


def test_programs_without_the_option_are_others():
    def f(x):
        return torch.rand_like(x)

    plain = jitshape.compile(f, dynamic=True)
    x = torch.zeros(9)
    torch.manual_seed(2)
    expected = torch.rand_like(x)
    torch.manual_seed(2)
    fast = compiled(f)(x)
    torch.manual_seed(2)
    assert torch.equal(plain(x), expected) and not torch.equal(fast, expected)


def test_the_pass_draws_one_seed():
    env = new_env()
    n = env.algebra.symbol("n", 2)

    def body(g, x):
        return call(g, "bernoulli.p", x, 0.5), call(g, "rand_like", x), call(g, "randn_like", x)

    graph = build(env, [tensor(n)], body)
    fast_random(graph)
    ops = [node.op for node in graph.nodes]
    assert (
        ops.count("jitshape.random_seed.default") == 1
        and ops.count("jitshape.random_uniform.default") == 4
    )
    streams = [node.args[1] for node in graph.nodes if "random_uniform" in node.op]
    assert streams == [0, 1, 2, 3]
