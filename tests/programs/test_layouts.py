"""Results have eager's strides, and are read by them: transposed and channels-last operands."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.programs.compare import check

# Of a transposed matrix: an op keeps the layout of its operand, or has one of its own.
KEPT = {
    "copysign": lambda x: x.copysign(x + 1),
    "floor_divide": lambda x: x.floor_divide(0.3),
    "div, floor": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "div, trunc": lambda x: torch.div(x, x + 2, rounding_mode="trunc"),
    "addr": lambda x: torch.addr(x, x[:, 0], x[0], beta=0),
    "put": lambda x: x.put(torch.tensor([1, 3]), torch.ones(2)),
    "index_put": lambda x: x.index_put((torch.tensor([0, 1]),), torch.zeros(())),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "lerp": lambda x: x.lerp(x + 1, 0.3),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(0)[0],
    "flip": lambda x: x.flip(0),
    "tril": lambda x: x.tril(),
    "to": lambda x: x.to(torch.float64),
    "zeros_like": lambda x: torch.zeros_like(x).add_(x),
    "nan_to_num": lambda x: torch.nan_to_num(x),
    "softmax": lambda x: x.softmax(0),
    "digamma": lambda x: x.abs().digamma(),
}


@pytest.mark.parametrize("name", KEPT)
def test_transposed_operands(name) -> None:
    check(KEPT[name], *((torch.rand(n, 5).mT,) for n in (6, 7, 9)), compiles=2)


MOVED = {
    "repeated and reversed": lambda x: torch.repeat_interleave((x + 1).flatten(), 2).flip(0),
    "repeated rows, reversed": lambda x: torch.repeat_interleave(x + 1, 3, 0).flip(0, 1),
    "rolled, then by strides": lambda x: torch.roll(x, -1, 0).as_strided((5, 10), (4, 1), 0),
    "rolled twice": lambda x: torch.roll(x, (1, 2), (0, -1)).roll(3),
    "columns by strides": lambda x: (x * 2).as_strided((3, 4), (2, 1), 1) + 1,
    "a window copied": lambda x: torch.as_strided_copy(x[::2].add(1), (3,), (2,), 1),
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_elements_moved_by_place(name, layout) -> None:
    def image(n):
        return torch.arange(20.0 * n * n).reshape(n, 5, n, 4).to(memory_format=layout)

    check(MOVED[name], *((image(n),) for n in (2, 3, 4)), compiles=2)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_resampling_by_scales(mode, rank) -> None:
    mode = {"linear": ("linear", "bilinear", "trilinear")[rank - 1]}.get(mode, mode)
    scales = (1.3, 1.5, 2.0)[:rank]

    def f(x):
        return torch.nn.functional.interpolate(x, scale_factor=scales, mode=mode)

    sizes = [(3, 4, 2), (4, 5, 3), (5, 7, 4)]
    check(f, *((torch.randn(1, 2, *size[:rank]),) for size in sizes))


BITS = {
    "a copy of the bits before the write": lambda x: (x.view(torch.int32) * 2, x.fill_(2))[0],
    "bits written, then read as another width": lambda x: (
        (y := x.view(torch.int32) * 2).sub_(-4),
        x[:, 2:4].fill_(2),
        y.view(torch.int64),
    ),
    "bits copied in": lambda x: x.view(torch.int32).copy_(torch.ones(x.shape).view(torch.int32)),
    "floats into integers": lambda x: x.to(torch.int32).view(torch.float32).copy_(x),
}


@pytest.mark.parametrize("name", BITS)
def test_writes_between_readings_of_bits(name) -> None:
    check(BITS[name], *((torch.randn(n, 6),) for n in (4, 5, 7)), compiles=2)


def test_views_over_dimensions_of_one_element() -> None:
    """A view that only a size of 1 allows is one: the size becomes a fact."""

    def f(x):
        return x.mT.reshape(-1) + 1, torch.linalg.tensorinv(x.view(2, 3, 6, x.shape[2]), ind=2)

    inputs = [(torch.randn(6, 6, 1),), (torch.randn(6, 6, 1),)]
    check(f, *inputs, dynamic=True, compiles=1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_angles_of_whole_numbers(dtype) -> None:
    def f(x):
        return torch.deg2rad(x), torch.rad2deg(x)

    check(f, *((torch.arange(4 * n).reshape(n, 4).to(dtype),) for n in (3, 4, 5)), compiles=2)


@pytest.mark.parametrize("shapes", [((3, 1), (1, 4)), ((1, 2, 1), (5, 1, 3)), ((4, 1), (4, 6))])
def test_operands_that_stretch_each_other(shapes) -> None:
    check(lambda x, y: x * 2 + y, tuple(map(torch.rand, shapes)), dynamic=True)


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_losses_of_two_dtypes(loss, dtypes) -> None:
    def inputs(n):
        x, y = (torch.rand(n, 4).to(dtype) for dtype in dtypes)
        return x.requires_grad_(), y

    if torch.__version__ < "2.13" and loss == "mse_loss":
        pytest.skip("torch's own formula of mse_loss refuses two dtypes before 2.13")
    check(getattr(torch.nn.functional, loss), *map(inputs, (3, 4, 5)), compiles=2)


SCATTERS = {
    "select": lambda x, y: x.select_scatter(y[0], 0, 1),
    "slice": lambda x, y: torch.slice_scatter(x, y[:2], 0, 1, 3) * 2,
    "slice, returned": lambda x, y: (torch.slice_scatter(x, y[:2], 0, 1, 3), x + 1),
    "diagonal": lambda x, y: x.diagonal_scatter(y.diagonal(1), 1),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_into_memory_with_gaps(name) -> None:
    def f(x, y):
        return SCATTERS[name](x[:, ::2], y)

    inputs = [(torch.randn(n, 8, requires_grad=True), torch.randn(n, 4)) for n in (5, 6, 7)]
    check(f, *inputs, compiles=2)
    check(SCATTERS[name], *((x.detach()[:, ::2], y) for x, y in inputs), compiles=2)


LAID_OUT = {
    "plain": torch.clone,
    "permuted": lambda t: t.t().contiguous().t(),
    "gaps": lambda t: torch.cat([t, t], 1)[:, ::2].copy_(t),
    "expanded": lambda t: t[:1].expand(4, 6),
}
OF_TWO = {
    "diagonal_scatter": lambda a, b: torch.diagonal_scatter(a, b[:, 0]),
    "select_scatter": lambda a, b: torch.select_scatter(a, b[0], 0, 1),
    "slice_scatter": lambda a, b: torch.slice_scatter(a, b[:2], 0, 1, 3),
    "cross entropy": lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
    "weighted": lambda a, b: F.binary_cross_entropy_with_logits(a, b, b[0], "none", pos_weight=b),
    "of probabilities": lambda a, b: F.binary_cross_entropy(a.sigmoid(), b, reduction="none"),
    "its gradient": lambda a, b: torch.ops.aten.binary_cross_entropy_backward(a, b, b),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_results_of_two_operands_lie_as_in_eager(name: str) -> None:
    x = torch.linspace(0.1, 0.9, 24).reshape(4, 6)
    calls = [(one(x), other(1 - x)) for one in LAID_OUT.values() for other in LAID_OUT.values()]
    if "scatter" in name:  # eager refuses to write where elements share memory
        calls = [call for call in calls if 0 not in call[0].stride()]
    for dynamic in (False, True):
        check(OF_TWO[name], *calls, dynamic=dynamic)
