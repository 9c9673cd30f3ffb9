"""torch.cond and torch.while_loop: the program's functions become subgraphs of one node.

In: such a call whose predicate is a tensor of the graph; the machine runs the functions, and what
they record is taken out of the graph again.  Out: a node that chooses among subgraphs when it
runs; of a cond also the one that chooses among their gradients.
Invariant: a function that does more than compute new tensors ends the graph before the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch._higher_order_ops as higher_order

from jitshape.frontend.builtins_.registry import models
from jitshape.frontend.machine import Outcome
from jitshape.frontend.torchside.tensors import MODELS, TensorValue, from_real
from jitshape.frontend.values.base import Break, Raised, Value
from jitshape.frontend.values.functions import HANDLERS
from jitshape.frontend.values.sequences import ListValue, TupleValue
from jitshape.ir.graph import Graph, Node, Subgraph, tensor_type
from jitshape.ir.graph import Value as GraphValue
from jitshape.ir.passes.functionalize import written_outside
from jitshape.ir.strides import same_layout
from jitshape.ir.subgraphs import free_values, geometry_of, lifted, numbers_of
from jitshape.ir.symbolic_tensor import SymbolicTensor, make_symbolic
from jitshape.ir.types import TensorType

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

Leaves = list[tuple[SymbolicTensor, SymbolicTensor]]  # a tensor and what stands for it inside


@models(torch.cond)
def cond(
    m: Machine, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None
) -> Value:
    """A predicate that is a Python number chooses while tracing."""
    given = [] if operands is None else m.items_of(operands)
    if not isinstance(pred, TensorValue):
        if not issubclass(pred.python_type(), (bool, int, float)):
            raise Break("torch_call", "the predicate of a cond is neither a number nor a tensor")
        chosen = true_fn if pred.truth(m) else false_fn
        caller = None if m.frame is None else m.frame.calling
        return m.call(chosen, given, {}) if caller is None else m.forward(caller, chosen, given, {})
    truth = _truth_of(m, pred, "the predicate of a cond")
    then = _run(m, "a branch of a cond", true_fn, given)
    other = _run(m, "a branch of a cond", false_fn, given)
    _check_alike(m, then, other)
    return then.rebuilt(m, _Branches(m, truth, then, other).results())


_cond = HANDLERS[torch.cond]
MODELS[torch.cond] = lambda m, *args, **kwargs: _cond(m, list(args), kwargs)


@models(higher_order.while_loop)
def while_loop(
    m: Machine,
    cond_fn: Value,
    body_fn: Value,
    carried_inputs: Value,
    additional_inputs: Value | None = None,
) -> Value:
    starts = m.items_of(carried_inputs)
    if not all(isinstance(value, TensorValue) for value in starts):
        _refuse(m, "a while_loop carries something that is no tensor")
    trace, what = m.tracer.trace, "a function of a while_loop"
    initial = [value.tensor.value for value in starts]
    places = [trace.graph.new_value(_fresh(value)) for value in initial]
    given = [m.tracer.tensor_value(make_symbolic(value, trace.env)) for value in places]
    given += [] if additional_inputs is None else m.items_of(additional_inputs)
    condition = _run(m, what, cond_fn, given)
    body = _run(m, what, body_fn, given)
    if len(condition.results) != 1:
        _refuse(m, "the condition of a while_loop gives other than one tensor")
    _check_truth(m, condition.results[0].value.type, "the condition of a while_loop")
    if any(x.requires_grad for x in (*body.results, *(value.tensor for value in starts))):
        _refuse(m, "a while_loop has no gradient")
    pairs = zip(map(_fresh, body.values), map(tensor_type, places))
    fits = [_same(m, found, carried, "the body of a while_loop") for found, carried in pairs]
    if len(places) != len(body.results) or not all(fits):
        _refuse(m, "the body of a while_loop gives tensors that differ from those it is given")
    captured = free_values((*condition.nodes, *body.nodes), [*condition.values, *body.values])
    captured = [value for value in captured if value not in places]
    first, second = (_graph(trace.graph, [*places, *captured], f) for f in (condition, body))
    numbers = _number((first, second))
    outer = [*initial, *captured]
    geometry = [geometry_of(value) for value in [*places, *captured]]
    args = [Subgraph(first, "condition"), Subgraph(second, "body"), outer, geometry, numbers]
    outs = _record(
        m, "jitshape.while_loop.default", args, (first, second), [p.type for p in places]
    )
    return body.rebuilt(m, [trace.wrap(out) for out in outs])


# ---- running a function of the program's


@dataclass
class _Function:
    """What a function recorded: its tensors, and how they stand in what it returned."""

    nodes: list[Node]
    results: list[SymbolicTensor]
    returned: Value
    leaves: Leaves

    @property
    def values(self) -> list[GraphValue]:
        return [result.value for result in self.results]

    def shape(self) -> Any:
        return _shape(self.returned)

    def rebuilt(self, m: Machine, tensors: Sequence[SymbolicTensor]) -> Value:
        """What the call returns, with these tensors."""
        rest = iter(tensors)

        def build(value: Value) -> Value:
            if isinstance(value, TensorValue):
                return from_real(m, next(rest))
            items = [build(item) for item in m.items_of(value)]
            return m.new_list(items) if isinstance(value, ListValue) else m.new_tuple(items)

        return build(self.returned)


def _shape(value: Value) -> Any:
    if isinstance(value, TensorValue):
        return None
    return value.python_type(), tuple(map(_shape, value.items))  # type: ignore[attr-defined]


def _tensors(m: Machine, what: str, value: Value) -> list[SymbolicTensor]:
    if isinstance(value, TensorValue):
        return [value.tensor]
    if not isinstance(value, (TupleValue, ListValue)) or value.python_type() not in (tuple, list):
        _refuse(m, f"{what} returns a {value.python_type().__name__}")
    return [tensor for item in value.items for tensor in _tensors(m, what, item)]


def _run(m: Machine, what: str, function: Value, given: list[Value]) -> _Function:
    """Call `function` and take what it recorded out of the graph."""
    trace = m.tracer.trace
    if m.tracer.transforms:
        _refuse(m, f"{what} runs in a transform of torch.func")
    start, touched, relied = len(trace.graph.nodes), m.effects.size(), len(trace.env.asserts)
    hooked, known = len(m.tracer.hooked), _known(m)
    with _changes(m) as changed, _cut_off(m) as leaves:
        try:
            returned = m.call(function, given, {})
            results = _tensors(m, what, returned)
        except Raised as raised:
            name = raised.value.python_type().__name__
            _refuse(m, f"{what} raises {name}")
    nodes = trace.graph.nodes[start:]
    del trace.graph.nodes[start:]
    outside = {value.storage for value in free_values(nodes, [r.value for r in results])}
    storages = [result.value.storage for result in results]
    if m.effects.size() > touched or any(c is None or id(c) in known for c in changed):
        _refuse(m, f"{what} writes to an object that exists outside of it")
    if written_outside(nodes):
        _refuse(m, f"{what} writes to a tensor that exists outside of it")
    if len(trace.env.asserts) > relied or len(m.tracer.hooked) > hooked:
        _refuse(m, f"{what} checks a number that exists only at run time, or sets a hook")
    if len({*outside, *storages}) < len(outside) + len(storages):
        _refuse(m, f"{what} returns a view of another tensor, or a tensor twice")
    if any(node.token is not None for node in nodes) and any(r.requires_grad for r in results):
        _refuse(m, f"{what} draws random numbers that backward needs again")
    return _Function(nodes, results, returned, leaves)


def _refuse(m: Machine, reason: str) -> Any:
    """The graph ends before the call, which torch then compiles itself."""
    m.mutated()
    raise Break("torch_call", reason, "a function that only computes new tensors of its arguments")


def _known(m: Machine) -> set[int]:
    """The ids of what exists outside of the function that is about to run."""
    frames, frame = [], m.frame
    while frame is not None:
        frames.append(frame)
        frame = frame.back
    return m.kept_by(Outcome("break", frames=tuple(frames)))  # type: ignore[arg-type]


@contextmanager
def _changes(m: Machine) -> Iterator[list[Value | None]]:
    """The values that change within."""
    noted, changed = m.changed_late, []  # type: ignore[var-annotated]
    m.changed_late = changed
    try:
        yield changed
    finally:
        m.changed_late = noted


@contextmanager
def _cut_off(m: Machine) -> Iterator[Leaves]:
    """Within, leaves stand for all tensors that require grad: what autograd records begins at
    them.  Behind it the list also has the tensors that entered the graph meanwhile."""
    leaves: Leaves = []
    tracer, inside = m.tracer, []
    before = {id(value): value for value in tracer.known_tensors()}
    for value in before.values() if torch.is_grad_enabled() else ():
        outer = value.entered
        if outer is not None and outer.requires_grad:
            inner = make_symbolic(outer.value, tracer.env, requires_grad=True)
            inside.append((value, inner))
            leaves.append((outer, inner))
    with tracer.standing_in(inside):
        yield leaves
    for value in tracer.known_tensors():
        if id(value) not in before and value.real is not None and value.tensor.requires_grad:
            leaves.append((value.tensor, value.tensor))


# ---- predicates and types


def _truth_of(m: Machine, pred: TensorValue, what: str) -> GraphValue:
    value = pred.tensor.value
    _check_truth(m, value.type, what)
    return value


def _check_truth(m: Machine, type_: Any, what: str) -> None:
    single = all(type(size) is int and size == 1 for size in type_.shape)
    if not single or type_.dtype is not torch.bool:
        _refuse(m, f"{what} is {type_}, no bool of one element")


def _fresh(value: GraphValue) -> TensorType:
    type_ = tensor_type(value)
    return TensorType(type_.shape, type_.strides, type_.dtype, type_.device)


def _same(m: Machine, one: TensorType, two: TensorType, what: str) -> bool:
    """Equal sizes are facts."""
    if (one.dtype, one.device, one.ndim) != (two.dtype, two.device, two.ndim):
        return False
    env = m.tracer.env
    if not all(env.equal(a, b, what) for a, b in zip(one.shape, two.shape)):
        return False

    def simple(type_: TensorType) -> TensorType:
        shape, strides = (tuple(map(env.simplify, row)) for row in (type_.shape, type_.strides))
        return replace(type_, shape=shape, strides=strides)

    return same_layout(simple(one), simple(two))


def _check_alike(m: Machine, then: _Function, other: _Function) -> None:
    if then.shape() != other.shape():
        _refuse(m, "the branches of a cond return different structures")
    for one, two in zip(map(_fresh, then.values), map(_fresh, other.values)):
        if not _same(m, one, two, "the branches of a cond"):
            _refuse(m, f"the branches of a cond return tensors that differ: {one}, {two}")


# ---- nodes


def _graph(around: Graph, inputs: Sequence[GraphValue], function: _Function) -> Graph:
    return lifted(around, inputs, function.nodes, function.values)


def _number(graphs: Sequence[Graph]) -> list[Any]:
    """Gives all of them the same symbols."""
    numbers = numbers_of(graphs)
    for graph in graphs:
        graph.symbols = list(numbers)
    return numbers


def _record(
    m: Machine, op: str, args: list[Any], graphs: Sequence[Graph], types: Sequence[TensorType]
) -> tuple[GraphValue, ...]:
    trace = m.tracer.trace
    outs = trace.record(op, args, {}, types)
    if any(node.token is not None for graph in graphs for node in graph.nodes):
        trace.draw()
    for arg in args:
        if isinstance(arg, Subgraph):
            arg.name = f"{outs[0].name}_{arg.name}"
    return outs


class _Branches:
    """A cond with its gradients."""

    def __init__(self, m: Machine, truth: GraphValue, then: _Function, other: _Function) -> None:
        self.machine, self.truth, self.functions = m, truth, (then, other)
        pairs = zip(then.results, other.results)
        self.tracked = [a.requires_grad or b.requires_grad for a, b in pairs]
        self.sources: list[SymbolicTensor] = []  # the tensors outside that get a gradient
        self.gradients: tuple[_Function, ...] = ()
        self.tangents: list[GraphValue] = []
        if any(self.tracked):
            self._differentiate()

    def results(self) -> list[SymbolicTensor]:
        if not any(self.tracked):
            return [self.machine.tracer.trace.wrap(out) for out in self.forward()]
        return list(self.machine.tracer.run(_Chosen.apply, [self, *self.sources], {}))

    def forward(self) -> tuple[GraphValue, ...]:
        types = [_fresh(value) for value in self.functions[0].values]
        return self._choose(self.functions, [], [], types)

    def backward(self, tangents: Sequence[GraphValue]) -> list[SymbolicTensor]:
        trace = self.machine.tracer.trace
        types = [trace.tangent_type(source) for source in self.sources]
        outs = self._choose(self.gradients, self.tangents, list(tangents), types)
        return [trace.wrap(out) for out in outs]

    def _choose(
        self,
        functions: Sequence[_Function],
        inner: list[GraphValue],
        outer: list[GraphValue],
        types: Sequence[TensorType],
    ) -> tuple[GraphValue, ...]:
        """The node; its functions take `inner` where the graph has `outer`."""
        nodes = [node for f in functions for node in f.nodes]
        used = free_values(nodes, [value for f in functions for value in f.values])
        used = [value for value in used if value not in inner]
        around = self.machine.tracer.trace.graph
        graphs = [_graph(around, [*used, *inner], f) for f in functions]
        numbers = _number(graphs)
        geometry = [geometry_of(value) for value in [*used, *inner]]
        then, other = (Subgraph(g, name) for g, name in zip(graphs, ("then", "else")))
        strides = [list(type_.strides) for type_ in types]
        args = [self.truth, then, other, [*used, *outer], geometry, numbers, strides]
        return _record(self.machine, "jitshape.cond.default", args, graphs, types)

    def _differentiate(self) -> None:
        """Backward of both branches, recorded now: what they saved is theirs alone."""
        trace = self.machine.tracer.trace
        first = self.functions[0]
        types = [trace.tangent_type(result) for result in first.results]
        self.tangents = [trace.graph.new_value(type_, name="tangent") for type_ in types]
        given = [trace.wrap(value) for value in self.tangents]
        found = [self._gradients(function, given) for function in self.functions]
        by_source = {id(outer): outer for f in self.functions for outer, _ in f.leaves}
        self.sources = [s for s in by_source.values() if any(id(s) in rows for _, rows in found)]
        self.gradients = tuple(
            self._whole(function, nodes, rows)
            for function, (nodes, rows) in zip(self.functions, found)
        )

    def _gradients(
        self, function: _Function, given: list[SymbolicTensor]
    ) -> tuple[list[Node], dict[int, SymbolicTensor]]:
        """The nodes of backward, and the gradients by the id of the tensor outside."""
        trace = self.machine.tracer.trace
        rows = [(r, g) for r, g in zip(function.results, given) if r.requires_grad]
        if not rows or not function.leaves:
            return [], {}
        start = len(trace.graph.nodes)
        outputs, tangents = zip(*rows)
        inner = [leaf for _, leaf in function.leaves]
        found = trace.gradients(outputs, tangents, inner, retain_graph=True)
        nodes = trace.graph.nodes[start:]
        del trace.graph.nodes[start:]
        named = zip(function.leaves, found)
        return nodes, {id(outer): grad for (outer, _), grad in named if grad is not None}

    def _whole(
        self, function: _Function, nodes: list[Node], rows: dict[int, SymbolicTensor]
    ) -> _Function:
        """Forward and backward of one branch, with zeros where nothing flows."""
        trace = self.machine.tracer.trace
        start = len(trace.graph.nodes)
        with trace, torch.no_grad():
            grads = [rows[id(s)] if id(s) in rows else torch.zeros_like(s) for s in self.sources]
        zeros = trace.graph.nodes[start:]
        del trace.graph.nodes[start:]
        return _Function([*function.nodes, *nodes, *zeros], grads, function.returned, [])


class _Chosen(torch.autograd.Function):
    """A cond for autograd."""

    @staticmethod
    def forward(ctx: Any, branches: _Branches, *sources: SymbolicTensor) -> tuple[Any, ...]:
        ctx.branches = branches
        ctx.save_for_backward(*sources)  # as eager does: none may be written until backward
        trace = branches.machine.tracer.trace
        outs = [trace.wrap(out) for out in branches.forward()]
        ctx.mark_non_differentiable(*(o for o, t in zip(outs, branches.tracked) if not t))
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        branches = ctx.branches
        if torch.is_grad_enabled():
            raise Break("autograd", "the gradient of a cond is differentiated")
        _ = ctx.saved_tensors
        trace = branches.machine.tracer.trace
        tangents = [trace.unwrap(gradient) for gradient in gradients]
        return (None, *branches.backward(tangents))
