"""Every scalar op against ATen, over special values and random ones."""

import itertools
from dataclasses import replace

import pytest
import torch

from jitshape.backend import jit
from jitshape.backend.codegen import cpu
from jitshape.backend.interpret import interpret
from jitshape.backend.jit import compile_kernels
from jitshape.backend.loops import COMPARISONS, PREDICATES
from tests.backend import kernels

INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-45, -1e-40, 2e-38, 3e38, -3e38, 0.5, 2.0, -2.0]
SPECIAL += [88.7, 88.8, -87.4, -103.9, 1e9, 1e-9, -0.92, 0.625, 3.0, -3.5, 16777217.0, 1e30]


def samples(dtype, spread=4.0):
    torch.manual_seed(0)
    if dtype.is_floating_point:
        values = torch.cat(
            [torch.tensor(SPECIAL), torch.randn(2000) * spread, torch.randn(200) * 60]
        )
        return values.to(dtype)
    if dtype == torch.bool:
        return torch.rand(500) > 0.5
    limits = torch.iinfo(dtype)
    small = torch.randint(max(-9, limits.min), 9, (300,))
    ends = torch.tensor([limits.min, limits.max, 0, 1])
    return torch.cat([ends, small]).to(dtype)


def pairs(dtype):
    values = samples(dtype)
    some = torch.cat([values[:60], values[-20:]])
    both = list(itertools.product(range(len(some)), repeat=2))
    left, right = zip(*both)
    return some[list(left)], some[list(right)]


def run_both(name, inputs, result):
    """(the machine's result, the interpreter's)"""
    dtypes = [x.dtype for x in inputs]
    kernel = kernels.pointwise(lambda *a: kernels.op(name, *a, dtype=result), dtypes, result)
    (launch,) = compile_kernels([kernel])
    outs = torch.empty(len(inputs[0]), dtype=result), torch.empty(len(inputs[0]), dtype=result)
    launch(*inputs, outs[0], len(inputs[0]))
    interpret(kernel, [*inputs, outs[1]], [len(inputs[0])])
    return outs


def ulps(found, expected):
    """The largest distance in units of the last place; nan must meet nan."""
    assert torch.equal(found.isnan(), expected.isnan()), where_apart(found, expected)
    found, expected = (
        torch.nan_to_num(x, nan=0.0, posinf=INF, neginf=-INF) for x in (found, expected)
    )
    integer = torch.int32 if found.dtype == torch.float32 else torch.int64
    a, b = found.view(integer).long(), expected.view(integer).long()
    lowest = torch.iinfo(integer).min
    a, b = (torch.where(x < 0, lowest - x, x) for x in (a, b))
    return (a - b).abs().max().item()


def where_apart(found, expected):
    apart = found.isnan() != expected.isnan()
    return [*zip(found[apart].tolist(), expected[apart].tolist())][:5]


UNARY = {
    **dict.fromkeys("neg abs sign floor ceil round trunc".split(), 0),
    "sqrt": 1,  # ATen may take it from a vector library
    **dict.fromkeys("reciprocal rsqrt".split(), 2),
    **dict.fromkeys("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan".split(), 3),
    **dict.fromkeys("sinh cosh tanh asinh acosh atanh sigmoid erf erfc".split(), 4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_float(name, dtype):
    x = samples(dtype)
    if name == "sigmoid":  # eager's formula too leaves nothing where exp(-x) overflows
        x = x[~(x < -87.0) | x.isinf()]
    found, oracle = run_both(name, [x], dtype)
    exact = getattr(torch, name)(x.double())
    assert ulps(oracle, getattr(torch, name)(x)) == 0
    assert ulps(found, exact.to(dtype)) <= UNARY[name]


ERRORS = {  # of the polynomials, in units of the last place of the exact result
    **dict.fromkeys("exp exp2 log".split(), 1.0),
    **dict.fromkeys("expm1 log1p tanh erf log2".split(), 1.5),
    **dict.fromkeys("sin cos log10".split(), 1.8),
    "sigmoid": 2.5,
}


@pytest.fixture(params=[4, 8, 16])
def width(request, monkeypatch):
    """Kernels for processors with registers of this many floats."""
    host = jit.host()
    monkeypatch.setattr(jit, "host", lambda: replace(host, lanes=request.param))
    return request.param


def distance(found, exact):
    """The largest error in units of the last place, also of results below the normal range."""
    rounded = exact.float()
    assert torch.equal(found.isnan(), rounded.isnan()), where_apart(found, rounded)
    assert torch.equal(found.isinf(), rounded.isinf())
    kept = rounded.isfinite()
    found, exact, rounded = found[kept], exact[kept], rounded[kept].abs()
    unit = torch.nextafter(rounded, torch.tensor(INF)).double() - rounded.double()
    return ((found.double() - exact).abs() / unit).max().item()


@pytest.mark.parametrize("name", ERRORS)
def test_inline_polynomials_over_the_whole_range(name, width):
    bits = torch.arange(-(2**31), 2**31, 199_933, dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor(SPECIAL)])
    torch.manual_seed(0)
    x = torch.cat([x, torch.randn(20_000) * 20, torch.rand(5_000) * 2 - 1])
    if name == "sigmoid":  # eager's formula too leaves nothing where exp(-x) overflows
        x = x[~(x < -87.0) | x.isinf()]
    found, _ = run_both(name, [x], torch.float32)
    assert distance(found, getattr(torch, name)(x.double())) <= ERRORS[name]


def test_one_plus_erf_is_as_exact_as_its_sum(width):
    x = torch.cat([torch.linspace(-5, 5, 40_001), torch.tensor(SPECIAL)])
    kernel = kernels.pointwise(
        lambda a: kernels.op("add", kernels.lit(1.0), kernels.op("erf", a)), [x.dtype], x.dtype
    )
    (launch,) = compile_kernels([kernel])
    found, exact = torch.empty_like(x), 1 + torch.erf(x.double())
    launch(x, found, len(x))
    assert torch.equal(found.isnan(), exact.isnan())
    assert (found.double() - exact).nan_to_num().abs().max() <= 4e-7
    assert (found[x < -4] == 0).all() and (found[x > 4] == 2).all()


def test_signs_of_zero_are_kept():
    x = torch.tensor([0.0, -0.0])
    for name in "sin tanh erf expm1 log1p sqrt floor round trunc".split():
        found, _ = run_both(name, [x], torch.float32)
        assert torch.equal(found.signbit(), x.signbit()), name


BINARY = {
    **dict.fromkeys("add sub mul div copysign maximum minimum fmax fmin fmod".split(), 0),
    **{"mod": 0, "floordiv": 0, "pow": 2, "atan2": 3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_float(name, dtype):
    a, b = pairs(dtype)
    if name == "mod":  # ATen gives nan where a / b overflows
        kept = (a / b).isfinite() | ~a.isfinite() | ~b.isfinite() | (b == 0)
        a, b = a[kept], b[kept]
    found, oracle = run_both(name, [a, b], dtype)
    assert ulps(found, oracle) <= BINARY[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_comparison(name, dtype):
    a, b = pairs(dtype)
    for found in run_both(name, [a, b], torch.bool):
        assert torch.equal(found, getattr(torch, name)(a, b))


@pytest.mark.parametrize("name", sorted(PREDICATES))
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str
)
def test_predicate(name, dtype):
    x = samples(dtype)
    for found in run_both(name, [x], torch.bool):
        assert torch.equal(found, getattr(torch, name)(x))


INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
INTEGER_OPS = (
    "add sub mul maximum minimum floordiv mod fmod and or xor shl shr pow neg abs not sign"
)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", INTEGER_OPS.split())
def test_integer_op(name, dtype):
    count = 1 if name in ("neg", "abs", "not", "sign") else 2
    inputs = [*pairs(dtype)][:count]
    found, oracle = run_both(name, inputs, dtype)
    assert torch.equal(found, oracle)


@pytest.mark.parametrize("name", "add mul sub maximum minimum and or xor".split())
def test_b1_op(name):
    a, b = pairs(torch.bool)
    found, oracle = run_both(name, [a, b], torch.bool)
    assert torch.equal(found, oracle)


DTYPES = [*INTEGERS, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool]


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_cast(source, target):
    x = samples(source)
    if source.is_floating_point and not target.is_floating_point and target != torch.bool:
        x = (
            x[(x.double().abs() < 100)]
            if target != torch.uint8
            else x[(x >= 0) & (x.double() < 200)]
        )
    found, oracle = run_both("cast", [x], target)
    assert torch.equal(oracle.nan_to_num(), x.to(target).nan_to_num())
    assert torch.equal(found.isnan(), oracle.isnan())
    assert torch.equal(found.nan_to_num(), oracle.nan_to_num())


def test_where_and_fma():
    x, y, z = (samples(torch.float32) for _ in range(3))
    found, oracle = run_both("where", [x > 0, x, y], torch.float32)
    assert torch.equal(found.nan_to_num(), oracle.nan_to_num())
    found, oracle = run_both("fma", [x, y, z], torch.float32)
    assert ulps(found, oracle) <= 2


@pytest.mark.parametrize("exponent", [0.5, 2.0, 3.0, -0.5, -1.0, -2.0, 1.5])
def test_constant_exponents(exponent):
    x = samples(torch.float32)

    def power(a):
        return kernels.op("pow", a, kernels.lit(exponent))

    (launch,) = compile_kernels([kernels.pointwise(power, [torch.float32], torch.float32)])
    out = torch.empty_like(x)
    launch(x, out, len(x))
    assert ulps(out, torch.pow(x, exponent)) <= 2


@pytest.mark.parametrize("known", [True, False])
def test_powers_of_two_are_multiplied_in_by_one_instruction_where_llvm_has_it(known, monkeypatch):
    monkeypatch.setattr(cpu, "SCALES_SINCE", (0,) if known else (10_000,))
    exp = kernels.pointwise(lambda x: kernels.op("exp", x), [torch.float32], torch.float32)
    assert ("@llvm.ldexp.v16f32" in cpu.write_kernel(exp, 16, set())) is known
    assert "ldexp" not in cpu.write_kernel(exp, 8, set())


def through_bf16(scalar):
    half = kernels.op("cast", scalar, dtype=torch.bfloat16)
    return kernels.op("cast", half, dtype=torch.float32)


def run_one(element, x, result=torch.float32):
    (launch,) = compile_kernels([kernels.pointwise(element, [x.dtype], result)])
    out = torch.empty(len(x), dtype=result)
    launch(x, out, len(x))
    return out


def test_a_nan_of_any_bits_stays_one_where_it_is_rounded_to_bf16_and_widened():
    bits = torch.tensor([0x7FFFFFFF, 0x7FFF8000, 0x7FC00000, 0x7F800001, 0x7FFF0000] * 8)
    x = torch.cat([bits, bits - 2**31]).to(torch.int32).view(torch.float32)
    for element in (through_bf16, lambda a: through_bf16(kernels.op("add", a, kernels.lit(1.0)))):
        assert run_one(element, x).isnan().all()


EVERY_BF16 = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("name", ["add", *UNARY])
def test_nans_that_arithmetic_makes_of_bf16_stay_nans(name):
    def element(x):
        wide = kernels.op("cast", x, dtype=torch.float32)
        both = (wide, kernels.op("neg", wide)) if name == "add" else (wide,)
        return kernels.op(name, *both)

    plain = run_one(element, EVERY_BF16)
    rounded = run_one(lambda x: through_bf16(element(x)), EVERY_BF16)
    assert torch.equal(rounded.isnan(), plain.isnan())
    same = ~plain.isnan()
    assert torch.equal(rounded[same], plain[same].bfloat16().float())
