"""Shape profiles: which numbers of which functions changed, kept from run to run.

In: the values that a run saw at sources that took more than one.  Out: the same in the next run,
so that its first compile is the dynamic one already.
The file is `profile.json` in the cache folder (JITSHAPE_PROFILE names another, or 0 for none):

    {"format": "jitshape shape profile", "version": 1, "functions": {
        "<hash of the code's content>": {
            "name": "Model.forward", "used": "2026-11-30",
            "sources": {"x.size(1)": [32, 48], "scale": ["0x1.8000000000000p+0", ...]}}}}

Floats are written by float.hex().  The file is read once a run; it is written, under a lock and by
renaming, soon after something was learned and when the process ends, joined with what other
processes wrote meanwhile.  The functions used last are kept.
Invariant: a profile only changes what is symbolic, never what is computed; what cannot be read is
a warning and a fresh start.
"""

from __future__ import annotations

import atexit
import datetime
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from jitshape import forks
from jitshape.cache.folder import locked, make_folder, write_whole
from jitshape.observe import logs
from jitshape.options import cache_folder, environment, switched

FORMAT, VERSION = "jitshape shape profile", 1
KEPT_FUNCTIONS, KEPT_SOURCES, KEPT_VALUES = 2000, 200, 16
SECONDS_BETWEEN_SAVES = 5.0
LOCK_SECONDS = 2.0

Values = dict[str, list[int | float]]


@dataclass
class Function:
    """What is known of one function: the values at each source that changed."""

    name: str
    used: str
    sources: Values = field(default_factory=dict)

    def join(self, other: Function) -> None:
        """Add what `other`, which is newer, knows."""
        self.name, self.used = other.name, max(self.used, other.used)
        for source, values in other.sources.items():
            kept = [v for v in self.sources.pop(source, []) if not _among(v, values)]
            self.sources[source] = [*kept, *values][-KEPT_VALUES:]
        for source in list(self.sources)[:-KEPT_SOURCES]:
            del self.sources[source]


def _among(value: int | float, values: Sequence[int | float]) -> bool:
    return any(_written(value) == _written(v) for v in values)


def _written(value: int | float) -> int | str:
    return value.hex() if type(value) is float else value


# ---- the content of a code object


def code_key(code: CodeType) -> str:
    """A hash of what a function does: the same in every process and at every place."""
    return hashlib.sha256(repr(_content(code)).encode()).hexdigest()[:32]


def _content(x: Any) -> Any:
    if isinstance(x, CodeType):
        counts = (x.co_argcount, x.co_posonlyargcount, x.co_kwonlyargcount, x.co_flags)
        names = (x.co_qualname, x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars)
        return counts, names, x.co_code, tuple(map(_content, x.co_consts))
    if isinstance(x, tuple):
        return tuple(map(_content, x))
    if isinstance(x, frozenset):
        return "frozenset", tuple(sorted(repr(_content(item)) for item in x))
    plain = (int, float, complex, str, bytes, bool, type(None), type(...))
    return (type(x).__name__, repr(x)) if type(x) in plain else type(x).__qualname__


# ---- the file


def profile_path() -> Path | None:
    """Where the profile lies; None: it is switched off."""
    named = environment("PROFILE")
    if not switched("PROFILE", True):
        return None
    return cache_folder() / "profile.json" if named in ("", "1") else Path(named)


def read(path: Path, quietly: bool = False) -> dict[str, Function]:
    """By code key; nothing, with a warning, where the file is damaged or of another version."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if not quietly:
            logs.warn(
                f"the shape profile {path} cannot be read ({type(error).__name__}: {error}); this "
                "run starts without it and writes a new one"
            )
        return {}


def parse(text: str) -> dict[str, Function]:
    """Raises ValueError, TypeError, KeyError, AttributeError for what is no profile."""
    content = json.loads(text)
    if content["format"] != FORMAT or content["version"] != VERSION:
        raise ValueError(f"its version is {content.get('version')!r}, not {VERSION}")
    found = {}
    for key, row in content["functions"].items():
        sources = {
            str(source): [float.fromhex(v) if type(v) is str else _int(v) for v in values]
            for source, values in row["sources"].items()
        }
        found[key] = Function(str(row["name"]), str(row["used"]), sources)
    return found


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number of a profile")
    return value


def text_of(functions: Mapping[str, Function]) -> str:
    """The file's text, with the functions used last."""
    kept = sorted(functions.items(), key=lambda item: (item[1].used, item[0]))[-KEPT_FUNCTIONS:]
    rows = {
        key: {
            "name": f.name,
            "used": f.used,
            "sources": {s: [_written(v) for v in values] for s, values in f.sources.items()},
        }
        for key, f in kept
    }
    return json.dumps({"format": FORMAT, "version": VERSION, "functions": rows}, indent=1)


def write(path: Path, learned: Mapping[str, Function]) -> None:
    """Join `learned` with what the file has now.  Raises OSError."""
    make_folder(path.parent)
    with locked(path, LOCK_SECONDS):  # without it, what another process learned may be lost
        functions = read(path, quietly=True)
        for key, function in learned.items():
            if key in functions:
                functions[key].join(function)
            else:
                functions[key] = function
        write_whole(path, [text_of(functions).encode()], path.parent)


# ---- this run


class Profile:
    """What earlier runs knew, and what this one learns."""

    def __init__(self, path: Path | None, known: dict[str, Function] | None = None) -> None:
        """`known`: instead of what the file has."""
        self.path = path
        self.known = known if known is not None else read(path) if path is not None else {}
        self.learned: dict[str, Function] = {}
        self.lock = forks.lock()
        self.saved_at = -SECONDS_BETWEEN_SAVES
        self.process = os.getpid()

    def values(self, code: CodeType) -> Values:
        """Of the sources that changed in earlier runs."""
        if not self.known:
            return {}
        key = code_key(code)
        function = self.known.get(key)
        if function is None:
            return {}
        today = _today()
        if function.used != today:
            self.learned.setdefault(key, Function(function.name, today))
        return function.sources

    def learn(self, code: CodeType, values: Mapping[str, Sequence[int | float]]) -> None:
        """Note the sources that took more than one value in this run."""
        changed = {source: list(vs) for source, vs in values.items() if len(vs) > 1}
        if self.path is None or not changed:
            return
        with self.lock:
            function = Function(code.co_qualname, _today(), changed)
            known = self.learned.setdefault(code_key(code), function)
            if known is not function:
                known.join(function)
        if time.monotonic() - self.saved_at >= SECONDS_BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Write what was learned; a file that cannot be written is a warning, once."""
        with self.lock:
            learned, self.learned = self.learned, {}
            self.saved_at = time.monotonic()
        if not learned or self.path is None:
            return
        try:
            write(self.path, learned)
        except OSError as error:
            logs.warn(
                f"the shape profile {self.path} cannot be written: {error}; JITSHAPE_PROFILE=0 "
                "switches it off, JITSHAPE_CACHE_DIR moves it"
            )
            self.path = None


_active: Profile | None = None


def active() -> Profile:
    """The profile of this run, read at its first use."""
    global _active
    if _active is None:
        _active = Profile(profile_path())
    return _active


def forget() -> None:
    """For the rest of this run, nothing is known from earlier ones.  The file stays."""
    global _active
    if _active is not None:
        _active.save()
    _active = Profile(profile_path(), known={})


@atexit.register
def _save_at_exit() -> None:
    if _active is not None and _active.process == os.getpid():
        _active.save()


def _today() -> str:
    return datetime.date.today().isoformat()
