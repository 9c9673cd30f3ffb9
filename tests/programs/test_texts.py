"""Golden texts of one program, stage by stage: graph, guards, bytecode, loops, both kernels."""

from __future__ import annotations

import re
import sys

import pytest
import torch

import jitshape
from jitshape.backend import jit
from jitshape.backend.codegen.cpu import write_kernel
from jitshape.backend.codegen.triton import write_kernel as write_triton
from jitshape.backend.text import kernel_text
from jitshape.observe import logs


def scores(x, scale):
    return torch.softmax(x * scale, -1)


@pytest.fixture
def compiled(monkeypatch, capsys):
    """The kernels and the logs of a compile with symbolic sizes."""
    kernels = []
    made = jit.compile_kernels
    monkeypatch.setattr(
        jit, "compile_kernels", lambda ks, store=None: kernels.extend(ks) or made(ks, store)
    )
    logs.set_logs("graph,functional,guards,bytecode,dynamic")
    jitshape.reset()
    try:
        x = torch.randn(4, 10)
        result = jitshape.compile(scores, dynamic=True)(x, 2.0)
    finally:
        logs.set_logs("")
    torch.testing.assert_close(result, scores(x, 2.0))
    return kernels, capsys.readouterr().err


def portable(text: str) -> str:
    """Without what differs from machine to machine."""
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return re.sub(r"[^\s(]*/(test_texts\.py)", r"\1", text).rstrip("\n") + "\n"


def artefact(text: str, name: str) -> str:
    """The lines of one log."""
    lines = [line.removeprefix(f"[{name}] ") for line in text.splitlines() if f"[{name}]" in line]
    return portable("\n".join(lines))


@pytest.mark.parametrize("name", ["graph", "functional", "guards", "dynamic"])
def test_logs(name, compiled, golden):
    golden(f"scores_{name}", artefact(compiled[1], name))


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="instructions differ by version")
def test_bytecode(compiled, golden):
    golden("scores_bytecode_311", artefact(compiled[1], "bytecode"))


def test_loops(compiled, golden):
    golden("scores_loops", portable("\n".join(map(kernel_text, compiled[0]))))


def test_both_kernel_languages_come_from_the_same_loops(compiled, golden):
    (kernel,) = compiled[0]
    golden("scores_llvm", portable(write_kernel(kernel, 8, set())))
    written = write_triton(kernel)
    golden("scores_triton", portable(written if isinstance(written, str) else written.text))
