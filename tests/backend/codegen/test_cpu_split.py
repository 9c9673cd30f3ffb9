"""Reductions to one element: by one thread, or by stages that all threads share."""

import pytest
import torch

import jitshape
from jitshape.backend import jit
from jitshape.backend.codegen.cpu_split import SPLIT_FROM, stages_of
from jitshape.backend.loops import Accumulator, Axis, Buffer, Carry, Kernel, Load, Loop, Store
from jitshape.ir.symint import Algebra
from tests.backend import kernels

F32, I64 = torch.float32, torch.int64


@pytest.fixture
def threads():
    """Two threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def to_one(combine, dtype):
    """out[0] = the combined elements of x."""
    a = Algebra()
    n, i = a.symbol("s0"), a.symbol("i0")
    x, out = Buffer("x", dtype), Buffer("out", dtype, "out")
    total = Accumulator("total", combine, Load(x, i), dtype)
    loop = Loop(Axis(i, n, "vector"), (), (total,))
    return Kernel("to_one", (), (loop, Store(out, 0, Carry(total))), (x, out), (n.symbol,))


@pytest.mark.parametrize("size", [0, 5, SPLIT_FROM - 1, SPLIT_FROM, SPLIT_FROM + 1, 300_001])
@pytest.mark.parametrize(
    "combine, dtype", [("sum", F32), ("max", F32), ("sum", I64), ("any", torch.bool)]
)
def test_all_threads_or_one(combine, dtype, size, threads):
    kernel = to_one(combine, dtype)
    stages = stages_of(kernel, kernel.body[0].axis.extent)
    assert stages is not None and len(stages.kernels) == 2
    (launch,) = jit.compile_kernels([kernel])
    assert "@to_one_stage1(" in launch.source
    torch.manual_seed(0)
    x = (torch.rand(size) * 8 - 4).to(dtype) if dtype != torch.bool else torch.zeros(size) > 0
    if size > 9 and dtype == F32 and combine == "max":
        x[size // 2] = float("nan")
    if size > 9 and dtype == torch.bool:
        x[-1] = True
    functions = {"sum": torch.sum, "any": torch.any, "max": torch.amax}
    expected = functions[combine](x) if size or combine != "max" else torch.tensor(-float("inf"))
    found = torch.empty(1, dtype=dtype)
    launch(x, found, size)
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=5e-3, equal_nan=True)


def test_what_is_not_split():
    many = Algebra().symbol("n")
    for kernel in (kernels.row_reduction("sum", F32, F32), to_one("argmax", F32)):
        assert stages_of(kernel, many) is None
    assert stages_of(kernels.pointwise(kernels.gelu, [F32], F32), many) is None
    assert stages_of(to_one("sum", F32), 100) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: ((x - y) ** 2).mean(),
        lambda x, y: (x * y).var(),
        lambda x, y: torch.nn.functional.l1_loss(x.t(), y.t(), reduction="sum") / x.shape[0],
        lambda x, y: (x.sum(), (x + y).max()),
    ],
)
def test_losses(function, threads):
    fast = jitshape.compile(function, dynamic=True)
    for shape in [(300, 401), (3, 5), (1, 200_000), (2000, 64)]:
        x, y = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(fast(x, y), function(x, y), rtol=1e-5, atol=1e-5)
