"""Entries of the GPU suite as they run without a GPU: values in Triton's interpreter, code for
sm_90."""

from __future__ import annotations

import io
import json

import pytest

from benchmarks.gpu import suite
from benchmarks.gpu.entries import ENTRIES


@pytest.mark.parametrize("only", ["^4 ", "^9 ", "^20 "])
def test_entries(only):
    out = io.StringIO()
    entries = list(suite.chosen(only))
    assert suite.interpreted(only, out) == 0, out.getvalue()
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["gate"] for row in rows if "gate" in row] == [g.__name__ for g in suite.GATES]
    told = [row for row in rows if "entry" in row]
    assert [row["entry"] for row in told] == [entry.name for entry in entries]
    assert all(row["widest"] == 128 and row["kernels"] for row in told)


def test_a_wrong_value_is_told(monkeypatch):
    (entry,) = suite.chosen("bias and row")
    wrong = lambda entry, dynamic, backend: lambda x, b, s: (x + b) * s[:, None] * 1.1  # noqa: E731
    monkeypatch.setattr(suite, "compile_entry", wrong)
    monkeypatch.setattr(suite, "GATES", ())
    out = io.StringIO()
    assert suite.interpreted("bias and row", out) == 1
    assert "AssertionError" in json.loads(out.getvalue())["error"] and entry in ENTRIES


def test_table(tmp_path):
    path = tmp_path / "rows"
    rows = [
        {"gate": "gradients"},
        {"number": 2, "entry": "add", "size": [8, 4], "target": 0.9, "jitshape": 3.5,
         "jitshape_fraction": 0.8, "eager": 4.0},
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    head, line = suite.table(path).splitlines()
    assert head == '{"gate": "gradients"}'
    assert line.split() == "2 add 8x4 3.5 us 0.8 of 0.9 below eager 4.0".split()
