"""Every stage of a compile, in order: start reading here.

    call -> Dispatcher (C) -- miss --> compiler.py -> compile_call
        capture     frontend   bytecode and torch calls -> graph, guards, effects
        leave       frontend   code that rebuilds the result; says what the graph must give
        joint       ir         backward recorded behind forward, where a result requires grad
        programs.py            the program of the graph: found by an equal key, or made:
            share       cache      one that was compiled before, in this process or an earlier one
            optimize    ir         functionalize, decompose, simplify, cse, dce
            partition   ir         forward and backward graphs
            generate    backend    kernels and program
        publish     frontend   guards + code -> entry of the Dispatcher

Invariant: a stage that fails leaves nothing behind; its error is Native, which says why the call
must run as it is written, or a JitshapeError that names the stage.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from jitshape.assumptions import refutable
from jitshape.backend.autograd import with_consumed
from jitshape.cache.graphs import CompiledGraph
from jitshape.errors import JitshapeError
from jitshape.frontend.breaks import Continuations
from jitshape.frontend.capture import Capture, capture
from jitshape.frontend.checks import IsWord
from jitshape.frontend.emit import listing
from jitshape.frontend.guards import Guard, assemble
from jitshape.frontend.leave import Exit, leave
from jitshape.frontend.promises import check_promises
from jitshape.frontend.sources import Number
from jitshape.frontend.torchside.autograd_functions import function_behind
from jitshape.frontend.torchside.called_back import program_ended
from jitshape.frontend.torchside.freed import shared_frees
from jitshape.frontend.torchside.hooks import check_hooked
from jitshape.frontend.torchside.leaves import check_leaves
from jitshape.frontend.torchside.memory import memory_guards
from jitshape.frontend.torchside.storages import check_storages
from jitshape.frontend.torchside.tensors import TensorValue
from jitshape.frontend.torchside.varying import symbolic_numbers, varying_slots
from jitshape.frontend.values.base import Break, Restart
from jitshape.ir.copies import is_told
from jitshape.ir.graph import Graph, Node
from jitshape.ir.ops.registry import OPS
from jitshape.ir.printer import print_graph
from jitshape.ir.raising import raising
from jitshape.ir.trace import Trace, written_with_autograd
from jitshape.observe import counters, logs
from jitshape.observe.records import is_detailed
from jitshape.options import Options, switched
from jitshape.outcomes import (
    Called,
    Made,
    argument_slots,
    check_outcome,
    tell_outcome,
    until_it_leaves,
)
from jitshape.programs import shared_graph
from jitshape.stages import Native, stage

# What autograd says in the trace, and why the function runs eagerly then.
BACKWARD_RAISES = {
    "modified by an inplace operation": "backward raises: a tensor it needs is overwritten",
    "symbolic sizes/strides": "a backward formula of C++ takes sizes for plain numbers",
}
KERNEL_FAMILIES = ("pointwise", "reduction", "view", "factory")  # of ops that become no calls


# ---- one compile, stage by stage


def compile_call(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    continuations: Continuations,
    refuted: Collection[str] = (),
) -> Made:
    """From one call to an entry."""
    captured, exit_, graph = capture_and_leave(function, slots, options, continuations, refuted)
    try:
        tell_outcome(captured, options)
        text, called, inputs, compiled, shared, shares = "", None, (), None, (), False
        shown = tuple(f"{i.source}: {i.tensor.value.type}" for i in captured.tracer.inputs)
        check_promises(captured)
        if switched("VALIDATE"):
            prove_guards(captured)
        varying = note_varying(captured, continuations)
        if graph is not None:
            if is_detailed() or logs.enabled("graph"):
                text = print_graph(graph)
                logs.log("graph", text)
            tensors = captured.tracer.graph_inputs()
            inputs = (*(i.source for i in tensors), *symbol_sources(captured, graph))
            consumed = consumed_places(captured, exit_.keys, graph)
            raises, draws = raising(graph.nodes)
            made, shares = shared_graph(graph, options, function.__qualname__)
            run = callable_of(made, consumed, raises, draws)
            called = Called(run, made.key, made.kept, consumed, raises, draws)
            compiled = made.program
            shared = (*memory_guards(tensors, made.written, made.viewed), *word_guards(inputs))
    finally:
        captured.tracer.close()
    with stage("publish"):
        run = None if called is None else called.run
        entry = exit_.emitter.finish(function.__globals__, run, inputs)
        assumes = bool(captured.tracer.env.asserts) or (called is not None and called.raises)
        extract = (*(argument_slots(function) if assumes else ()), *exit_.emitter.extract)
        program = assemble((*captured.guards(), *shared), extract, to_keep=True)
    env = captured.tracer.env
    counters.spent("prover", env.seconds)
    for name, count in env.prover.counts().items():
        counters.count_in("prover", name, count)
    counters.count("symbols", len(captured.symbol_texts()))
    counters.count("guards", len(program.guards))
    if logs.enabled("bytecode"):
        logs.log("bytecode", listing(entry.__code__))
    return Made(program, entry, captured, shown, text, compiled, shares, varying, assumes, called)


def capture_and_leave(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    continuations: Continuations,
    refuted: Collection[str],
) -> tuple[Capture, Exit, Graph | None]:
    """A trace, the code that leaves it and the graph that this code needs.  Where a value turns
    out not to be able to leave, or code that backward calls not to be able to wait for it, the
    trace is made again, up to the instruction that made it so; where the program can tell a copy
    from a view, with what eager makes at this call."""
    exact = False

    def make(break_at: Mapping[int, Break]) -> Capture:
        with stage("capture"):
            varying = continuations.varying_of(function.__code__)
            return capture(function, slots, options, break_at, varying, refuted, exact)

    def finish(captured: Capture) -> tuple[Capture, Exit, Graph | None] | None:
        nonlocal exact
        check_outcome(captured, options)
        with stage("leave"):
            exit_ = leave(captured, continuations)
        if not exact and _tells_copies(captured, exit_):
            exact = True
            return None
        has_graph = exit_.keys or captured.tracer.trace.graph.nodes
        return captured, exit_, finish_graph(captured, exit_.keys) if has_graph else None

    return until_it_leaves(function, make, finish)


def _tells_copies(captured: Capture, exit_: Exit) -> bool:
    trace = captured.tracer.trace
    outputs = [key.tensor.value for key in exit_.keys if isinstance(key, TensorValue)]
    return bool(trace.copies) and is_told(trace, outputs)


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
    results = [key.tensor for key in keys if isinstance(key, TensorValue)]
    check_hooked(captured.machine, results)
    check_leaves(captured.machine, results)
    check_storages(captured.machine)
    tracked = differentiated(captured, keys)
    graph.outputs = [*map(output_of(trace, tracked), keys)]
    graph.returned = len(keys)
    graph.differentiated = [t.value for t in tracked]
    found = record_backward(captured, tracked) if tracked else {}
    captured.tracer.drop_unused_inputs(found)
    graph.symbols = captured.tracer.passed_symbols()
    if tracked:
        graph.outputs += [found.get(id(leaf)) for leaf in trace.leaves]
        graph.gradients = len(trace.leaves)
    else:
        required = torch.is_grad_enabled() and any(v.requires_grad for v in graph.inputs)
        graph.tracking = required or all(map(becomes_kernels, graph.nodes))
    return graph


def becomes_kernels(node: Node) -> bool:
    """Whether autograd does not matter to the op's code, as a rule: one program serves both."""
    return node.op in OPS and OPS[node.op].family in KERNEL_FAMILIES


def record_backward(captured: Capture, tracked: Sequence[Any]) -> dict[int, Any]:
    """Backward from `tracked`; the values of the gradients by the id of their leaf.  The graph's
    last inputs are the tangents, also if backward met tensors that forward had not."""
    trace = captured.tracer.trace
    graph = trace.graph
    leaves = [t for t in trace.leaves if t.requires_grad]
    first, end = len(graph.inputs), len(graph.inputs) + len(tracked)
    with stage("joint"):
        try:
            with trace:
                graph.frees = shared_frees(tracked)
            with program_ended(captured, len(tracked)):
                found = trace.backward(tracked, inputs=leaves)
        except RuntimeError as error:
            for text, reason in BACKWARD_RAISES.items():
                if text in str(error):
                    raise Native(reason, True) from error
            if captured.tracer.called_back and not isinstance(error, JitshapeError):
                raise Native(f"backward raises: {error}", True) from error
            raise
    inputs = graph.inputs
    graph.inputs = [*inputs[:first], *inputs[end:], *inputs[first:end]]
    for place, value in enumerate(graph.inputs):
        value.index = place
    return {id(leaf): g.value for leaf, g in zip(leaves, found) if g is not None}


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
    or an input that requires grad is a view of it, which does not.  A view that was made with
    autograd on or off, other than in the mode of the call, says so."""
    tracked = {t.value for t in (*differentiated, *trace.leaves) if t.requires_grad}

    def output(key: Any) -> Any:
        if not isinstance(key, TensorValue):
            return key
        value = key.tensor.value
        if value in tracked and not key.tensor.requires_grad:
            value = trace.call(OPS["aten.detach.default"], [value], {})
        elif value.node is not None and key.tensor.requires_grad and key.tensor._is_view():
            with trace:  # a view that was written to is viewed again when it is looked at
                leaf = key.tensor.is_leaf
            if leaf == torch.is_grad_enabled():
                name = "untracked" if leaf else "tracked"
                value = trace.call(OPS[f"jitshape.{name}.default"], [value], {})
        value.requires_grad = key.tensor.requires_grad
        return value

    return output


def differentiated(captured: Capture, keys: Sequence[Any]) -> list[Any]:
    """The symbolic tensors that get a tangent: results that require grad (of a view, the tensor
    that autograd has it view) and written inputs that do."""
    leaves = captured.tracer.trace.leaves
    if not any(t.requires_grad for t in leaves):
        return []
    with captured.tracer.trace:  # a view that was written to is viewed again when it is looked at
        return _differentiated(captured, keys, {t.value.storage for t in leaves})


def _differentiated(captured: Capture, keys: Sequence[Any], storages: set[Any]) -> list[Any]:
    fresh: dict[int, Any] = {}
    results = [k.tensor for k in keys if isinstance(k, TensorValue)]
    for result in results:
        call = function_behind(result) if result.requires_grad else None
        if call is not None:
            if any(r is not result and r.value.storage is result.value.storage for r in results):
                raise Restart(call.step, call.refuse("gives a view of another result"))
            fresh[id(result)] = result
        elif result.requires_grad and result.value.storage not in storages:
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


def callable_of(
    graph: CompiledGraph, consumed: Sequence[int], raises: bool, draws: bool
) -> Callable[..., Any]:
    """What an entry's code calls; `consumed` and the flags as in Called."""
    run = with_consumed(unseen(graph.run), consumed)
    return refutable(run, draws) if raises else run


def unseen(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` with its calls of torch out of sight of what the trace has seen to: the function modes
    that are on, such as the one that gives new tensors the default device, and autocast."""
    if torch._C._len_torch_function_stack():
        run = within(torch._C.DisableTorchFunction, run)
    return within(torch._C._DisableAutocast, run) if torch._C._is_any_autocast_enabled() else run


def within(region: Callable[[], Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """`run` in a region of its own at each call."""

    def inside(*inputs: Any) -> Any:
        with region():
            return run(*inputs)

    return inside


def word_guards(inputs: Sequence[Any]) -> list[Guard]:
    """That the ints among the inputs of a graph are none that no kernel can take."""
    return [Guard(s, IsWord()) for s in inputs if isinstance(s, Number) and s.kind == "int"]
