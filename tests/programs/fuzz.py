"""The mutation fuzzer: a call after any one change misses, or gives eager's outcome.

In: a compiled callable, the function behind it, and the arguments of a call that hits.  The
objects on the paths of all guards and extracted sources are found by walking them; each is
changed in every way that changes.py knows, one at a time.  A miss needs no further look: it
compiles for what is there.
"""

from __future__ import annotations

import builtins
import copy
import random
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import jitshape
from jitshape.compiler import live_dispatchers
from jitshape.frontend._evalframe import Dispatcher
from jitshape.frontend.checks import Holds, Is
from jitshape.frontend.guards import Absent, read
from jitshape.frontend.libraries import is_library
from jitshape.frontend.sources import Held, InstanceDict, Key, Number, Source
from tests.programs.changes import (
    Change,
    Marked,
    ambient,
    changes,
    is_library_namespace,
    shared_memory,
)
from tests.programs.compare import assert_same


class Missed(BaseException):
    """No entry serves the call."""


def missed(dispatcher: Any, slots: tuple) -> Any:
    raise Missed


NEW_CALL = ("__call__ is new", "first base with __call__")
WHEN = ("compiled after the change", "the second call after it", "after it was undone")

# As they were before any change.
PLAIN, DETACH = torch._C.DisableTorchFunctionSubclass, torch.Tensor.detach
CLONE, COPY = torch.Tensor.clone, torch.Tensor.copy_
TENSOR, MODULE, GENERATOR = torch.Tensor, nn.Module, torch.default_generator


def content(tensor: torch.Tensor) -> torch.Tensor:
    with PLAIN():
        return CLONE(DETACH(tensor))


@dataclass
class Report:
    """`wrong`: changes after which a call hit and gave another outcome than eager."""

    changes: int = 0
    misses: int = 0
    wrong: list[str] = field(default_factory=list)


class NotComparable(Exception):
    """Calls differ already where nothing is changed."""


@dataclass(frozen=True, eq=False)
class Fuzzer:
    """`compiled(*args)` hits.  `outcome` runs a callable on arguments that are the same each
    time."""

    compiled: Callable
    function: Callable
    args: tuple
    writes: bool  # the function writes to its arguments: each call needs its own
    state: torch.Tensor = field(default_factory=torch.get_rng_state)
    tensors: list[torch.Tensor] = field(default_factory=list)  # that the program may write to

    def __post_init__(self) -> None:
        entries = dispatcher_of(self.compiled).miss.__self__.entries.guards()
        found = (value for value, _ in self.objects(entries))
        self.tensors.extend(value for value in found if isinstance(value, torch.Tensor))

    def outcome(
        self, function: Callable, args: tuple, new: Any = None
    ) -> tuple[str, Any, list[torch.Tensor]]:
        """How the call ends, with what, and what it left in all tensors, which then hold again
        what they held before.  Runs no Python code of torch's, which may be changed."""
        GENERATOR.set_state(self.state)
        tensors = [*self.tensors, *([new] if isinstance(new, TENSOR) else ())]
        if isinstance(new, MODULE):
            tensors += new.state_dict(keep_vars=True).values()
        before = list(map(content, tensors))
        how, result = self.called(function, args)
        after = list(map(content, tensors))
        with PLAIN():
            for tensor, value in zip(tensors, before):
                with suppress(RuntimeError):  # expanded, or of another shape by now
                    COPY(DETACH(tensor), value)
        return how, result, after

    def called(self, function: Callable, args: tuple) -> tuple[str, Any]:
        try:
            return "returns", function(*args)
        except Missed:
            return "misses", None
        except Exception as error:
            return "raises", isinstance(error, Marked)

    def run(self, limit: int | None = None, seed: int = 0) -> Report:
        dispatchers = live_dispatchers()
        former = [dispatcher.miss for dispatcher in dispatchers]
        todo = list(self.changes())
        if limit is not None and len(todo) > limit:
            todo = random.Random(seed).sample(todo, limit)
        report = Report()
        try:
            for dispatcher in dispatchers:
                dispatcher.miss = missed
            self.compare()
            for change in todo:
                self.judge(change, report)
            self.compare()
        finally:
            for dispatcher, miss in zip(dispatchers, former):
                dispatcher.miss = miss
        return report

    def run_through(self, limit: int | None, seed: int = 0) -> Report:
        """As `run`, but a miss compiles, for what is there after the change; the next call finds
        that entry, and the one after that, when all is as it was, the first one again.  Of what
        is torch's own nothing is changed, since the compiler uses it itself."""
        todo = [change for change in self.changes() if not change.of_torch]
        if limit is not None and len(todo) > limit:
            todo = random.Random(seed).sample(todo, limit)
        report = Report()
        self.compare()
        for change in todo:
            self.judge_through(change, report)
        return report

    def judge_through(self, change: Change, report: Report) -> None:
        before = self.outcome(self.function, self.fresh())
        compiles = jitshape.stats()["compiles"]
        try:
            undo = change.make()
        except Exception:
            return  # the object does not allow it
        try:
            calls = [self.fresh() for _ in range(3)]
        except Exception:
            undo()
            return  # what it is now cannot be copied
        try:
            expected, *found = (
                self.outcome(call, args, change.new)
                for call, args in zip((self.function, self.compiled, self.compiled), calls)
            )
        finally:
            undo()
        found.append(self.outcome(self.compiled, self.fresh()))
        report.changes += 1
        report.misses += jitshape.stats()["compiles"] > compiles
        for when, wanted, got in zip(WHEN, (expected, expected, before), found):
            try:
                assert_same(wanted, got)
            except AssertionError as error:
                report.wrong.append(f"{change.text}, {when}: {str(error).splitlines()[0]}")
                return

    def compare(self) -> None:
        """Nothing is changed: the calls hit, and eager agrees with itself and with them."""
        first, second = (self.outcome(self.function, self.fresh()) for _ in range(2))
        third = self.outcome(self.compiled, self.fresh())
        try:
            assert_same(first, second)
            assert_same(second, third)
        except Exception as error:
            raise NotComparable(str(error)) from error

    def fresh(self) -> tuple:
        return copy.deepcopy(self.args) if self.writes else self.args

    def judge(self, change: Change, report: Report) -> None:
        try:
            undo = change.make()
        except Exception:
            return  # the object does not allow it
        try:
            mine, theirs = self.fresh(), self.fresh()
        except Exception:
            undo()
            return  # what it is now cannot be copied
        report.changes += 1
        expected = None
        try:
            got = self.outcome(self.compiled, mine, change.new)
            if got[0] != "misses":
                expected = self.outcome(self.function, theirs, change.new)
        finally:
            undo()
        if expected is None:
            report.misses += 1
            return
        try:
            assert_same(expected, got)
            assert_same(theirs, mine)
        except AssertionError as error:
            report.wrong.append(f"{change.text}: {str(error).splitlines()[0]}")

    # ---- what the trace met

    def changes(self) -> Iterator[Change]:
        entries = dispatcher_of(self.compiled).miss.__self__.entries.guards()
        codes = self.codes(entries)
        names = {name for code in codes for name in names_in(code)}
        own = {n for c in codes if not is_library(c.co_filename) for n in names_in(c)}
        own -= set(dir(torch.Tensor))  # methods, whose functions call each other
        objects = self.objects(entries)
        keys = self.keys_of_libraries(entries)
        for value, text in objects:
            table = vars(value) if isinstance(value, types.ModuleType) else value
            if isinstance(table, dict) and is_library_namespace(table):
                here = keys.get(id(table), set())
                modules = {n for n in own if isinstance(table.get(n), types.ModuleType)}
                names_here = own - modules - set().union(*keys.values()) | here
                found = changes(value, text, names_here)
                yield from (replace(change, of_torch=True) for change in found)
            else:
                found = changes(value, text, names)
                if str(getattr(value, "__module__", "")).partition(".")[0] == "torch":
                    found = (replace(change, of_torch=True) for change in found)
                # a compiled module stands for the `__call__` that its class had
                is_own = value is type(self.function)
                yield from (c for c in found if not (is_own and c.text.endswith(NEW_CALL)))
        yield from shared_memory([(v, t) for v, t in objects if isinstance(v, torch.Tensor)])
        yield from ambient()

    def keys_of_libraries(self, entries: list) -> dict[int, set[str]]:
        """Of each namespace of torch or Python the names that guards read.  What functions there
        read of each other's namespaces is not the program's to change."""
        slots, found = slots_of(self.compiled, self.args), {}
        for source in {s for known in entries for s in paths(known) if isinstance(s, Key)}:
            with suppress(Absent):
                table = read(source.base, slots)
                if is_library_namespace(table):
                    found.setdefault(id(table), set()).add(source.key)
        return found

    def codes(self, entries: list) -> set[types.CodeType]:
        """The code that was traced."""
        guards = (guard for known in entries for guard in known.guards)
        held = {g.check.object for g in guards if isinstance(g.check, Is) and is_code(g.check)}
        return {dispatcher_of(self.compiled).__wrapped__.__code__, *held}

    def objects(self, entries: list) -> list[tuple[Any, str]]:
        """The objects on the paths of the guards."""
        slots = slots_of(self.compiled, self.args)
        found: dict[int, tuple[Any, str]] = {}
        for known in entries:
            for source in paths(known):
                try:
                    value = read(source, slots)
                except Absent:
                    continue
                if value is vars(builtins) or is_internal(value, source):
                    continue  # this program could not go on; nobody can reach it
                found.setdefault(id(value), (value, str(source)))
        return list(found.values())


def is_internal(value: Any, source: Source) -> bool:
    """A constant of the trace, or what torch keeps in its own objects (ops, say)."""
    if isinstance(value, torch.Tensor):
        return isinstance(source, Held)
    owner = getattr(source, "base", None) if isinstance(source, InstanceDict) else None
    own = owner.object if isinstance(owner, Held) else None
    return type(own).__module__.startswith("torch._")


def is_code(check: Is) -> bool:
    return type(check.object) is types.CodeType


def paths(known: Any) -> Iterator[Source]:
    """Every source of a guard program and all that they start from, outermost first."""
    seen: set[Source] = set()
    starts = [guard.source for guard in known.guards if guard.source is not None]
    for guard in known.guards:
        if isinstance(guard.check, Holds):
            starts += [source for _, source in guard.check.symbols]
        starts.append(getattr(guard.check, "other", None))
    for start in (*starts, *known.extract):
        chain = []
        while start is not None and start not in seen:
            seen.add(start)
            chain.append(start)
            start = getattr(start, "base", None)
        yield from (source for source in reversed(chain) if not isinstance(source, Number))


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from names_in(const)


def dispatcher_of(compiled: Any) -> Any:
    held = getattr(compiled, "_jitshape", None)
    compiled = compiled if held is None else held.call
    return getattr(compiled, "__func__", compiled)


def slots_of(compiled: Any, args: tuple) -> tuple:
    """The slots of a call, seen by a dispatcher that has no entries."""
    held = getattr(compiled, "_jitshape", None)
    call = compiled if held is None else held.call
    first = (call.__self__,) if isinstance(call, types.MethodType) else ()
    function = dispatcher_of(compiled).miss.__self__.function
    seen: list[tuple] = []
    Dispatcher(function, lambda _, slots: seen.append(slots))(*first, *args)
    return seen[0]


def others_beside(compiled: Callable, args: tuple) -> None:
    """Entries for calls of other sizes and dtypes, as far as the program takes such."""
    ways = (lambda t: torch.cat([t, t]) if t.dim() else t, lambda t: t.double())
    for way in ways:
        other = [way(a) if isinstance(a, torch.Tensor) else copy.deepcopy(a) for a in args]
        with suppress(Exception):
            compiled(*other)


def fuzz(
    compiled: Callable,
    function: Callable,
    args: tuple,
    limit: int | None = None,
    through: bool = False,
) -> Report:
    """Compile for the call, then judge a call after each of (at most `limit`) changes; `through`:
    also what is compiled after it."""
    for _ in range(3):  # the entry, and a table that has a snapshot
        compiled(*copy.deepcopy(args))
    fuzzer, before = Fuzzer(compiled, function, args, writes=through), copy.deepcopy(args)
    fuzzer.outcome(function, args)
    try:
        assert_same(before, args)
    except AssertionError:  # a container has changed
        fuzzer = Fuzzer(compiled, function, before, writes=True)
    return fuzzer.run_through(limit) if through else fuzzer.run(limit)


def must_find_nothing(compiled: Callable, function: Callable, args: tuple) -> None:
    """For programs of other tests, of which some cannot be called twice with one outcome."""
    with suppress(NotComparable):
        report = fuzz(compiled, function, args, 400)
        assert not report.wrong, "\n".join(report.wrong)
