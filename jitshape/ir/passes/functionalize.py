"""In-place ops and writes through views become functional ops.

    t0 = x[0]; t0.add_(1); y = x * 2
-->
    t0 = select(x, 0, 0); t1 = add(t0, 1); t2 = select_scatter(x, t1, 0, 0); y = mul(t2, 2)
    x.copy_(t2)                                     (an entry of graph.mutations)

A storage that is ever written has a `Memory`: the value that holds its whole content, and a
version.  Every value in it is a `Window`: the step from its source, replayed lazily when the
content has changed since.  A write climbs the steps up to the base, scattering at each.  Where
several inputs share the storage, or a view cannot be undone step by step, the base is one flat
buffer and each window a piece of it by its geometry.
Invariant: afterwards no node mutates, and an output that shares memory with an input or with
another output says so (`Alias`, `OutputAlias`), except gradients, which only share by value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitshape.ir.graph import (
    Alias,
    Graph,
    Mutation,
    Node,
    OutputAlias,
    Reshaped,
    Storage,
    Value,
    map_leaves,
    tensor_type,
)
from jitshape.ir.ops.registry import OPS, OpDef
from jitshape.ir.passes import FUNCTIONAL, graph_pass
from jitshape.ir.passes.view_steps import Step, geometry_step, replay, scatter, steps_of, traits_of
from jitshape.ir.rewrite import Rewriter, rewriting
from jitshape.ir.strides import end_of, same_layout
from jitshape.ir.symint import Size, sym_max, sym_min
from jitshape.ir.types import TensorType


@graph_pass(provides={FUNCTIONAL})
def functionalize(graph: Graph) -> None:
    """t0 = x.t(); t0.mul_(2)  -->  t0 = t(x); t1 = mul(t0, 2); t2 = t(t1); x.copy_(t2)"""
    plan = _Plan(graph)
    with rewriting(graph) as g:
        state = _Functionalizer(g, plan)
        state.enter()
        for node in g.walk():
            state.visit(node)
        state.leave()
    graph.functional = True


def written_arguments(definition: OpDef | None, args: Sequence[Any]) -> dict[int, int]:
    """Which arguments a call writes: position -> output of the op's functional form."""
    if definition is None:
        return {}
    if definition.has("writes"):
        return definition.writes(args)
    return {0: 0} if definition.mutates else {}


def written_values(nodes: Iterable[Node]) -> Iterator[Value]:
    """What `nodes`, not functional yet, write to."""
    for node in nodes:
        for position in written_arguments(OPS.get(node.op), node.args):
            target: Any = node.args[position] if position < len(node.args) else None
            if isinstance(target, Value):
                yield target


def written_outside(nodes: Iterable[Node]) -> bool:
    """Whether one of `nodes`, not functional yet, writes to memory that none of them made."""
    own: set[Storage | None] = set()
    for node in nodes:
        definition = OPS.get(node.op)
        if any(target.storage not in own for target in written_values([node])):
            return True
        if definition is None or definition.family != "view":
            own.update(out.storage for out in node.outs)
    return False


class _Plan:
    """What is known before the walk: which storages are written, and which of them need a flat
    base."""

    def __init__(self, graph: Graph) -> None:
        self.written: set[Storage] = set()
        self.flat: set[Storage] = set()
        self.inputs: dict[Storage, list[Value]] = {}
        self.roots: dict[Storage, Value] = {}
        self.spread: set[Value] = set()  # views that may show one element several times
        for value in graph.inputs:
            if value.storage is not None:
                self.inputs.setdefault(value.storage, []).append(value)
        for node in graph.nodes:
            self._note(node)
        self.flat |= {s for s, values in self.inputs.items() if len(values) > 1}
        self.flat &= self.written

    def _note(self, node: Node) -> None:
        definition = OPS.get(node.op)
        for target in written_values([node]):
            if target.storage is not None:
                self.written.add(target.storage)
                if target in self.spread:
                    self.flat.add(target.storage)
        is_view = definition is not None and definition.family == "view"
        if is_view and (node.args[0] in self.spread or _repeats(node)):
            self.spread.update(node.outs)
        for out in node.outs:
            if out.storage is None:
                continue
            if not is_view and not (definition is not None and definition.mutates):
                self.roots.setdefault(out.storage, out)
            elif is_view and steps_of(node) is None:
                self.flat.add(out.storage)


@dataclass
class _Memory:
    """The content of a written storage at this point of the program."""

    root: TensorType  # of the value that held the content first
    base: Value
    version: int = 0


@dataclass
class _Window:
    """How one value of the original graph looks into its memory."""

    memory: _Memory
    source: Value | None  # None: the memory's base
    step: Step
    current: Value | None = None
    version: int = -1


def _in_units(type_: TensorType, other: TensorType) -> Size:
    """The offset of `other`, in elements of `type_`."""
    a, b = other.dtype.itemsize, type_.dtype.itemsize
    return other.offset * (a // b) if a >= b else other.offset // (b // a)


def _identity(value: Value) -> Step:
    return Step("", (), {}, tensor_type(value))


class _Functionalizer:
    def __init__(self, g: Rewriter, plan: _Plan) -> None:
        self.g, self.plan = g, plan
        self.memories: dict[Storage, _Memory] = {}
        self.windows: dict[Value, _Window] = {}
        self.recasts: dict[tuple, Value] = {}  # by storage, dtype and flips: all of a flat memory
        self.writes: Counter[Value] = Counter()  # by the value whose version counter moves
        self.moves = Counter(_counted(value) for value in g.graph.moved)

    # ---- memories

    def enter(self) -> None:
        """Make the memories of written inputs."""
        for storage, values in self.plan.inputs.items():
            if storage not in self.plan.written:
                continue
            if storage not in self.plan.flat:
                self.create(values[0])
                continue
            covered = _span([tensor_type(value) for value in values])
            memory = self.memories[storage] = self.flat_memory(covered, values[0], owned=False)
            for value in values:
                self.add_flat_window(value, memory)

    def create(self, value: Value, content: Value | None = None) -> None:
        """`value` is the first in its storage; `content` is what it holds, if not itself."""
        assert value.storage is not None and isinstance(value.type, TensorType)
        if value.storage in self.plan.flat:
            memory = self.flat_memory(value.type, content or value, owned=True)
            self.add_flat_window(value, memory)
        else:
            memory = _Memory(value.type, content or value)
            self.windows[value] = _Window(memory, None, _identity(value), content or value, 0)
        self.memories[value.storage] = memory

    def flat_memory(self, covered: TensorType, source: Value, owned: bool) -> _Memory:
        """One buffer of everything from the first to the last element of `covered`, taken from
        the storage of `source`.  A caller's memory is copied, so that offsets in the buffer count
        from its own start."""
        start, end = covered.offset, end_of(covered)
        flat = TensorType((end - start,), (1,), covered.dtype, covered.device, offset=start)
        args = (source, [end - start], [1], start)
        base = self.g.emit("aten.as_strided.default", args, {}, flat)
        if not owned:
            base = self.g.emit("aten.clone.default", (base,), {}, replace(flat, offset=0))
        return _Memory(flat, base)

    def add_flat_window(self, value: Value, memory: _Memory) -> None:
        step = geometry_step(tensor_type(value), memory.root.offset)
        self.windows[value] = _Window(memory, None, step)

    def is_recast(self, value: Value, memory: _Memory) -> bool:
        """Whether `value` is a piece of a flat memory read in a dtype no wider than the memory's,
        conjugated or negated: all of it alike."""
        is_flat = value.storage in self.plan.flat and traits_of(value) is not None
        return is_flat and tensor_type(value).dtype.itemsize <= memory.root.dtype.itemsize

    def add_recast_window(self, value: Value, memory: _Memory) -> None:
        """`value` is a piece of all that the flat memory has, in its dtype and flipped as it is."""
        own, root = tensor_type(value), memory.root
        ratio, traits = root.dtype.itemsize // own.dtype.itemsize, traits_of(value) or ()
        (count,), start = root.shape, root.offset * ratio
        whole = TensorType((count * ratio,), (1,), own.dtype, own.device, start)
        steps = (
            [] if own.dtype == root.dtype else [Step("aten.view.dtype", (own.dtype,), {}, whole)]
        )
        steps += [Step(_FLIPS[trait], (), {}, whole) for trait in traits if trait in _FLIPS]
        source, way = None, (value.storage, own.dtype)
        for step in steps:
            way = *way, step.op
            if way not in self.recasts:
                made = self.recasts[way] = Value("recast", whole, value.storage)
                self.windows[made] = _Window(memory, source, step)
            source = self.recasts[way]
        self.windows[value] = _Window(memory, source, geometry_step(own, start))

    # ---- reading and writing

    def read(self, value: Any) -> Any:
        """The value that holds, now, what `value` of the original graph shows."""
        window = self.windows.get(value) if isinstance(value, Value) else None
        if window is None:
            return value
        memory = window.memory
        if window.version != memory.version or window.current is None:
            source = memory.base if window.source is None else self.read(window.source)
            origin = memory.root if window.source is None else tensor_type(window.source)
            type_ = window.step.type
            moved = _in_units(type_, tensor_type(source)) - _in_units(type_, origin)
            offset = type_.offset + moved
            window.current = replay(self.g, source, window.step, offset)
            window.current.requires_grad |= value.requires_grad
            window.version = memory.version
        return window.current

    def write(self, value: Value, new: Value) -> None:
        """`new` becomes the content of `value`, and so of its memory."""
        window = self.windows[value]
        memory = window.memory
        old = self.read(value)
        if (new.type.shape, new.type.dtype) != (old.type.shape, old.type.dtype):
            new = self.fit(new, old)
        fresh = [(window, new)] if same_layout(tensor_type(new), tensor_type(old)) else []
        while window.source is not None:
            source = self.read(window.source)
            new = scatter(self.g, source, new, window.step)
            window = self.windows[window.source]
            if same_layout(tensor_type(new), tensor_type(source)):
                fresh.append((window, new))
        if window.step.op:  # a flat base
            new = scatter(self.g, memory.base, new, window.step)
        memory.base = self.fit(new, memory.base)
        memory.version += 1
        for up_to_date, content in fresh:
            up_to_date.current, up_to_date.version = content, memory.version

    def fit(self, new: Value, like: Value) -> Value:
        """`new` with the shape, strides and dtype of `like`, as a write in place leaves it."""
        if same_layout(tensor_type(new), tensor_type(like)):
            return new
        type_ = replace(like.type, offset=0)
        return self.g.emit("aten.copy.default", (like, new), {}, type_)

    # ---- nodes

    def visit(self, node: Node) -> None:
        definition = OPS.get(node.op)
        writes = written_arguments(definition, node.args)
        if writes:
            assert definition is not None
            self.visit_write(node, definition, writes)
        elif definition is not None and definition.family == "view" and self.in_memory(node):
            self.visit_view(node)
        else:
            node.args = map_leaves(self.read, node.args)
            node.kwargs = map_leaves(self.read, node.kwargs)
            self.g.keep(node)
            for out in node.outs:
                if out.storage in self.plan.written:
                    self.create(out)

    def in_memory(self, node: Node) -> bool:
        return node.outs[0].storage in self.memories

    def visit_view(self, node: Node) -> None:
        """Views of written memory are emitted when somebody reads them."""
        steps = steps_of(node)
        for index, out in enumerate(node.outs):
            assert out.storage is not None
            memory = self.memories[out.storage]
            if self.is_geometry(node, out, memory):
                self.add_flat_window(out, memory)
            elif steps is None or (out in self.plan.spread and self.is_recast(out, memory)):
                if not self.is_recast(out, memory):
                    raise NotImplementedError(f"a write through {node.op}")
                self.add_recast_window(out, memory)
            else:
                source = OPS[node.op].alias(node.args)
                self.windows[out] = _Window(memory, source, steps[index])

    def is_geometry(self, node: Node, out: Value, memory: _Memory) -> bool:
        """Whether `out` is a plain piece of a flat memory."""
        if out.storage not in self.plan.flat or out.type.dtype != memory.root.dtype:
            return False
        source = self.windows.get(OPS[node.op].alias(node.args))
        while source is not None and source.source is not None and not source.step.op:
            source = self.windows.get(source.source)
        traits = traits_of(out)
        as_it_is = traits is not None and not set(_FLIPS).intersection(traits)
        return as_it_is and (source is None or source.source is None)

    def visit_write(self, node: Node, definition: OpDef, writes: dict[int, int]) -> None:
        functional = functional_form(definition)
        args, kwargs = map_leaves(self.read, (node.args, node.kwargs))
        types = OPS[functional].type(self.g.env, *args, **kwargs)
        result = self.g.emit(functional, args, kwargs, types)
        results = [result] if isinstance(result, Value) else list(result)
        for out, value in zip(node.outs, results):
            value.requires_grad |= out.requires_grad
        for position, index in writes.items():
            target = node.args[position]
            if isinstance(target, Value):
                self.writes[_counted(target)] += 1
                self.write(target, results[index])
        for index, out in enumerate(node.outs):
            written = [node.args[p] for p, i in writes.items() if i == index]
            if definition.mutates and written:
                memory = self.windows[written[0]].memory
                self.windows[out] = _Window(memory, written[0], _identity(out))
            elif out.storage in self.plan.written:
                self.create(out, results[index])
            else:
                self.g.substitute(out, results[index])

    # ---- outputs

    def leave(self) -> None:
        """Outputs by kind; mutated inputs and the bases of aliases as further outputs."""
        graph = self.g.graph
        if graph.returned is None:
            graph.returned = len(graph.outputs) - graph.gradients
        user, gradients = graph.outputs[: graph.returned], graph.outputs[graph.returned :]
        outputs = [self.output(value) for value in user]
        hidden = self.alias_groups(outputs, len(graph.outputs))
        for place, value in (*enumerate(user), *enumerate(hidden, len(graph.outputs))):
            if isinstance(value, Value) and value.node is not None:
                self.note_identity(place, value, place < len(outputs) and outputs[place])
        graph.outputs = [self.finished(value) for value in outputs]
        graph.outputs += map_leaves(self.read, gradients)
        graph.outputs += map_leaves(self.read, hidden)
        graph.differentiated = [self.read(value) for value in graph.differentiated]
        self.write_back()
        self.reshape_inputs()

    def note_identity(self, place: int, value: Value, output: Any) -> None:
        """Whether an output is a view for the program, and what its version counter shows."""
        counted = _counted(value)
        is_alias = isinstance(output, (Alias, OutputAlias))
        if not is_alias and self.shown_by_owner(value):
            self.g.graph.owned.add(place)
        own = not is_alias or (counted.node is not None and counted.node.op == _DATA)
        count = self.writes[counted] + self.moves[counted]
        if own and count and counted not in self.g.graph.inputs:
            self.g.graph.versions.append((place, count))

    def shown_by_owner(self, value: Value) -> bool:
        """Whether a tensor that is no view shows `value`."""
        while value.node is not None and (found := OPS.get(value.node.op)) is not None:
            if found.family == "view" and value not in self.g.graph.moved:
                return False
            if found.family != "view" and not found.mutates:
                break
            value = found.alias(value.node.args)
        return value.node is not None and isinstance(value.type, TensorType)

    def finished(self, output: Any) -> Any:
        """The functional value of an output; an input itself stays, to be written at the end."""
        if isinstance(output, Value) and output.node is None:
            return output
        return self.read(output)

    def output(self, value: Any) -> Any:
        """`value`, or what it is of an input: the very input, or an alias of it."""
        if not isinstance(value, Value) or value.storage not in self.plan.inputs:
            return value
        origin = value
        while origin.node is not None and (window := self.windows.get(origin)) is not None:
            if window.step.op or window.source is None:
                break
            origin = window.source
        if origin.node is None:
            return origin
        for index, shown in self.g.graph.shown.items():
            if origin is shown:
                return self.g.graph.inputs[index]
        traits = traits_of(value)
        if value in self.g.graph.differentiated or traits is None:
            return value
        owner = self.plan.inputs[value.storage][0]
        return Alias(owner.index, tensor_type(value), value.requires_grad, traits)

    def alias_groups(self, outputs: list[Any], first_hidden: int) -> list[Value]:
        """Of outputs in one storage make all but the one that covers it an OutputAlias; where
        none does, the storage's root becomes a hidden output.  Returns these.  Of those that
        require grad, the differentiated one covers the others."""
        hidden = self.hidden_owners(outputs)
        owners = {v.storage: first_hidden + i for i, v in enumerate(hidden)}
        differentiated = set(self.g.graph.differentiated)
        groups: dict[Storage, list[int]] = {}
        for place, value in enumerate(outputs):
            if isinstance(value, Value) and value.node is not None and value.storage is not None:
                if value in differentiated:
                    owners.setdefault(value.storage, place)
                else:
                    groups.setdefault(value.storage, []).append(place)
        for storage, places in groups.items():
            base = owners.get(storage)
            if storage not in self.plan.roots:
                continue
            if base is None and self.is_alone([outputs[place] for place in places]):
                continue
            root = tensor_type(self.plan.roots[storage])
            if base is None:
                base = next((p for p in places if _covers(outputs[p], root)), None)
            if base is None:
                base = first_hidden + len(hidden)
                hidden.append(self.plan.roots[storage])
            kept = outputs[base] if base < len(outputs) else None
            for place in places:
                value = outputs[place]
                traits = traits_of(value) if value is not kept else None
                if traits is not None:
                    outputs[place] = OutputAlias(base, value.type, value.requires_grad, traits)
        return hidden

    def is_alone(self, values: Sequence[Value]) -> bool:
        """Whether a result can do without the rest of its memory: written content has a place of
        its own, which is where it lies only if it is the first."""
        first = values[0]
        assert first.storage is not None
        if any(value is not first for value in values):
            return False
        start = tensor_type(self.plan.roots[first.storage]).offset
        return first.storage not in self.plan.written or tensor_type(first).offset == start

    def hidden_owners(self, outputs: list[Any]) -> list[Value]:
        """Differentiated values that the program does not return, but views of them."""
        returned = {value for value in outputs if isinstance(value, Value)}
        return [
            value
            for value in self.g.graph.differentiated
            if value not in returned and value.storage not in self.plan.inputs
        ]

    def reshape_inputs(self) -> None:
        graph = self.g.graph
        for index, shown in graph.shown.items():
            value = graph.inputs[index]
            graph.reshaped.append(Reshaped(index, len(graph.outputs), self.moves[value]))
            graph.outputs.append(Alias(index, tensor_type(shown)))
        for value in graph.inputs:
            if self.moves[value] and value.index not in graph.shown:
                graph.reshaped.append(Reshaped(value.index, None, self.moves[value]))

    def write_back(self) -> None:
        graph = self.g.graph
        for storage, values in self.plan.inputs.items():
            if storage not in self.plan.written:
                continue
            for value in values:
                count = self.writes[value]
                graph.mutations.append(Mutation(value.index, len(graph.outputs), count))
                graph.outputs.append(self.read(value))


_DATA = "aten.alias.default"  # as composites.data records it
_FLIPS = {"conj": "aten._conj.default", "neg": "aten._neg_view.default"}  # by trait


def _counted(value: Value) -> Value:
    """The value that has the version counter of `value`: behind all views but `.data`."""
    while value.node is not None and (found := OPS.get(value.node.op)) is not None:
        if found.family not in ("view", "inplace") or value.node.op == _DATA:
            break
        value = found.alias(value.node.args)
    return value


def _repeats(node: Node) -> bool:
    """Whether a view shows elements of its source several times."""
    if node.op != "aten.expand.default":
        return False
    return tensor_type(node.outs[0]).shape != tensor_type(node.args[0]).shape


def functional_form(definition: OpDef) -> str:
    """The pure op that `definition` stands for."""
    name = definition.attributes.get("functional") or definition.block.functional
    return name if name.count(".") == 2 else f"{name}.default"


def _span(types: list[TensorType]) -> TensorType:
    """A flat tensor from the first to the last element of all `types`."""
    start, end = types[0].offset, end_of(types[0])
    for type_ in types[1:]:
        start, end = sym_min(start, type_.offset), sym_max(end, end_of(type_))
    return TensorType((end - start,), (1,), types[0].dtype, types[0].device, start)


def _covers(value: Value, root: TensorType) -> bool:
    """Whether an output shows all of its memory as it is."""
    type_ = tensor_type(value)
    return same_layout(type_, root) and type_.offset == root.offset and traits_of(value) == ()
