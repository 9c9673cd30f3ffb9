"""A compiled function: its dispatcher, its entries, and how a call that misses them is served.

In: a function or module and its options.  Out: a callable whose hits run in C; a miss goes through
`pipeline.compile_call`, or runs natively.
Invariant: an entry is published whole, or not at all; a call that cannot be compiled ends in the
user's own result, a warning and a counted fallback (`suppress_errors`), or in a JitshapeError.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jitshape import forks, parts
from jitshape.entries import LIMITS_KEPT, Entries
from jitshape.errors import GraphBreak, InternalError, JitshapeError, RecompileRefused
from jitshape.forcing import Force
from jitshape.frontend import _evalframe, dynamic
from jitshape.frontend._evalframe import TailCall
from jitshape.frontend.breaks import Continuations
from jitshape.frontend.guards import Failure, GuardProgram, assemble, explain
from jitshape.frontend.hook import call_unrouted
from jitshape.frontend.libraries import is_library
from jitshape.frontend.own_builtins import builtins_changed
from jitshape.frontend.sources import Local
from jitshape.frontend.suspension import is_driven, starter
from jitshape.observe import counters, logs
from jitshape.observe.explaining import (
    compile_record,
    limit_text,
    log_entry,
    log_guards,
    recompile_failures,
    recompile_text,
)
from jitshape.observe.fixes import fixes_of
from jitshape.observe.misses import nearest_miss
from jitshape.observe.records import (
    PIECE,
    EntryRecord,
    FallbackRecord,
    GuardFailure,
    compiles_of,
    record,
)
from jitshape.options import Options, environment, switched
from jitshape.outcomes import Made, argument_names, argument_slots, bound_slots
from jitshape.stages import Native, bypassed, collection_deferred, stage

LOCK_SECONDS = 60.0  # a second thread waits this long for a compile, then runs natively

_compilers: weakref.WeakSet[Compiler] = weakref.WeakSet()
_stance = ["default"]
_started = False
_force: Force | None = None  # JITSHAPE_FORCE


class Compiler:
    """What belongs to one compiled function: its dispatcher and the story of its entries."""

    def __init__(
        self,
        function: types.FunctionType,
        options: Options,
        continuations: Continuations | None = None,
        told_as: Any = None,
        serves_frames: bool = False,
    ) -> None:
        """`continuations`: those of the function that this one resumes; `told_as`: the function
        that people know, a module's forward in place of what calls it; `serves_frames`: it is
        called for frames that the hook sees, in place of them."""
        self.serves_frames = serves_frames
        self.function, self.options = function, options
        code = getattr(told_as or function, "__code__", function.__code__)
        self.lock = forks.lock()
        self.warned = False
        self.name = options.name or function.__qualname__
        self.shadow = None if continuations else parts.shadow_setting()
        miss = self.miss if _force is None else _force.unseen(self.miss)
        made = self._held = _evalframe.Dispatcher(function, miss)
        self._dispatcher, own = weakref.ref(made), weakref.ref(self)
        self.entries = Entries(self._dispatcher, options.recompile_limit * LIMITS_KEPT)
        made.disabled = _stance[-1] == "force_eager"
        self.assumptions = parts.Assumptions(
            lambda slots: own().dispatcher.call_original(slots),
            lambda reason: own()._fell_back(reason),
            None if options.fullgraph else lambda: own().forget(),
        )
        self.warm = None if continuations else parts.WarmStart(function, options)
        self.continuations = continuations or _continuations(options, self.name)
        self.place = _place(code, self.continuations.lines(function))
        _compilers.add(self)

    @property
    def dispatcher(self) -> Any:
        return self._dispatcher()

    def hand_out(self) -> Any:
        """The dispatcher.  From now on it keeps this alive, not the other way round, so that both
        are freed when the user drops it."""
        made, self._held = self.dispatcher, None
        return made

    def forget(self) -> None:
        self.entries.clear()
        self.continuations.vain, self.continuations.graphs = 0, False

    # ---- a call that no entry serves

    def miss(self, dispatcher: Any, slots: tuple[Any, ...]) -> Any:
        """Compile for this call; returns the call that serves it, for the dispatcher to make.
        An error behind a break is raised where the program stands, so that its handlers run."""
        try:
            return self.serve(dispatcher, slots)
        except BaseException as error:
            raising = self.continuations.raising(self.function)
            if raising is None:
                raise
            return TailCall(raising, *slots, error)

    def serve(self, dispatcher: Any, slots: tuple[Any, ...]) -> Any:
        """As `miss`; raises the compiler's errors."""
        stance = _stance[-1]
        mode = parts.foreign_mode()
        if mode:
            return self.natively(slots, f"{mode} must see every call of torch")
        if builtins_changed():
            return self.natively(slots, "builtins: one that the compiler needs is gone or replaced")
        if self._compiles_in_vain():
            return self.natively(slots, "recompiles: ever new entries, none with a graph")
        if not self.lock.acquire(timeout=LOCK_SECONDS):
            return self.natively(slots, "another thread is compiling this function")
        try:
            found = dispatcher.find_entry(slots)  # another thread may have compiled it
            if found is not None:
                return found
            if self.entries.compiles and stance == "eager_on_recompile":
                return self.natively(slots, "stance eager_on_recompile", fallback=False)
            return self.compile(slots)
        finally:
            self.lock.release()

    def precompile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make, or find on disk, the entry that serves such a call; nothing of it is run."""
        slots = bound_slots(self.function, args, kwargs)
        if self.dispatcher.find_entry(slots) is None:
            self.serve(self.dispatcher, slots)

    def _compiles_in_vain(self) -> bool:
        """Whether calls bring ever new entries (of which the user was told), none with a graph:
        of this function, or of the pieces that a function with breaks is in."""
        most = self.options.recompile_limit * 4
        return self.continuations.vain > most and not self.continuations.graphs

    def natively(self, slots: tuple[Any, ...], reason: str, fallback: bool = True) -> Any:
        """The call without compiled code; of a whole frame that the hook saw, that frame."""
        if fallback:
            self._fell_back(reason)
        if self.serves_frames:
            return _evalframe.RUN_FRAME
        if _force is not None:
            _force.passes(self.function.__code__)
        return TailCall(self.dispatcher.call_original, slots)

    def _fell_back(self, reason: str) -> None:
        counters.count("fallbacks")
        counters.count_in("fallback_reasons", reason)
        counters.count_frame(reason.partition(":")[0])
        record(FallbackRecord(self.name, self.place, reason))

    def compile(self, slots: tuple[Any, ...]) -> Any:
        """A new entry for this call; returns the call of it, or of the function itself."""
        if is_driven(self.function.__code__):
            return self._started(slots)
        failures, missed = self._missed(slots)
        start = time.thread_time()
        served = self._served(slots)
        if served is not None:
            return served
        try:
            made = self._made_for(slots)
        except Native as native:
            if native.program is not None:
                how = (native.reason, native.fallback)
                entry = functools.partial(_natively_again, weakref.ref(self), *how)
                self.entries.add_native(native.program, entry)
            if native.reason.startswith("code_object:"):
                self._warn(native.reason)
            return self.natively(slots, native.reason, native.fallback)
        except RecursionError:  # nor has the program, a few calls later
            return self.natively(slots, "recursion: the stack has no room for a compile")
        except GraphBreak:
            raise
        except JitshapeError as error:
            if not self.options.suppress_errors:
                raise
            return self._suppressed(error, slots)
        entry: Callable[..., Any] = made.entry
        if made.assumes:
            entry = self.assumptions.checked(entry, len(slots))
        program, entry = self._shadowed(made.program, entry)
        self.entries.add(program, entry, made.compiled)
        self.continuations.graphs |= made.compiled is not None
        if self.warm is not None:
            with stage("keep"), collection_deferred():
                self.warm.keep(made, slots, self.assumptions.refuted)
        made.program.assembled = None
        self._tell(made, failures, missed, time.thread_time() - start, slots)
        if made.capture.policy.became_dynamic():
            dynamic.learn(parts.program_code(self.function.__code__, slots))
        made.capture.release()
        extracted = program.run(slots)
        assert extracted is not None
        return TailCall(parts.noting(entry, made.varying), *extracted)

    def _started(self, slots: tuple[Any, ...]) -> TailCall:
        """The call of a function that suspends: what it gives runs compiled pieces."""
        program = assemble((), argument_slots(self.function))
        start = starter(self.function, self.continuations)
        self.entries.add_native(program, start)
        return TailCall(start, *slots)

    def _missed(self, slots: tuple[Any, ...]) -> tuple[dict[int, Failure], Sequence[GuardFailure]]:
        """What each entry, and the nearest one, failed at; told, and refused where the user said
        so."""
        failures = recompile_failures([known for _, known in self.entries.known()], slots)
        if failures and _stance[-1] == "fail_on_recompile":
            raise RecompileRefused(
                f"{self.name} would be compiled again",
                where=self.place,
                because="; ".join(map(str, failures.values())),
                avoid="set_stance('default')",
            )
        missed = nearest_miss(self.entries.guards(), slots) if failures else ()
        if failures:
            if logs.enabled("recompiles"):
                title = f"{self.name} ({self.place})"
                logs.log("recompiles", recompile_text(title, failures))
            self.continuations.vain += 1
        return failures, missed

    def _served(self, slots: tuple[Any, ...]) -> TailCall | None:
        """The call of an entry that an earlier process made."""
        if self.warm is None:
            return None
        with stage("warm"), collection_deferred():
            served = self.warm.find(slots, self.assumptions.refuted)
        if served is None:
            return None
        entry: Callable[..., Any] = served.entry
        if served.assumes:
            entry = self.assumptions.checked(entry, len(slots))
        self.entries.add(served.guards, entry, served.program)
        self.continuations.graphs |= served.program is not None
        counters.count("graph_hits")
        title = f"{self.name} ({self.place}), entry {self.entries.compiles}, kept"
        log_guards(title, served.guards)
        return TailCall(parts.noting(entry, served.varying), *served.extracted)

    def _shadowed(
        self, program: GuardProgram, entry: Callable[..., Any]
    ) -> tuple[GuardProgram, Callable[..., Any]]:
        """What checks a sample of the entry's calls, if JITSHAPE_SHADOW is set."""
        if self.shadow is None:
            return program, entry
        count, names = len(program.extract), argument_names(self.function)
        arguments = (Local(i, name) for i, name in enumerate(names))
        program = assemble(program.guards, (*program.extract, *arguments))
        return program, parts.shadowed(entry, count, self.function, self.shadow, self.name)

    def _made_for(self, slots: tuple[Any, ...]) -> Made:
        """An entry that serves this call.  What compiling itself changes and the program reads
        (lines looked up, warnings given) stands still the second time."""
        for _ in range(2):
            with collection_deferred(), bypassed():
                made = parts.compile_call(
                    self.function, slots, self.options, self.continuations, self.assumptions.refuted
                )
            if made.program.run(slots) is not None:
                return made
            failure = explain(made.program, slots)
            made.capture.release()
        raise InternalError("publish", AssertionError(f"the entry misses its call: {failure}"))

    def _suppressed(self, error: JitshapeError, slots: tuple[Any, ...]) -> Any:
        self._warn(str(error))
        return self.natively(slots, str(error).splitlines()[0])

    def _warn(self, reason: str) -> None:
        """Say, once, why the function runs eagerly."""
        if not self.warned:
            self.warned = True
            logs.warn(f"{self.name} runs eagerly: {reason}")

    def _tell(
        self,
        made: Made,
        failures: Mapping[int, Failure],
        missed: Sequence[GuardFailure],
        seconds: float,
        slots: tuple[Any, ...],
    ) -> None:
        """Count, log and record an entry."""
        counters.count("traces")
        counters.count("graph_hits" if made.shares else "compiles")
        if failures and not made.shares:
            counters.count("recompiles")
        count = self.entries.compiles
        log_entry(f"{self.name} ({self.place}), entry {count}", made)
        record(
            compile_record(
                self.name, self.place, made, missed, seconds, count, self.options.dynamic, slots
            )
        )
        if count == self.options.recompile_limit + 1:
            fixes = fixes_of(compiles_of(self.name, self.place))
            logs.warn(limit_text(self.name, self.place, self.entries, failures.values(), fixes))

    def entry_records(self) -> Iterator[EntryRecord]:
        """The entries as they stand."""
        for entry, known in self.entries.known():
            yield EntryRecord(
                function=self.name,
                where=self.place,
                number=known.number,
                hits=entry.hits,
                guard_seconds=entry.guard_seconds / entry.timed if entry.timed else None,
                age=time.monotonic() - entry.created,
                native=known.native,
                guards=tuple(map(str, known.guards.guards)),
            )


def _precompile(own: weakref.ref[Compiler], /, *args: Any, **kwargs: Any) -> None:
    compiler = own()
    assert compiler is not None  # the dispatcher that this is an attribute of owns it
    compiler.precompile(args, kwargs)


def _natively_again(own: weakref.ref[Compiler], reason: str, fallback: bool, *slots: Any) -> Any:
    compiler = own()
    assert compiler is not None  # its dispatcher makes this call
    return call_unrouted(compiler.natively, slots, reason, fallback)


def _place(code: types.CodeType, lines: Sequence[tuple[str, int]]) -> str:
    """Where a function is, for people: of the lines at which a piece goes on the innermost that
    is the user's, else the first line of its code."""
    own = [line for line in lines if not is_library(line[0])]
    file, line = own[-1] if own else (code.co_filename, code.co_firstlineno)
    return f"{file}:{line}"


def _continuations(options: Options, owner: str) -> Continuations:
    """The resume functions of a function with these options, compiled where they are called."""

    def piece(function: types.FunctionType) -> Any:
        continuations = known()
        assert continuations is not None  # it asks
        name = f"{owner}{PIECE}{len(continuations.compiled) + 2}"
        own = replace(options, dynamic_shapes=None, name=name)
        return Compiler(function, own, continuations).hand_out()

    made = Continuations(piece)
    known = weakref.ref(made)
    return made


def start() -> None:
    """Self-tests and the log setting of the environment, once."""
    global _started, _force
    if not _started:
        _started = True
        if switched("FORCE"):
            _force = Force(lambda function: Compiler(function, Options(), serves_frames=True))
        if environment("LOGS"):
            logs.set_logs(environment("LOGS"))
        parts.install()
        _evalframe.set_foreign_notice(_stand_back)


def _stand_back() -> None:
    logs.warn(
        "another tool evaluates Python frames here (torch.compile, a debugger): compiled functions "
        "run as they are as long as it does"
    )


def mark_coroutine_function(made: Any) -> None:
    """Have `iscoroutinefunction` tell that calls give coroutines: that of inspect, before 3.12
    that of asyncio."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(made)
    else:
        import asyncio.coroutines

        made._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def callable_of(function: types.FunctionType, options: Options, told_as: Any = None) -> Any:
    """What is called in place of `function`."""
    compiler = Compiler(function, options, told_as=told_as)
    dispatcher = compiler.hand_out()
    if not hasattr(function, "precompile"):  # the user's own attribute stays
        dispatcher.precompile = functools.partial(_precompile, weakref.ref(compiler))
    if inspect.iscoroutinefunction(function):
        mark_coroutine_function(dispatcher)
    return dispatcher if _force is None else _force.round(dispatcher)


def compiled(fn: Any, options: Options) -> Any:
    """What `jitshape.compile` returns for `fn`."""
    start()
    if isinstance(fn, _evalframe.Dispatcher) or parts.is_wrapper(fn):
        return fn
    if parts.is_module(fn):
        call = type(fn).__call__
        named = replace(options, name=options.name or type(fn).__qualname__)
        bound = types.MethodType(callable_of(call, named, type(fn).forward), fn)
        return parts.wrap_module(fn, bound, options)
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, types.FunctionType):
        return types.MethodType(callable_of(fn.__func__, options), fn.__self__)
    if isinstance(fn, types.FunctionType):
        return callable_of(fn, options)

    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return functools.wraps(fn, updated=())(callable_of(call, options))


def compiled_or_same(fn: Any) -> Any:
    return compiled(fn, Options())


def disabled(fn: Any) -> Any:
    parts.disable(fn)
    return fn


def allow_in_graph(fn: Any) -> Any:
    parts.allow(fn)
    return fn


class set_stance:
    """Holds from construction on; leaving a `with` on it restores the former stance."""

    def __init__(self, stance: str) -> None:
        self.former = _stance[-1]
        _take(stance)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: Any) -> None:
        _take(self.former)


def _take(stance: str) -> None:
    """Under "force_eager" the dispatchers pass every call on to the function itself."""
    _stance[-1] = stance
    for dispatcher in live_dispatchers():
        dispatcher.disabled = stance == "force_eager"


def live_dispatchers() -> list[Any]:
    """Those that can still be called: a compiler may outlive its dispatcher for a while."""
    found = [compiler.dispatcher for compiler in list(_compilers)]
    return [dispatcher for dispatcher in found if dispatcher is not None]


def live_entries() -> list[EntryRecord]:
    """All entries of all functions that are alive."""
    found = [record for compiler in list(_compilers) for record in compiler.entry_records()]
    return sorted(found, key=lambda r: (r.where, r.function, r.number))


@atexit.register
def _trace_entries() -> None:
    """The numbers of the entries stand at the end of a trace."""
    if environment("TRACE"):
        for entry in live_entries():
            record(entry)


def reset() -> None:
    """Forget entries and learned shapes."""
    for compiler in list(_compilers):
        compiler.forget()
    dynamic.forget_all()
    parts.forget_graphs()
