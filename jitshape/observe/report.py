"""The recompile report: records in, text for a person out.

A recompile is told in the user's terms: the input whose size, stride or value changed, the line
that made the guard, what to change, and how many compiles that would have saved.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jitshape.observe.records import (
    PIECE,
    SCHEMA,
    BreakRecord,
    CompileRecord,
    EntryRecord,
    FallbackRecord,
    GuardFailure,
    Record,
    SizeFact,
    as_row,
)
from jitshape.observe.story import Entry, FunctionStory, stories

if TYPE_CHECKING:
    from jitshape.backend.quality import Quality

LIBRARIES = f"{os.sep}lib{os.sep}python"  # in the paths of Python's own modules and installed ones
_KINDS: dict[str, type] = {
    c.__name__: c for c in (CompileRecord, BreakRecord, FallbackRecord, EntryRecord)
}


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as plain JSON objects, in order."""
    return [as_row(r) for r in records]


def from_file(path: Path) -> list[Record]:
    """Records back from a trace's events.jsonl.  Raises ValueError, KeyError, TypeError."""
    found: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.pop("schema") != SCHEMA:
            raise ValueError(f"it was written by another version of jitshape (schema {SCHEMA})")
        kind = _KINDS[row.pop("event")]
        row.pop("n"), row.pop("pid")
        for key, value in row.items():
            if isinstance(value, list):
                row[key] = tuple(value)
        if kind is CompileRecord:
            row["failures"] = tuple(GuardFailure(**f) for f in row["failures"])
            row["facts"] = tuple(
                SizeFact(**{**f, "sources": tuple(f["sources"])}) for f in row["facts"]
            )
        found.append(kind(**row))
    return found


def print_report(
    records: Sequence[Record],
    out: TextIO,
    told: Sequence[FunctionStory] | None = None,
    guards: bool = False,
) -> None:
    """Every compile, recompile, break and fallback in order, then each function (`told`, or what
    the records alone tell): its entries, with `guards` all of theirs, and what would save the
    most."""
    console = Console(file=out, highlight=False, soft_wrap=True, markup=False)
    events = [r for r in records if type(r) in _PRINTERS]
    told = stories(records) if told is None else told
    if not events and not told:
        console.print("jitshape compiled nothing: is a @jitshape.compile function called?")
        return
    for number, record in enumerate(events, 1):
        console.print(_PRINTERS[type(record)](number, record))
    for story in told:
        console.print(story_text(story, guards))
    console.print(_summary(events, told))


def _compile_text(number: int, r: CompileRecord) -> Text:
    served = ", by a graph compiled before" if r.shared else ""
    text = Text(f"{number}. {r.kind} of {r.function} ({r.where}), {r.seconds:.2f} s CPU{served}\n")
    for failure in r.failures:
        text.append(f"   because  {failure}\n")
        if failure.where:
            text.append(f"   guard of {failure.where}   {failure.line}".rstrip() + "\n")
    _rows(text, "dynamic ", r.dynamic)
    _rows(text, "needs   ", map(_fact_text, r.facts))
    _rows(text, "inputs  ", r.inputs)
    _rows(text, "symbols ", r.symbols)
    _rows(text, "kernels ", r.kernels)
    if r.externs:
        calls = ", ".join(f"{op} x{n}" for op, n in sorted(r.externs.items()))
        text.append(f"   calls    {calls}\n")
    return text


def _fact_text(fact: SizeFact) -> str:
    kind = "one value: " if fact.specialised else ""
    why = f" ({fact.why})" if fact.why else ""
    return f"{kind}{fact.text}{why}   {fact.where}   {fact.line}".rstrip()


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


def story_text(story: FunctionStory, guards: bool = False) -> Text:
    """One function: entries with their use, the guards that missed, values over time, fixes.  Of
    the other guards only how many there are by line, unless `guards`."""
    text = Text(f"{story.name} ({story.where}): {plural(story.compiles, 'compile')}\n")
    for entry in story.entries:
        text.append(f"   entry {entry.number}  {entry.kind}, {use_of(entry)}\n")
        text.append(_guards_text(entry.guards or {}, guards))
    for demanded, count in Counter(f.demanded for m in story.misses for f in m.failures).items():
        text.append(f"   missed   {plural(count, 'time')}: {demanded}\n")
    for source, values in story.values.items():
        text.append(f"   values   {source}: {', '.join(values)}\n")
    for reason, count in story.fallbacks.items():
        text.append(f"   eager    {plural(count, 'time')}: {reason}\n")
    for fix in story.fixes:
        text.append(f"   to save {plural(fix.saves, 'compile')}: {fix.change}\n")
        text.append(f"      because {fix.because}\n")
        text.append(f"      at {fix.where}\n")
    return text


def _guards_text(guards: Mapping[str, Sequence[str]], whole: bool) -> str:
    """How many guards each line made, libraries' lines together; `whole`: what they are, too."""
    groups: dict[str, list[str]] = {}
    for origin, texts in guards.items():
        is_library = LIBRARIES in origin and not whole
        what = "libraries' lines" if is_library else origin or "the call itself"
        groups.setdefault(what, []).extend(texts)
    lines = []
    for what, texts in sorted(groups.items(), key=lambda group: -len(group[1])):
        lines.append(f"      {plural(len(texts), 'guard')} of {what}\n")
        lines += [f"         {text}\n" for text in texts if whole]
    return "".join(lines)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def use_of(entry: Entry) -> str:
    """How an entry is used, in words."""
    parts = [f"{entry.seconds:.2f} s CPU"]
    if entry.hits is not None:
        parts.append(f"served {plural(entry.hits, 'call')} more")
    if entry.guard_seconds is not None:
        parts.append(f"guards {entry.guard_seconds * 1e6:.1f} us a call")
    if entry.age is not None:
        parts.append(f"{entry.age:.1f} s old")
    return ", ".join(parts)


SUMMED_UP = 5  # changes that save most


def _summary(records: Sequence[Record], told: Sequence[FunctionStory]) -> Text:
    compiles = [r for r in records if isinstance(r, CompileRecord) and not r.shared]
    again = [r for r in compiles if r.kind == "recompile"]
    breaks = sum(isinstance(r, BreakRecord) for r in records)
    fallbacks = sum(isinstance(r, FallbackRecord) for r in records)
    text = Text(
        f"{plural(len(compiles), 'compile')}, {len(again)} of them recompiles; "
        f"{plural(breaks, 'graph break')}; {plural(fallbacks, 'fallback')}\n"
    )
    saves = saved_by_change(told)
    for (owner, change), count in saves.most_common(SUMMED_UP):
        text.append(f"saves {plural(count, 'compile')} of {owner}: {change}\n")
    if len(saves) > SUMMED_UP:
        text.append(f"{plural(len(saves) - SUMMED_UP, 'smaller change')} above\n")
    return text


def saved_by_change(told: Sequence[FunctionStory]) -> Counter[tuple[str, str]]:
    """How many compiles each change saves, by function (its pieces included) and change."""
    saves: Counter[tuple[str, str]] = Counter()
    for story in told:
        for fix in story.fixes:
            saves[story.name.partition(PIECE)[0], fix.change] += fix.saves
    return saves


def timeline(records: Sequence[Record]) -> dict[str, Any]:
    """Chrome's trace format: a bar for each compile, a mark for each break and fallback."""
    events: list[dict[str, Any]] = []
    for r in records:
        row = {"pid": 1, "tid": 1, "name": r.function, "args": as_row(r)}
        if isinstance(r, CompileRecord):
            start, length = (r.at - r.seconds) * 1e6, r.seconds * 1e6
            events.append({**row, "ph": "X", "cat": r.kind, "ts": start, "dur": length})
        elif not isinstance(r, EntryRecord):
            events.append({**row, "ph": "i", "s": "t", "cat": type(r).__name__, "ts": r.at * 1e6})
    return {"traceEvents": events}


def print_kernels(records: Sequence[Record], out: TextIO) -> None:
    """The kernels of every compile, by function; one that was printed before by name alone."""
    printed: set[str] = set()
    compiles = [r for r in records if isinstance(r, CompileRecord)]
    for record in compiles:
        if not record.kernels and not record.externs:
            continue
        title = f"{record.kind} of {record.function} ({record.where}), entry {record.number}"
        calls = "".join(f"\n    calls {op} x{n}" for op, n in sorted(record.externs.items()))
        print(title + calls, file=out)
        texts = record.kernel_texts or ("",) * len(record.kernels)
        for name, text in zip(record.kernels, texts):
            shown = name if not text else f"{name}, as above" if text in printed else text.rstrip()
            printed.add(text)
            print(indent(shown, "    "), file=out)
    if not any(record.kernels for record in compiles):
        print(f"no kernels: {plural(len(compiles), 'compile')}", file=out)


def print_quality(found: Sequence[Quality], out: TextIO) -> None:
    """A row for each binary."""
    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "target", "sizes"):
        table.add_column(name, no_wrap=True)
    for name in ("registers", "spilled", "shared", "warps", "occupancy", "tensor"):
        table.add_column(name, justify="right")
    table.add_column("bits x accesses", no_wrap=True)
    for q in found:
        widths = " ".join(f"{bits}x{count}" for bits, count in q.accesses)
        sizes = "of 16" if q.aligned else "any"
        numbers = (q.registers, q.spilled, q.shared, q.warps, f"{q.occupancy:.0%}", q.tensor_cores)
        table.add_row(q.kernel, q.target, sizes, *map(str, numbers), widths)
    Console(file=out, width=None if out.isatty() else 160).print(table)
