"""One file of the store: a header, the key it stands for, the data.

    magic       8 bytes   "jitshape"
    version     u16       FORMAT_VERSION
    level       u16       length of the level's name
    key         u32       length of the key
    data        u64       length of the data
    environment 32 bytes  `environment_key()` of the writer
    checksum    32 bytes  SHA-256 of the whole file with zeros in this place
    level, key, data

Numbers are little-endian.  In: level, key, data.  Out: the file's parts, and back.
Invariant: `parse` gives what `assemble` was given, or raises `Damaged` with the reason; it trusts
no length before it has compared it with the file's own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from jitshape.cache.folder import distrust

FORMAT_VERSION = 1
MAGIC = b"jitshape"
LARGEST = 2**30  # bytes of one file
_HEADER = struct.Struct("<8sHHIQ32s32s")
_CHECKSUM = slice(_HEADER.size - 32, _HEADER.size)


class Damaged(Exception):
    """A file is not what was written; the message is the reason."""


@dataclass(frozen=True)
class Entry:
    """What one file says of itself."""

    level: str
    key: str
    environment: str
    data: bytes


def file_name(level: str, key: str, environment: str) -> str:
    """Where the entry lies below the store's folder: different versions and environments share a
    folder without meeting."""
    parts = (str(FORMAT_VERSION), environment, level, key)
    digest = hashlib.sha256(_bytes("\0".join(parts))).hexdigest()
    return f"{digest[:2]}/{digest[2:]}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def assemble(entry: Entry) -> list[bytes]:
    """The file of `entry`, in parts to be written one after the other."""
    level, key = _bytes(entry.level), _bytes(entry.key)
    environment = bytes.fromhex(entry.environment)
    lengths = (len(level), len(key), len(entry.data))
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, *lengths, environment, bytes(32))
    checksum = _checksum(header, level + key, entry.data)
    return [header[: _CHECKSUM.start] + checksum + level + key, entry.data]


def _checksum(header: bytes, names: bytes, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(names)
    digest.update(data)
    return digest.digest()


def parse(content: bytes) -> Entry:
    """Raises Damaged."""
    if len(content) < _HEADER.size:
        raise Damaged("it is cut short")
    magic, version, level, key, data, environment, checksum = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise Damaged("it is no file of jitshape")
    if version != FORMAT_VERSION:
        raise Damaged(f"its format is version {version}, not {FORMAT_VERSION}")
    names = _HEADER.size + level + key
    if names + data != len(content):
        raise Damaged("it is cut short or too long")
    header = content[: _CHECKSUM.start] + bytes(32)
    if _checksum(header, content[_HEADER.size : names], memoryview(content)[names:]) != checksum:
        raise Damaged("its checksum is wrong")
    try:
        words = content[_HEADER.size : names - key], content[names - key : names]
        names_of = [word.decode("utf-8", "surrogatepass") for word in words]
    except UnicodeDecodeError:
        raise Damaged("its names are no text") from None
    return Entry(*names_of, environment.hex(), content[names:])


def read(path: Path) -> tuple[bytes, float]:
    """The content and the time of a file that only this user can have written.  Never waits: what
    is no plain file is not read.  Raises Damaged, OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged("it is no plain file")
        reason = distrust(found)
        if reason is not None:
            raise Damaged(reason)
        if found.st_size > LARGEST:
            raise Damaged(f"it has {found.st_size} bytes")
        return file.readall(), found.st_mtime
