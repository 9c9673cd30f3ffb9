"""Kernel shapes through machine code, against torch; `interpret` is held to the same results."""

import functools

import pytest
import torch

from jitshape.backend.interpret import interpret
from jitshape.backend.jit import compile_kernels
from tests.backend import kernels
from tests.backend.cases import CASES, SHAPES

SIZES = [0, 1, 7, 8, 9, 31, 33, 67, 300]


@functools.cache
def launcher(case):
    (found,) = compile_kernels([case(2, 3)[0]])
    return found


def run(kernel, *arguments):
    (found,) = compile_kernels([kernel])
    found(*arguments)


@pytest.mark.parametrize("shape", [*SHAPES, (3, 130), (70, 9)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kernel_agrees_with_torch(case, shape):
    torch.manual_seed(0)
    _, buffers, sizes, scalars, expected = case(*shape)
    launcher(case)(*buffers, *sizes, *scalars)
    for position, value in expected.items():
        torch.testing.assert_close(buffers[position], value, equal_nan=True)


@pytest.mark.parametrize("size", SIZES)
def test_pointwise_tail(size):
    kernel = kernels.pointwise(kernels.gelu, [torch.float32], torch.float32)
    x, out = torch.randn(size), torch.full((size + 9,), 7.0)
    run(kernel, x, out[:size], size)
    torch.testing.assert_close(out[:size], torch.nn.functional.gelu(x))
    assert (out[size:] == 7.0).all()


REDUCTIONS = [
    ("sum", torch.float32, torch.float32, torch.sum),
    ("sum", torch.int32, torch.int64, torch.sum),
    ("prod", torch.float64, torch.float64, torch.prod),
    ("max", torch.float32, torch.float32, torch.amax),
    ("min", torch.int64, torch.int64, torch.amin),
    ("max", torch.uint8, torch.uint8, torch.amax),
    ("any", torch.float32, torch.bool, torch.any),
    ("all", torch.bool, torch.bool, torch.all),
    ("argmax", torch.float32, torch.int64, torch.argmax),
    ("argmin", torch.int16, torch.int64, torch.argmin),
    ("argmax", torch.uint8, torch.int64, torch.argmax),
]


@pytest.mark.parametrize("build", [kernels.row_reduction, kernels.column_reduction])
@pytest.mark.parametrize("combine, dtype, result, function", REDUCTIONS)
def test_reduction(build, combine, dtype, result, function):
    torch.manual_seed(0)
    kernel = build(combine, dtype, result)
    (launch,) = compile_kernels([kernel])
    dim = 1 if build is kernels.row_reduction else 0
    for m, n in [(3, 5), (40, 67), (67, 40), (1, 1)]:
        x = (
            torch.randint(0, 250, (m, n)).to(dtype)
            if dtype != torch.bool
            else torch.rand(m, n) > 0.01
        )
        x = x / 100 if combine == "prod" else x
        out = torch.empty(x.shape[1 - dim], dtype=result)
        launch(x, out, m, n)
        expected = function(x, dim)
        if combine.startswith("arg"):  # the first of equal ones, as numpy has it
            expected = torch.from_numpy(getattr(x.numpy(), combine)(dim))
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("build, dim", [(kernels.row_reduction, 1), (kernels.column_reduction, 0)])
@pytest.mark.parametrize("length", [1023, 1024, 4095, 4096, 4101, 70_000])
def test_long_sums_round_no_more_than_a_block(build, dim, length):
    """The sum of `length` equal numbers: block by block it stays within a few roundings."""
    x = torch.full((length, 3) if dim == 0 else (3, length), 0.1)
    out = torch.empty(3)
    run(build("sum", torch.float32, torch.float32), x, out, *x.shape)
    exact = x[0, 0].double() * length
    assert ((out.double() - exact).abs() / exact).max() < 2e-5


@pytest.mark.parametrize("combine", ["max", "argmax", "min", "sum"])
def test_nan_and_empty_rows(combine):
    dtype = torch.int64 if combine == "argmax" else torch.float32
    kernel = kernels.row_reduction(combine, torch.float32, dtype)
    x = torch.randn(3, 50)
    x[1, 37] = x[1, 44] = float("nan")
    x[2] = float("-inf")
    ours, oracle = torch.empty(3, dtype=dtype), torch.empty(3, dtype=dtype)
    run(kernel, x, ours, 3, 50)
    interpret(kernel, [x, oracle], [3, 50])
    torch.testing.assert_close(ours, oracle, equal_nan=True)
    run(kernel, x, ours, 3, 0)
    interpret(kernel, [x, oracle], [3, 0])
    assert torch.equal(ours, oracle)


def test_threads_share_the_grid():
    kernel = kernels.softmax()
    x, out = torch.randn(300, 301), torch.empty(300, 301)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(kernel, x, out, 300, 301)
        flat, result = torch.randn(100_001), torch.empty(100_001)
        run(kernels.pointwise(kernels.gelu, [torch.float32], torch.float32), flat, result, 100_001)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(out, torch.softmax(x, 1))
    torch.testing.assert_close(result, torch.nn.functional.gelu(flat))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64])
def test_atomic_add_of_other_dtypes(dtype):
    kernel = kernels.scatter_add(dtype)
    x, index = torch.ones(50, dtype=dtype), torch.arange(50) % 3
    out = torch.zeros(3, dtype=dtype)
    run(kernel, x, index, out, 50)
    assert out.tolist() == [17, 17, 16]
