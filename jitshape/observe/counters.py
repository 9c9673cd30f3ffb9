"""Counters since `reset()`: what `jitshape.stats()` shows.

In: calls of `count`, `count_in`, `timed` from every stage.  Out: `snapshot()`, plain JSON.
Invariant: a fallback is always counted together with its reason.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jitshape import forks

INTS = (
    "traces",
    "compiles",
    "recompiles",
    "backward_compiles",
    "graphs",
    "graph_hits",
    "kernels",
    "graph_breaks",
    "fallbacks",
    "symbols",
    "guards",
)

_lock = forks.lock()
_ints: Counter[str] = Counter()
_dicts: dict[str, Counter[str]] = defaultdict(Counter)
_native: Counter[str] = Counter()
_handled = 0
_seconds: Counter[str] = Counter()


def count(name: str, amount: int = 1) -> None:
    """Add to one of INTS."""
    assert name in INTS, name
    with _lock:
        _ints[name] += amount


def count_in(group: str, name: str, amount: int = 1) -> None:
    """Add to a named entry: groups "extern_ops", "break_reasons", "fallback_reasons", ..."""
    with _lock:
        _dicts[group][name] += amount


def count_frame(native_reason: str | None = None, handled: int = 1) -> None:
    """Frames went through the machine, or one ran natively for this reason."""
    global _handled
    with _lock:
        if native_reason is None:
            _handled += handled
        else:
            _native[native_reason] += 1


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Add the CPU seconds of this thread in the block to `seconds[stage]`."""
    start = time.thread_time()
    try:
        yield
    finally:
        with _lock:
            _seconds[stage] += time.thread_time() - start


def spent(stage: str, seconds: float) -> None:
    """Add to `seconds[stage]` what was measured elsewhere."""
    with _lock:
        _seconds[stage] += seconds


def snapshot() -> dict[str, Any]:
    """All counters, with string keys."""
    with _lock:
        details = {k: dict(v) for k, v in _dicts.items() if k not in ("extern_ops", "cache")}
        cache: dict[str, dict[str, int]] = {}
        for key, amount in _dicts["cache"].items():
            level, _, what = key.partition(":")
            cache.setdefault(level, {"hit": 0, "miss": 0})[what] = amount
        return {
            **{name: _ints[name] for name in INTS},
            "extern_ops": dict(_dicts["extern_ops"]),
            "frames": {"handled": _handled, "native": dict(_native)},
            "cache": cache,
            "seconds": {k: round(v, 6) for k, v in _seconds.items()},
            "details": details,
        }


def clear() -> None:
    """Back to zero."""
    global _handled
    with _lock:
        _ints.clear()
        _dicts.clear()
        _native.clear()
        _seconds.clear()
        _handled = 0
