"""Folders that are kept from run to run: whose they are, writing into them, locking them.

In: paths.  Out: files written whole or not at all.
Invariant: nothing is read from a folder that anybody but this user (or root) can write to, and
nothing waits without a bound.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
PRIVATE = 0o700


def make_folder(path: Path) -> None:
    """Make `path` and the folders above it that are missing, for this user alone.  Raises
    OSError."""
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(mode=PRIVATE, exist_ok=True)


def distrust(found: os.stat_result) -> str | None:
    """Why what is at a path may come from others; None: only this user or root can have put it
    there, who could as well replace Python itself."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}, and this process runs as {os.geteuid()}"
    if found.st_mode & WRITABLE_BY_OTHERS:
        return "others than its owner may write to it"
    return None


def folder_fault(path: Path) -> str | None:
    """Why `path` cannot serve as a folder to read from; None: it can, or is not there yet."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return distrust(found) if stat.S_ISDIR(found.st_mode) else "it is not a folder"


def open_for_writing(path: str | Path, flags: int) -> int:
    """A handle of a file for this user alone.  Raises OSError, also for links, and for pipes that
    nobody reads, which would make it wait."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def write_whole(path: Path, parts: list[bytes], temporary: Path) -> None:
    """Write `parts` to `path` so that readers see the old file or the new one.  `temporary` is a
    folder of the same file system for what is not finished.  Raises OSError."""
    unfinished = temporary / f"{path.name}.{os.urandom(8).hex()}"
    handle = open_for_writing(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(handle, "wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[bool]:
    """Alone among processes with `path`, by a lock file beside it; whether the lock was had within
    `seconds`.  A process that dies gives its lock back.  Raises OSError where no file can be."""
    lock = path.with_name(path.name + ".lock")
    with open(lock, "a", opener=open_for_writing) as file:
        try:
            import fcntl
        except ImportError:  # no lock on this system
            yield True
            return
        give_up = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= give_up:
                    yield False
                    return
                time.sleep(0.01)
        yield True  # closing the file unlocks it
