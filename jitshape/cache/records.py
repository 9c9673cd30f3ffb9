"""Compiled graphs on disk.

In: the key of a graph, and what was compiled of it.  Out: in a later process the same, read from
the levels "program" (forward, what autograd must know, the backward graph), "backward" (one program
for each set of tangents) and "texts" (what people may ask to see) of the store.
Invariant: an entry that cannot be read, or names what this process lacks, is a miss, with its
reason in `stats()["details"]` and the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import msgspec

import jitshape.cache.environment  # noqa: F401  (the store needs it: before the first call)
from jitshape.backend.autograd import Contract
from jitshape.backend.compile import Program
from jitshape.backend.records import ProgramRecord, Texts, read_program, write_program
from jitshape.cache.store import Store, open_store
from jitshape.ir.passes.under_autocast import Lowered
from jitshape.ir.records.plain import Reader, Record, Unreadable, Unrecordable, tree
from jitshape.observe import counters, logs

T = TypeVar("T")


class Joint(Record):
    """What makes a forward program one with a backward; `backward` is the graph."""

    contract: Contract
    backward: bytes


class GraphRecord(Record):
    """`cut`: how many outputs the user gets, if not all; `written`, `viewed`: inputs."""

    forward: ProgramRecord
    cut: int | None
    written: list[int]
    viewed: list[int]
    joint: Joint | None


def _read_leaf(wanted: type, given: Any) -> Any:
    found = Reader().read(given)
    if type(found) is not wanted:
        raise Unreadable(f"{given} is no {wanted}")
    return found


_encoder = msgspec.msgpack.Encoder(enc_hook=tree)


_DECODERS: dict[type, msgspec.msgpack.Decoder] = {
    kind: msgspec.msgpack.Decoder(kind, dec_hook=_read_leaf)
    for kind in (GraphRecord, ProgramRecord, Texts)
}


def digest(key: Hashable) -> str:
    """Of a key made of tuples, names, numbers, types and torch's constants."""
    return hashlib.sha256(repr(key).encode()).hexdigest()


class Shelf:
    """The entries of one graph; without a store, none."""

    def __init__(self, store: Store | None, key: str) -> None:
        self.store, self.key = store, key

    # ---- forward

    def load(self) -> tuple[Program, GraphRecord] | None:
        record = self._get("program", self.key, GraphRecord)
        if record is None:
            return None
        program = self._program("program", record.forward, self.key)
        return None if program is None else (program, record)

    def keep(
        self,
        program: Program,
        cut: int | None,
        written: Sequence[int],
        viewed: Sequence[int],
        joint: Callable[[], Joint] | None,
    ) -> bool:
        """Whether there is a record of it, which the store may have."""

        def record() -> GraphRecord:
            forward = self._recorded(program, self.key)
            made = None if joint is None else joint()
            return GraphRecord(forward, cut, list(written), list(viewed), made)

        return self._put("program", self.key, record)

    # ---- backward

    def load_backward(self, defined: tuple[bool, ...], lowered: Lowered) -> Program | None:
        key = self._backward(defined, lowered)
        record = self._get("backward", key, ProgramRecord)
        return None if record is None else self._program("backward", record, key)

    def keep_backward(self, defined: tuple[bool, ...], lowered: Lowered, program: Program) -> None:
        key = self._backward(defined, lowered)
        self._put("backward", key, lambda: self._recorded(program, key))

    def _backward(self, defined: tuple[bool, ...], lowered: Lowered) -> str:
        return digest((self.key, defined, *lowered))

    # ---- programs

    def _program(self, level: str, record: ProgramRecord, key: str) -> Program | None:
        try:
            return read_program(record, lambda: self._get("texts", key, Texts))
        except Unreadable as error:
            _refused(level, str(error))
            return None

    def _recorded(self, program: Program, key: str) -> ProgramRecord:
        record, texts = write_program(program)
        self._put("texts", key, lambda: texts)
        return record

    # ---- bytes

    def _get(self, level: str, key: str, kind: type[T]) -> T | None:
        data = None if self.store is None else self.store.get(level, key)
        if data is None:
            return None
        try:
            return _DECODERS[kind].decode(data)
        except (msgspec.DecodeError, Unreadable) as error:
            _refused(level, str(error))
            return None

    def _put(self, level: str, key: str, record: Callable[[], Any]) -> bool:
        if self.store is None:
            return False
        try:
            self.store.put(level, key, _encoder.encode(record()))
        except (OverflowError, Unrecordable) as error:  # also an integer beyond 64 bits
            counters.count_in("not_kept", f"{level}: {error}")
            logs.log("cache", f"{level} not kept: {error}")
            return False
        return True


def shelf(key: Hashable | None) -> Shelf:
    """Where the graph of this key is kept; None: nowhere."""
    store = None if key is None else open_store()
    return Shelf(store, digest(key) if store is not None else "")


def _refused(level: str, reason: str) -> None:
    counters.count_in("cache_misses", f"{level}: {reason}")
    logs.log("cache", f"{level} not used: {reason}")
