"""Which tile runs a matrix product, or ATen; what its code is like ahead of time."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from jitshape.backend.compile import compile_graph
from jitshape.backend.quality import DEVICES, goal, quality_of
from jitshape.backend.triton_products import LEVEL, ProductLauncher, programs
from jitshape.backend.triton_tiles import TILES, Tile, bucket, ranked, tiles_for
from jitshape.ir.evaluate import evaluate
from tests.backend.graphs import call, compare
from tests.backend.test_contractions import HALF, inputs, mlp, product_graph

GPU = torch.device("cuda", 0)


def launcher(body=mlp, dtype=torch.float32, turned=True) -> ProductLauncher:
    program = compile_graph(product_graph(body, dtype, turned), backend="triton")
    assert program.parts is not None
    (found,) = program.parts.launchers
    assert isinstance(found, ProductLauncher)
    return found


def plain(g, bias, a, b, residual):
    return call(g, "mm", a, b)


# ---- ATen


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_calls_compute_the_same(dtype):
    torch.manual_seed(0)
    bias, a, b, residual = inputs(37, 50, 70, dtype)
    out = torch.empty(37, 50, dtype=dtype)
    launch = launcher(dtype=dtype)
    launch.by_aten([a, b, bias, residual, out], [37, 50, 70], [])
    expected = evaluate(product_graph(mlp, dtype), [bias, a, b, residual])[0]
    compare(out, expected, 1e-4)
    assert [each.kernel.name.rsplit("_", 1)[1] for each in launch.by_aten.launches] == [
        "left", "rest",
    ]  # fmt: skip


def widened(g, bias, a, b, residual):
    return call(g, "mm", *(call(g, "_to_copy", x, dtype=torch.float32) for x in (a, b)))


def test_a_product_in_f32_of_halves_is_not_rounded_to_halves():
    torch.manual_seed(0)
    _, a, b, _ = inputs(37, 50, 70, HALF, turned=False)
    launch = launcher(widened, HALF, turned=False)
    assert launch.parts.dtype is torch.float32
    out = torch.empty(37, 50)
    launch.by_aten([a, b, out], [37, 50, 70], [])
    torch.testing.assert_close(out, a.float() @ b.float(), atol=1e-5, rtol=1e-5)


def test_a_product_alone_is_one_call():
    launch = launcher(plain, turned=False)
    a, b, out = torch.randn(5, 3), torch.randn(3, 7), torch.empty(5, 7)
    launch.by_aten([a, b, out], [5, 7, 3], [])
    assert launch.by_aten.launches == {} and torch.equal(out, a @ b)


# ---- the choice


class Clock:
    """Says that `fastest` is, and notes what was measured."""

    def __init__(self, fastest):
        self.fastest, self.measured = fastest, []

    def __call__(self, run):
        chosen = run.args[0]
        self.measured.append(chosen)
        return 1.0 if chosen == self.fastest else 2.0


class Shelf(dict):
    def get(self, level, key):
        return super().get((level, key))

    def put(self, level, key, data):
        self[level, key] = data


@pytest.fixture
def device(monkeypatch):
    """A device that is not there, which the choice asks for its name and size only."""
    monkeypatch.setattr("jitshape.backend.triton_products.multiprocessors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H200")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return GPU


ALIGNED = (True, False, "ieee")


def chosen(launch, sizes, variant=ALIGNED):
    return launch.choice(GPU, ([], [], []), sizes, variant)


def test_a_choice_is_made_once_for_sizes_with_the_same_powers_of_two(device):
    clock = Clock(None)
    launch = launcher(dtype=HALF)
    launch.clock = clock
    assert chosen(launch, (1, 1000, 4096, 4096)) is None
    assert len(clock.measured) == 4 and clock.measured[0] is None
    for rows in (513, 777, 1024):
        assert chosen(launch, (1, rows, 4000, 4000)) is None
    assert len(clock.measured) == 4
    chosen(launch, (1, 1025, 4096, 4096))
    assert len(clock.measured) == 8


def test_a_choice_is_kept_for_later_processes(device):
    store = Shelf()
    first, second = launcher(dtype=HALF), launcher(dtype=HALF)
    first.store = second.store = store  # type: ignore[assignment]
    fast = ranked((1, 1000, 4096, 4096), HALF, 132)[1]
    first.clock, second.clock = Clock(fast), Clock(None)
    assert chosen(first, (1, 1000, 4096, 4096)) == fast
    assert chosen(second, (1, 1000, 4096, 4096)) == fast and second.clock.measured == []
    assert {level for level, _ in store} == {LEVEL}
    store.update({key: b"damaged" for key in store})
    third = launcher(dtype=HALF)
    third.store, third.clock = store, Clock(None)  # type: ignore[assignment]
    assert chosen(third, (1, 1000, 4096, 4096)) is None


def test_nothing_is_measured_while_a_stream_is_captured(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    launch = launcher(dtype=HALF)
    launch.clock = Clock(None)
    tile = chosen(launch, (1, 1000, 4096, 4096))
    assert tile == ranked((1, 1000, 4096, 4096), HALF, 132)[0]
    assert launch.clock.measured == [] and launch.choices == {}


def test_defaults(device):
    sizes = (1, 1000, 4096, 4096)
    assert launcher(plain, HALF, False).default(sizes, GPU, ALIGNED) is None
    assert launcher(dtype=HALF).default(sizes, GPU, (False, False, "ieee")) is None
    assert launcher().default(sizes, GPU, ALIGNED) is None
    assert isinstance(launcher().default(sizes, GPU, (True, False, "tf32")), Tile)


def test_the_precision_of_f32_is_torchs_setting():
    launch, half = launcher(), launcher(dtype=HALF)
    assert launch.precision() == "ieee"
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert launch.precision() == "tf32" and half.precision() == "ieee"
    finally:
        torch.set_float32_matmul_precision(before)


def test_thin_products_get_thin_tiles():
    assert ranked((1, 1, 4096, 4096), HALF, 132)[0].rows == 16
    assert ranked((1, 8192, 8192, 8192), HALF, 132)[0].rows == 128
    assert ranked((1, 4096, 16, 4096), HALF, 132)[0].columns == 16
    assert programs(Tile(64, 32, 16, 4, 3), (3, 65, 32)) == 6
    assert bucket((1, 1000, 1024, 1025)) == (1, 1024, 1024, 2048)
    assert all(t.inner == full.inner // 2 for t, full in zip(tiles_for(torch.float32, True), TILES))


# ---- ahead of time


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_code_multiplies_matrices_in_registers(target, aligned, dtype):
    """The largest tile: with tensor cores, nothing spilled, and wide copies of aligned factors."""
    launch = launcher(dtype=dtype)
    tile = tiles_for(dtype, aligned)[0]
    made = launch.binary(tile, goal(target), aligned, False, "tf32").code
    found = quality_of(made, launch.kernel.name, target, aligned)
    assert found.spilled == 0 and found.tensor_cores > 0
    if aligned and target != "gfx942":
        copies = made.asm["ptx"].count("cp.async.cg.shared.global")
        assert copies and found.widest == 128
    if aligned and target == "sm_90":
        assert "wgmma.mma_async" in made.asm["ptx"]
