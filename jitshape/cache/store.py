"""The store: what was compiled, kept on disk for later processes.

In: bytes under a level ("kernel", "program", "entry", ...) and a key that says all that the bytes
depend on besides `environment_key()`.  Out: the same bytes, in any later process of an equal
environment, or None.
Invariant: `get` gives what `put` was given for this level, key and environment, or None; neither
raises, nor waits, whatever has happened to the folder.  Each kind of trouble is told once.
docs/cache.md describes the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from jitshape.cache import eviction, files, folder
from jitshape.cache.files import Damaged, Entry
from jitshape.observe import counters, logs, records
from jitshape.options import cache_folder, environment, switched

ENTRIES = "store"
LIMIT = 2 * 2**30  # bytes
REMEDY = "JITSHAPE_CACHE_DIR names another folder, JITSHAPE_CACHE=0 does without"


class Store:
    """The entries of one environment in one folder.  Any number of threads and processes may use
    the folder at once; there is no state between calls but what was warned of."""

    def __init__(
        self,
        root: Path,
        environment: str,
        limit: int = LIMIT,
        when_made: Callable[[], object] = lambda: None,
    ) -> None:
        """`root` is made, and `when_made` called, when the first entry is written; `limit`: about
        how many bytes it may hold."""
        self.root, self.environment, self.limit = root, environment, limit
        self.when_made = when_made
        self.unfinished = root / eviction.UNFINISHED
        self.writable = True
        self._warned: set[str] = set()

    def path(self, level: str, key: str) -> Path:
        return self.root / files.file_name(level, key, self.environment)

    def get(self, level: str, key: str) -> bytes | None:
        """The data of an entry, counted as a hit or, with the reason, as a miss."""
        path = self.path(level, key)
        try:
            content, used = files.read(path)
            entry = files.parse(content)
            if (entry.level, entry.key, entry.environment) != (level, key, self.environment):
                raise Damaged("it holds another entry")
        except FileNotFoundError:
            return self._miss(level, key, "not there")
        except Damaged as error:
            self._drop(path)
            self._warn("damaged", f"{path} in the cache is not used: {error}")
            return self._miss(level, key, "damaged")
        except (OSError, MemoryError) as error:
            self._warn("unreadable", f"{path} in the cache cannot be read ({error}); {REMEDY}")
            return self._miss(level, key, "unreadable")
        eviction.note_use(path, used)
        counters.count_in("cache", f"{level}:hit")
        logs.log("cache", f"{level} hit: {key[:16]}: {len(entry.data)} bytes from {path}")
        return entry.data

    def put(self, level: str, key: str, data: bytes) -> None:
        """Keep `data`.  What cannot be written is a warning; after that nothing more is tried."""
        if not self.writable:
            return
        path = self.path(level, key)
        parts = files.assemble(Entry(level, key, self.environment, data))
        size = sum(map(len, parts))
        if size > min(self.limit * eviction.LARGEST_SHARE, files.LARGEST):
            logs.log("cache", f"{level} not kept: {key[:16]}: {size} bytes are too much")
            return
        try:
            if not self._write(path, parts):
                return
            eviction.note_written(self.root, size, self.limit)
        except FileNotFoundError:
            return  # somebody deletes the folder just now
        except (OSError, MemoryError) as error:
            self._give_up("unwritable", f"{self.root} cannot be written: {error}")
            return
        logs.log("cache", f"{level} kept: {key[:16]}: {size} bytes in {path}", debug=True)

    def _write(self, path: Path, parts: list[bytes]) -> bool:
        """Whether the folder could be trusted, and the file is there.  Raises OSError."""
        try:
            folder.write_whole(path, parts, self.unfinished)
        except FileNotFoundError:
            new = not self.root.exists()
            for each in (self.root, self.unfinished, path.parent):
                folder.make_folder(each)
            reason = trouble(self.root)  # the folders may have come from others meanwhile
            if reason is not None:
                self._give_up("refused", reason)
                return False
            if new:
                self.when_made()
            folder.write_whole(path, parts, self.unfinished)
        return True

    def _give_up(self, kind: str, reason: str) -> None:
        self.writable = False
        self._warn(kind, f"the cache {reason}; {REMEDY}")

    def _miss(self, level: str, key: str, reason: str) -> None:
        counters.count_in("cache", f"{level}:miss")
        counters.count_in("cache_misses", f"{level}: {reason}")
        logs.log("cache", f"{level} miss: {key[:16]}: {reason}")

    def _drop(self, path: Path) -> None:
        try:
            os.unlink(path)
        except OSError:
            pass  # also in folders that cannot be written

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logs.warn(text)


def trouble(root: Path) -> str | None:
    """Why a store's folder, or the one that it lies in, is not to be used."""
    for each in (root.parent, root):
        reason = folder.folder_fault(each)
        if reason is not None:
            return f"{each} is not used: {reason}"
    return None


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size_limit() -> int:
    """The bytes that a store may hold: JITSHAPE_CACHE_SIZE, such as 500M or 2G."""
    text = environment("CACHE_SIZE")
    if not text:
        return LIMIT
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if number is not None:
        return int(float(number[1]) * _UNITS[number[2].upper()])
    logs.warn(f"JITSHAPE_CACHE_SIZE={text!r} is no size such as 500M or 2G: it is 2G")
    return LIMIT


_opened: tuple[tuple[str, ...], Store | None] | None = None


def open_store() -> Store | None:
    """The store of the moment's settings; None where it is switched off, where compiles are
    explained or, with a warning, where its folder is not to be trusted."""
    global _opened
    if not switched("CACHE", True) or records.explains():
        return None
    from jitshape.cache.environment import environment_settings  # loads torch

    root = cache_folder().absolute() / ENTRIES
    settings = str(root), environment("CACHE_SIZE"), *environment_settings()
    if _opened is None or _opened[0] != settings:
        _opened = settings, _open(root)
    return _opened[1]


def _open(root: Path) -> Store | None:
    from jitshape.cache.environment import environment_key, sources, sources_digest, sources_fault

    try:
        found = sources()
        reason = trouble(root) or sources_fault(found)
        if reason is None:
            key, limit = environment_key(root, found), size_limit()
            return Store(root, key, limit, when_made=lambda: sources_digest(root))
    except OSError as error:
        reason = f"is not used: {error}"
    logs.warn(f"the cache {reason}; {REMEDY}")
    return None
