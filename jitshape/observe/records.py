"""What happened, in order: one record per compile, recompile, graph break and fallback.

In: the pipeline's `record(...)`.  Out: the explainer, `jitshape.explain`, JSON lines in
JITSHAPE_TRACE.  Records are frozen and hold text and numbers only, never tensors.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jitshape.options import environment


@dataclass(frozen=True)
class GuardFailure:
    """The guard that let no entry serve a call."""

    source: str  # "x.size(1)"
    demanded: str  # "== 32"
    seen: str  # "48"
    where: str = ""  # the user line that made the guard
    fix: str = ""  # the smallest change that avoids the recompile


@dataclass(frozen=True)
class CompileRecord:
    """A frame was compiled.  `guards` and `graph` are empty unless `detailed` asked for them."""

    function: str
    where: str
    kind: str  # "compile" or "recompile"
    inputs: tuple[str, ...] = ()  # "x: f32[2, 32]"
    symbols: tuple[str, ...] = ()  # "s0 = x.size(1)"
    failures: tuple[GuardFailure, ...] = ()
    dynamic: tuple[str, ...] = ()  # what became dynamic, and why
    guards: tuple[str, ...] = ()
    graph: str = ""
    kernels: tuple[str, ...] = ()
    externs: dict[str, int] = field(default_factory=dict)
    breaks: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class BreakRecord:
    """A graph ended before the end of the function."""

    function: str
    where: str
    kind: str
    reason: str
    remedy: str = ""
    line: str = ""  # the user's source


@dataclass(frozen=True)
class FallbackRecord:
    """Something ran eagerly instead."""

    function: str
    where: str
    reason: str


Record = CompileRecord | BreakRecord | FallbackRecord

_records: list[Record] = []
_lock = threading.Lock()
_sequence = itertools.count()
_detail_wanted = 0


@contextmanager
def detailed() -> Iterator[None]:
    """In the block records hold guards and graphs too, whose text takes a while to write."""
    global _detail_wanted
    _detail_wanted += 1
    try:
        yield
    finally:
        _detail_wanted -= 1


def is_detailed() -> bool:
    """Whether somebody wants the text of guards and graphs."""
    return _detail_wanted > 0 or bool(environment("TRACE"))


def record(item: Record) -> None:
    """Keep `item`; with JITSHAPE_TRACE also append it to the folder's events.jsonl."""
    with _lock:
        _records.append(item)
        folder = environment("TRACE")
        if folder:
            _append(Path(folder), item)


def _append(folder: Path, item: Record) -> None:
    row = {"n": next(_sequence), "pid": os.getpid(), "event": type(item).__name__, **asdict(item)}
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


def clear() -> None:
    with _lock:
        _records.clear()
