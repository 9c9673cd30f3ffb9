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
from pathlib import Path

from jitshape.cache import files, folder
from jitshape.cache.environment import environment_key, environment_settings, sources_fault
from jitshape.cache.files import Damaged, Entry
from jitshape.observe import counters, logs
from jitshape.options import cache_folder, environment

ENTRIES, UNFINISHED = "store", "unfinished"
REMEDY = "JITSHAPE_CACHE_DIR names another folder, JITSHAPE_CACHE=0 does without"


class Store:
    """The entries of one environment in one folder.  Any number of threads and processes may use
    the folder at once; there is no state between calls but what was warned of."""

    def __init__(self, root: Path, environment: str) -> None:
        """`root` is made when the first entry is written."""
        self.root, self.environment = root, environment
        self.unfinished = root / UNFINISHED
        self.writable = True
        self._warned: set[str] = set()

    def path(self, level: str, key: str) -> Path:
        return self.root / files.file_name(level, key, self.environment)

    def get(self, level: str, key: str) -> bytes | None:
        """The data of an entry, counted as a hit or, with the reason, as a miss."""
        path = self.path(level, key)
        try:
            entry = files.parse(files.read(path))
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
        counters.count_in("cache", f"{level}:hit")
        logs.log("cache", f"{level} hit: {key[:16]}: {len(entry.data)} bytes from {path}")
        return entry.data

    def put(self, level: str, key: str, data: bytes) -> None:
        """Keep `data`.  What cannot be written is a warning; after that nothing more is tried."""
        if not self.writable:
            return
        path = self.path(level, key)
        parts = files.assemble(Entry(level, key, self.environment, data))
        try:
            try:
                folder.write_whole(path, parts, self.unfinished)
            except FileNotFoundError:
                if not self._make_folders(path):
                    return
                folder.write_whole(path, parts, self.unfinished)
        except FileNotFoundError:
            return  # somebody clears the folder just now
        except (OSError, MemoryError) as error:
            self.writable = False
            self._warn("unwritable", f"the cache {self.root} cannot be written ({error}); {REMEDY}")
            return
        logs.log("cache", f"{level} kept: {key[:16]}: {len(data)} bytes in {path}", debug=True)

    def _make_folders(self, path: Path) -> bool:
        """Whether entries can be written; the folders may have come from others meanwhile."""
        for each in (self.root, self.unfinished, path.parent):
            folder.make_folder(each)
        reason = trouble(self.root)
        if reason is not None:
            self.writable = False
            self._warn("refused", f"the cache {reason}; {REMEDY}")
        return reason is None

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


_opened: tuple[tuple[str, ...], Store | None] | None = None


def open_store() -> Store | None:
    """The store of the moment's settings; None where it is switched off or, with a warning, where
    its folder is not to be trusted."""
    global _opened
    if environment("CACHE") == "0":
        return None
    root = cache_folder().absolute() / ENTRIES
    settings = str(root), *environment_settings()
    if _opened is None or _opened[0] != settings:
        _opened = settings, _open(root)
    return _opened[1]


def _open(root: Path) -> Store | None:
    try:
        reason = trouble(root) or sources_fault()
        if reason is None:
            return Store(root, environment_key())
    except OSError as error:
        reason = f"is not used: {error}"
    logs.warn(f"the cache {reason}; {REMEDY}")
    return None
