"""The entries that processes kept of a function, and which of them may serve a call.

In: the key of a function (warm.py makes it), new entries of it, and calls.  Out: the records of
the entries that may serve a call, the newest first.  The level "entries" of the store has a row
for each entry of a function, the level "frame" the entries themselves, by a hash of their
content: what instances of a class make alike is there once.  A row has the sizes of a few tensors
that the arguments lead to, so that entries of instances of other sizes are not even read.
Invariant: all that is decided here is which entries are tried; whether one serves, its guards say.
An entry whose program is not kept serves in this process only.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from jitshape.cache.store import Store
from jitshape.frontend import sources as S
from jitshape.frontend.checks import Guard, TensorMatches
from jitshape.frontend.records.entries import EntryRecord
from jitshape.ir.records.plain import Record, Tree
from jitshape.observe import counters, logs

INDEX, LEVEL = "entries", "frame"
KEPT = 256  # entries of one function
TRIED = 8  # of them, for one call
REMEMBERED = 1 << 25  # bytes of records, in memory
SHOWN = 8  # tensors whose sizes are in a row


class KeptEntry(Record):
    """`graph`: the key of the program that the code calls, if it calls one."""

    entry: EntryRecord
    graph: str | None
    consumed: list[int]
    varying: list[str]
    assumes: bool
    raises: bool
    draws: bool


class Row(Record):
    """One entry: the hash of its record, and of some tensors the path from an argument slot and
    the sizes, None for one that may vary."""

    digest: str
    tensors: list[tuple[list[Tree], list[int | None]]]


class Kept:
    """The kept entries of all functions in one store, as this process knows them."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._rows: dict[str, list[Row]] = {}
        self._records: OrderedDict[str, bytes] = OrderedDict()  # used last at the end
        self._size = 0

    @property
    def store(self) -> Store:
        found = self._store()
        assert found is not None  # it is what this was asked for by
        return found

    def candidates(self, key: str, slots: Sequence[Any]) -> Iterator[KeptEntry]:
        """Entries of the function that may serve a call with these slots."""
        if key not in self._rows:
            self._rows[key] = self._load(key)
        fitting = (row for row in reversed(self._rows[key]) if _may_serve(row, slots))
        for _, row in zip(range(TRIED), fitting):
            record = self._record(row.digest)
            if record is not None:
                yield record

    def add(self, key: str, entry: KeptEntry, guards: Sequence[Guard], to_disk: bool) -> None:
        """Keep an entry with these guards.  Raises OverflowError where an integer has more than
        64 bits."""
        data = _encoder.encode(entry)
        digest = hashlib.sha256(data).hexdigest()
        row = Row(digest, _shown(guards))
        self._remember(digest, data)
        self._rows[key] = _with(self._rows.get(key, []), row)
        if to_disk:
            self.store.put(LEVEL, digest, data)
            self.store.put(INDEX, key, _encoder.encode(_with(self._load(key), row)))

    def _load(self, key: str) -> list[Row]:
        return self._decoded(_rows_decoder.decode, self.store.get(INDEX, key)) or []

    def _record(self, digest: str) -> KeptEntry | None:
        data = self._records.get(digest)
        if data is None:
            data = self.store.get(LEVEL, digest)
        if data is not None:
            self._remember(digest, data)
        return self._decoded(_entry_decoder.decode, data)

    def _remember(self, digest: str, data: bytes) -> None:
        self._size += len(data) - len(self._records.pop(digest, b""))
        self._records[digest] = data
        while self._size > REMEMBERED and len(self._records) > 1:
            self._size -= len(self._records.popitem(last=False)[1])

    def _decoded(self, decode: Callable[[bytes], Any], data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return decode(data)
        except msgspec.DecodeError as error:
            say("entry", f"damaged: {error}", "entry_misses")
            return None


_encoder = msgspec.msgpack.Encoder()
_rows_decoder = msgspec.msgpack.Decoder(list[Row])
_entry_decoder = msgspec.msgpack.Decoder(KeptEntry)
_known: weakref.WeakKeyDictionary[Store, Kept] = weakref.WeakKeyDictionary()


def kept_in(store: Store) -> Kept:
    found = _known.get(store)
    if found is None:
        found = _known[store] = Kept(store)
    return found


def forget() -> None:
    """What was read and made so far; the store stays as it is."""
    _known.clear()


def say(level: str, reason: str, group: str) -> None:
    """Count and log why an entry is not kept or not used."""
    counters.count_in(group, f"{level}: {reason}")
    logs.log("cache", f"{level} {'not kept' if group == 'not_kept' else 'not used'}: {reason}")


def _with(rows: Sequence[Row], row: Row) -> list[Row]:
    return [*(other for other in rows if other.digest != row.digest), row][-KEPT:]


# ---- what a row shows


def _shown(guards: Sequence[Guard]) -> list[tuple[list[Tree], list[int | None]]]:
    found: list[tuple[list[Tree], list[int | None]]] = []
    for guard in guards:
        if isinstance(guard.check, TensorMatches) and guard.source is not None:
            path = _path(guard.source)
            if path is not None:
                found.append((path, list(guard.check.sizes)))
                if len(found) == SHOWN:
                    break
    return found


def _path(source: S.Source) -> list[Tree] | None:
    """The number of the slot and the steps from there; None where one may run code."""
    steps: list[Tree] = []
    while not isinstance(source, S.Local):
        if type(source) is S.InstanceDict:
            steps.append(None)
        elif type(source) is S.Key and type(source.key) is str:
            steps.append(source.key)
        elif type(source) is S.Item:
            steps.append(source.index)
        else:
            return None
        source = source.base
    return [source.index, *reversed(steps)]


def _may_serve(row: Row, slots: Sequence[Any]) -> bool:
    try:
        return all(_has_sizes(_at(path, slots), sizes) for path, sizes in row.tensors)
    except (LookupError, TypeError, AttributeError):
        return False  # the guards demand a tensor there


def _at(path: Sequence[Tree], slots: Sequence[Any]) -> Any:
    found = slots[path[0]]
    for step in path[1:]:
        if step is None:
            found = object.__getattribute__(found, "__dict__")
        elif type(step) is str:
            found = dict.__getitem__(found, step)
        else:
            found = (tuple if isinstance(found, tuple) else list).__getitem__(found, step)
    return found


def _has_sizes(x: Any, sizes: Sequence[int | None]) -> bool:
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return True
    found = torch._C.TensorBase.size(x)  # whatever the program puts in its place
    return len(found) == len(sizes) and all(
        wanted is None or wanted == size for wanted, size in zip(sizes, found)
    )
