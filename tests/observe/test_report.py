"""The report tells every compile, its cause, and what would save compiles."""

import io
import json

from jitshape.observe import records, report
from jitshape.observe.records import BreakRecord, CompileRecord, FallbackRecord, GuardFailure

FAILURE = GuardFailure(
    "x.size(1)", "== 32", "48", "model.py:14 in forward", "jitshape.mark_dynamic(x, 1)"
)
RECORDS = (
    CompileRecord("f", "model.py:10", "compile", inputs=("x: f32[2, 32]",), kernels=("fused_add",)),
    CompileRecord("f", "model.py:10", "recompile", failures=(FAILURE,), externs={"aten.mm": 2}),
    BreakRecord("f", "model.py:22", "data_dependent_branch", "x > 0 is unknown", "torch.where"),
    FallbackRecord("g", "model.py:30", "no entry"),
)


def text_of(items):
    out = io.StringIO()
    report.print_report(items, out)
    return out.getvalue()


def test_report_text():
    text = text_of(RECORDS)
    assert "1. compile of f (model.py:10)" in text
    assert "because  x.size(1) == 32, but it was 48" in text
    assert "guard of model.py:14 in forward" in text
    assert "to avoid jitshape.mark_dynamic(x, 1)" in text
    assert "graph break in f (model.py:22): data_dependent_branch" in text
    assert "g (model.py:30) ran eagerly: no entry" in text
    assert "2 compiles, 1 of them recompiles; 1 graph breaks; 1 fallbacks" in text
    assert "saves 1 compile: jitshape.mark_dynamic(x, 1)" in text


def test_nothing_compiled():
    assert "compiled nothing" in text_of(())


def test_trace_folder_round_trip(tmp_path, monkeypatch):
    monkeypatch.setenv("JITSHAPE_TRACE", str(tmp_path))
    for item in RECORDS:
        records.record(item)
    records.clear()
    path = tmp_path / "events.jsonl"
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "CompileRecord",
        "CompileRecord",
        "BreakRecord",
        "FallbackRecord",
    ]
    assert tuple(report.from_file(path)) == RECORDS


def test_unwritable_trace_folder_warns(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("JITSHAPE_TRACE", str(blocked))
    records.record(RECORDS[0])
    records.clear()
    assert "cannot write the trace" in capsys.readouterr().err
