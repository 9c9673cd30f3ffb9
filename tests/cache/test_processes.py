"""What one process compiled serves the next: programs run twice with one cache folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = textwrap.dedent(
    """
    import json
    import sys

    import torch

    import jitshape


    @jitshape.compile(options=json.loads(sys.argv[1]))
    def loss(x, w):
        return torch.softmax(torch.nn.functional.gelu(x * w), -1).square().mean()


    torch.manual_seed(0)
    w = torch.rand(8, requires_grad=True)
    sums = []
    for n in (3, 5, 7):
        x = torch.rand(n, 8)
        expected = torch.softmax(torch.nn.functional.gelu(x * w), -1).square().mean()
        got = loss(x, w)
        torch.testing.assert_close(got, expected)
        (mine,) = torch.autograd.grad(got, w)
        (theirs,) = torch.autograd.grad(expected, w)
        torch.testing.assert_close(mine, theirs)
        sums.append(mine.double().sum().item())
    print(json.dumps([sums, jitshape.stats()["cache"].get("kernel")]))
    """
)


@pytest.fixture
def run(tmp_path: Path):
    """Runs PROGRAM as a process: the sums of its results, the counts of the kernel level, and
    what it printed to stderr."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JITSHAPE_CACHE": "1"}
    environment["JITSHAPE_CACHE_DIR"] = str(tmp_path / "cache")

    def run(options: dict | None = None, **more: str):
        command = [sys.executable, str(tmp_path / "program.py"), json.dumps(options or {})]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=250, env={**environment, **more}
        )
        assert done.returncode == 0, done.stderr
        return *json.loads(done.stdout), done.stderr

    return run


def test_a_second_process_finds_its_kernels(run) -> None:
    first, counts, log = run()
    assert counts == {"hit": 0, "miss": 4} and log == ""
    second, counts, log = run(JITSHAPE_LOGS="cache")
    assert counts == {"hit": 4, "miss": 0} and second == first
    assert log.count("[cache] kernel hit: ") == 4
    assert run({"cache": False})[1] is None
