"""Ints and floats of a program: symbolic through arithmetic, functions, branches and ops."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitshape
from tests.programs.compare import assert_same, check

X = torch.linspace(-2, 3, 6)


def outcome(fn: Callable, *args: Any) -> tuple:
    try:
        return ("returns", fn(*args))
    except Exception as error:
        return ("raises", type(error), str(error))


def agree(fn: Callable, calls: list[tuple], compiles: int) -> None:
    """Eager's outcomes, with types; exactly so many compiles."""
    jitshape.reset()
    compiled = jitshape.compile(fn, dynamic=True, fullgraph=True)
    for args in calls:
        assert_same(outcome(fn, X.clone(), *args), outcome(compiled, X.clone(), *args), str(args))
    assert jitshape.stats()["compiles"] == compiles
    assert jitshape.stats()["fallbacks"] == 0


INTS: dict[str, Callable] = {
    "bits": lambda x, a, b: (a & b, a | b, a ^ b, ~a, a & 7, a & ~7, 5 & a, a | 8, 3 ^ b),
    "shifts": lambda x, a, b: (a << b, 1 << b, a << 2, a >> b, a >> 2, 1000 >> b, x + (a << b)),
    "powers": lambda x, a, b: (a**2, 2**b, 8**b, (-a) ** 3, a**0),
    "quotients": lambda x, a, b: (a // b, a % b, divmod(a, b), divmod(100, b), -a // b, a % -b),
    "true_quotients": lambda x, a, b: (a / b, 1 / b, a / 2, a // 0.7, a % 2.5),
    "roundings": lambda x, a, b: (int(a / b), math.floor(-a / b), math.ceil(a / b), round(a / b)),
    "round_to": lambda x, a, b: (round(a), round(a, -1), round(a, 1), round(a / b, 2)),
    "absolute": lambda x, a, b: (abs(a), abs(-a), abs(b - a), +a),
    "truths": lambda x, a, b: ((a > 3) & (b > 2), (a > 3) | (b > 9), True & (b > 2)),
    "sums": lambda x, a, b: (sum([a, b, 1]), sum(range(3), a), max(b, 1), min(b, 99)),
    "fractions": lambda x, a, b: (b > 1.5, b == 1.5, b != 2.5, 0.5 < b, a < 1e300, a > -math.inf),
    "sizes": lambda x, a, b: torch.zeros((b + 7) & ~7, 1 << b),
    "elements": lambda x, a, b: torch.tensor([[a, b], [b, 1]]) * torch.tensor(a),
    "reshapes": lambda x, a, b: torch.zeros(b * 4).reshape(b << 1, -1),
    "large": lambda x, a, b: (a * 2**40, a * 2**62, a * 2**70, (a << 40) * (b << 40)),
}


@pytest.mark.parametrize("name", INTS)
def test_one_compile_serves_ints(name: str) -> None:
    agree(INTS[name], [(7, 3), (12, 5), (9, 4), (100, 7)], compiles=1)


def test_ints_of_both_signs() -> None:
    def f(x: torch.Tensor, a: int, b: int) -> tuple:
        return a & b, a | b, a ^ b, ~a, a >> 2, a // b, a % b, abs(a), a & 7, a & -8, a / b

    agree(f, [(7, 3), (-12, 5), (9, -4), (-100, -7)], compiles=1)


@pytest.mark.parametrize("op", ["<<", ">>"])
def test_a_negative_count_of_bits_raises(op: str) -> None:
    f = eval(f"lambda x, a, b: (a {op} b, x)")
    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for args in ((7, 3), (7, -3), (5, 1)):
        assert_same(outcome(f, X, *args), outcome(compiled, X, *args))


def test_ints_beyond_64_bits_are_literals() -> None:
    def f(x: torch.Tensor, a: int) -> tuple:
        return a + 1, x * 2

    agree(f, [(2**70,), (2**70,), (3,), (4,)], compiles=2)


def test_a_product_beyond_64_bits_decides_a_branch() -> None:
    def f(x: torch.Tensor, a: int, b: int) -> torch.Tensor:
        return x + 1 if a * b * a > 2**80 else x - 1

    agree(f, [(2**40, 2**30), (2**41, 2**30), (3, 4), (5, 6)], compiles=2)


FLOATS: dict[str, Callable] = {
    "roundings": lambda x, a, b: (int(a), math.floor(a), math.ceil(b), math.trunc(-a), round(b)),
    "round_to": lambda x, a, b: (round(a, 1), round(b, 2), round(a, -1)),
    "arithmetic": lambda x, a, b: (
        a + b,
        a * b,
        a / b,
        a // b,
        a % b,
        a**2,
        a**b,
        -a,
        divmod(a, b),
    ),
    "functions": lambda x, a, b: (math.exp(a), math.sin(b), math.log1p(a), math.sqrt(b), abs(-a)),
    "functions_of_two": lambda x, a, b: (
        math.atan2(a, b),
        math.hypot(a, b),
        math.copysign(a, -b),
        math.fmod(a, b),
        math.pow(a, b),
    ),
    "tests": lambda x, a, b: (math.isnan(a), math.isinf(b), math.isfinite(a)),
    "a_size": lambda x, a, b: torch.zeros(int(a * 4) + 1, math.ceil(b)) + a,
    "scaled_sizes": lambda x, a, b: x.repeat(int(x.shape[0] * a)),
    "a_range": lambda x, a, b: torch.arange(0.0, a, 0.25),
    "elements": lambda x, a, b: torch.tensor([a, b, 1]) + torch.tensor(a),
    "scalars": lambda x, a, b: (x * a + b, x / a, torch.clamp(x, -a, b), x.add(x, alpha=a)),
    "fills": lambda x, a, b: (
        torch.full((2,), a),
        x.masked_fill(x > 0, a),
        torch.where(x > 0, a, x),
    ),
    "activations": lambda x, a, b: (F.leaky_relu(x, a), F.elu(x, a), F.softplus(x, a)),
    "norms": lambda x, a, b: (F.layer_norm(x, (6,), eps=a), F.group_norm(x[None], 2, eps=b)),
    "batch_norm": lambda x, a, b: F.batch_norm(x.view(3, 2), None, None, training=True, eps=a),
    "losses": lambda x, a, b: (F.huber_loss(x, x * 2, delta=a), F.smooth_l1_loss(x, x * 3, beta=b)),
    "padding": lambda x, a, b: F.pad(x, (1, 2), value=a),
}
PAIRS = [(1.5, 0.25), (2.75, 3.5), (0.3, 7.0), (1.25, 2.5)]


@pytest.mark.parametrize("name", FLOATS)
def test_one_compile_serves_floats(name: str) -> None:
    agree(FLOATS[name], PAIRS, compiles=1)


def test_a_branch_on_floats_compiles_once_a_side() -> None:
    def f(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
        if a < b and int(b) > 1:
            return x * a
        return x * b

    agree(f, [(1.5, 0.25), (2.75, 3.5), (0.3, 7.0), (9.0, 2.5), (0.0, -1.0)], compiles=2)


def test_floats_that_no_rounding_takes() -> None:
    def f(x: torch.Tensor, a: float) -> tuple:
        return math.floor(a), x * a

    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for a in (1.5, math.nan, 2.5, math.inf, -0.5):
        assert_same(outcome(f, X, a), outcome(compiled, X, a), str(a))


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
def test_comparisons_with_what_is_no_number(op: str) -> None:
    f = eval(f"lambda x, a, b: (x + 1, 1) if a {op} b else (x - 1, 2)")
    jitshape.reset()
    compiled = jitshape.compile(f, dynamic=True)
    for args in ((1.0, 2.0), (math.nan, 2.0), (2.0, 2.0), (3.0, math.nan), (math.inf, -math.inf)):
        assert_same(f(X, *args), compiled(X, *args), str(args))


def test_gradients_with_a_lent_float() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        y = F.layer_norm(x, (3,), w, eps=eps)
        return F.huber_loss(y, x, delta=eps) + F.smooth_l1_loss(y, x * 2, beta=eps + 1)

    calls = [
        (torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True), eps)
        for eps in (0.5, 1e-5, 0.3)
    ]
    check(f, *calls, dynamic=True, compiles=1)


def test_deep_nests_of_quotients_end_in_one_fact() -> None:
    def f(x: torch.Tensor, n: int) -> tuple:
        for k in range(300):
            n = (n * 3 + k) // 2 if k % 2 else max(n // 3, k)
        return n, x * n

    agree(f, [(1000,), (1000,), (10**6,)], compiles=2)


def test_attributes_of_modules_that_change() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.keep = 0.5, 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = x[: int(self.keep * self.scale * 2)]
            return kept * self.scale if self.keep > 1.5 else kept

    jitshape.reset()
    module = Scaled()
    compiled = jitshape.compile(module)
    for scale, keep in ((0.5, 3), (0.7, 3), (0.9, 3), (1.1, 4), (1.3, 2), (0.2, 5)):
        module.scale, module.keep = scale, keep
        assert_same(module(X), compiled(X), str((scale, keep)))
    assert jitshape.stats()["compiles"] <= 4


def test_numbers_beyond_a_machine_word() -> None:
    """Ints have no bound: one that no guard can read is a plain number."""

    def f(n: int) -> tuple:
        return n + 1, n * n, n < 5, n - (1 << 70)

    compiled = jitshape.compile(f)
    for n in (3, 5, 7, 1 << 61, 1 << 63, -(1 << 80), 9, 1 << 64):
        assert compiled(n) == f(n), n


class Convertible:
    def __init__(self, answer):
        self.answer = answer

    def __index__(self):
        return self.answer


class Truncated:
    def __trunc__(self):
        return 3


class AsInteger:
    def __int__(self):
        return True


class AsFloat:
    def __float__(self):
        return type("Float", (float,), {})(1.5)


@pytest.mark.parametrize("convert", [int, float, operator.index, range, [4, 5].__getitem__])
@pytest.mark.parametrize(
    "number", [Convertible(True), Convertible(1), Convertible(1.5), Truncated(), AsInteger()]
)
def test_conversions_warn_and_fail_as_in_eager(convert, number):
    def program(number):
        try:
            result = convert(number)
        except TypeError as error:
            return str(error)
        return result, type(result)

    def told(function):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(number)
        return result, [(w.category, str(w.message)) for w in caught]

    assert told(jitshape.compile(program)) == told(program)


def test_a_subclass_of_float_is_converted():
    def program(number):
        return float(number), type(float(number))

    with pytest.warns(DeprecationWarning):
        assert jitshape.compile(program)(AsFloat()) == (1.5, float)


class Text(str): ...


class Octets(bytearray): ...


TEXTS = [bytearray(b"100"), Octets(b"100"), memoryview(b"100"), Text("100")]


@pytest.mark.parametrize("given", TEXTS, ids=lambda given: type(given).__name__)
def test_numbers_are_read_from_what_holds_text(given: object) -> None:
    """Also from what the machine has no model of."""

    def f(given: object) -> tuple[object, ...]:
        number = int(given)  # type: ignore[call-overload]
        return number, float(given), isinstance(given, str)  # type: ignore[arg-type]

    assert jitshape.compile(f)(given) == f(given)


STORED: dict[str, Callable] = {
    "masked_fill": lambda x, a: x.masked_fill(x > 0, a),
    "full": lambda x, a: torch.full((3,), a, dtype=x.dtype),
    "full_like": lambda x, a: torch.full_like(x, a),
    "fill_": lambda x, a: x.fill_(a),
    "pad": lambda x, a: F.pad(x, (1, 1), value=a),
    "clamp": lambda x, a: x.clamp(max=a),
    "clamp to two": lambda x, a: x.clamp(-1.0, a),
    "clamp_min_": lambda x, a: x.clamp_min_(a),
}
HALVES_AND_INTS = torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.uint8


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("dtype", HALVES_AND_INTS)
def test_a_float_that_an_element_cannot_hold_raises(dtype: torch.dtype, name: str) -> None:
    """Numbers within the dtype share an entry; those beyond raise as eager does."""
    f, x = STORED[name], X.abs().to(dtype)
    jitshape.reset()
    compiled = jitshape.compile(f)
    for a in (2.0, 3.0, 1e39, 4.0, math.inf, 1e9, -1e39, math.nan, -1.0, 5.0):
        assert_same(outcome(f, x.clone(), a), outcome(compiled, x.clone(), a), str(a))
    assert jitshape.stats()["fallbacks"] == 0
    entries = jitshape.stats()["compiles"]
    for a in (2.5, 3.5, 1e38 if dtype.is_floating_point else 1e3):
        assert_same(outcome(f, x.clone(), a), outcome(compiled, x.clone(), a), str(a))
    assert jitshape.stats()["compiles"] == entries


OPERANDS: dict[str, Callable] = {
    "sums": lambda x, a: (x + a, a + x, x - a, a - x, x.clone().add_(a)),
    "products": lambda x, a: (x * a, a * x, x / a, a / x, x // a),
    "rests": lambda x, a: (x % a, torch.fmod(x, a), a % x),
    "comparisons": lambda x, a: (x == a, x < a, x >= a, torch.full_like(x, a) == a),
    "choices": lambda x, a: (torch.where(x > 0, x, a), x.clamp(max=a), x.clamp_min(a)),
    "zero dimensions": lambda x, a: (torch.tensor(a) + x, torch.tensor(a) * x, x * torch.tensor(a)),
    "zero dimensions divide": lambda x, a: (torch.tensor(a) / x, x / torch.tensor(a)),
    "between": lambda x, a: torch.lerp(x, x * 2, a),
    "fills": lambda x, a: (torch.full_like(x, a).float(), F.pad(x, (1, 1), value=a).float()),
    "shrinks": lambda x, a: (F.hardshrink(torch.full_like(x, a), a), F.hardshrink(x, a)),
    "large integers": lambda x, a: (x + 2049, torch.arange(2049, 2349) + x + a),
}


@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_meet_numbers_rounded_where_eager_rounds_them(dtype: torch.dtype, name: str) -> None:
    """Bit for bit, with the number as a constant and as a symbol."""
    x = torch.randn(300, generator=torch.Generator().manual_seed(0)).to(dtype)
    f = OPERANDS[name]
    jitshape.reset()
    compiled = jitshape.compile(f)
    for a in (0.3, 0.7, 1.1, 1e-5, 3.3):
        expected, got = f(x, a), compiled(x, a)
        for one, other in zip(expected, got, strict=True):
            assert torch.equal(one.nan_to_num(), other.nan_to_num()), (a, one, other)
    assert jitshape.stats()["compiles"] == 2
