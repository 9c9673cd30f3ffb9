"""What became of each function: its entries, their guards, the misses, and what would help.

In: records in order, from this process or from a trace, and the entries as they stand.  Out: one
FunctionStory each, which report.py prints, page.py draws, and `as_json` makes plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jitshape.observe.fixes import Fix, fixes_of
from jitshape.observe.records import (
    BreakRecord,
    CompileRecord,
    EntryRecord,
    FallbackRecord,
    GuardFailure,
    Record,
    SizeFact,
)


@dataclass(frozen=True)
class Entry:
    """One compiled version of a function.  hits, guard_seconds, age: None where nobody asked
    before it was dropped."""

    number: int
    kind: str  # "compile", "recompile", "shared" or "native"
    seconds: float = 0.0
    hits: int | None = None
    guard_seconds: float | None = None
    age: float | None = None
    inputs: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    facts: tuple[SizeFact, ...] = ()
    kernels: tuple[str, ...] = ()
    kernel_texts: tuple[str, ...] = ()
    externs: dict[str, int] | None = None
    guards: dict[str, list[str]] | None = None  # by the line that made them


@dataclass(frozen=True)
class Miss:
    """A call that no entry served, and led to entry `number`."""

    number: int
    at: float
    failures: tuple[GuardFailure, ...]


@dataclass(frozen=True)
class FunctionStory:
    """`values`: what was met at each source that missed, in order."""

    name: str
    where: str
    entries: tuple[Entry, ...]
    misses: tuple[Miss, ...]
    values: dict[str, list[str]]
    breaks: tuple[BreakRecord, ...]
    fallbacks: dict[str, int]
    fixes: tuple[Fix, ...]

    @property
    def compiles(self) -> int:
        return sum(e.kind in ("compile", "recompile") for e in self.entries)


def stories(records: Iterable[Record], entries: Iterable[EntryRecord] = ()) -> list[FunctionStory]:
    """In the order in which the functions were met first."""
    records = list(records)
    found: dict[tuple[str, str], list[Record]] = {}
    where_of = {r.function: r.where for r in records if not isinstance(r, BreakRecord)}
    for record in records:
        where = record.where
        if isinstance(record, BreakRecord):  # its place is the line that broke
            where = where_of.get(record.function, "")
        found.setdefault((record.function, where), []).append(record)
    now: dict[tuple[str, str], list[EntryRecord]] = {}
    for entry in entries:
        now.setdefault((entry.function, entry.where), []).append(entry)
    return [_story(*key, records, now.get(key, ())) for key, records in found.items()]


def _story(
    name: str, where: str, records: Sequence[Record], asked: Sequence[EntryRecord]
) -> FunctionStory:
    compiles = [r for r in records if isinstance(r, CompileRecord)]
    now = {e.number: e for e in (*(r for r in records if isinstance(r, EntryRecord)), *asked)}
    misses = tuple(Miss(r.number, r.at, r.failures) for r in compiles if r.failures)
    values = _values(f for miss in misses for f in miss.failures)
    fallbacks: dict[str, int] = {}
    for record in records:
        if isinstance(record, FallbackRecord):
            fallbacks[record.reason] = fallbacks.get(record.reason, 0) + 1
    return FunctionStory(
        name=name,
        where=where,
        entries=tuple(_entry(r, now.get(r.number)) for r in compiles),
        misses=misses,
        values=values,
        breaks=tuple(r for r in records if isinstance(r, BreakRecord)),
        fallbacks=fallbacks,
        fixes=tuple(fixes_of(compiles)),
    )


def _values(failures: Iterable[GuardFailure]) -> dict[str, list[str]]:
    """What was met at each source, that of the guard first; a relation names several sources."""
    values: dict[str, list[str]] = {}
    for failure in failures:
        if failure.kind == "relation" and " = " in failure.seen:
            for part in failure.seen.split(", "):
                source, _, value = part.partition(" = ")
                values.setdefault(source, []).append(value)
            continue
        wanted = failure.demanded.partition(" == ")[2]
        values.setdefault(failure.source, [wanted] if wanted else []).append(failure.seen)
    return values


def _entry(record: CompileRecord, now: EntryRecord | None) -> Entry:
    guards = record.guards or (now.guards if now else ())
    return Entry(
        number=record.number,
        kind="shared" if record.shared else record.kind,
        seconds=record.seconds,
        hits=now.hits if now else None,
        guard_seconds=now.guard_seconds if now else None,
        age=now.age if now else None,
        inputs=record.inputs,
        dynamic=record.dynamic,
        facts=record.facts,
        kernels=record.kernels,
        kernel_texts=record.kernel_texts,
        externs=record.externs,
        guards=by_origin(guards),
    )


def by_origin(guards: Iterable[str]) -> dict[str, list[str]]:
    """Guards by the line that made them; the state of torch and the like have none."""
    found: dict[str, list[str]] = {}
    for guard in guards:
        text, _, origin = guard.partition("   # ")
        found.setdefault(origin, []).append(text)
    return found


def as_json(told: Sequence[FunctionStory]) -> dict[str, Any]:
    """Plain JSON: {"functions": [...], "compiles": n, "saves": n}."""
    return {
        "functions": [{**asdict(story), "compiles": story.compiles} for story in told],
        "compiles": sum(story.compiles for story in told),
        "saves": sum(fix.saves for story in told for fix in story.fixes),
    }
