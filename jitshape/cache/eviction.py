"""The size of a store: how much was written, and what goes when that is too much.

In: the store's folder and a limit.  Out: the folder, within the limit; what was used last stays.
The length of the file `tally`, in bytes, is the store's size in blocks of 4 KiB: appending to it
adds up what all processes write, without a lock and without looking at all files.
Invariant: only files that look like the store's own are deleted; one process at a time sweeps, and
none waits for it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from jitshape.cache.folder import locked, open_for_writing

TALLY, UNFINISHED = "tally", "unfinished"
BLOCK = 4096
KEPT = 0.8  # of the limit, after a sweep
LARGEST_SHARE = 0.25  # of the limit, for one entry
ABANDONED = 3600.0  # seconds after which nobody finishes a file
USED_AGAIN = 60.0  # seconds before a use is worth noting again
_FOLDER, _FILE = re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{62}")


@dataclass(frozen=True)
class Kept:
    """A file of the store: bytes on disk, and when it was used last (seconds since the epoch)."""

    path: Path
    size: int
    used: float


def note_use(path: Path, used: float) -> None:
    """Make the file's time the time of its last use, where that tells something new."""
    if not 0 <= time.time() - used < USED_AGAIN:
        with suppress(OSError):
            os.utime(path)


def note_written(root: Path, size: int, limit: int) -> None:
    """`size` bytes more are in the store; sweep if that is too much.  Raises OSError."""
    blocks = _blocks(size)
    tally = open_for_writing(root / TALLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(tally, bytes(blocks))
        total = os.fstat(tally).st_size
    finally:
        os.close(tally)
    if total * BLOCK > limit or total == blocks:  # the second: the tally is new, or was lost
        sweep(root, limit)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def kept(root: Path) -> Iterator[Kept]:
    """The entries that are there, in no order; others may delete them meanwhile."""
    for folder in _listed(root):
        if _FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
            for file in _listed(folder):
                if _FILE.fullmatch(file.name):
                    yield from _kept(file)


def unfinished(root: Path) -> Iterator[Kept]:
    """Files that are being written, or whose writers died."""
    for file in _listed(root / UNFINISHED):
        yield from _kept(file)


def _listed(folder: Path | os.DirEntry) -> list[os.DirEntry]:
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _kept(file: os.DirEntry) -> Iterator[Kept]:
    with suppress(OSError):
        if not file.is_dir(follow_symlinks=False):
            found = file.stat(follow_symlinks=False)
            yield Kept(Path(file.path), _blocks(found.st_size) * BLOCK, found.st_mtime)


def sweep(root: Path, limit: int) -> None:
    """Delete what was used least lately, until the store has KEPT of `limit` bytes; nothing where
    another process does so now, or the store is smaller than the tally says.  Raises OSError."""
    with locked(root / TALLY, 0.0) as alone:
        if not alone:
            return
        now, counted = time.time(), _tally(root)
        for file in unfinished(root):
            if not 0 <= now - file.used < ABANDONED:
                _delete(file)
        files = sorted(kept(root), key=lambda file: min(file.used, now))
        total = sum(file.size for file in files)
        goal = limit * KEPT if total > limit else limit
        for file in files:
            if total > goal and _delete(file):
                total -= file.size
            elif file.used > now:  # the clock was set back: it ages from now on
                with suppress(OSError):
                    os.utime(file.path)
        meanwhile = max(_tally(root) - counted, 0)  # counted twice where it is among the files
        os.truncate(root / TALLY, total // BLOCK + meanwhile)


def _tally(root: Path) -> int:
    return os.stat(root / TALLY, follow_symlinks=False).st_size


def _delete(file: Kept) -> bool:
    try:
        os.unlink(file.path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def clear(root: Path) -> tuple[int, int]:
    """Delete all entries and what is unfinished; how many files and bytes that were.  Processes
    that use the store go on with an empty one."""
    deleted = [file for each in (kept, unfinished) for file in each(root) if _delete(file)]
    with suppress(OSError):
        os.truncate(root / TALLY, 0)
    return len(deleted), sum(file.size for file in deleted)
