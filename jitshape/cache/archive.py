"""A store in one file, for other machines of this kind; and what a store has.

    magic     "jitshape cache archive 1\\n"
    facts     u32 length, JSON: `environment_facts()` of the writer
    entries   u64 length and the file (`files.py`) of each
    checksum  SHA-256 of all before

In: a store, or an archive.  Out: an archive, or entries put into a store.
Invariant: an archive is used whole or not at all, and only in the environment that it was made in;
where an entry goes is told by its names, never by the archive.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from jitshape.cache import eviction, files, folder
from jitshape.cache.environment import environment_facts
from jitshape.cache.files import Damaged, Entry
from jitshape.cache.store import Store

MAGIC = b"jitshape cache archive 1\n"
CHECKSUM = hashlib.sha256().digest_size
_FACTS, _ENTRY = struct.Struct("<I"), struct.Struct("<Q")


@dataclass
class Survey:
    """What a store has: entries and bytes by level, of this environment and of others, and the
    reason for each file that is damaged."""

    own: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    damaged: dict[Path, str] = field(default_factory=dict)


def survey(store: Store) -> Survey:
    """Reads every file, and so checks it."""
    found = Survey()
    for path, entry in _entries(store):
        if isinstance(entry, str):
            found.damaged[path] = entry
            continue
        counts = found.own if entry.environment == store.environment else found.others
        counts[entry.level] += 1
        found.sizes[entry.level] += len(entry.data)
    return found


def _entries(store: Store) -> Iterator[tuple[Path, Entry | str]]:
    """Every file of the store, and its entry or why it is none."""
    for kept in sorted(eviction.kept(store.root), key=lambda kept: kept.path):
        try:
            entry = files.parse(files.read(kept.path)[0])
            if kept.path != store.root / files.file_name(entry.level, entry.key, entry.environment):
                raise Damaged("it holds another entry")
        except FileNotFoundError:
            continue
        except (Damaged, OSError) as error:
            yield kept.path, str(error)
        else:
            yield kept.path, entry


def export(store: Store, path: Path) -> int:
    """Write the entries of this environment that are whole to `path`; how many.  Raises
    OSError."""
    facts = json.dumps(environment_facts()).encode()
    parts, count = [MAGIC, _FACTS.pack(len(facts)), facts], 0
    for _, entry in _entries(store):
        if isinstance(entry, Entry) and entry.environment == store.environment:
            content = files.assemble(entry)
            parts += [_ENTRY.pack(sum(map(len, content))), *content]
            count += 1
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    folder.write_whole(path, [*parts, digest.digest()], path.parent)
    return count


def load(store: Store, path: Path) -> int:
    """Put the entries of an archive into the store; how many.  Raises Damaged with the reason
    where it does not fit, and then nothing was put; OSError."""
    entries = _unpack(path, store)
    for entry in entries:
        store.put(entry.level, entry.key, entry.data)
    return len(entries)


def _unpack(path: Path, store: Store) -> list[Entry]:
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise Damaged("it is no archive of jitshape's cache, or of another version")
    body = content[:-CHECKSUM]
    if hashlib.sha256(body).digest() != content[-CHECKSUM:]:
        raise Damaged("its checksum is wrong: it is cut short or changed")
    file = BytesIO(body[len(MAGIC) :])
    try:
        facts = json.loads(_part(file, _FACTS))
    except (ValueError, RecursionError):
        raise Damaged("it does not say where it was made") from None
    _check_environment(facts)
    entries = []
    while file.tell() < len(body) - len(MAGIC):
        entries.append(files.parse(_part(file, _ENTRY)))
        if entries[-1].environment != store.environment:
            raise Damaged("it has entries of another environment than it says")
    return entries


def _part(file: BytesIO, length: struct.Struct) -> bytes:
    """What stands behind its length."""
    (count,) = length.unpack(_exactly(file, length.size))
    return _exactly(file, min(count, 2**62))


def _exactly(file: BytesIO, count: int) -> bytes:
    content = file.read(count)
    if len(content) != count:
        raise Damaged("it is cut short")
    return content


def _check_environment(facts: object) -> None:
    own = environment_facts()
    if facts == own:
        return
    other = facts if isinstance(facts, dict) else {}
    names = [name for name in own if other.get(name) != own[name]]
    raise Damaged(f"it was made with another {', '.join(names) or 'set of facts'}")
