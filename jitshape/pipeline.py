"""Every stage of a compile, in order: start reading here.

    call -> Dispatcher (C) -- miss --> Compiler.miss
        capture     frontend   bytecode and torch calls -> graph, guards, effects
        leave       frontend   code that rebuilds the result; says what the graph must give
        joint       ir         backward recorded behind forward, where a result requires grad
        share       cache      a graph with an equal key was compiled before: its program serves
        optimize    ir         functionalize, decompose, simplify, cse, dce
        partition   ir         forward and backward graphs
        generate    backend    kernels and program
        publish     frontend   guards + code -> entry of the Dispatcher

Invariant: an entry is published whole, or not at all; a call that cannot be compiled ends in the
user's own result, a warning and a counted fallback (`suppress_errors`), or in a JitshapeError.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import threading
import time
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from jitshape import shadow
from jitshape.assumptions import Assumptions
from jitshape.backend.anomaly import check_gradients
from jitshape.backend.autograd import contract_of, make_autograd_callable, with_consumed
from jitshape.backend.compile import Program, compile_graph, takes_list
from jitshape.cache import CompiledGraph, GraphCache, graph_key
from jitshape.entries import LIMITS_KEPT, Entries
from jitshape.errors import GraphBreak, InternalError, JitshapeError, RecompileRefused
from jitshape.forcing import Force
from jitshape.frontend import _evalframe, calibrate, dynamic
from jitshape.frontend._evalframe import TailCall
from jitshape.frontend.breaks import Continuations
from jitshape.frontend.capture import Capture, capture, program_code
from jitshape.frontend.emit import listing
from jitshape.frontend.guards import GuardProgram, assemble, explain
from jitshape.frontend.leave import Exit, leave
from jitshape.frontend.promises import check_promises
from jitshape.frontend.sources import Local
from jitshape.frontend.torchside import natives
from jitshape.frontend.torchside.ambient import foreign_mode
from jitshape.frontend.torchside.memory import memory_guards
from jitshape.frontend.torchside.tensors import TensorValue
from jitshape.frontend.torchside.varying import noting, symbolic_numbers, varying_slots
from jitshape.frontend.values.base import Break, Restart
from jitshape.ir.copies import is_told
from jitshape.ir.graph import Alias, Graph
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes import run_passes
from jitshape.ir.passes.order import CLEAN_UP, OPTIMIZE
from jitshape.ir.passes.partition import partition
from jitshape.ir.passes.tangents import with_defined_tangents
from jitshape.ir.printer import print_graph
from jitshape.ir.trace import Trace, written_with_autograd
from jitshape.module import is_wrapper, wrap_module
from jitshape.observe import counters, logs
from jitshape.observe.breaking import break_error, break_record, break_text
from jitshape.observe.explaining import (
    compile_record,
    limit_text,
    recompile_failures,
    symbol_lines,
)
from jitshape.observe.fixes import fixes_of
from jitshape.observe.misses import nearest_miss
from jitshape.observe.records import (
    PIECE,
    EntryRecord,
    FallbackRecord,
    GuardFailure,
    compiles_of,
    is_detailed,
    record,
)
from jitshape.options import Options, environment
from jitshape.stages import Native, builtins_changed, bypassed, collection_deferred, stage

# What autograd says in the trace, and why the function runs eagerly then.
BACKWARD_RAISES = {
    "modified by an inplace operation": "backward raises: a tensor it needs is overwritten",
    "symbolic sizes/strides": "a backward formula of C++ takes sizes for plain numbers",
}
LOCK_SECONDS = 60.0  # a second thread waits this long for a compile, then runs natively

_graphs = GraphCache()
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
    ) -> None:
        """`continuations`: those of the function that this one resumes; `told_as`: the function
        that people know, a module's forward in place of what calls it."""
        self.function, self.options = function, options
        self.code = getattr(told_as or function, "__code__", function.__code__)
        self.lock = threading.RLock()
        self.warned = False
        self.name = options.name or function.__qualname__
        self.shadow = None if continuations else shadow.setting()
        miss = self.miss if _force is None else _force.unseen(self.miss)
        made = self._held = _evalframe.Dispatcher(function, miss)
        self._dispatcher, own = weakref.ref(made), weakref.ref(self)
        self.entries = Entries(self._dispatcher, options.recompile_limit * LIMITS_KEPT)
        made.disabled = _stance[-1] == "force_eager"
        self.assumptions = Assumptions(
            lambda slots: own().dispatcher.call_original(slots),
            lambda reason: own()._fell_back(reason),
            None if options.fullgraph else lambda: own().forget(),
        )
        self.continuations = continuations or _continuations(options)
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
        mode = foreign_mode()
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

    def _compiles_in_vain(self) -> bool:
        """Whether calls bring ever new entries (of which the user was told), none with a graph."""
        most = self.options.recompile_limit * (4 if _force is None else 8)
        return self.entries.compiles > most and not self.entries.programs()

    def natively(self, slots: tuple[Any, ...], reason: str, fallback: bool = True) -> TailCall:
        """The call without compiled code."""
        if fallback:
            self._fell_back(reason)
        if _force is not None:
            _force.passes(self.function.__code__)
        return TailCall(self.dispatcher.call_original, slots)

    def _fell_back(self, reason: str) -> None:
        counters.count("fallbacks")
        counters.count_in("fallback_reasons", reason)
        counters.count_frame(reason.partition(":")[0])
        record(FallbackRecord(self.name, self.where(), reason))

    def where(self) -> str:
        return f"{self.code.co_filename}:{self.code.co_firstlineno}"

    def compile(self, slots: tuple[Any, ...]) -> TailCall:
        """A new entry for this call; returns the call of it, or of the function itself."""
        failures = recompile_failures(self.entries.guards(), slots)
        if failures and _stance[-1] == "fail_on_recompile":
            raise RecompileRefused(
                f"{self.name} would be compiled again",
                where=self.where(),
                because="; ".join(map(str, failures)),
                avoid="set_stance('default')",
            )
        missed = nearest_miss(self.entries.guards(), slots) if failures else ()
        if failures:
            reasons = "\n".join(f"  {failure}" for failure in failures)
            logs.log("recompiles", f"{self.name} ({self.where()})\n{reasons}")
        start = time.thread_time()
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
        self._tell(made, failures, missed, time.thread_time() - start)
        if made.capture.policy.became_dynamic():
            dynamic.learn(program_code(self.function.__code__, slots))
        made.capture.release()
        extracted = program.run(slots)
        assert extracted is not None
        return TailCall(noting(entry, made.varying), *extracted)

    def _shadowed(
        self, program: GuardProgram, entry: Callable[..., Any]
    ) -> tuple[GuardProgram, Callable[..., Any]]:
        """What checks a sample of the entry's calls, if JITSHAPE_SHADOW is set."""
        if self.shadow is None:
            return program, entry
        count, names = len(program.extract), argument_names(self.function)
        arguments = (Local(i, name) for i, name in enumerate(names))
        program = assemble(program.guards, (*program.extract, *arguments))
        return program, shadow.shadowed(entry, count, self.function, self.shadow, self.name)

    def _made_for(self, slots: tuple[Any, ...]) -> Made:
        """An entry that serves this call.  What compiling itself changes and the program reads
        (lines looked up, warnings given) stands still the second time."""
        for _ in range(2):
            with collection_deferred(), bypassed():
                made = compile_call(
                    self.function, slots, self.options, self.continuations, self.assumptions.refuted
                )
            if made.program.run(slots) is not None:
                return made
            failure = explain(made.program, slots)
            made.capture.release()
        raise InternalError("publish", AssertionError(f"the entry misses its call: {failure}"))

    def _suppressed(self, error: JitshapeError, slots: tuple[Any, ...]) -> TailCall:
        self._warn(str(error))
        return self.natively(slots, str(error).splitlines()[0])

    def _warn(self, reason: str) -> None:
        """Say, once, why the function runs eagerly."""
        if not self.warned:
            self.warned = True
            logs.warn(f"{self.name} runs eagerly: {reason}")

    def _tell(
        self, made: Made, failures: list, missed: Sequence[GuardFailure], seconds: float
    ) -> None:
        """Count, log and record an entry."""
        counters.count("graph_hits" if made.shares else "compiles")
        if failures and not made.shares:
            counters.count("recompiles")
        count = self.entries.compiles
        record(
            compile_record(
                self.name, self.where(), made, missed, seconds, count, self.options.dynamic
            )
        )
        if count == self.options.recompile_limit + 1:
            fixes = fixes_of(compiles_of(self.name, self.where()))
            logs.warn(limit_text(self.name, self.where(), self.entries, failures, fixes))

    def entry_records(self) -> Iterator[EntryRecord]:
        """The entries as they stand."""
        for entry, known in self.entries.known():
            yield EntryRecord(
                function=self.name,
                where=self.where(),
                number=known.number,
                hits=entry.hits,
                guard_seconds=entry.guard_seconds / entry.timed if entry.timed else None,
                age=time.monotonic() - entry.created,
                native=known.native,
                guards=tuple(map(str, known.guards.guards)),
            )


def _natively_again(
    own: weakref.ref[Compiler], reason: str, fallback: bool, *slots: Any
) -> TailCall:
    compiler = own()
    assert compiler is not None  # its dispatcher makes this call
    return compiler.natively(slots, reason, fallback)


def _continuations(options: Options) -> Continuations:
    """The resume functions of a function with these options, compiled where they are called."""

    def piece(function: types.FunctionType) -> Any:
        continuations = known()
        assert continuations is not None  # it asks
        name = f"{function.__qualname__}{PIECE}{len(continuations.compiled) + 2}"
        own = replace(options, dynamic_shapes=None, name=name)
        return Compiler(function, own, continuations).hand_out()

    made = Continuations(piece)
    known = weakref.ref(made)
    return made


@dataclass(frozen=True, eq=False)
class Made:
    """A compiled entry and what people may want to know of it."""

    program: GuardProgram
    entry: types.FunctionType
    capture: Capture
    inputs: tuple[str, ...]
    graph: str
    compiled: Program | None
    shares: bool  # the graph was compiled before
    varying: frozenset[str]  # the numbers in the result that are symbolic
    assumes: bool  # something of numbers that exist only when the graph runs


# ---- one compile, stage by stage


def compile_call(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    continuations: Continuations,
    refuted: Collection[str] = (),
) -> Made:
    """From one call to an entry."""
    captured, exit_ = capture_and_leave(function, slots, options, continuations, refuted)
    try:
        _tell_outcome(captured, options)
        text, run, inputs, compiled, shared, shares = "", None, (), None, (), False
        shown = tuple(f"{i.source}: {i.tensor.value.type}" for i in captured.tracer.inputs)
        has_graph = exit_.keys or captured.tracer.trace.graph.nodes
        graph = finish_graph(captured, exit_.keys) if has_graph else None
        check_promises(captured)
        if environment("VALIDATE"):
            prove_guards(captured)
        varying = note_varying(captured, continuations)
        if graph is not None:
            if is_detailed() or logs.enabled("graph"):
                text = print_graph(graph)
                logs.log("graph", text)
            tensors = captured.tracer.graph_inputs()
            inputs = (*(i.source for i in tensors), *symbol_sources(captured, graph))
            consumed = consumed_places(captured, exit_.keys, graph)
            made, shares = shared_graph(graph, options, function.__qualname__)
            run, compiled = with_consumed(unseen(made.run), consumed), made.program
            shared = tuple(memory_guards(tensors, made.mutations, made.aliases))
    finally:
        captured.tracer.close()
    with stage("publish"):
        entry = exit_.emitter.finish(function.__globals__, run, inputs)
        assumes = bool(captured.tracer.env.asserts)
        extract = (*(argument_slots(function) if assumes else ()), *exit_.emitter.extract)
        program = assemble((*captured.guards(), *shared), extract)
    counters.spent("prover", captured.tracer.env.seconds)
    counters.count("symbols", len(captured.symbol_texts()))
    counters.count("guards", len(program.guards))
    _log_entry(captured, program, entry)
    return Made(program, entry, captured, shown, text, compiled, shares, varying, assumes)


def capture_and_leave(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    continuations: Continuations,
    refuted: Collection[str],
) -> tuple[Capture, Exit]:
    """A trace and the code that leaves it.  Where a value turns out not to be able to leave, the
    trace is made again, up to the instruction that makes the value; where the program can tell a
    copy from a view, with what eager makes at this call."""
    break_at: dict[int, Break] = {}
    exact = False
    while True:
        with stage("capture"):
            varying = continuations.varying_of(function.__code__)
            captured = capture(function, slots, options, break_at, varying, refuted, exact)
        try:
            _check_outcome(captured, options)
            with stage("leave"):
                exit_ = leave(captured, continuations)
            if exact or not _tells_copies(captured, exit_):
                return captured, exit_
            captured.release()
            exact = True
        except Restart as again:
            captured.release()
            if break_at and again.step >= min(break_at):
                raise InternalError("leave", again) from again
            break_at = {again.step: again.cause}
        except Native as native:
            native.program = assemble(captured.guards(), argument_slots(function))
            captured.release()
            raise
        except BaseException:
            captured.release()
            raise


def _tells_copies(captured: Capture, exit_: Exit) -> bool:
    trace = captured.tracer.trace
    outputs = [key.tensor.value for key in exit_.keys if isinstance(key, TensorValue)]
    return bool(trace.copies) and is_told(trace, outputs)


def argument_slots(function: types.FunctionType) -> tuple[Local, ...]:
    """Where a call's arguments are found."""
    return tuple(Local(i, name) for i, name in enumerate(argument_names(function)))


def argument_names(function: types.FunctionType) -> tuple[str, ...]:
    """The names of the argument slots, in frame order."""
    code = function.__code__
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]


def _check_outcome(captured: Capture, options: Options) -> None:
    """Send what cannot be compiled to plain Python, or refuse it."""
    outcome = captured.outcome
    if outcome.kind == "raise":
        counters.count_frame("raises")
        raise Native("the function raises", fallback=False)
    if outcome.kind == "return":
        return
    told = break_record(options.name or captured.function.__qualname__, outcome)
    if options.fullgraph:
        raise break_error(told)
    assert outcome.cause is not None
    if not outcome.frames or outcome.cause.kind == "trace_function":
        logs.log("graph_breaks", break_text(told))
        raise Native(f"{told.kind}: {told.reason}", fallback=True)


def _tell_outcome(captured: Capture, options: Options) -> None:
    """Count the frames that are compiled; count, log and record the break it ends at."""
    counters.count_frame(handled=captured.machine.frames_run)
    if captured.outcome.kind != "return":
        told = break_record(options.name or captured.function.__qualname__, captured.outcome)
        counters.count("graph_breaks")
        counters.count_in("break_reasons", f"{told.kind}: {told.reason}")
        logs.log("graph_breaks", break_text(told))
        record(told)


def note_varying(captured: Capture, continuations: Continuations) -> frozenset[str]:
    """Tell the functions that go on after a break what was symbolic; returns what is in the
    result of one that ends."""
    outcome, env = captured.outcome, captured.tracer.env
    for code, source in varying_slots(outcome.frames, env):
        continuations.varying.setdefault(code, set()).add(source)
    return frozenset(symbolic_numbers(outcome.value, env))


def prove_guards(captured: Capture) -> None:
    """That the guards on sizes imply what was relied on, by z3."""
    from jitshape.ir.validation import validate

    outcome = validate(captured.tracer.env)
    counters.count_in("validation", "proved", outcome.proved)
    counters.count_in("validation", "open", outcome.open)


def finish_graph(captured: Capture, keys: Sequence[Any]) -> Graph:
    """The recorded graph with its outputs, and backward behind it where one requires grad."""
    trace = captured.tracer.trace
    graph = trace.graph
    tracked = differentiated(captured, keys)
    graph.outputs = [*map(output_of(trace, tracked), keys)]
    graph.returned = len(keys)
    captured.tracer.drop_unused_inputs()
    graph.symbols = captured.tracer.passed_symbols()
    if tracked:
        with stage("joint"):
            leaves = [t for t in trace.leaves if t.requires_grad]
            count = len(graph.inputs)
            try:
                found = iter(trace.backward(tracked, inputs=leaves))
            except RuntimeError as error:
                for text, reason in BACKWARD_RAISES.items():
                    if text in str(error):
                        raise Native(reason, True) from error
                raise
            gradients = [next(found) if t.requires_grad else None for t in trace.leaves]
        graph.outputs += [None if g is None else g.value for g in gradients]
        graph.gradients = count
        graph.differentiated = [t.value for t in tracked]
    elif torch.is_grad_enabled():
        graph.tracking = any(value.requires_grad for value in graph.inputs)
    return graph


def consumed_places(captured: Capture, keys: Sequence[Any], graph: Graph) -> tuple[int, ...]:
    """Places of results that require grad, though a backward in the program freed their graph."""
    trace = captured.tracer.trace
    tracked = {value.storage for value in (*graph.differentiated, *graph.inputs)}
    return tuple(
        place
        for place, key in enumerate(keys)
        if trace.consumes and isinstance(key, TensorValue)
        if key.tensor.requires_grad and key.tensor.value.storage not in tracked
    )


def output_of(trace: Trace, differentiated: Sequence[Any]) -> Callable[[Any], Any]:
    """Gives the graph output of a key.  A detached tensor whose memory is also that of a result
    or an input that requires grad is a view of it, which does not."""
    tracked = {t.value for t in (*differentiated, *trace.leaves) if t.requires_grad}

    def output(key: Any) -> Any:
        if not isinstance(key, TensorValue):
            return key
        value = key.tensor.value
        if value in tracked and not key.tensor.requires_grad:
            value = trace.call(OPS["aten.detach.default"], [value], {})
        value.requires_grad = key.tensor.requires_grad
        return value

    return output


def differentiated(captured: Capture, keys: Sequence[Any]) -> list[Any]:
    """The symbolic tensors that get a tangent: results that require grad (of a view, the tensor
    that autograd has it view) and written inputs that do."""
    leaves = captured.tracer.trace.leaves
    if not any(t.requires_grad for t in leaves):
        return []
    storages = {t.value.storage for t in leaves}
    fresh: dict[int, Any] = {}
    for result in (k.tensor for k in keys if isinstance(k, TensorValue)):
        if result.requires_grad and result.value.storage not in storages:
            owner = result if result._base is None else result._base
            known = owner.dtype == result.dtype or owner.is_complex()  # a view autograd can make
            if not known or not owner.requires_grad:
                owner = result
            if not captured.tracer.trace.is_consumed(owner):
                fresh[id(owner)] = owner
    inputs = [i.tensor for i in captured.tracer.inputs]
    written = [t for t in inputs if t.requires_grad and not t.is_leaf and written_with_autograd(t)]
    return [*fresh.values(), *written]


def symbol_sources(captured: Capture, graph: Graph) -> list[Any]:
    symbols = captured.tracer.symbols
    return [symbols[str(symbol)] for symbol in graph.symbols]


def shared_graph(graph: Graph, options: Options, name: str) -> tuple[CompiledGraph, bool]:
    """The compiled graph, and whether an earlier entry's serves."""
    own = callable(options.backend)  # a back end of the user's sees every graph
    key = None if own else graph_key(graph, options.backend, options.memory_plan, name)
    found = _graphs.find(key)
    if found is not None:
        return found, True
    with torch._C.DisableTorchFunction():
        run, program = compile_recorded(graph, options, name)
    aliases = tuple(output for output in graph.outputs if isinstance(output, Alias))
    made = CompiledGraph(run, program, tuple(graph.mutations), aliases)
    _graphs.add(key, made)
    return made, False


def compile_recorded(
    graph: Graph, options: Options, name: str
) -> tuple[Callable[..., Any], Program]:
    """The callable that takes the graph's inputs and gives its outputs."""
    with stage("optimize"):
        run_passes(graph, OPTIMIZE, observers=(_log_pass,))
    if not graph.gradients:
        program = generate(graph, options)
        return first(program.run, graph), program
    with stage("partition"):
        split = partition(graph)
        contract = contract_of(graph, split)

    def compile_backward(defined: tuple[bool, ...]) -> Callable[..., Any]:
        counters.count("backward_compiles")
        with collection_deferred():
            backward = with_defined_tangents(split.backward, defined)
            run_passes(backward, CLEAN_UP, has=split_has)
            backward.consumed = True
            return generate(backward, options).run

    def watch(defined: tuple[bool, ...], inputs: Sequence[Any]) -> None:
        check_gradients(with_defined_tangents(split.backward, defined), sum(defined), inputs)

    split_has = {p for step in OPTIMIZE for p in step.provides}
    program = generate(split.forward, options)
    run = make_autograd_callable(program.run, compile_backward, contract, name, watch)
    return run, program


def unseen(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with its calls of torch out of sight of the function modes that are on, such as the
    one that gives new tensors the default device."""

    def hidden(*inputs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return run(*inputs)

    return hidden if torch._C._len_torch_function_stack() else run


def first(run: Callable[..., Any], graph: Graph) -> Callable[..., Any]:
    """`run` without the outputs behind those that the user gets."""
    count = graph.returned
    if count is None or count == len(graph.outputs):
        return run
    return lambda *inputs: run(*inputs)[:count]


def generate(graph: Graph, options: Options) -> Program:
    """Kernels and program of one graph."""
    backend = options.backend
    if backend == "auto":
        on_gpu = any(v.type.device.type == "cuda" for v in graph.inputs)
        backend = "triton" if on_gpu else "cpu"
    if callable(backend):
        program = Program(takes_list(graph, backend(graph, example_inputs(graph))))
    else:
        with stage("generate"):
            program = compile_graph(graph, backend=backend, memory_plan=options.memory_plan)
    counters.count("graphs")
    counters.count("kernels", len(program.kernels))
    for op, calls in program.externs.items():
        counters.count_in("extern_ops", op, calls)
    for line in program.log:
        logs.log("schedule", line)
    if logs.enabled("output_code"):
        for kernel in program.kernels:
            logs.log("output_code", kernel.source or kernel.text)
        logs.log("output_code", program.source)
    return program


def example_inputs(graph: Graph) -> list[Any]:
    """Tensors (of zeros) and numbers such as this call gives to `graph`, for a user's backend."""

    def actual(sizes: Sequence[Any]) -> list[int]:
        return [graph.env.actual(s) or 0 for s in sizes]

    types_ = [value.type for value in graph.inputs]
    tensors = [
        torch.empty_strided(
            actual(t.shape), actual(t.strides), dtype=t.dtype, device=t.device
        ).zero_()
        for t in types_
    ]
    return [*tensors, *actual(graph.symbols)]


def _log_pass(name: str, graph: Graph) -> None:
    if name == OPTIMIZE[-1].name and logs.enabled("functional"):
        logs.log("functional", print_graph(graph))


def _log_entry(captured: Capture, program: GuardProgram, entry: types.FunctionType) -> None:
    if logs.enabled("dynamic"):
        for line, debug in symbol_lines(captured):
            logs.log("dynamic", line, debug=debug)
    if logs.enabled("guards"):
        logs.log("guards", str(program))
    if logs.enabled("bytecode"):
        logs.log("bytecode", listing(entry.__code__))


# ---- what api.py calls


def start() -> None:
    """Self-tests and the log setting of the environment, once."""
    global _started, _force
    if not _started:
        _started = True
        if environment("FORCE") not in ("", "0"):
            _force = Force(lambda function: Compiler(function, Options()))
        if environment("LOGS"):
            logs.set_logs(environment("LOGS"))
        calibrate.install()
        calibrate.install_ambient()
        _evalframe.set_foreign_notice(_stand_back)


def _stand_back() -> None:
    logs.warn(
        "another tool evaluates Python frames here (torch.compile, a debugger): compiled functions "
        "run as they are as long as it does"
    )


def callable_of(function: types.FunctionType, options: Options, told_as: Any = None) -> Any:
    """What is called in place of `function`."""
    dispatcher = Compiler(function, options, told_as=told_as).hand_out()
    return dispatcher if _force is None else _force.round(dispatcher)


def compiled(fn: Any, options: Options) -> Any:
    """What `jitshape.compile` returns for `fn`."""
    start()
    if isinstance(fn, _evalframe.Dispatcher) or is_wrapper(fn):
        return fn
    if isinstance(fn, nn.Module):
        call = type(fn).__call__
        named = replace(options, name=options.name or type(fn).__qualname__)
        bound = types.MethodType(callable_of(call, named, type(fn).forward), fn)
        return wrap_module(fn, bound, options)
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
    natives.disable(fn)
    return fn


def allow_in_graph(fn: Any) -> Any:
    natives.allow(fn)
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
    for compiler in list(_compilers):
        if compiler.dispatcher is not None:
            compiler.dispatcher.disabled = stance == "force_eager"


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
    _graphs.clear()
