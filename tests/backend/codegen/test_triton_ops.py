"""Every scalar op through Triton's interpreter, against the numpy interpreter of the loop IR."""

import pytest
import torch

from jitshape.backend.interpret import interpret
from jitshape.backend.loops import COMPARISONS, PREDICATES
from tests.backend import kernels
from tests.backend.codegen.test_cpu_ops import (
    BINARY,
    DTYPES,
    INTEGER_OPS,
    INTEGERS,
    UNARY,
    pairs,
    samples,
    ulps,
)

pytest.importorskip("triton")
from jitshape.backend.triton_jit import compile_kernels

INF = float("inf")


def run_both(name, inputs, result):
    """(Triton's result, the oracle's)"""
    dtypes = [x.dtype for x in inputs]
    kernel = kernels.pointwise(lambda *a: kernels.op(name, *a, dtype=result), dtypes, result)
    (launch,) = compile_kernels([kernel])
    count = len(inputs[0])
    outs = torch.empty(count, dtype=result), torch.empty(count, dtype=result)
    launch(*inputs, outs[0], count)
    interpret(kernel, [*inputs, outs[1]], [count])
    return outs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_float(name, dtype):
    x = samples(dtype)
    if name == "sigmoid":
        x = x[~(x < -87.0) | x.isinf()]
    found, oracle = run_both(name, [x], dtype)
    assert ulps(found, oracle) <= max(UNARY[name], 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_float(name, dtype):
    a, b = pairs(dtype)
    if name in ("mod", "floordiv"):
        kept = (a / b).isfinite() & (b != 0)
        a, b = a[kept], b[kept]
    found, oracle = run_both(name, [a, b], dtype)
    assert ulps(found, oracle) <= BINARY[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_comparisons(dtype):
    a, b = pairs(dtype)
    for name in sorted(COMPARISONS):
        found, _ = run_both(name, [a, b], torch.bool)
        assert torch.equal(found, getattr(torch, name)(a, b)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_predicates(dtype):
    x = samples(dtype)
    for name in sorted(PREDICATES):
        found, _ = run_both(name, [x], torch.bool)
        assert torch.equal(found, getattr(torch, name)(x)), name


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_ops(dtype):
    for name in INTEGER_OPS.split():
        count = 1 if name in ("neg", "abs", "not", "sign") else 2
        found, oracle = run_both(name, [*pairs(dtype)][:count], dtype)
        assert torch.equal(found, oracle), name


def test_b1_ops():
    a, b = pairs(torch.bool)
    for name in "add mul sub maximum minimum and or xor".split():
        found, oracle = run_both(name, [a, b], torch.bool)
        assert torch.equal(found, oracle), name
    found, oracle = run_both("not", [a], torch.bool)
    assert torch.equal(found, oracle)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source):
    for target in DTYPES:
        x = samples(source)
        if source.is_floating_point and not target.is_floating_point and target != torch.bool:
            low = 0 if target == torch.uint8 else -100
            x = x[(x.double() >= low) & (x.double() < 100)]
        found, _ = run_both("cast", [x], target)
        expected = x.to(target)
        assert torch.equal(found.isnan(), expected.isnan()), target
        assert torch.equal(found.nan_to_num(), expected.nan_to_num()), target


def test_where_fma_and_literals():
    x, y, z = (samples(torch.float32) for _ in range(3))
    found, oracle = run_both("where", [x > 0, x, y], torch.float32)
    assert torch.equal(found.nan_to_num(), oracle.nan_to_num())
    found, oracle = run_both("fma", [x, y, z], torch.float32)
    assert ulps(found, oracle) <= 2
    for dtype, value in [(torch.float64, 0.1), (torch.int64, 2**40), (torch.float32, INF)]:
        number = kernels.lit(value, dtype)
        kernel = kernels.pointwise(lambda a, n=number: kernels.op("mul", a, n), [dtype], dtype)
        one, out = torch.ones(3, dtype=dtype), torch.empty(3, dtype=dtype)
        compile_kernels([kernel])[0](one, out, 3)
        assert out.tolist() == [value] * 3
