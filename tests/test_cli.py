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
    assert f"guards of {script}:8 in scale\n" in done.stdout
    assert "x is Tensor float32[2, 4] on cpu" not in done.stdout
    assert "x.size(1) == 4, but it was 6" in done.stdout
    assert f"{script}:8 in scale   return torch.relu(x) * factor" in done.stdout
    assert "served 1 call more" in done.stdout and "values   x.size(1): 4, 6" in done.stdout
    assert "x.size(1) became dynamic: 4 then 6" in done.stdout
    assert "2 compiles, 1 of them recompiles; 0 graph breaks; 0 fallbacks" in done.stdout
    assert "saves 1 compile of scale: jitshape.mark_dynamic(x, (0, 1))" in done.stdout


def test_explain_as_json_and_as_a_page(script, tmp_path):
    file = tmp_path / "report.html"
    done = jitshape_command("explain", "--json", "--html", file, script, 4, 6)
    first, told = done.stdout.splitlines()
    (function,) = json.loads(told)["functions"]
    assert first == "done 3" and function["name"] == "scale" and function["compiles"] == 2
    assert function["entries"][0]["kernels"] == ["fused_relu_mul_0"]
    assert [fix["saves"] for fix in function["fixes"]] == [1]
    assert "<h2>scale" in file.read_text()


def test_kernels(script):
    done = jitshape_command("kernels", script, 4)
    assert done.returncode == 0, done.stderr
    assert f"# relu  {script}:8 in scale" in done.stdout
    assert "kernel fused_relu_mul_0(in f32 x, out f32" in done.stdout


def test_explain_with_all_guards(script):
    done = jitshape_command("explain", "--guards", script, 4)
    assert "         x is Tensor float32[2, 4] on cpu\n" in done.stdout


def test_quality_of_kernels(script):
    done = jitshape_command("kernels", "--quality", "--target", "sm_90", script, 4)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.strip().splitlines()[-3:]
    assert head.split()[:5] == ["kernel", "target", "sizes", "registers", "spilled"]
    assert [row.split()[:4] for row in rows] == [
        ["fused_relu_mul_0", "sm_90", "of", "16"],
        ["fused_relu_mul_0", "sm_90", "any", rows[1].split()[3]],
    ]
    wrong = jitshape_command("kernels", "--quality", "--target", "sm_1", script)
    assert wrong.returncode == 2 and "sm_1 is none of sm_80, sm_90, gfx942" in wrong.stderr


def test_trace_folder(script, tmp_path):
    folder = tmp_path / "trace"
    subprocess.run(
        [sys.executable, str(script), "4", "6"],
        check=True,
        timeout=250,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JITSHAPE_TRACE": str(folder)},
    )
    timeline = tmp_path / "timeline.json"
    jitshape_command("trace", folder, "--chrome", timeline)
    assert [e["ph"] for e in json.loads(timeline.read_text())["traceEvents"]] == ["X", "X"]
    done = jitshape_command("explain", folder)
    assert "2. recompile of scale" in done.stdout
    assert "entry 1  compile" in done.stdout and "served 0 calls more" in done.stdout
    empty = jitshape_command("trace", tmp_path)
    assert empty.returncode == 1 and "JITSHAPE_TRACE=" in empty.stderr


def test_the_scripts_own_failure_is_its_own(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("def f():\n    raise ValueError('mine')\nf()\n")
    done = jitshape_command("explain", path)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "runpy" not in done.stderr and "cli.py" not in done.stderr
    assert "jitshape compiled nothing" in done.stdout


def test_missing_script():
    done = jitshape_command("explain", "nowhere.py")
    assert done.returncode == 2 and "nowhere.py" in done.stderr
