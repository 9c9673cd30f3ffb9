"""A graph as a `torch.fx.GraphModule`, for the tools and back ends that take one.

In: a graph.  Out: a module that takes what the graph's program takes (the inputs, then a number
for each of `graph.symbols`) and gives a list of its outputs.
Invariant: sizes are computed in the module from the sizes of its inputs, as nodes, so it is valid
wherever the graph is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from jitshape.backend.externs import gives_row
from jitshape.backend.lower import is_view_op
from jitshape.errors import Refuted
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.evaluate import rebuild_alias, runner
from jitshape.ir.facts import assumption
from jitshape.ir.graph import Alias, Graph, Node, OutputAlias, Subgraph, Value, map_leaves
from jitshape.ir.symfloat import MATH, FloatExpr
from jitshape.ir.symint import IntExpr
from jitshape.ir.types import ScalarType, TensorType
from jitshape.ir.versions import add_versions, reshape, set_version

_SYMBOLIC = {  # where torch has a function that also takes its own symbolic numbers
    "max": torch.sym_max,
    "min": torch.sym_min,
    "float": torch.sym_float,
}
_ROUNDINGS = ("floor", "ceil", "trunc")


def to_fx(graph: Graph, name: str = "GraphModule") -> fx.GraphModule:
    """The whole graph: its module also writes the inputs that the program writes, and rebuilds
    outputs that are views."""
    return _Writer(graph, name).whole()


def pure_fx(graph: Graph, name: str = "GraphModule") -> fx.GraphModule:
    """The graph's nodes alone: the module gives the outputs that nodes compute, None for those
    that are views, and writes nothing."""
    return _Writer(graph, name).pure()


def require(holds: Any, message: str, what: str) -> None:
    """What the graph relies on about a number that only its run tells."""
    if not holds:
        raise Refuted(message, what)


for _effect in (require, add_versions, set_version, reshape, torch._C._set_grad_enabled):
    fx.node.has_side_effect(_effect)


class _Writer:
    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name
        self.root, self.fx = torch.nn.Module(), fx.Graph()  # subgraphs are modules of the root
        self.tracer = fx.proxy.GraphAppendingTracer(self.fx)
        self.values: dict[Value, Any] = {}
        self.sizes: dict[str, Any] = {}  # symbol -> what gives its value
        self.shown: dict[str, tuple[Value, str, int]] = {}  # symbol -> the input that shows it
        self.asserts = list(graph.env.asserts) if graph.env is not None else []
        self.functions = {
            **{name: self._caller(fn) for name, fn in _SYMBOLIC.items()},
            "round": self._caller(round),
            "math": SimpleNamespace(
                **{name: self._caller(getattr(math, name)) for name in (*MATH, *_ROUNDINGS)}
            ),
        }

    def pure(self) -> fx.GraphModule:
        self._nodes()
        return self._module(self._plain())

    def whole(self) -> fx.GraphModule:
        self._nodes()
        results = self._plain()
        self._write_back(results)
        for place in self.graph.owned:
            if is_view_op(self.graph.outputs[place]):
                results[place] = self.call(torch.ops.aten.detach.default, results[place])
        for place, output in enumerate(self.graph.outputs):
            if isinstance(output, (Alias, OutputAlias)):
                results[place] = self._view(output, results)
        for change in self.graph.reshaped:
            view = None if change.output is None else results[change.output]
            self.call(reshape, self._input(change.input), view, change.times)
        for place, number in self.graph.versions:
            self.call(set_version, results[place], number)
        return self._module(results)

    def _write_back(self, results: list[Any]) -> None:
        """Autograd does not see that inputs are written."""
        if not self.graph.mutations:
            return
        enabled = self.call(torch.is_grad_enabled)
        self.call(torch._C._set_grad_enabled, False)
        for mutation in self.graph.mutations:
            target = self._input(mutation.input)
            self.call(torch.ops.aten.copy_.default, target, results[mutation.output])
            if mutation.versions != 1:
                self.call(add_versions, target, mutation.versions - 1)
        self.call(torch._C._set_grad_enabled, enabled)

    def _view(self, alias: Alias | OutputAlias, results: list[Any]) -> fx.Proxy:
        if isinstance(alias, Alias):
            value, base = self.graph.inputs[alias.input], self._input(alias.input)
            if value.requires_grad and not alias.requires_grad:
                base = self.call(torch.ops.aten.detach.default, base)
        else:
            value, base = self.graph.outputs[alias.output], results[alias.output]
        type_ = alias.type
        sizes = map_leaves(self.leaf, (type_.shape, type_.strides, type_.offset))
        if value.type.dtype == type_.dtype and not alias.traits:
            return self.call(torch.ops.aten.as_strided.default, base, *sizes)
        return self.call(rebuild_alias, base, *sizes, type_.dtype, alias.traits)

    def _input(self, index: int) -> Any:
        return self.values[self.graph.inputs[index]]

    def _nodes(self) -> None:
        for value in self.graph.inputs:
            self._placeholder(value)
        for symbol in self.graph.symbols:
            self.sizes[str(symbol)] = self._proxy(self.fx.placeholder(str(symbol)))
        for node in self.graph.nodes:
            self._node(node)

    def _placeholder(self, value: Value) -> None:
        proxy = self._proxy(self.fx.placeholder(value.name))
        self.values[value] = proxy
        if isinstance(value.type, TensorType):
            sides = (("sym_size", value.type.shape), ("sym_stride", value.type.strides))
            for op, sizes in (*sides, ("sym_storage_offset", (value.type.offset,))):
                for d, size in enumerate(sizes):
                    if type(size) is IntExpr and size.symbol is not None:
                        self.shown.setdefault(size.symbol.name, (value, op, d))

    def _node(self, node: Node) -> None:
        args, kwargs = map_leaves(self.leaf, (node.args, node.kwargs))
        result = self.call(runner(node.op), *args, **kwargs)
        if node.location is not None:
            where = node.location
            result.node.stack_trace = f'  File "{where.file}", line {where.line}, in {self.name}'
        many = len(node.outs) != 1 or gives_row(node)
        told: set[str] = set()
        for index, out in enumerate(node.outs):
            self.values[out] = result[index] if many else result
            told |= self._told(out)
        if told:
            self._assert(told)

    def _told(self, out: Value) -> set[str]:
        """The symbols that this result alone tells."""
        if isinstance(out.type, ScalarType):
            self.sizes[str(out.type.symbol)] = self.values[out]
            return {str(out.type.symbol)}
        fresh = set()
        for d, size in enumerate(out.type.shape):
            symbol = size.symbol if type(size) is IntExpr else None
            if symbol is not None and symbol.name not in {*self.sizes, *self.shown}:
                self.shown[symbol.name] = (out, "sym_size", d)
                fresh.add(symbol.name)
        return fresh

    def _assert(self, told: set[str]) -> None:
        for fact in self.asserts:
            assert isinstance(fact.condition, BoolExpr)
            names = {atom.name for atom in fact.condition.symbols()}
            if names & told and names <= self.sizes.keys() | self.shown.keys():
                what = assumption(fact)
                message = f"a value does not fit what follows: {what}"
                self.call(require, self._truth(fact.condition), message, what)

    def _truth(self, condition: Any) -> Any:
        """A condition on sizes; `and` and `or` of parts as products and sums of truths."""
        if not isinstance(condition, BoolExpr):
            return condition
        if condition.op in ("and", "or"):
            parts = [self._truth(part) for part in condition.args]
            return self.call(all if condition.op == "and" else any, parts)
        return eval(condition.print(self._symbol_name), self._names(condition.symbols()))

    # ---- leaves

    def leaf(self, x: Any) -> Any:
        """What stands for a value, a size or a constant in arguments of nodes."""
        if isinstance(x, Value):
            return self.values[x]
        if type(x) in (IntExpr, FloatExpr):
            return eval(x.print(self._symbol_name), self._names(x.symbols()))
        if isinstance(x, Subgraph):
            self.root.add_module(x.name, to_fx(x.graph, x.name))
            return self._proxy(self.fx.get_attr(x.name))
        return x

    def _symbol_name(self, atom: Any) -> str:
        return atom.name

    def _names(self, symbols: Sequence[Any]) -> dict[str, Any]:
        return self.functions | {atom.name: self._symbol(atom.name) for atom in symbols}

    def _symbol(self, name: str) -> Any:
        if name not in self.sizes:
            value, op, d = self.shown[name]
            target = getattr(torch.ops.aten, op)
            args = (d,) if op != "sym_storage_offset" else ()
            overload = target.int if args else target.default
            self.sizes[name] = self.call(overload, self.values[value], *args)
        return self.sizes[name]

    # ---- nodes

    def call(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", fn, args, kwargs)

    def _caller(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: self.call(fn, *args)

    def _proxy(self, node: fx.Node) -> fx.Proxy:
        return fx.Proxy(node, self.tracer)

    def _plain(self) -> list[Any]:
        outputs = self.graph.outputs
        return [None if isinstance(o, (Alias, OutputAlias)) else self.leaf(o) for o in outputs]

    def _module(self, outputs: list[Any]) -> fx.GraphModule:
        self.fx.output(fx.node.map_aggregate(outputs, lambda x: getattr(x, "node", x)))
        self.fx.lint()
        return fx.GraphModule(self.root, self.fx, self.name)
