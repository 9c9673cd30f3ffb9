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
