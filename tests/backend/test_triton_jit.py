"""Programs with `backend="triton"`, and what Triton makes of the kernels ahead of time."""

from __future__ import annotations

import os
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget

from jitshape.backend.codegen.triton_plan import blocks_on_gpu
from jitshape.backend.compile import compile_graph
from jitshape.backend.jit import compile_kernels as compile_for_cpu
from jitshape.backend.triton_jit import Launcher, compile_for
from tests.backend import kernels
from tests.backend.codegen.test_triton import static_softmax
from tests.backend.test_fusion_random import draw_graph

EXAMPLES = int(os.environ.get("TRITON_EXAMPLES", "12"))  # `make test-triton`: more


@seed(0)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_random_graphs_agree_with_eager_and_the_cpu(data):
    from tests.backend.graphs import check

    graph, calls = draw_graph(data)
    check(graph, calls[1:4], targets=("cpu", "triton"), tolerance=1e-4)


def test_one_kernel_object_serves_both_targets():
    kernel = kernels.layernorm()
    x, w, b = torch.randn(4, 37), torch.randn(37), torch.randn(37)
    results = []
    for launch in (*compile_for_cpu([kernel]), Launcher(kernel)):
        out, mean = torch.empty(4, 37), torch.empty(4)
        launch(x, w, b, out, mean, 4, 37, 1e-5)
        results.append((out, mean))
    torch.testing.assert_close(results[0], results[1])


# ---- whole functions


def layernorm_gelu_residual(x, r, w, b):
    hidden = torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    return r + torch.nn.functional.gelu(hidden)


def test_compiled_functions():
    import jitshape

    pointwise = jitshape.compile(lambda x, y: (x * 2 + y).tanh(), backend="triton", dynamic=True)
    norm = jitshape.compile(layernorm_gelu_residual, backend="triton", dynamic=True)
    for rows in (1, 3, 8):
        x, y = torch.randn(rows, 33), torch.randn(rows, 33)
        torch.testing.assert_close(pointwise(x, y), (x * 2 + y).tanh())
        w, b = torch.randn(33), torch.randn(33)
        torch.testing.assert_close(norm(x, y, w, b), layernorm_gelu_residual(x, y, w, b))


def test_forward_and_backward():
    import jitshape

    compiled = jitshape.compile(layernorm_gelu_residual, backend="triton", dynamic=True)
    inputs = [torch.randn(5, 24), torch.randn(5, 24), torch.randn(24), torch.randn(24)]
    ours = [x.clone().requires_grad_() for x in inputs]
    theirs = [x.clone().requires_grad_() for x in inputs]
    compiled(*ours).square().sum().backward()
    layernorm_gelu_residual(*theirs).square().sum().backward()
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


# ---- ahead of time, without a GPU

HOPPER = GPUTarget("cuda", 90, 32)


def compiled(kernel, target=HOPPER, aligned=True):
    launcher = Launcher(kernel)
    return compile_for(kernel, launcher.written, launcher.file, target, aligned, False).code


def accesses(binary):
    found = re.findall(r"\b((?:ld|st)\.global\S*)", binary.asm["ptx"])
    return {name: found.count(name) for name in found}


def test_full_tiles_are_accessed_by_128_bits_whatever_the_size():
    seen = accesses(compiled(kernels.pointwise(kernels.gelu, [torch.float32], torch.float32)))
    assert seen["ld.global.v4.b32"] == 2 and seen["st.global.v4.b32"] == 2


@pytest.mark.parametrize(
    "kernel", [kernels.softmax, kernels.layernorm], ids=lambda kernel: kernel.__name__
)
def test_rows_divisible_by_16_are_accessed_by_128_bits(kernel):
    narrow = {n: k for n, k in accesses(compiled(kernel())).items() if "v4" not in n}
    assert sum(narrow.values()) <= 1  # the mean
    assert "ld.global.v4.b32" not in accesses(compiled(kernel(), aligned=False))


def spills(binary, target):
    import subprocess
    import tempfile
    from pathlib import Path

    from triton.backends.nvidia import compiler

    arch = compiler.sm_arch_from_capability(target.arch)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "kernel.ptx")
        text.write_text(binary.asm["ptx"])
        command = [compiler.get_ptxas(target.arch).path, "-v", f"--gpu-name={arch}", str(text)]
        log = subprocess.run(
            [*command, "-o", str(Path(folder, "out"))], capture_output=True, text=True, check=True
        )
    return int(re.search(r"(\d+) bytes spill stores", log.stderr + log.stdout)[1])


@pytest.mark.parametrize(
    "build", [kernels.softmax, kernels.layernorm, lambda: static_softmax(4096)]
)
def test_rows_stay_in_registers(build):
    assert spills(compiled(build()), HOPPER) == 0


@pytest.mark.parametrize(
    "target", [GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)], ids=lambda t: str(t.arch)
)
def test_other_devices(target):
    kind = "cubin" if target.backend == "cuda" else "hsaco"
    for kernel in (kernels.layernorm(), kernels.embedding(), kernels.row_reduction(
        "argmax", torch.float32, torch.int64
    )):  # fmt: skip
        assert compiled(kernel, target).asm[kind]


def test_which_of_two_binaries_runs(monkeypatch):
    chosen = []
    monkeypatch.setattr(Launcher, "_launch", lambda self, *args: chosen.append(args[-1]))
    launch = Launcher(kernels.softmax())

    def tensor(address):
        return SimpleNamespace(device=torch.device("cuda"), data_ptr=lambda: address)

    for m, n, address in [(5, 32, 512), (1, 64, 512), (16, 33, 512), (5, 32, 516), (0, 32, 512)]:
        launch(tensor(512), tensor(address), m, n)
    launch(tensor(512), tensor(512), 1 << 20, 1 << 20)
    aligned, large = zip(*chosen)
    assert aligned == (True, True, False, False, True)
    assert large == (False, False, False, False, True)


def test_indices_of_64_bits_compile():
    launcher = Launcher(kernels.layernorm())
    assert compile_for(launcher.kernel, launcher.written, launcher.file, HOPPER, False, True).code


def test_sides_of_a_turned_tile_are_alike():
    plan = Launcher(kernels.transpose_add()).written.plan
    assert blocks_on_gpu(plan)[0] == {"XBLOCK": 32, "YBLOCK": 32}


def test_sizes_are_not_in_the_binary():
    launcher = Launcher(kernels.softmax())
    assert launcher.geometry(5, 32)[3] == 32 and launcher.geometry(5, 33)[3] == 33
    assert launcher.geometry(1 << 16, 1 << 16)[2] and not launcher.geometry(1 << 10, 1 << 10)[2]


def test_compile_graph_names_its_sources():
    from tests.backend.graphs import build, call, new_env, tensor

    env = new_env()
    graph = build(env, [tensor(3)], lambda g, x: call(g, "exp", x))
    program = compile_graph(graph, backend="triton")
    (info,) = program.kernels
    assert "@triton.jit" in info.source and "import triton" in info.source
