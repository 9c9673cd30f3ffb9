"""SymInt, SymFloat and SymBool over our nodes: values, facts, and what they must not import."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from jitshape.ir.conditions import BoolExpr
from jitshape.ir.graph import Graph
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symbolic_tensor import make_symbolic
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import sym_max
from jitshape.ir.torch_numbers import from_torch, to_torch, to_torch_float
from jitshape.ir.types import TensorType


class Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


def plain(x: int, env: ShapeEnv) -> torch.SymInt:
    """A SymInt as C++ makes it, without the direct operators."""
    return torch.SymInt(to_torch(env.size_symbol(x), env).node)


def direct(x: int, env: ShapeEnv) -> torch.SymInt:
    return to_torch(env.size_symbol(x), env)


INTEGER = {
    "product": (lambda b, t: b * t * 4, "4*s0*s1"),
    "quotient": (lambda b, t: (b * t) // t, "s0"),
    "remainder": (lambda b, t: (b + 7) % 4, "(s0 + 3) % 4"),
    "reflected": (lambda b, t: 100 - b, "100 - s0"),
    "power": (lambda b, t: b**2, "s0*s0"),
    "shift": (lambda b, t: (b << 2) + (t >> 1), "4*s0 + (s1 // 2)"),
    "max": (lambda b, t: torch.sym_max(b, t), "max(s0, s1)"),
    "negative": (lambda b, t: -b, "-s0"),
    "floor of a quotient": (lambda b, t: math.floor(t / b), "s1 // s0"),
    "ceil of a quotient": (lambda b, t: math.ceil(t / 2), "-((-s1) // 2)"),
}
FLOAT = {
    "root": (lambda b, t: t**0.5, "s1 ** 0.5"),
    "inverse root": (lambda b, t: 1 / torch.sym_sqrt(t), "1 / math.sqrt(s1)"),
    "quotient": (lambda b, t: b / t, "s0 / s1"),
    "product": (lambda b, t: b * 2.5, "2.5*s0"),
}


@pytest.mark.parametrize("make", [plain, direct])
@pytest.mark.parametrize("name", INTEGER)
def test_integer_operators(make, name):
    env, (fn, text) = ShapeEnv(), INTEGER[name]
    result = from_torch(fn(make(6, env), make(32, env)))
    assert str(result) == text
    for b, t in ((6, 32), (1, 5), (17, 3)):
        assert eval(str(result), {"s0": b, "s1": t}) == int(fn_int(name, b, t))
    assert not any(fact.specialised for fact in env.facts)


def fn_int(name: str, b: int, t: int) -> int:
    return max(b, t) if name == "max" else INTEGER[name][0](b, t)


@pytest.mark.parametrize("make", [plain, direct])
@pytest.mark.parametrize("name", FLOAT)
def test_float_operators(make, name):
    env, (fn, _) = ShapeEnv(), FLOAT[name]
    result = from_torch(fn(make(6, env), make(32, env)))
    assert isinstance(result, FloatExpr)
    expected = 1 / math.sqrt(32) if name == "inverse root" else fn(6, 32)
    assert env.actual(result) == expected
    assert eval(str(result), {"s0": 6, "s1": 32, "math": math}) == expected
    assert env.facts == []


def test_shifts_and_powers_of_two_by_a_symbol_are_exact_and_other_powers_specialise_it():
    env = ShapeEnv()
    x = direct(2, env)
    assert [str(from_torch(n)) for n in (1 << x, 32 >> x, 2**x)] == [
        "1 << s0",
        "32 // (1 << s0)",
        "1 << s0",
    ]
    assert env.facts == []
    assert 3**x == 9
    assert [str(fact) for fact in env.facts] == ["s0 == 2"]


def test_a_negative_count_of_bits_is_an_error_and_a_fact():
    env = ShapeEnv()
    x = to_torch(env.int_symbol(-2), env)
    with pytest.raises(ValueError, match="negative shift count"):
        1 << x
    assert [str(fact) for fact in env.facts] == ["s0 < 0"]


@pytest.mark.parametrize("make", [plain, direct])
def test_round_to_tens(make):
    for n in (14, 15, 16, 25, 5):
        env = ShapeEnv()
        rounded = direct(n, env).__round__(-1)
        assert env.actual(from_torch(rounded)) == round(n, -1)
        assert env.facts == []


def test_truth_is_a_fact_and_known_truth_is_a_bool():
    env = ShapeEnv()
    b, t = direct(4, env), direct(32, env)
    assert isinstance(from_torch(b < t), BoolExpr)
    assert (b + 1 > b) is True
    assert bool(b < t) and bool(b < t)
    assert [str(fact) for fact in env.facts] == ["s0 < s1"]
    assert int(t) == 32 and range(t).stop == 32
    assert [str(fact) for fact in env.facts] == ["s0 < s1", "s1 == 32"]


def test_a_decision_on_floats_is_a_fact_and_equality_leaves_one_value():
    env = ShapeEnv()
    s = to_torch_float(env.float_symbol(0.5), env)
    scaled = from_torch(s * 2.0 + 1.0)
    assert str(scaled) == "(f0 * 2.0) + 1.0" and env.facts == []
    assert env.actual(scaled) == 2.0
    assert bool(s > 0.1) and not bool(s * 2.0 > 3) and bool(s != 0.1)
    facts = ["f0 > 0.1", "f0 * 2.0 <= 3", "f0 != 0.1"]
    assert [str(fact) for fact in env.facts] == facts
    assert isinstance(env.simplify_float(scaled), FloatExpr)
    assert bool(s == 0.5)
    assert [(str(fact), fact.specialised) for fact in env.facts][3:] == [("f0 == 0.5", True)]
    assert env.simplify_float(scaled) == 2.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_no_integer_is_near_to_specialises_and_raises(value):
    env = ShapeEnv()
    s = to_torch_float(env.float_symbol(value), env)
    with pytest.raises((ValueError, OverflowError)):
        math.floor(s)
    assert [fact.specialised for fact in env.facts] == [True]


def test_roundings_of_floats_are_sizes():
    env = ShapeEnv()
    n, s = direct(7, env), to_torch_float(env.float_symbol(1.5), env)
    roundings = [math.floor(n * s), math.ceil(s), math.floor(n * 0.75), math.floor(n / 3)]
    texts = ["math.floor(s0 * f0)", "math.ceil(f0)", "(3*s0) // 4", "s0 // 3"]
    assert [str(from_torch(r)) for r in roundings] == texts
    assert [env.actual(from_torch(r)) for r in roundings] == [10, 2, 5, 2]
    assert env.facts == []


def test_integers_are_compared_with_fractions_as_integers():
    env = ShapeEnv()
    n = direct(7, env)
    asked = (n > 2.5, n >= 2.5, n < 9.5, n <= 8.5, n > 4.0)
    assert [str(from_torch(c)) for c in asked] == [
        "s0 > 2",
        "s0 >= 3",
        "s0 < 10",
        "s0 <= 8",
        "s0 > 4",
    ]
    assert (n == 2.5) is False and (n < math.inf) is True


def test_a_tensor_is_made_without_arithmetic_on_its_sizes():
    env = ShapeEnv()
    b, t = env.size_symbol(5), env.size_symbol(7)
    type_ = TensorType((b, t, 64), (t * 64, 64, 1), torch.float32, torch.device("cpu"), 0)
    known = len(env.algebra._sums), len(env.algebra._products)
    tensor = make_symbolic(Graph(env).add_input(type_, "x"), env)
    assert (len(env.algebra._sums), len(env.algebra._products)) == known
    assert from_torch(tensor.numel()) is b * t * 64


def test_layout_questions_of_a_wrapper_tensor_make_no_facts():
    env = ShapeEnv()
    b, t = direct(1, env), direct(32, env)
    stride = to_torch(3 * sym_max(from_torch(t), 1), env)
    x = torch.Tensor._make_wrapper_subclass(
        Wrapper, (b, t, 3), strides=(stride, 3, 1), dtype=torch.float32
    )
    assert x.is_contiguous()
    assert str(from_torch(x.numel())) == "3*s0*s1"
    assert from_torch(x.shape[1]) is from_torch(t)
    assert env.facts == []


def test_nothing_imports_torchs_own_tracers():
    code = """
import sys, math, torch
before = set(sys.modules)
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.torch_numbers import to_torch, from_torch
env = ShapeEnv()
direct, plain = lambda x: x, lambda x: torch.SymInt(x.node)
for wrap in (direct, plain):
    b, t = (wrap(to_torch(env.size_symbol(v), env)) for v in (4, 32))
    if wrap is direct:  # torch.SymInt itself does `**` of a float with torch._check
        b ** 0.5, 0.5 ** b
    b * t // t % 3 - 1, b ** 2, 1 / b, 1 / torch.sym_sqrt(b), math.ceil(t / b)
    torch.sym_max(b, t), torch.sym_float(b) * 2.0, abs(-b), bool(b < t), round(b), b == t
    torch.nn.functional.relu(torch.ones(2)) * float(b)
banned = ("torch._dynamo", "torch._inductor", "torch._functorch.aot", "torch._decomp",
          "torch._refs", "torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
print([m for m in sorted(set(sys.modules) - before) if m.startswith(banned)])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
