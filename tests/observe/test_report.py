"""The report tells every compile, its cause, and what would save compiles."""

import io
import json
import re
import time
from dataclasses import replace

import pytest

from jitshape.observe import records, report
from jitshape.observe.page import page
from jitshape.observe.records import (
    BreakRecord,
    CompileRecord,
    EntryRecord,
    FallbackRecord,
    GuardFailure,
    SizeFact,
)
from jitshape.observe.story import as_json, stories

FAILURE = GuardFailure(
    "x.size(1)", "x.size(1) == 32", "48", "model.py:14 in forward", "h = self.fc(x)", "size"
)
LIBRARY = "type(m) is M   # /usr/lib/python3.11/site-packages/torch/nn/a.py:1"
FACT = SizeFact("x.size(1) <= 64", ("x.size(1)",), "a branch on a size", "model.py:15", "if n:")
RECORDS = (
    CompileRecord("f", "model.py:10", "compile", inputs=("x: f32[2, 32]",), kernels=("fused_add",)),
    CompileRecord(
        "f",
        "model.py:10",
        "recompile",
        number=2,
        symbols=("s0 = x.size(1)",),
        failures=(FAILURE,),
        facts=(FACT,),
        alike=(1,),
        externs={"aten.mm": 2},
        guards=(
            "x is Tensor float32[2, ?] on cpu   # model.py:14 in forward",
            "grad_mode is True",
            LIBRARY,
        ),
    ),
    BreakRecord("f", "model.py:22", "data_dependent_branch", "x > 0 is unknown", "torch.where"),
    FallbackRecord("g", "model.py:30", "no entry"),
)
ENTRIES = (
    EntryRecord("f", "model.py:10", 1, 3, 2.5e-6, 61.0),
    EntryRecord("f", "model.py:10", 2, 1, None, 60.0),
)


def text_of(items, entries=()):
    out = io.StringIO()
    report.print_report(items, out, stories(items, entries))
    return out.getvalue()


def test_report_text():
    text = text_of(RECORDS, ENTRIES)
    for expected in (
        "1. compile of f (model.py:10)",
        "because  x.size(1) == 32, but it was 48",
        "guard of model.py:14 in forward   h = self.fc(x)",
        "needs    x.size(1) <= 64 (a branch on a size)   model.py:15   if n:",
        "graph break in f (model.py:22): data_dependent_branch",
        "g (model.py:30) ran eagerly: no entry",
        "entry 1  compile, 0.00 s CPU, served 3 calls more, guards 2.5 us a call, 61.0 s old",
        "entry 2  recompile, 0.00 s CPU, served 1 call more, 60.0 s old",
        "      1 guard of the call itself\n",
        "      1 guard of libraries' lines\n",
        "      1 guard of model.py:14 in forward\n",
        "missed   1 time: x.size(1) == 32\n",
        "values   x.size(1): 32, 48",
        "to save 1 compile: jitshape.mark_dynamic(x, 1) before the first call",
        "because x.size(1) was 32, then 48",
        "eager    1 time: no entry",
        "2 compiles, 1 of them recompiles; 1 graph break; 1 fallback",
        "saves 1 compile of f: jitshape.mark_dynamic(x, 1)",
    ):
        assert expected in text, text


def test_guards_are_counted_by_line_and_told_on_demand():
    out = io.StringIO()
    report.print_report(RECORDS, out, stories(RECORDS, ENTRIES), guards=True)
    text = "      1 guard of model.py:14 in forward\n         x is Tensor float32[2, ?] on cpu\n"
    assert text in out.getvalue() and text not in text_of(RECORDS, ENTRIES)
    assert "         type(m) is M\n" in out.getvalue()


def test_one_change_that_helps_a_function_and_its_pieces_is_told_once():
    pieces = [
        replace(r, function=f"f, piece {n}", where=f"model.py:{n}")
        for n in (2, 3)
        for r in RECORDS
        if isinstance(r, CompileRecord)
    ]
    text = text_of(pieces)
    assert "saves 2 compiles of f: @jitshape.compile(dynamic=True)\n" in text, text


def test_kernels_are_printed_as_loops_and_once():
    shown = "# relu  model.py:14\nkernel fused_add(in f32 x):\n  vector i0 < 4:\n"
    first = replace(RECORDS[0], kernel_texts=(shown,), externs={"aten.mm.default": 1})
    again = replace(first, number=2, externs={})
    out = io.StringIO()
    report.print_kernels((first, again, RECORDS[1]), out)
    assert out.getvalue().splitlines() == [
        "compile of f (model.py:10), entry 1",
        "    calls aten.mm.default x1",
        "    # relu  model.py:14",
        "    kernel fused_add(in f32 x):",
        "      vector i0 < 4:",
        "compile of f (model.py:10), entry 2",
        "    fused_add, as above",
        "recompile of f (model.py:10), entry 2",
        "    calls aten.mm x2",
    ]
    report.print_kernels(RECORDS[1:2], out)
    assert out.getvalue().endswith("no kernels: 1 compile\n")


def test_report_as_json():
    told = json.loads(json.dumps(as_json(stories(RECORDS, ENTRIES))))
    f, g = told["functions"]
    assert (told["compiles"], told["saves"], f["compiles"]) == (2, 1, 2)
    assert [entry["hits"] for entry in f["entries"]] == [3, 1]
    assert f["entries"][1]["guards"] == {
        "model.py:14 in forward": ["x is Tensor float32[2, ?] on cpu"],
        "": ["grad_mode is True"],
        "/usr/lib/python3.11/site-packages/torch/nn/a.py:1": ["type(m) is M"],
    }
    assert f["values"] == {"x.size(1)": ["32", "48"]} and f["misses"][0]["number"] == 2
    assert f["breaks"][0]["reason"] == "x > 0 is unknown" and g["fallbacks"] == {"no entry": 1}


def test_page_is_one_file_and_escapes_what_it_shows():
    shown = replace(RECORDS[0], function="<lambda>", inputs=("x: f32[a < b]",))
    text = page((*stories(RECORDS, ENTRIES), *stories((shown,))), "a & b")
    assert text.startswith("<!doctype html>") and text.count("<h2>") == 4
    assert "<title>a &amp; b</title>" in text and "&lt;lambda&gt;" in text and "a &lt; b" in text
    assert "jitshape.mark_dynamic(x, 1) before the first call" in text
    assert "<b>Graph break: data_dependent_branch</b>" in text
    assert not re.search(r"https?:|<script|<link|src=", text)


def test_shared_graphs_are_no_compiles():
    shared = replace(RECORDS[1], shared=True)
    (story,) = stories((RECORDS[0], shared))
    assert story.compiles == 1 and story.fixes == () and story.entries[1].kind == "shared"


def test_timeline():
    first, *_, last = report.timeline(tuple(replace(r, at=10.0) for r in RECORDS))["traceEvents"]
    assert (first["ph"], first["ts"], first["dur"], first["name"]) == ("X", 10e6, 0.0, "f")
    assert (last["ph"], last["cat"]) == ("i", "FallbackRecord")


def test_nothing_compiled():
    assert "compiled nothing" in text_of(())


def test_trace_folder_round_trip(tmp_path, monkeypatch):
    monkeypatch.setenv("JITSHAPE_TRACE", str(tmp_path))
    records.clear()
    for item in (*RECORDS, *ENTRIES):
        records.record(item)
    assert len(records.records()) == len(RECORDS)
    records.clear()
    path = tmp_path / "events.jsonl"
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "CompileRecord",
        "CompileRecord",
        "BreakRecord",
        "FallbackRecord",
        "EntryRecord",
        "EntryRecord",
    ]
    found = report.from_file(path)
    assert all(0 < r.at <= time.time() for r in found)
    assert tuple(replace(r, at=0.0) for r in found) == (*RECORDS, *ENTRIES)
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 1'))
    with pytest.raises(ValueError, match="another version"):
        report.from_file(path)


def test_unwritable_trace_folder_warns(tmp_path, monkeypatch, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("JITSHAPE_TRACE", str(blocked))
    records.record(RECORDS[0])
    records.clear()
    assert "cannot write the trace" in capsys.readouterr().err
