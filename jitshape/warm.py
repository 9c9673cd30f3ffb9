"""Warm start: entries that earlier processes made serve without a trace.

In: an entry of this process, to keep; or a call that no entry serves.  Out: a record in the store;
or an entry of an earlier process whose guards, assembled anew for the objects of this one, hold of
the call.
The records of a function lie under one key: the content of its code, its name, and the options
that a trace depends on.  Functions that the trace went into are objects of the record
(frontend/records/objects.py): their code must be what it was.
Invariant: an entry is kept only if all that its trace relied on is in its record; why one is not
kept, or not used, is counted (`stats()["details"]`) and logged (JITSHAPE_LOGS=cache).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jitshape.backend.compile import Program
from jitshape.cache.records import digest
from jitshape.cache.store import open_store
from jitshape.frontend import dynamic
from jitshape.frontend.capture import program_code, promises_of
from jitshape.frontend.guards import Absent, GuardProgram
from jitshape.frontend.marks import marks_of
from jitshape.frontend.records.entries import Reader, Writer
from jitshape.ir.records.plain import Unreadable, Unrecordable
from jitshape.kept import KeptEntry, kept_in, say
from jitshape.observe import counters, logs
from jitshape.options import Options, environment, switched
from jitshape.outcomes import Made
from jitshape.pipeline import callable_of
from jitshape.profile import code_key
from jitshape.programs import kept_graph

# Settings under which every entry is to be made here, or that are part of the key.
CHECKING = ("FORCE", "VALIDATE", "SHADOW")
POLICIES = ("DYNAMIC_SOURCES", "STATIC_SOURCES")


@dataclass(frozen=True, eq=False)
class Served:
    """An entry of an earlier process that serves a call; `extracted` is what it is called with."""

    guards: GuardProgram
    entry: types.FunctionType
    program: Program | None
    varying: frozenset[str]
    assumes: bool
    extracted: tuple


class WarmStart:
    """The kept entries of one function."""

    def __init__(self, function: types.FunctionType, options: Options) -> None:
        self.function, self.options = function, options

    def _key(self, slots: Sequence[Any], refuted: Collection[str]) -> str | None:
        """None: nothing is kept of this function."""
        o = self.options
        if callable(o.backend) or not o.cache:
            return None
        if any(map(switched, CHECKING)):
            return None
        f = self.function
        codes = tuple(map(code_key, (f.__code__, program_code(f.__code__, tuple(slots)))))
        asked = o.dynamic, o.backend, o.unroll_limit, o.memory_plan, o.fast_random, o.mode, o.name
        spec = None if o.dynamic_shapes is None else o.dynamic_shapes.key()
        said = spec, *(environment(name) for name in POLICIES), sorted(refuted)
        process = sys.flags.optimize, torch.version.cuda and torch.cuda.device_count()
        return digest((codes, f.__module__, f.__qualname__, asked, said, process))

    # ---- to serve

    def find(self, slots: tuple[Any, ...], refuted: Collection[str]) -> Served | None:
        """The entry of an earlier process, or of another instance, that serves this call.
        `refuted`: what turned out not to hold of numbers of run time, and entries must not assume.
        Raises BadSpec."""
        key, store = self._key(slots, refuted), open_store()
        if key is None or store is None:
            return None
        promises_of(self.function.__code__, slots, self.options)
        for kept in kept_in(store).candidates(key, slots):
            try:
                served = self._serve(kept, slots)
            except Unreadable as error:
                say("entry", f"{error}", "entry_misses")
                continue
            except Exception as error:  # a trace still serves the call
                _warn("read", self.function, error)
                continue
            if served is not None:
                counters.count_in("cache", "entry:hit")
                logs.log("cache", f"entry hit: {self.function.__qualname__}: nothing is traced")
                return served
        counters.count_in("cache", "entry:miss")
        return None

    def _serve(self, kept: KeptEntry, slots: tuple[Any, ...]) -> Served | None:
        reader = Reader(kept.entry, self.function, slots)
        try:
            return self._read(kept, reader, slots)
        finally:
            reader.release()

    def _read(self, kept: KeptEntry, reader: Reader, slots: tuple[Any, ...]) -> Served | None:
        guards = reader.guards()
        extracted = guards.run(slots)
        if extracted is None:
            say("entry", "its guards do not hold", "entry_misses")
            return None
        if any(map(marks_of, reader.tensors())):
            raise Unreadable("sizes of an input are marked")
        run, program = None, None
        if kept.graph is not None:
            graph = kept_graph(kept.graph, self.options, self.function.__qualname__)
            if graph is None:
                raise Unreadable("its program is not in the store")
            run = callable_of(graph, kept.consumed, kept.raises, kept.draws)
            program = graph.program
        code = reader.code(run)
        entry = types.FunctionType(code, self.function.__globals__, code.co_name)
        self._observe(kept, reader, slots)
        varying = frozenset(kept.varying)
        return Served(guards, entry, program, varying, kept.assumes, extracted)

    def _observe(self, kept: KeptEntry, reader: Reader, slots: tuple[Any, ...]) -> None:
        """Note the numbers of this call, as its trace would have, so that the next one knows what
        changed."""
        history = dynamic.history_of(program_code(self.function.__code__, slots))
        for text, place in kept.entry.numbers:
            try:
                history.observe(text, reader.at(place))
            except Absent:  # no guard holds on to it
                continue

    # ---- to keep

    def keep(self, made: Made, slots: tuple[Any, ...], refuted: Collection[str]) -> None:
        """Keep a new entry, if all of it can be written; `refuted`: what its trace did without."""
        key, store = self._key(slots, refuted), open_store()
        if key is None or store is None:
            return
        try:
            record = self._record(made)
            to_disk = made.called is None or made.called.kept
            kept_in(store).add(key, record, made.program.guards, to_disk)
        except Unrecordable as error:
            say("entry", str(error), "not_kept")
        except OverflowError:
            say("entry", "an integer beyond 64 bits", "not_kept")
        except Exception as error:  # the entry serves all the same
            _warn("kept", self.function, error)

    def _record(self, made: Made) -> KeptEntry:
        captured, called = made.capture, made.called
        if captured.outcome.kind != "return":
            raise Unrecordable("a graph break")
        if captured.machine.bound_by:
            raise Unrecordable(f"{captured.machine.bound_by} was read")
        if called is not None and not called.key:
            raise Unrecordable("its program is not kept")
        writer = Writer(self.function, made.program, None if called is None else called.run)
        observed = captured.policy.observed
        entry = writer.entry(made.entry.__code__, captured.tracer.env, observed)
        varying = sorted(made.varying)
        if called is None:
            return KeptEntry(entry, None, [], varying, made.assumes, False, False)
        consumed = list(called.consumed)
        flags = made.assumes, called.raises, called.draws
        return KeptEntry(entry, called.key, consumed, varying, *flags)


def _warn(what: str, function: types.FunctionType, error: Exception) -> None:
    cause = f"{type(error).__name__}: {error}"
    logs.warn(f"an entry of {function.__qualname__} cannot be {what} ({cause}); please report it")
    say("entry", f"internal error: {cause}", "entry_misses" if what == "read" else "not_kept")
