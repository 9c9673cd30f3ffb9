"""The quick examples run, and print what they are there to show."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_sizes(capsys, monkeypatch):
    for name in ("JITSHAPE_CACHE", "JITSHAPE_PROFILE"):
        monkeypatch.setenv(name, "1")  # the example switches them off: set back in the end
    runpy.run_path(str(EXAMPLES / "sizes.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for expected in (
        "found out: compiles 2",
        "symbolic from the start: compiles 1",
        "declared: compiles 1",
        "saves 1: @jitshape.compile(dynamic=True)",
        "since x.size(0) was 2, then 3; y.size(0) was 4, then 6",
        "mark_dynamic of x.size(0) cannot hold: x.size(0) must be 4",
        "y.size(0) is 4",
    ):
        assert expected in printed, printed
