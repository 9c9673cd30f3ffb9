"""What ahead-of-time code for GPUs is like: read off right, and good for what we generate."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from triton.backends.nvidia import compiler as nvidia

import jitshape
from jitshape.backend import quality
from jitshape.backend.codegen.triton_plan import stores
from jitshape.backend.compile import compile_graph, watched_kernels
from jitshape.backend.quality import DEVICES, Quality, qualities, unique_qualities
from jitshape.backend.triton_jit import Launcher
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes.decompose import decompose
from tests.backend import kernels
from tests.ir.ops.test_values import COMPUTED, graph_of, samples
from tests.programs.models import PROGRAMS

EVERY = 16  # of the ops, one in so many without --all-kernels
OPS_TRIED = [name for name in COMPUTED if OPS[name].family in ("pointwise", "reduction")]


def check(found: list[Quality], flat: dict[str, int]) -> None:
    """No spills but the few bytes that ptxas spills for occupancy, far below its limit; of
    kernels in `flat`, accesses of so many bits where addresses are aligned."""
    for each in found:
        chosen = each.spilled <= 16 and each.registers < 128
        assert (each.spilled == 0 or chosen) and each.occupancy > 0, each
        if each.aligned and DEVICES[each.target].backend == "cuda" and each.kernel in flat:
            assert each.widest >= flat[each.kernel], each


def widths_of_flat(found: list) -> dict[str, int]:
    """Of kernels that write contiguous elements from the first one on, the bits that 8 elements
    of the widest result have."""
    widths = {}
    for kernel in found:
        plan = Launcher(kernel).written.plan
        axis = plan.lanes[0].axes[-1].symbol if quality.is_flat(plan) else None
        if axis is not None and all(store.index is axis for store, _ in stores(plan.body)):
            results = [b.dtype.itemsize for b in kernel.buffers if b.role == "out"]
            widths[kernel.name] = min(128, 64 * max(results, default=0))
    return widths


# ---- reading


def test_widths_in_ptx():
    text = """
        ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
        @%p1 ld.global.L1::evict_last.v2.b64 { %rd1, %rd2 }, [ %rd3 ];
        st.global.b8 [ %rd9 + 0 ], { %rs1 };
        ld.shared.b32 %r9, [%r8];
        st.global.v2.b32 [ %rd9 ], { %r1, %r2 };
    """
    assert list(quality._ptx_widths(text)) == [128, 128, 8, 64]


def test_widths_in_amd_code():
    text = "global_load_dwordx4 v[0:3]\n buffer_store_short v1\n global_store_byte v1\n"
    text += (
        "global_load_ubyte v1\n global_load_dword v2\n global_load_short_d16_hi v3\n ds_read_b32"
    )
    assert list(quality._amd_widths(text)) == [128, 16, 8, 8, 32, 16]


@pytest.mark.parametrize(
    "target, registers, shared, warps, expected",
    [
        ("sm_90", 64, 0, 4, 0.5),
        ("sm_90", 32, 0, 4, 1.0),
        ("sm_90", 33, 0, 4, 0.75),  # given in units of 8 a thread
        ("sm_90", 16, 100 << 10, 4, 0.125),
        ("sm_80", 16, 100 << 10, 4, 0.0625),
        ("sm_80", 255, 0, 8, 0.125),
        ("gfx942", 128, 0, 4, 0.5),
        ("gfx942", 60, 0, 4, 1.0),
        ("gfx942", 60, 40 << 10, 4, 0.125),
    ],
)
def test_occupancy(target, registers, shared, warps, expected):
    assert quality.occupancy(DEVICES[target], registers, shared, warps) == expected


def test_spills_are_seen(tmp_path: Path):
    launcher = Launcher(kernels.softmax())
    asm = dict(launcher.ahead_of_time(quality.goal("sm_90"), True).code.asm)
    asm["ptx"] = asm["ptx"].replace(".reqntid", ".maxnreg 24\n.reqntid")
    text, out = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    text.write_text(asm["ptx"])
    arch = f"--gpu-name={nvidia.sm_arch_from_capability(90)}"
    command = [nvidia.get_ptxas(90).path, arch, str(text), "-o", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    registers, spilled = quality._nvidia_use(asm | {"cubin": out.read_bytes()}, 90)
    assert registers <= 24 and spilled > 0


# ---- what we generate


def test_a_flat_kernel_is_wide_whatever_the_size():
    (kernel,) = [kernels.pointwise(kernels.gelu, [torch.float32], torch.float32)]
    found = qualities(kernel)
    check(found, widths_of_flat([kernel]))
    assert widths_of_flat([kernel]) == {"pointwise": 128}
    wide = {(q.target, q.aligned): q.widest for q in found}
    assert wide["sm_80", True] == wide["sm_90", True] == wide["gfx942", True] == 128
    assert wide["sm_90", False] == 32


def test_kernels_of_ops(request):
    every = request.config.getoption("--all-kernels")
    targets = tuple(DEVICES) if every else ("sm_90",)
    looked_at = 0
    for name in OPS_TRIED[:: 1 if every else EVERY]:
        with watched_kernels() as found:
            for args, kwargs in samples(name):
                graph, _ = graph_of(name, args, kwargs)
                decompose(graph)
                compile_graph(graph, backend="interpret")
        binaries = unique_qualities(found, targets)
        check(binaries, widths_of_flat(found))
        looked_at += len(binaries)
    assert looked_at > len(OPS_TRIED) // EVERY


def test_kernels_of_programs(request):
    every = request.config.getoption("--all-kernels")
    for program in map(PROGRAMS.get, PROGRAMS if every else ("norm_gelu", "attention")):
        compiled = jitshape.compile(program.make(), dynamic=True)
        with watched_kernels() as found:
            result = compiled(*program.inputs(4, 12))
            if program.train:
                result.sum().backward()
        assert found
        targets = tuple(DEVICES) if every else ("sm_90",)
        check(unique_qualities(found, targets), widths_of_flat(found))
