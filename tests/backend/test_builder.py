"""Scalars are built in the simplest form that computes the same."""

import pytest
import torch

from jitshape.backend.builder import Builder
from jitshape.backend.loops import Buffer, Load
from jitshape.ir.symint import Algebra

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I32, I64, U8, BOOL = torch.int32, torch.int64, torch.uint8, torch.bool


def element(dtype):
    return Load(Buffer("x", dtype), Algebra().symbol("i0"))


@pytest.mark.parametrize(
    "narrow, wide", [(BF16, F32), (F16, F32), (F32, F64), (BF16, F64), (I32, I64), (U8, I32)]
)
def test_a_cast_there_and_back_is_none(narrow, wide):
    b, x = Builder(Algebra()), element(narrow)
    assert b.cast(b.cast(x, wide), narrow) is x


@pytest.mark.parametrize(
    "first, second",
    [(F32, BF16), (BF16, F16), (F16, BF16), (I64, I32), (I64, F32), (F32, I64), (I32, BOOL)],
)
def test_a_cast_that_rounds_stays(first, second):
    b, x = Builder(Algebra()), element(first)
    back = b.cast(b.cast(x, second), first)
    assert back.op == "cast" and back.args[0].op == "cast" and back.args[0].args[0] is x


def held(b, dtype):
    """A scalar whose values are all numbers of `dtype`."""
    return b.cast(element(dtype), F32)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(
    "build",
    [
        lambda b, x, y: b.neg(x),
        lambda b, x, y: b.abs(b.maximum(x, 0)),
        lambda b, x, y: b.where(b.gt(b.mul(x, y), 0), b.floor(x), b.fmin(y, 0.5)),
        lambda b, x, y: b.maximum(x, b.cast(b.cast(b.mul(x, y), x.args[0].dtype), F32)),
        lambda b, x, y: b.where(b.eq(x, y), float("nan"), float("-inf")),
    ],
)
def test_what_chooses_among_numbers_of_a_half_type_is_not_rounded(build, dtype):
    b = Builder(Algebra())
    chosen = build(b, held(b, dtype), held(b, dtype))
    assert b.cast(b.cast(chosen, dtype), F32) is chosen


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(
    "build",
    [
        lambda b, x, y: b.add(x, y),
        lambda b, x, y: b.maximum(x, 0.1),
        lambda b, x, y: b.neg(b.mul(x, y)),
        lambda b, x, y: b.where(b.eq(x, y), x, b.exp(y)),
        lambda b, x, y: b.maximum(x, b.cast(element(F32), F32)),
        lambda b, x, y: b.maximum(x, b.cast(element(I64), F32)),
    ],
)
def test_what_computes_a_number_is_rounded(build, dtype):
    b = Builder(Algebra())
    rounded = b.cast(b.cast(build(b, held(b, dtype), held(b, dtype)), dtype), F32)
    assert rounded.op == "cast" and rounded.args[0].dtype is dtype
