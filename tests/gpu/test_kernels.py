"""Kernels compiled by Triton on a device: the shapes of `tests/backend`, and what only shows there:
alignment, sizes beyond 32 bits, the number of binaries."""

import pytest
import torch

import jitshape
from jitshape.backend.triton_jit import Launcher
from tests.backend import kernels
from tests.backend.cases import CASES, SHAPES
from tests.backend.codegen.test_cpu import REDUCTIONS

CUDA = "cuda"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kernel_agrees_with_torch(case):
    torch.manual_seed(0)
    launch = Launcher(case(2, 3)[0])
    for shape in [*SHAPES, (3, 130), (64, 4096), (70, 16), (16, 70)]:
        _, buffers, sizes, scalars, expected = case(*shape)
        moved = [b.to(CUDA) for b in buffers]
        launch(*moved, *sizes, *scalars)
        for position, value in expected.items():
            torch.testing.assert_close(moved[position].cpu(), value, rtol=1e-4, atol=1e-5)
    assert len(launch.binaries) <= 2


@pytest.mark.parametrize("build", [kernels.row_reduction, kernels.column_reduction])
@pytest.mark.parametrize("combine, dtype, result, function", REDUCTIONS)
def test_reduction(build, combine, dtype, result, function):
    torch.manual_seed(0)
    launch = Launcher(build(combine, dtype, result))
    dim = 1 if build is kernels.row_reduction else 0
    for m, n in [(3, 5), (40, 64), (64, 5000), (1, 1)]:
        x = torch.randint(0, 250, (m, n)).to(dtype)
        x = x / 100 if combine == "prod" else x
        out = torch.empty(x.shape[1 - dim], dtype=result, device=CUDA)
        launch(x.to(CUDA), out, m, n)
        expected = function(x, dim)
        if combine.startswith("arg"):
            expected = torch.from_numpy(getattr(x.numpy(), combine)(dim))
        torch.testing.assert_close(out.cpu(), expected)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1023, 1024, 1025, 100_003])
def test_sizes_and_misaligned_views(size):
    launch = Launcher(kernels.pointwise(kernels.gelu, [torch.float32], torch.float32))
    x = torch.randn(size + 1, device=CUDA)
    out = torch.full((size + 9,), 7.0, device=CUDA)
    for view in (x[:size], x[1:]):
        launch(view, out[:size], size)
        torch.testing.assert_close(out[:size], torch.nn.functional.gelu(view))
        assert (out[size:] == 7.0).all()
    assert len(launch.binaries) <= 2


def test_more_elements_than_32_bits_count():
    size = 2**31 + 17
    kernel = kernels.pointwise(
        lambda x: kernels.op("add", x, kernels.lit(1, torch.uint8)), [torch.uint8], torch.uint8
    )
    x = torch.zeros(size, dtype=torch.uint8, device=CUDA)
    out = torch.empty_like(x)
    Launcher(kernel)(x, out, size)
    assert out[0] == out[-1] == 1 and bool((out == 1).all())


def block(x, r, w, b):
    hidden = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    return r + torch.nn.functional.gelu(hidden)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_function_forward_and_backward(dtype):
    compiled = jitshape.compile(block, dynamic=True)
    for rows in (1, 16, 37):
        inputs = [
            torch.randn(rows, 768),
            torch.randn(rows, 768),
            torch.randn(768),
            torch.randn(768),
        ]
        ours, theirs = ([x.to(CUDA, dtype).requires_grad_() for x in inputs] for _ in range(2))
        got, want = compiled(*ours), block(*theirs)
        loose = 1e-4 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(got, want, rtol=loose, atol=loose)
        got.float().sum().backward()
        want.float().sum().backward()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a.grad, b.grad, rtol=10 * loose, atol=10 * loose)
