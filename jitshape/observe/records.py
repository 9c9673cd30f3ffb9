"""What happened, in order: one record per compile, recompile, graph break and fallback.

In: the pipeline's `record(...)`.  Out: the explainer, `jitshape.explain`, JSON lines in
JITSHAPE_TRACE.  Records are frozen and hold text and numbers only, never tensors.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jitshape import forks
from jitshape.options import environment

PIECE = ", piece "  # between a function's name and the number of what goes on behind a break
NUMBERS = ("size", "stride", "number", "attribute")  # kinds of failures of what can be symbolic


@dataclass(frozen=True)
class GuardFailure:
    """A guard that kept an entry from serving a call.  `kind` (observe/misses.py) says what
    differs: "size", "number", "specialised", "dtype", ..."""

    source: str  # "x.size(1)"
    demanded: str  # "x.size(1) == 32"
    seen: str  # "48"
    where: str = ""  # the user line that made the guard
    line: str = ""  # its text
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.demanded}, but it was {self.seen}"


@dataclass(frozen=True)
class SizeFact:
    """What the program needed of its sizes and numbers.  `specialised`: one value is left."""

    text: str  # "x.size(0) == y.size(0)"
    sources: tuple[str, ...]
    why: str = ""  # the op, or what the program did
    where: str = ""
    line: str = ""
    specialised: bool = False


@dataclass(frozen=True)
class CompileRecord:
    """A frame was compiled: the `number`th entry of the function.  `failures` are those of the
    nearest entry.  `shared`: a graph that was compiled before serves, so this is no compile.
    `guards`, `graph` and `kernel_texts` are empty unless `detailed` asked for them."""

    function: str
    where: str
    kind: str  # "compile" or "recompile"
    number: int = 1
    mode: str = ""  # "dynamic=False", and what else of the policy the user set
    shared: bool = False
    inputs: tuple[str, ...] = ()  # "x: f32[2, 32]"
    symbols: tuple[str, ...] = ()  # "s0 = x.size(1)"
    failures: tuple[GuardFailure, ...] = ()
    dynamic: tuple[str, ...] = ()  # what became dynamic, and why
    facts: tuple[SizeFact, ...] = ()
    numbers: dict[str, int | float] = field(default_factory=dict)  # of the call, by source
    alike: tuple[int, ...] = ()  # earlier entries whose calls meet all facts
    guards: tuple[str, ...] = ()
    graph: str = ""
    kernels: tuple[str, ...] = ()
    kernel_texts: tuple[str, ...] = ()  # their loops, as they stood before code was generated
    externs: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0  # CPU
    at: float = 0.0  # when it was recorded: time.time()


@dataclass(frozen=True)
class BreakRecord:
    """A graph ended before the end of the function."""

    function: str
    where: str
    kind: str
    reason: str
    remedy: str = ""
    line: str = ""  # the user's source
    at: float = 0.0


@dataclass(frozen=True)
class FallbackRecord:
    """Something ran eagerly instead."""

    function: str
    where: str
    reason: str
    at: float = 0.0


@dataclass(frozen=True)
class EntryRecord:
    """An entry as it stood when it was asked for; in a trace, when the process ended."""

    function: str
    where: str
    number: int
    hits: int  # calls served, the one that compiled it not counted
    guard_seconds: float | None  # a call's, on average over a sample
    age: float  # seconds
    native: bool = False  # it calls the function itself, which cannot be compiled
    guards: tuple[str, ...] = ()
    at: float = 0.0


Record = CompileRecord | BreakRecord | FallbackRecord | EntryRecord
SCHEMA = 2  # of the JSON lines: raised when a field changes its meaning

KEPT = 4096  # records of each kind; at twice as many the oldest are forgotten

_records: list[Record] = []
_counts: Counter[type] = Counter()
_lock = forks.lock()
_sequence = itertools.count()
_detail_wanted = 0


@contextmanager
def detailed() -> Iterator[None]:
    """In the block records hold guards, graphs and kernels, whose text takes a while to write; and
    the disk store is left aside, so that a program is explained in the same way each time."""
    global _detail_wanted
    _detail_wanted += 1
    try:
        yield
    finally:
        _detail_wanted -= 1


def explains() -> bool:
    """Whether this is inside of `detailed`."""
    return _detail_wanted > 0


def is_detailed() -> bool:
    """Whether somebody wants the text of guards, graphs and kernels."""
    return explains() or bool(environment("TRACE"))


def record(item: Record) -> None:
    """Keep `item`; with JITSHAPE_TRACE also append it to the folder's events.jsonl.  Records of a
    long-lived process are those of late, but inside of `detailed` none is forgotten."""
    item = replace(item, at=time.time())
    with _lock:
        if not isinstance(item, EntryRecord):  # those are asked for when they are wanted
            _records.append(item)
            _counts[type(item)] += 1
            if _counts[type(item)] > 2 * KEPT and not explains():
                _forget_oldest(type(item))
        folder = environment("TRACE")
        if folder:
            _append(Path(folder), item)


def _forget_oldest(kind: type) -> None:
    surplus = _counts[kind] - KEPT
    oldest = itertools.islice((i for i, r in enumerate(_records) if type(r) is kind), surplus)
    dropped = set(oldest)
    _records[:] = [r for i, r in enumerate(_records) if i not in dropped]
    _counts[kind] = KEPT


def as_row(item: Record) -> dict[str, Any]:
    """A record as a plain JSON object."""
    return {"event": type(item).__name__, **asdict(item)}


def _append(folder: Path, item: Record) -> None:
    row = {"schema": SCHEMA, "n": next(_sequence), "pid": os.getpid(), **as_row(item)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        from jitshape.observe.logs import warn

        warn(f"cannot write the trace to {folder}: {error}; set JITSHAPE_TRACE to another folder")


def records() -> tuple[Record, ...]:
    """All records since `clear`."""
    with _lock:
        return tuple(_records)


def compiles_of(function: str, where: str) -> list[CompileRecord]:
    """The entries that one function was compiled to, in order."""
    return [
        r
        for r in records()
        if isinstance(r, CompileRecord) and (r.function, r.where) == (function, where)
    ]


def clear() -> None:
    with _lock:
        _records.clear()
        _counts.clear()
