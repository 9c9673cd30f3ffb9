"""Compiled functions on a device: matrix products, attention, random numbers, CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import dropout, gelu, linear, scaled_dot_product_attention

import jitshape
from jitshape.backend.triton_products import ProductLauncher
from jitshape.backend.triton_tiles import tiles_for
from tests.backend.graphs import compare
from tests.backend.test_contractions import inputs, mlp, product_graph

CUDA = "cuda"
ROWS = (1, 7, 16, 17, 1000, 1024)


def compiled(function, **more):
    return jitshape.compile(function, dynamic=True, **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [256, 255])
def test_products_at_any_size(dtype, width):
    jitshape.reset()
    torch.manual_seed(0)
    w = (torch.randn(width, width, device=CUDA) / 16).to(dtype)
    bias = torch.randn(width, device=CUDA).to(dtype)
    f = compiled(lambda x, w, bias: gelu(linear(x.relu(), w, bias)) + x)
    for rows in ROWS:
        x = torch.randn(rows, width, device=CUDA).to(dtype)
        expected = gelu(linear(x.double().relu(), w.double(), bias.double())) + x.double()
        tolerance = 2e-2 if dtype.itemsize == 2 else 1e-4
        torch.testing.assert_close(f(x, w, bias).double(), expected, rtol=tolerance, atol=tolerance)
    assert jitshape.stats()["compiles"] == 1 and jitshape.stats()["extern_ops"] == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("sizes", [(37, 50, 70), (128, 256, 64), (1000, 256, 512)])
def test_every_tile_and_aten_compute_the_same(dtype, sizes):
    from jitshape.backend.compile import compile_graph
    from jitshape.ir.evaluate import evaluate

    graph = product_graph(mlp, dtype)
    (launch,) = compile_graph(graph, backend="triton").parts.launchers
    assert isinstance(launch, ProductLauncher)
    bias, a, b, residual = (x.to(CUDA) for x in inputs(*sizes, dtype))
    expected = evaluate(graph, [bias, a, b, residual])[0]
    m, n, k = sizes
    aligned = all(size % 16 == 0 for size in sizes)
    for tile in (None, *tiles_for(dtype, aligned)):
        out = torch.full((m, n), torch.nan, dtype=dtype, device=CUDA)
        args = [a, b, bias, residual, out], [m, n, k], []
        launch.run(tile, a.device, args, (1, m, n), (aligned, False, "ieee"))
        compare(out, expected, 1e-3)


def test_attention():
    def attend(q, k, v):
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    f = compiled(attend)
    for length in (16, 33):
        ours = [torch.randn(2, 4, length, 64, device=CUDA, requires_grad=True) for _ in range(3)]
        theirs = [x.detach().clone().requires_grad_() for x in ours]
        f(*ours).sum().backward()
        attend(*theirs).sum().backward()
        for x, y in zip(ours, theirs):
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


def test_dropout_in_kernels():
    f = compiled(lambda x: dropout(x, 0.25) * 2, options={"fast_random": True})
    x = torch.ones(1 << 16, device=CUDA, requires_grad=True)
    y = f(x)
    y.sum().backward()
    assert abs((y != 0).float().mean() - 0.75) < 0.02
    torch.testing.assert_close(x.grad, y.detach())


def test_cuda_graphs():
    jitshape.reset()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    ).to(CUDA)
    f = compiled(model, mode="reduce-overhead")
    for _ in range(4):
        for rows in (16, 48):
            x = torch.randn(rows, 64, device=CUDA)
            with torch.no_grad():
                torch.testing.assert_close(f(x), model(x), rtol=1e-3, atol=1e-3)
    assert jitshape.stats()["details"]["cuda_graphs"]["replayed"] == 6
