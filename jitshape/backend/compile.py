"""The backend: from a graph to a program that can be called.

In: a functional, decomposed graph and a target.  Out: a `Program`.  Stages, in order: sizes
simplified → schedule → kernels → memory plan → target code → program text.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from jitshape.backend.bindings import Binding, namespace
from jitshape.backend.codegen.program import Call, ProgramWriter, Told
from jitshape.backend.contractions import Contractions, contracted
from jitshape.backend.externs import has_out, may_alias
from jitshape.backend.faults import check_faults
from jitshape.backend.fusion import Axes, Group
from jitshape.backend.generated import defined
from jitshape.backend.identity import kernel_key
from jitshape.backend.indexing import is_dense
from jitshape.backend.kernels import KernelCall, build_kernel, inlined
from jitshape.backend.launch import Launcher, launchers
from jitshape.backend.loops import Kernel
from jitshape.backend.lower import root
from jitshape.backend.memory import MemoryPlan, Step, peak_bytes, plan_memory
from jitshape.backend.pieces import build_pieces
from jitshape.backend.runtime import Signature, signature_of
from jitshape.backend.scans import build_scan
from jitshape.backend.schedule import Schedule, schedule
from jitshape.backend.text import kernel_text
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import (
    Alias,
    Graph,
    Node,
    OutputAlias,
    Value,
    map_leaves,
    new_symbols,
    tensor_type,
)
from jitshape.ir.layouts import Layouts
from jitshape.ir.ops.registry import OPS
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Algebra, IntExpr, Size
from jitshape.ir.types import TensorType, numel

if TYPE_CHECKING:
    from jitshape.cache.store import Store

_files = itertools.count()
_watched: list[list[Kernel]] = []
MOST_NAMED = 4  # ops in a kernel's name
CONTRACTING = ("triton",)  # targets whose kernels compute matrix products


@dataclass(frozen=True)
class KernelInfo:
    """A kernel for people: where it came from, its loops, its generated code."""

    name: str
    origin: tuple[str, ...]
    texts: Callable[[], tuple[str, str]]

    @property
    def text(self) -> str:
        return self.texts()[0]

    @property
    def source(self) -> str:
        return self.texts()[1]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a program was put together from: `launchers` with their `signatures`, `places`: the
    launcher of each kernel call."""

    graph: Graph
    bindings: Mapping[str, Binding]
    launchers: Sequence[Launcher]
    signatures: Sequence[Signature]
    places: Sequence[int]
    layouts: Layouts | None = None


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled graph.  `run` is the plain function behind `__call__`, for callers in a hurry."""

    run: Callable[..., Any]
    source: str = ""
    kernels: tuple[KernelInfo, ...] = ()
    externs: Mapping[str, int] = field(default_factory=dict)
    log: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    plan: MemoryPlan | None = None
    algebra: Algebra = field(default_factory=Algebra)
    parts: Parts | None = None

    def __call__(self, *inputs: Any) -> tuple:
        return self.run(*inputs)

    def peak_bytes(self, sizes: Mapping[str, int], plan: bool = True) -> int:
        """The most bytes that intermediates and outputs hold at once, at the symbols' `sizes`,
        with or without the memory plan."""
        if self.plan is None:
            return 0

        def number(size: Size) -> int:
            if type(size) is int:
                return size
            assert isinstance(size, IntExpr)
            value = size.algebra.evaluate(size, sizes)
            assert value is not None
            return value

        return peak_bytes(self.algebra, self.steps, self.plan, number, plan)


def compile_graph(
    graph: Graph,
    *,
    backend: str | Callable[[Graph], Callable] = "cpu",
    memory_plan: bool = True,
    store: Store | None = None,
    layouts: Layouts | None = None,
) -> Program:
    """Compile `graph` for "cpu" or "triton" ("interpret": numpy); "eager" runs it with ATen; a
    callable makes the function to call itself.  `store` keeps kernels for later processes;
    `layouts` has the strides of results at sizes of 0 and 1."""
    if callable(backend):
        return Program(takes_list(graph, backend(graph)))
    if backend == "eager":
        return _eager(graph)
    told = simplify_sizes(graph)
    given, found = graph, contracted(graph) if backend in CONTRACTING else Contractions(graph)
    graph = found.graph
    plan = schedule(graph, found)
    calls = _calls(plan)
    steps, memory = _memory(plan, calls, memory_plan)
    kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
    for watched in _watched:
        watched.extend(kernels)
    unique, places = _shared(kernels)
    made = launchers(backend, unique, store)
    writer = ProgramWriter(graph, plan.algebra, calls, memory, places, told, layouts)
    source = writer.write()
    infos = tuple(_info(kernel, made[place]) for kernel, place in zip(kernels, places))
    externs = Counter(call.op for call in calls if isinstance(call, Node))
    names = namespace(writer.bindings, made, partial(check_faults, given), layouts)
    parts = Parts(given, writer.bindings, made, list(map(signature_of, unique)), places, layouts)
    return Program(
        function_of(source, names),
        source,
        infos,
        dict(externs),
        (*given.notes, *plan.log),
        steps,
        memory,
        plan.algebra,
        parts,
    )


def _info(kernel: Kernel, launcher: Launcher) -> KernelInfo:
    texts = kernel_text(kernel), getattr(launcher, "source", "")
    return KernelInfo(kernel.name, kernel.origin, lambda: texts)


@contextmanager
def watched_kernels() -> Iterator[list[Kernel]]:
    """The kernels of all graphs that are compiled meanwhile."""
    found: list[Kernel] = []
    _watched.append(found)
    try:
        yield found
    finally:
        _watched.remove(found)


def _eager(graph: Graph) -> Program:
    from jitshape.ir.printer import print_graph

    def run(*inputs: Any) -> tuple:
        return tuple(evaluate(graph, inputs))

    externs = dict(Counter(node.op for node in graph.nodes))
    return Program(takes_list(graph, run), print_graph(graph), (), externs)


def takes_list(graph: Graph, run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, called as the graph says."""
    return (lambda given: run(*given)) if graph.consumed else run


def simplify_sizes(graph: Graph) -> dict[str, Told]:
    """Replace every size by what is known of it by now: s1 := s0, max(s0, 1) := s0.  Returns by
    name what the sizes of results tell, also where something else stands for it from here on."""
    env, known = graph.env, {}
    told = {out: row for node in graph.nodes for out, row in _told_by(node)}

    def leaf(x: Any) -> Any:
        if type(x) is FloatExpr:
            return env.simplify_float(x)
        if type(x) is not IntExpr:
            return x
        if x not in known:
            known[x] = env.algebra.substitute(env.simplify(x), {})
        return known[x]

    def simpler(old: Any) -> Any:
        if not isinstance(old, TensorType):
            return old
        parts = map_leaves(leaf, (old.shape, old.strides, old.offset))
        if parts == (old.shape, old.strides, old.offset):
            return old
        shape, strides, offset = parts
        return TensorType(shape, strides, old.dtype, old.device, offset)

    def retype(value: Value) -> None:
        value.type = simpler(value.type)

    def output(x: Any) -> Any:
        return replace(x, type=simpler(x.type)) if isinstance(x, (Alias, OutputAlias)) else leaf(x)

    for value in graph.inputs:
        retype(value)
    for node in graph.nodes:
        node.args, node.kwargs = map_leaves(leaf, (node.args, node.kwargs))
        for out in node.outs:
            retype(out)
    graph.outputs = [output(x) for x in graph.outputs]
    return told


def _told_by(node: Node) -> Iterator[tuple[str, Told]]:
    new = set(new_symbols(node))
    for out in node.outs if new else ():
        if isinstance(out.type, TensorType):
            atoms = (getattr(size, "symbol", None) for size in out.type.shape)
            yield out.name, tuple(atom if atom in new else None for atom in atoms)


def _shared(kernels: Sequence[Kernel]) -> tuple[list[Kernel], list[int]]:
    """The kernels that differ, and of each kernel the place of its like among them."""
    unique: dict[Hashable, Kernel] = {}
    keys = [kernel_key(kernel) for kernel in kernels]
    for key, kernel in zip(keys, kernels):
        unique.setdefault(key, kernel)
    place = {key: number for number, key in enumerate(unique)}
    return list(unique.values()), [place[key] for key in keys]


def _calls(plan: Schedule) -> list[Call]:
    """Kernels and extern calls in order."""
    axes, calls = Axes(plan.algebra), []
    count = itertools.count()
    for group in plan.groups:
        if group.extern is not None:
            calls.append(group.extern)
        else:
            name = f"{_title(group)}_{next(count)}"
            if group.units[0].pieces:
                calls += build_pieces(plan, axes, group, name)
            elif group.units[0].alone:
                calls.append(build_scan(plan, axes, group, name))
            else:
                calls.append(build_kernel(plan, axes, group, name))
    return calls


def _title(group: Group) -> str:
    nodes = (node for unit in group.units for node in inlined(unit))
    ops = list(dict.fromkeys(n.title for n in nodes if OPS[n.op].family != "factory"))
    return "_".join(["fused", *(ops or ["fill"])[:MOST_NAMED]])


def _memory(
    plan: Schedule, calls: Sequence[Call], enabled: bool
) -> tuple[tuple[Step, ...], MemoryPlan]:
    steps = tuple(_step(call) for call in calls)
    outputs = {root(o) for o in plan.graph.outputs if isinstance(o, Value)}
    pinned = {
        root(v)
        for call in calls
        if isinstance(call, Node) and may_alias(call)
        for v in (*call.inputs(), *call.outs)
    }
    layout, passed = _layouts(plan.graph, calls, steps)
    keep = outputs | pinned
    released = plan.graph.inputs if plan.graph.consumed else ()
    memory = plan_memory(plan.algebra, steps, keep, layout, passed, enabled, released)
    return steps, memory


def _step(call: Call) -> Step:
    if isinstance(call, KernelCall):
        reads = tuple(v for v in call.buffers if v not in call.outputs)
        return Step(reads, call.outputs, call.outputs)
    reads = tuple(dict.fromkeys(root(v) for v in call.inputs() if _in_memory(v)))
    writes = tuple(filter(_in_memory, call.outs))
    return Step(reads, writes, writes if has_out(call) else ())


def _in_memory(value: Value) -> bool:
    return isinstance(value.type, TensorType)


def _layouts(
    graph: Graph, calls: Sequence[Call], steps: Sequence[Step]
) -> tuple[dict[Value, TensorType], set[Value]]:
    """The type each tensor is made with, and the values for which that matters: those that ATen
    or the caller sees.  A tensor seen mostly as one view is made in that shape, which saves the
    view; kernels look at its memory only."""
    seen: dict[Value, list[TensorType]] = {}
    for value in graph.outputs:
        if isinstance(value, Value) and isinstance(value.type, TensorType):
            seen.setdefault(root(value), []).append(value.type)
    for call in calls:
        if isinstance(call, Node):
            for value in (*call.inputs(), *call.outs):
                if isinstance(value.type, TensorType):
                    seen.setdefault(root(value), []).append(value.type)
    given = {value for call in calls if isinstance(call, Node) for value in call.outs}
    layout: dict[Value, TensorType] = {}
    for step in steps:
        for value in step.writes:
            own = tensor_type(value)
            types = [t for t in seen.get(value, []) if _same_memory(graph.env.algebra, own, t)]
            fixed = value in given or not types
            layout[value] = own if fixed else max(types, key=types.count)
    return layout, set(seen)


def _same_memory(algebra: Algebra, a: TensorType, b: TensorType) -> bool:
    """Whether both lay the same elements out contiguously."""
    return (
        numel(a.shape) == numel(b.shape)
        and is_dense(algebra, a)
        and is_dense(algebra, b)
        and a.offset == b.offset
    )


def function_of(source: str, names: dict[str, Any]) -> FunctionType:
    """The function that the program's text defines; tracebacks show its lines."""
    return defined(source, "program", names, f"<jitshape program {next(_files)}>")
