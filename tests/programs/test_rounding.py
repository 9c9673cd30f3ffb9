"""Half types are rounded after each op of the program, as in eager, whatever is fused."""

import pytest
import torch

import jitshape
from jitshape import stats

HALF = (torch.bfloat16, torch.float16)


def chain(x, y):
    return ((x * y + x) / 3 - y).relu() * x


def in_place(x, y):
    z = x + y
    z.mul_(y).sub_(x)
    return z * 1.5


def spread(x, y):
    return (x - x.mean(-1, keepdim=True)) * y


def truncated(x, y):
    return torch.div(x * 8, y, rounding_mode="trunc")


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("program", [chain, in_place, spread, truncated])
def test_results_are_eagers_bit_for_bit(program, dtype):
    torch.manual_seed(0)
    compiled = jitshape.compile(program, dynamic=True)
    before = stats()["compiles"]
    for columns in (24, 40):
        x, y = torch.randn(16, columns).to(dtype), torch.randn(16, columns).to(dtype)
        assert torch.equal(compiled(x, y), program(x, y))
    assert stats()["compiles"] == before + 1


def test_a_step_of_an_op_is_not_rounded():
    """softmax is one op, computed in f32 as by ATen."""
    torch.manual_seed(0)
    x = torch.randn(16, 64).to(torch.bfloat16)
    compiled = jitshape.compile(lambda x: x.softmax(-1))
    torch.testing.assert_close(compiled(x), x.softmax(-1), rtol=1e-2, atol=1e-4)
