"""Every scalar op through Triton's interpreter, against the numpy interpreter of the loop IR.

All ops on one kind of operand share a kernel: a launch through the interpreter is dear.
"""

import pytest
import torch

from jitshape.backend.interpret import interpret
from jitshape.backend.loops import COMPARISONS, PREDICATES, Axis, Buffer, Kernel, Load, Loop, Store
from jitshape.ir.symint import Algebra
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


def run_both(ops, inputs):
    """{name: (Triton's result, the oracle's)} of `ops`: name, dtype of the result, its function
    of the operands; with None: the op of that name."""
    a = Algebra()
    n, i = a.symbol("s0"), a.symbol("i0")
    buffers = [Buffer(f"in{k}", x.dtype) for k, x in enumerate(inputs)]
    operands = [Load(b, i) for b in buffers]
    outs = [Buffer(f"out{k}", result, "out") for k, (_, result, _) in enumerate(ops)]
    body = []
    for out, (name, result, function) in zip(outs, ops):
        value = function(*operands) if function else kernels.op(name, *operands, dtype=result)
        body.append(Store(out, i, value))
    loop = Loop(Axis(i, n, "vector"), tuple(body))
    kernel = Kernel("ops", (), (loop,), (*buffers, *outs), (n.symbol,))
    count = len(inputs[0])
    found = [torch.empty(count, dtype=result) for _, result, _ in ops]
    oracle = [torch.empty_like(x) for x in found]
    compile_kernels([kernel])[0](*inputs, *found, count)
    interpret(kernel, [*inputs, *oracle], [count])
    return {name: both for (name, *_), *both in zip(ops, found, oracle)}


def same(names, dtype, inputs):
    """Check that each op gives exactly the oracle's result."""
    results = run_both([(name, dtype, None) for name in names], inputs)
    wrong = [name for name, (found, oracle) in results.items() if not torch.equal(found, oracle)]
    assert not wrong


def assert_near(bounds, dtype, inputs):
    """Check that each op is as near the oracle's result as `bounds` says."""
    results = run_both([(name, dtype, None) for name in bounds], inputs)
    assert not {n: d for n, both in results.items() if (d := ulps(*both)) > bounds[n]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_unary_float(dtype):
    x = samples(dtype)
    x = x[~(x < -87.0) | x.isinf()]  # eager's formula of sigmoid too leaves nothing there
    assert_near({name: max(bound, 1) for name, bound in UNARY.items()}, dtype, [x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_binary_float(dtype):
    a, b = pairs(dtype)
    divisions = ("mod", "floordiv")
    assert_near({n: bound for n, bound in BINARY.items() if n not in divisions}, dtype, [a, b])
    kept = (a / b).isfinite() & (b != 0)
    assert_near({name: BINARY[name] for name in divisions}, dtype, [a[kept], b[kept]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_comparisons(dtype):
    same(sorted(COMPARISONS), torch.bool, pairs(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_predicates(dtype):
    same(sorted(PREDICATES), torch.bool, [samples(dtype)])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_ops(dtype):
    unary = {"neg", "abs", "not", "sign"}
    same(unary, dtype, [samples(dtype)])
    same(set(INTEGER_OPS.split()) - unary, dtype, pairs(dtype))


def test_b1_ops():
    same("add mul sub maximum minimum and or xor".split(), torch.bool, pairs(torch.bool))
    same(["not"], torch.bool, [samples(torch.bool)])


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_casts(source):
    x = samples(source)
    if source.is_floating_point:  # what an integer can hold; nan and inf go to floats and b1
        whole = x[(x.double() >= 0) & (x.double() < 100)]
        ops = [(f"{d}", d, lambda v, d=d: kernels.op("cast", v, dtype=d)) for d in INTEGERS]
        for name, (found, _) in run_both(ops, [whole]).items():
            assert torch.equal(found, whole.to(found.dtype)), name
    targets = [d for d in DTYPES if d not in INTEGERS] if source.is_floating_point else DTYPES
    ops = [(f"{d}", d, lambda v, d=d: kernels.op("cast", v, dtype=d)) for d in targets]
    for name, (found, _) in run_both(ops, [x]).items():
        expected = x.to(found.dtype)
        assert torch.equal(found.isnan(), expected.isnan()), name
        assert torch.equal(found.nan_to_num(), expected.nan_to_num()), name


def test_where_and_fma():
    x, y, z = (samples(torch.float32) for _ in range(3))
    ((found, oracle),) = run_both([("where", torch.float32, None)], [x > 0, x, y]).values()
    assert torch.equal(found.nan_to_num(), oracle.nan_to_num())
    assert_near({"fma": 2}, torch.float32, [x, y, z])


@pytest.mark.parametrize(
    "dtype, value", [(torch.float64, 0.1), (torch.int64, 2**40), (torch.float32, INF)]
)
def test_literals_are_exact(dtype, value):
    product = ("mul", dtype, lambda x: kernels.op("mul", x, kernels.lit(value, dtype)))
    one = torch.ones(3, dtype=dtype)
    assert run_both([product], [one])["mul"][0].tolist() == [value] * 3
