"""The recompile report: records in, text for a person out.

A recompile is told in the user's terms: the input whose size, stride or value changed, the line
that made the guard, what to change, and how many compiles that would have saved.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from jitshape.observe.records import (
    BreakRecord,
    CompileRecord,
    FallbackRecord,
    GuardFailure,
    Record,
)

_KINDS: dict[str, type] = {c.__name__: c for c in (CompileRecord, BreakRecord, FallbackRecord)}


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as plain JSON objects, in order."""
    return [{"event": type(r).__name__, **asdict(r)} for r in records]


def from_file(path: Path) -> list[Record]:
    """Records back from a trace's events.jsonl.  Raises ValueError, KeyError, TypeError."""
    found: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind = _KINDS[row.pop("event")]
        row.pop("n", None), row.pop("pid", None)
        for key, value in row.items():
            if isinstance(value, list):
                row[key] = tuple(value)
        if kind is CompileRecord:
            row["failures"] = tuple(GuardFailure(**f) for f in row["failures"])
        found.append(kind(**row))
    return found


def print_report(records: Sequence[Record], out: TextIO) -> None:
    """Every compile, recompile, break and fallback, then what would save the most."""
    console = Console(file=out, highlight=False, soft_wrap=True)
    if not records:
        console.print("jitshape compiled nothing: is a @jitshape.compile function called?")
        return
    for number, record in enumerate(records, 1):
        console.print(_PRINTERS[type(record)](number, record))
    console.print(_summary(records))


def _compile_text(number: int, r: CompileRecord) -> Text:
    text = Text(f"{number}. {r.kind} of {r.function} ({r.where}), {r.seconds:.2f} s CPU\n")
    for failure in r.failures:
        text.append(f"   because  {failure.source} {failure.demanded}, but it was {failure.seen}\n")
        if failure.where:
            text.append(f"   guard of {failure.where}\n")
        if failure.fix:
            text.append(f"   to avoid {failure.fix}\n")
    _rows(text, "dynamic ", r.dynamic)
    _rows(text, "inputs  ", r.inputs)
    _rows(text, "symbols ", r.symbols)
    _rows(text, "breaks  ", r.breaks)
    _rows(text, "kernels ", r.kernels)
    if r.externs:
        calls = ", ".join(f"{op} x{n}" for op, n in sorted(r.externs.items()))
        text.append(f"   calls    {calls}\n")
    return text


def _rows(text: Text, title: str, rows: Iterable[str]) -> None:
    for row in rows:
        text.append(f"   {title} {row}\n")
        title = " " * len(title)


def _break_text(number: int, r: BreakRecord) -> Text:
    text = Text(f"{number}. graph break in {r.function} ({r.where}): {r.kind}\n")
    text.append(f"   because  {r.reason}\n")
    if r.remedy:
        text.append(f"   to avoid {r.remedy}\n")
    return text


def _fallback_text(number: int, r: FallbackRecord) -> Text:
    return Text(f"{number}. {r.function} ({r.where}) ran eagerly: {r.reason}\n")


_PRINTERS: dict[type, Any] = {
    CompileRecord: _compile_text,
    BreakRecord: _break_text,
    FallbackRecord: _fallback_text,
}


def _summary(records: Sequence[Record]) -> Text:
    compiles = [r for r in records if isinstance(r, CompileRecord)]
    again = [r for r in compiles if r.kind == "recompile"]
    breaks = sum(isinstance(r, BreakRecord) for r in records)
    fallbacks = sum(isinstance(r, FallbackRecord) for r in records)
    text = Text(
        f"{len(compiles)} compiles, {len(again)} of them recompiles; "
        f"{breaks} graph breaks; {fallbacks} fallbacks\n"
    )
    fixes = Counter(f.fix for r in again for f in r.failures[:1] if f.fix)
    for fix, saved in fixes.most_common(5):
        text.append(f"saves {saved} compile{'s' * (saved > 1)}: {fix}\n")
    return text


def print_kernels(records: Sequence[Record], out: TextIO) -> None:
    """The kernels of every compile, by function."""
    for record in records:
        if isinstance(record, CompileRecord) and record.kernels:
            print(f"{record.function} ({record.where})", file=out)
            for kernel in record.kernels:
                print(f"    {kernel}", file=out)
