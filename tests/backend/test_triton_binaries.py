"""Triton's binaries in the store: the same ones come back, and only where they fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget

import jitshape
from jitshape.backend import triton_binaries
from jitshape.backend.triton_jit import Launcher, compile_for
from jitshape.cache.store import Store
from tests.backend import kernels

HOPPER = GPUTarget("cuda", 90, 32)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "triton"))
    jitshape.reset()
    return Store(tmp_path / "store", "ab" * 32)


def binary(kernel, store, target=HOPPER, aligned=True, large=False):
    launcher = Launcher(kernel, store)
    return compile_for(kernel, launcher.written, launcher.file, target, aligned, large, store).code


def counts() -> dict[str, int]:
    return jitshape.stats()["cache"]["kernel"]


def test_a_binary_comes_back_without_the_compiler(store: Store, monkeypatch) -> None:
    first = binary(kernels.softmax(), store)
    monkeypatch.setattr(triton, "compile", None)
    again = binary(kernels.softmax(), store)
    assert counts() == {"hit": 1, "miss": 1}
    assert again.asm == first.asm and again.kernel == first.kernel and again.asm["ptx"]
    assert again.metadata == first.metadata and again.packed_metadata == first.packed_metadata
    assert again.src.fn.arg_names == first.src.fn.arg_names


def test_what_changes_the_binary_is_part_of_its_key(store: Store, monkeypatch) -> None:
    gelu = kernels.pointwise(kernels.gelu, [torch.float32], torch.float32)
    binary(kernels.softmax(), store)
    binary(gelu, store)
    binary(gelu, store, aligned=False)
    binary(gelu, store, large=True)
    binary(gelu, store, target=GPUTarget("cuda", 80, 32))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    binary(gelu, store)
    assert counts() == {"hit": 0, "miss": 6}


def test_what_cannot_be_read_is_compiled(store: Store, monkeypatch) -> None:
    wanted = binary(kernels.softmax(), store).asm["ptx"]
    monkeypatch.setattr(store, "get", lambda level, key: b"\xff")
    assert binary(kernels.softmax(), store).asm["ptx"] == wanted


def test_whoever_watches_the_compiler_sees_it(store: Store, monkeypatch) -> None:
    seen = []
    binary(kernels.softmax(), store)
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **facts: seen.append(facts))
    binary(kernels.softmax(), store)
    assert len(seen) == 1 and triton_binaries._compiles_in_another_way()
