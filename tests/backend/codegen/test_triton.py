"""Kernel shapes through Triton's interpreter, against torch and the oracle; the generated text."""

import pytest
import torch

from jitshape.backend.interpret import interpret
from jitshape.backend.loops import Accumulator, Axis, Buffer, Carry, Kernel, Load, Loop, Store
from jitshape.ir.symint import Algebra
from tests.backend import kernels
from tests.backend.cases import CASES, SHAPES
from tests.backend.codegen.test_cpu import REDUCTIONS

pytest.importorskip("triton")
from jitshape.backend import triton_jit
from jitshape.backend.codegen.triton import write_kernel
from jitshape.backend.triton_jit import compile_kernels


def run(kernel, *arguments):
    (launch,) = compile_kernels([kernel])
    launch(*arguments)


@pytest.fixture
def small_blocks(monkeypatch):
    """Several programs, and several blocks a row, also of short rows."""

    def blocks(written, extents, row):
        return {name: 8 for name in written.blocks}

    monkeypatch.setattr(triton_jit, "interpreted_blocks", blocks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kernel_agrees_with_torch(case):
    torch.manual_seed(0)
    (launch,) = compile_kernels([case(2, 3)[0]])
    for shape in [*SHAPES[:4], (9, 67)]:
        _, buffers, sizes, scalars, expected = case(*shape)
        launch(*buffers, *sizes, *scalars)
        for position, value in expected.items():
            torch.testing.assert_close(buffers[position], value, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_many_programs_and_blocks(case, small_blocks):
    torch.manual_seed(0)
    (launch,) = compile_kernels([case(2, 3)[0]])
    for shape in [(9, 33), (16, 8)]:
        _, buffers, sizes, scalars, expected = case(*shape)
        launch(*buffers, *sizes, *scalars)
        for position, value in expected.items():
            torch.testing.assert_close(buffers[position], value, equal_nan=True)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 33, 2**16 + 3])
def test_nothing_is_written_behind_the_end(size):
    kernel = kernels.pointwise(kernels.gelu, [torch.float32], torch.float32)
    x, out = torch.randn(size), torch.full((size + 9,), 7.0)
    run(kernel, x, out[:size], size)
    torch.testing.assert_close(out[:size], torch.nn.functional.gelu(x))
    assert (out[size:] == 7.0).all()


@pytest.mark.parametrize("build", [kernels.row_reduction, kernels.column_reduction])
@pytest.mark.parametrize("combine, dtype, result, function", REDUCTIONS)
def test_reduction(build, combine, dtype, result, function):
    torch.manual_seed(0)
    (launch,) = compile_kernels([build(combine, dtype, result)])
    dim = 1 if build is kernels.row_reduction else 0
    for m, n in [(40, 67), (1, 1)]:
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


@pytest.mark.parametrize("combine", ["max", "argmax", "min", "argmin", "sum"])
def test_nan_and_empty_rows(combine, small_blocks):
    dtype = torch.int64 if combine.startswith("arg") else torch.float32
    (launch,) = compile_kernels([kernels.row_reduction(combine, torch.float32, dtype)])
    x = torch.randn(3, 50)
    x[1, 37] = x[1, 44] = float("nan")
    x[2] = float("-inf") if combine == "argmax" else float("inf")
    for width in (50, 0):
        ours, oracle = torch.empty(3, dtype=dtype), torch.empty(3, dtype=dtype)
        launch(x, ours, 3, width)
        interpret(kernels.row_reduction(combine, torch.float32, dtype), [x, oracle], [3, width])
        torch.testing.assert_close(ours, oracle, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int32])
def test_atomic_add(dtype):
    x, index = torch.ones(50, dtype=dtype), torch.arange(50) % 3
    out = torch.zeros(3, dtype=dtype)
    run(kernels.scatter_add(dtype), x, index, out, 50)
    assert out.tolist() == [17, 17, 16]


def reversed_twice():
    """t = x + 1 (scratch); out[r, c] = t[index[r, c]]: which element is known only later."""
    a = Algebra()
    m, n, r, c, t = (a.symbol(name) for name in ("s0", "s1", "i0", "i1", "t0"))
    x, index = Buffer("x", torch.float32), Buffer("index", torch.int64)
    out, row = Buffer("out", torch.float32, "out"), Buffer("row", torch.float32, "scratch", n)
    axis = Axis(c, n, "vector")
    one = kernels.op("add", Load(x, r * n + c), kernels.lit(1.0))
    back = Load(row, t, ((t.symbol, Load(index, r * n + c)),))
    body = (Loop(axis, (Store(row, c, one),)), Loop(axis, (Store(out, r * n + c, back),)))
    return Kernel("reversed", (Axis(r, m),), body, (x, index, out, row), (m.symbol, n.symbol))


def test_scratch_in_memory_where_lanes_are_exchanged():
    x, index = torch.randn(5, 19), torch.randint(0, 19, (5, 19))
    out = torch.empty(5, 19)
    (launch,) = compile_kernels([reversed_twice()])
    launch(x, index, out, 5, 19)
    torch.testing.assert_close(out, (x + 1).gather(1, index))
    assert "tl.debug_barrier()" in launch.source


def static_softmax(n):
    """out[r, :] = softmax(x[r, :]) of rows of known length, exponentials kept in scratch."""
    a = Algebra()
    m, r = a.symbol("s0"), a.symbol("i0")
    c = [a.symbol(f"i{k}") for k in (1, 2, 3)]
    x, out = Buffer("x", torch.bfloat16), Buffer("out", torch.bfloat16, "out")
    row = Buffer("row", torch.float32, "scratch", n)
    axes = [Axis(symbol, n, "vector") for symbol in c]
    values = [kernels.op("cast", Load(x, r * n + i), dtype=torch.float32) for i in c]
    top = Accumulator("top", "max", values[0], torch.float32)
    e = kernels.op("exp", kernels.op("sub", values[1], Carry(top)))
    total = Accumulator("total", "sum", e, torch.float32)
    result = kernels.op("div", Load(row, c[2]), Carry(total))
    stored = kernels.op("cast", result, dtype=torch.bfloat16)
    body = (
        Loop(axes[0], (), (top,)),
        Loop(axes[1], (Store(row, c[1], e),), (total,)),
        Loop(axes[2], (Store(out, r * n + c[2], stored),)),
    )
    return Kernel("softmax", (Axis(r, m),), body, (x, out, row), (m.symbol,))


@pytest.mark.parametrize("n", [64, 100])
def test_a_short_row_is_read_once_and_kept(n):
    x, out = torch.randn(6, n).bfloat16(), torch.empty(6, n, dtype=torch.bfloat16)
    (launch,) = compile_kernels([static_softmax(n)])
    launch(x, out, 6)
    torch.testing.assert_close(out, torch.softmax(x, 1))
    assert launch.source.count("tl.load(") == 1 and "for " not in launch.source


def test_text_of_a_pointwise_kernel(golden):
    kernel = kernels.pointwise(kernels.gelu, [torch.float32], torch.float32)
    golden("triton_gelu", write_kernel(kernel).text)


def test_text_of_softmax(golden):
    golden("triton_softmax", write_kernel(kernels.softmax()).text)
    golden("triton_softmax_static", write_kernel(static_softmax(100)).text)


# ---- long rows in parts


@pytest.fixture
def in_parts(monkeypatch):
    """Rows of any length are shared among three programs; the stages that ran are told."""
    ran = []
    monkeypatch.setattr(triton_jit, "LONG_ROW", 1)
    monkeypatch.setattr(triton_jit, "parts_of_row", lambda *_: ran.append(1) or 3)
    return ran


@pytest.mark.parametrize("build", [kernels.row_reduction, kernels.column_reduction])
@pytest.mark.parametrize("combine, dtype, result, function", REDUCTIONS)
def test_reduction_in_parts(in_parts, build, combine, dtype, result, function):
    torch.manual_seed(0)
    dim = 1 if build is kernels.row_reduction else 0
    (launch,) = compile_kernels([build(combine, dtype, result)])
    for m, n in [(2, 2100), (2100, 2)]:
        x = torch.randint(1, 250, (m, n)).to(dtype)
        x = x / 125 if combine == "prod" else x
        out = torch.empty(x.shape[1 - dim], dtype=result)
        launch(x, out, m, n)
        expected = function(x, dim)
        if combine.startswith("arg"):  # not split
            expected = torch.from_numpy(getattr(x.numpy(), combine)(dim))
        torch.testing.assert_close(out, expected)
    stages = 0 if combine.startswith("arg") else 2
    assert len(launch.with_stages()) == 1 + stages and len(in_parts) == 2 * (1 + stages)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kernel_in_parts(in_parts, case):
    torch.manual_seed(0)
    (launch,) = compile_kernels([case(2, 3)[0]])
    for shape in [*SHAPES[:2], (2, 1500)]:
        _, buffers, sizes, scalars, expected = case(*shape)
        launch(*buffers, *sizes, *scalars)
        for position, value in expected.items():
            got = buffers[position]
            torch.testing.assert_close(got, value, rtol=1e-4, atol=1e-5, equal_nan=True)
