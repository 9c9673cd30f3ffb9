"""The processor that CPU code is made for; what runs without LLVM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

WITHOUT_LLVM = """
import sys
sys.modules["llvmlite"] = None
import torch
import jitshape

def f(x, y):
    return torch.softmax(x @ y.t(), -1).sum() + x.mean()

compiled = jitshape.compile(f, backend="triton", dynamic=True)
for n in (4, 5):
    x = torch.randn(n, 8, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    compiled(x, x).backward(), f(z, z).backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-5)
stats = jitshape.stats()
assert stats["fallbacks"] == 0 and stats["kernels"] > 2, stats
"""


def test_programs_for_gpus_need_no_llvm(tmp_path: Path):
    pytest.importorskip("triton")
    settings = os.environ | {"PYTHONPATH": str(ROOT), "JITSHAPE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LLVM], capture_output=True, text=True, env=settings
    )
    assert done.returncode == 0, done.stderr
