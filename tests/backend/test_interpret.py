import pytest
import torch

from jitshape.backend.interpret import interpret
from jitshape.backend.loops import Buffer, Kernel, Literal, Load, Store
from tests.backend import kernels
from tests.backend.cases import CASES, SHAPES


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_kernel_agrees_with_torch(case, shape):
    torch.manual_seed(0)
    kernel, buffers, sizes, scalars, expected = case(*shape)
    interpret(kernel, buffers, sizes, scalars)
    for position, value in expected.items():
        torch.testing.assert_close(buffers[position], value, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_at_the_cast(dtype):
    def double(x):
        wide = kernels.op("cast", x, dtype=torch.float32)
        return kernels.op("cast", kernels.op("add", wide, wide), dtype=dtype)

    kernel = kernels.pointwise(double, [dtype], dtype)
    x, out = torch.randn(9, dtype=dtype), torch.empty(9, dtype=dtype)
    interpret(kernel, [x, out], [9])
    assert torch.equal(out, x + x)


def test_buffer_starts_at_the_tensors_offset():
    kernel = kernels.pointwise(lambda x: x, [torch.float32], torch.float32)
    base, out = torch.arange(10.0), torch.zeros(10)
    interpret(kernel, [base[3:7], out[2:6]], [4])
    assert out.tolist() == [0, 0, 3, 4, 5, 6, 0, 0, 0, 0]


def test_index_outside_the_memory_is_an_error():
    out = Buffer("out", torch.float32, "out")
    kernel = Kernel("outside", (), (Store(out, 4, Literal(1.0, torch.float32)),), (out,), ())
    with pytest.raises(IndexError, match=r"out\[4..4\] is outside its 4 elements"):
        interpret(kernel, [torch.zeros(4)])


def test_store_is_seen_by_a_later_load():
    buffer, out = Buffer("b", torch.float32, "inout"), Buffer("out", torch.float32, "out")
    load = Load(buffer, 0)
    body = (
        Store(buffer, 0, kernels.op("add", load, kernels.lit(1.0))),
        Store(out, 0, load),
    )
    kernel = Kernel("order", (), body, (buffer, out), ())
    b, o = torch.zeros(1), torch.zeros(1)
    interpret(kernel, [b, o])
    assert (b.item(), o.item()) == (1.0, 1.0)
