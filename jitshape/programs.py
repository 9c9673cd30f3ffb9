"""From a finished graph to the callable that serves it: found in memory, on disk, or made.

In: a graph as recorded, with backward behind it where one is needed.  Out: a CompiledGraph.

        share       cache      a graph with an equal key was compiled before: its program serves
        load        cache      ... by an earlier process: its record is on disk
        optimize    ir         functionalize, decompose, simplify, cse, dce; attention
        partition   ir         forward and backward graphs
        generate    backend    kernels and program

Backward programs are made, or loaded, at their first use, one for each set of tangents.
Invariant: a program that was loaded behaves as the one that was written, whoever calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from jitshape import kept
from jitshape.backend.anomaly import check_gradients
from jitshape.backend.autograd import Contract, contract_of, make_autograd_callable
from jitshape.backend.compile import Program, compile_graph, takes_list
from jitshape.backend.cuda_graphs import recorded
from jitshape.cache import records
from jitshape.cache.graphs import CompiledGraph, GraphCache, graph_key
from jitshape.cache.records import Joint, Shelf
from jitshape.cache.store import open_store
from jitshape.errors import BadBackend
from jitshape.ir.graph import Alias, Graph, subgraphs_of
from jitshape.ir.layouts import Layouts, layouts_of
from jitshape.ir.passes import run_passes
from jitshape.ir.passes.attention import attention
from jitshape.ir.passes.fast_random import fast_random
from jitshape.ir.passes.order import CLEAN_UP, OPTIMIZE
from jitshape.ir.passes.partition import partition
from jitshape.ir.passes.tangents import saved_for, with_defined_tangents
from jitshape.ir.passes.under_autocast import Lowered, under_autocast
from jitshape.ir.printer import print_graph
from jitshape.ir.records.graphs import read_graph, write_graph
from jitshape.observe import counters, logs
from jitshape.options import Options
from jitshape.stages import collection_deferred, stage

OWN_CPU = ("auto", "cpu")  # back ends that compute CPU tensors in kernels of ours
_graphs = GraphCache()


def forget_graphs() -> None:
    """Share nothing that this process compiled or read so far."""
    _graphs.clear()
    kept.forget()


def shared_graph(graph: Graph, options: Options, name: str) -> tuple[CompiledGraph, bool]:
    """The compiled graph, and whether an earlier entry's, or an earlier process's, serves."""
    own = callable(options.backend)  # a back end of the user's sees every graph
    settings = options.backend, options.memory_plan, options.fast_random, options.mode
    key = None if own else graph_key(graph, *settings, name)
    found = _graphs.find(key)
    counters.count_in("cache", "graph:miss" if found is None else "graph:hit")
    if found is not None:
        logs.log("cache", f"graph hit: {name}: an equal graph was compiled before")
        return found, True
    shelf = records.shelf(key if options.cache else None)
    with torch._C.DisableTorchFunction():
        made = _loaded(shelf, options, name)
        shares = made is not None
        if made is None:
            logs.log("cache", f"graph miss: {name}: no equal graph so far")
            made = _compiled(graph, options, name, shelf)
    _graphs.add(key, made)
    _graphs.add(shelf.key or None, made)
    return made, shares


def kept_graph(key: str, options: Options, name: str) -> CompiledGraph | None:
    """The graph of this key in the store, which was loaded already or is now."""
    found = _graphs.find(key)
    if found is None:
        found = _loaded(Shelf(open_store(), key), options, name)
        _graphs.add(key, found)
    return found


# ---- from disk


def _loaded(shelf: Shelf, options: Options, name: str) -> CompiledGraph | None:
    """The graph that an earlier process compiled."""
    with stage("load"):
        found = shelf.load()
    if found is None:
        return None
    program, record = found
    _tell(program)
    inputs = tuple(record.written), tuple(record.viewed)
    if record.joint is None:
        return CompiledGraph(_first(program.run, record.cut), program, *inputs, shelf.key, True)
    backward = _Backward(record.joint.backward, options, shelf)
    run = _with_backward(program, backward, record.joint.contract, name)
    return CompiledGraph(run, program, *inputs, shelf.key, True)


# ---- made


def _compiled(graph: Graph, options: Options, name: str, shelf: Shelf) -> CompiledGraph:
    """The graph through all stages, and kept on disk.  Subgraphs go through them when they are
    first called."""

    def serve(subgraph: Graph) -> Callable[..., Any]:
        with collection_deferred():
            return shared_graph(subgraph, options, name)[0].run

    for subgraph in (s for node in graph.nodes for s in subgraphs_of(node)):
        subgraph.served_by(serve)
    layouts = layouts_of(graph)
    with stage("optimize"):
        _optimize(graph, options)
    written = tuple(mutation.input for mutation in graph.mutations)
    viewed = tuple(output.input for output in graph.outputs if isinstance(output, Alias))
    if not graph.gradients:
        program = generate(graph, options, layouts)
        cut = None if graph.returned == len(graph.outputs) else graph.returned
        is_kept = shelf.keep(program, cut, written, viewed, None)
        program = replace(program, parts=None)
        run = _first(program.run, cut)
        return CompiledGraph(run, program, written, viewed, shelf.key, is_kept)
    with stage("partition"):
        split = partition(graph)
        contract = contract_of(graph, split)
    program = generate(split.forward, options, layouts)
    backward = _Backward(split.backward, options, shelf)
    is_kept = shelf.keep(
        program, None, written, viewed, lambda: Joint(contract, write_graph(split.backward))
    )
    program = replace(program, parts=None)
    run = _with_backward(program, backward, contract, name)
    return CompiledGraph(run, program, written, viewed, shelf.key, is_kept)


def _optimize(graph: Graph, options: Options) -> None:
    """The passes over the whole graph."""
    run_passes(graph, OPTIMIZE)
    done = {given for step in OPTIMIZE for given in step.provides}
    if options.fast_random:
        run_passes(graph, (fast_random, *CLEAN_UP), has=done)
    if options.backend in OWN_CPU:
        run_passes(graph, (attention,), has=done)
    if logs.enabled("functional"):
        logs.log("functional", print_graph(graph))


def _with_backward(
    program: Program, backward: _Backward, contract: Contract, name: str
) -> Callable[..., Any]:
    return make_autograd_callable(
        program.run, backward.program, contract, name, backward.watch, backward.needs
    )


class _Backward:
    """The backward programs of one graph, which is read from its record when it is needed."""

    def __init__(self, graph: Graph | bytes, options: Options, shelf: Shelf) -> None:
        self._graph, self.options, self.shelf = graph, options, shelf

    def whole(self) -> Graph:
        """The graph for all tangents."""
        if isinstance(self._graph, bytes):
            self._graph = read_graph(self._graph)
        return self._graph

    def graph(self, defined: tuple[bool, ...]) -> Graph:
        """A copy for the tangents that are defined."""
        return with_defined_tangents(self.whole(), defined)

    def needs(self, place: int, count: int) -> frozenset[int]:
        """The saved tensors that the gradients of one tangent need."""
        return saved_for(self.whole(), place, count)

    def program(self, defined: tuple[bool, ...], lowered: Lowered) -> Callable[..., Any]:
        """`run([*saved, *defined tangents, *sizes])` gives the gradients."""
        with collection_deferred():
            with stage("load"):
                found = self.shelf.load_backward(defined, lowered)
            if found is not None:
                _tell(found)
                return found.run
            counters.count("backward_compiles")
            graph = self.graph(defined)
            under_autocast(graph, lowered)
            run_passes(graph, CLEAN_UP, has={p for step in OPTIMIZE for p in step.provides})
            graph.consumed = True
            program = generate(graph, self.options)
            self.shelf.keep_backward(defined, lowered, program)
            return program.run

    def watch(self, defined: tuple[bool, ...], inputs: Sequence[Any]) -> None:
        """Anomaly detection: raise for the first value that is not a number."""
        check_gradients(self.graph(defined), sum(defined), inputs)


def _first(run: Callable[..., Any], count: int | None) -> Callable[..., Any]:
    """`run` without the outputs behind the first `count`, which the user gets."""
    return run if count is None else lambda *inputs: run(*inputs)[:count]


def generate(graph: Graph, options: Options, layouts: Layouts | None = None) -> Program:
    """Kernels and program of one graph."""
    backend = options.backend
    if backend == "auto":
        on_gpu = any(v.type.device.type == "cuda" for v in graph.inputs)
        backend = "triton" if on_gpu else "cpu"
    if callable(backend):
        program = Program(takes_list(graph, users_program(graph, backend)))
    else:
        with stage("generate"):
            store = open_store() if options.cache else None
            program = compile_graph(
                graph,
                backend=backend,
                memory_plan=options.memory_plan,
                store=store,
                layouts=layouts,
            )
    _tell(program)
    if options.mode == "reduce-overhead":
        run = recorded(program.run, graph, partial(counters.count_in, "cuda_graphs"))
        program = replace(program, run=run)
    return program


def _tell(program: Program) -> None:
    """Count and log a program, made or loaded."""
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


def users_program(graph: Graph, backend: Callable[..., Any]) -> Callable[..., Any]:
    """What a back end of the user's makes of the graph, with its results checked."""
    name = getattr(backend, "__name__", type(backend).__name__)
    run = backend(graph, example_inputs(graph))
    if not callable(run):
        raise BadBackend(
            f"back end {name} returned {type(run).__name__}",
            because="backend(graph, example_inputs) must return a callable",
            avoid="return one that takes the graph's inputs and gives a list of its outputs",
        )
    count = len(graph.outputs)

    def checked(*inputs: Any) -> Any:
        results = run(*inputs)
        if not isinstance(results, (list, tuple)) or len(results) != count:
            found = type(results).__name__
            found += f" of {len(results)}" if isinstance(results, (list, tuple)) else ""
            raise BadBackend(
                f"the callable that back end {name} returned gave {found}",
                because=f"the graph has {count} outputs",
                avoid="return a list with one item for each of graph.outputs",
            )
        return results

    return checked


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
