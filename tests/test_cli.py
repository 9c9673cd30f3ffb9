"""python -m jitshape: explain, kernels, trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = textwrap.dedent(
    """
    import sys
    import torch
    import jitshape

    @jitshape.compile
    def scale(x, factor):
        return torch.relu(x) * factor

    for n in map(int, sys.argv[1:]):
        scale(torch.randn(2, n), 3.0)
    print("done", len(sys.argv))
    """
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


def jitshape_command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "jitshape", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_explain_tells_the_recompile(script):
    done = jitshape_command("explain", script, 4, 6, 7)
    assert done.returncode == 0, done.stderr
    assert "done 4" in done.stdout
    assert "1. compile of scale" in done.stdout
    assert "2. recompile of scale" in done.stdout
    assert "x is Tensor float32[2, 4] on cpu" in done.stdout
    assert "it was size(1) is 6" in done.stdout
    assert f"{script}:8 in scale" in done.stdout
    assert "jitshape.mark_dynamic(x, 1) before the first call" in done.stdout
    assert "x.size(1) became dynamic: 4 then 6" in done.stdout
    assert "2 compiles, 1 of them recompiles; 0 graph breaks; 0 fallbacks" in done.stdout
    assert "saves 1 compile: jitshape.mark_dynamic(x, 1)" in done.stdout


def test_explain_as_json(script):
    done = jitshape_command("explain", "--json", script, 4)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row["event"] for row in rows] == ["CompileRecord"]
    assert rows[0]["function"] == "scale" and rows[0]["kernels"] == ["fused_relu_mul_0"]


def test_kernels(script):
    done = jitshape_command("kernels", script, 4)
    assert done.returncode == 0, done.stderr
    assert "fused_relu_mul_0" in done.stdout


def test_trace_folder(script, tmp_path):
    folder = tmp_path / "trace"
    subprocess.run(
        [sys.executable, str(script), "4", "6"],
        check=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JITSHAPE_TRACE": str(folder)},
    )
    done = jitshape_command("trace", folder)
    assert "2. recompile of scale" in done.stdout
    empty = jitshape_command("trace", tmp_path)
    assert empty.returncode == 1 and "JITSHAPE_TRACE=" in empty.stderr


def test_the_scripts_own_failure_is_its_own(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("def f():\n    raise ValueError('mine')\nf()\n")
    done = jitshape_command("explain", path)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "jitshape compiled nothing" in done.stdout


def test_missing_script():
    done = jitshape_command("explain", "nowhere.py")
    assert done.returncode == 2 and "nowhere.py" in done.stderr
