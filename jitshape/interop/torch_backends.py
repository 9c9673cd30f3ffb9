"""torch's own back ends (`backend="inductor"` and whatever else is registered) for our graphs.

In: a graph.  Out: its program, made by a back end of torch.compile from the graph as an fx module
with symbolic sizes.
Invariant: such a back end relies on facts about sizes that are not ours; every call checks them,
and one that they do not hold for is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import torch

from jitshape.interop.fx import pure_fx
from jitshape.ir.evaluate import bind_sizes, evaluate, finish_outputs
from jitshape.ir.graph import Graph, new_symbols
from jitshape.ir.symint import IntExpr
from jitshape.observe import counters, logs

BUILT_IN = ("inductor", "aot_eager", "cudagraphs", "openxla", "tvm")
MOST_VARIANTS = 8  # of one graph


@cache
def torch_backends() -> tuple[str, ...]:
    """The names, told without loading torch's compiler."""
    return (*BUILT_IN, *(point.name for point in entry_points(group="torch_dynamo_backends")))


@dataclass(frozen=True)
class TorchBackend:
    """`backend(graph, example_inputs)` by the back end of this name."""

    name: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, graph: Graph, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        told = next((node for node in graph.nodes if new_symbols(node)), None)
        if told is not None:
            return _evaluated(graph, self.name, f"a size that {told.op} gives depends on data")
        served = _Served(self.name, graph)
        served.compile(example_inputs)
        return served


def _evaluated(graph: Graph, name: str, reason: str) -> Callable[..., Any]:
    """The graph run by ATen, counted as a fallback at each call."""

    def run(*inputs: Any) -> list[Any]:
        counters.count("fallbacks")
        counters.count_in("fallback_reasons", f"back end {name}: {reason}")
        return evaluate(graph, inputs)

    logs.log("recompiles", f"back end {name} does not get a graph, which ATen runs: {reason}")
    return run


@dataclass
class _Variant:
    """A compiled module and what it relies on: `equal`, numbers that are as they were at the
    compile, by place among those of a call; `holds`, of the others."""

    run: Callable[..., Any]
    equal: tuple[tuple[int, Any], ...]
    symbolic: tuple[int, ...]
    holds: Callable[[list[int]], bool]

    def serves(self, numbers: Sequence[Any]) -> bool:
        if any(numbers[place] != value for place, value in self.equal):
            return False
        return self.holds([numbers[place] for place in self.symbolic])


@dataclass
class _Served:
    name: str
    graph: Graph
    variants: list[_Variant] = field(default_factory=list)
    rest: Callable[..., Any] | None = None  # serves what comes when there are too many variants

    def __call__(self, *inputs: Any) -> list[Any]:
        if self.rest is not None:
            return self.rest(*inputs)
        numbers = _numbers(self.graph, inputs)
        found = next((v for v in self.variants if v.serves(numbers)), None)
        if found is None:
            if len(self.variants) == MOST_VARIANTS:
                reason = f"it compiled this graph {MOST_VARIANTS} times"
                self.rest = _evaluated(self.graph, self.name, reason)
                return self.rest(*inputs)
            found = self.compile(inputs)
        with torch.no_grad():
            plain = list(found.run(*inputs))
        return self._finished(inputs, plain)

    def _finished(self, inputs: Sequence[Any], plain: list[Any]) -> list[Any]:
        count = len(self.graph.inputs)
        sizes: dict[str, Any] = bind_sizes(self.graph, inputs[:count])
        sizes |= {str(s): number for s, number in zip(self.graph.symbols, inputs[count:])}

        def concrete(x: Any) -> Any:
            return x.algebra.evaluate(x, sizes) if type(x) is IntExpr else x

        return finish_outputs(self.graph, inputs, plain, concrete)

    def compile(self, inputs: Sequence[Any]) -> _Variant:
        """A variant for such inputs."""
        from torch._dynamo import lookup_backend
        from torch._guards import TracingContext, tracing
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        env = ShapeEnv()
        mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
        given = _symbolic_inputs(self.graph, mode, inputs)
        module = pure_fx(self.graph)
        with tracing(TracingContext(mode)), torch.no_grad():
            run = lookup_backend(self.name)(module, given)
        told, numbers = _numbers(self.graph, given), _numbers(self.graph, inputs)
        symbolic = [i for i, number in enumerate(told) if isinstance(number, torch.SymInt)]
        guards = env.produce_guards_expression([told[i] for i in symbolic])

        def holds(values: list[int]) -> bool:
            return guards is None or env.evaluate_guards_expression(guards, values)

        equal = tuple((i, numbers[i]) for i in range(len(numbers)) if i not in set(symbolic))
        self.variants.append(_Variant(run, equal, tuple(symbolic), holds))
        counters.count_in("backend_compiles", self.name)
        return self.variants[-1]


def _numbers(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Sizes, strides and offsets of `inputs` that are symbolic in the graph, and its numbers."""
    found: list[Any] = []
    for value, real in zip(graph.inputs, inputs):
        type_ = value.type
        pairs = (*zip(type_.shape, real.shape), *zip(type_.strides, real.stride()))
        found += [number for size, number in pairs if type(size) is IntExpr]
        if type(type_.offset) is IntExpr:
            found.append(real.storage_offset())
    return found + list(inputs[len(graph.inputs) :])


def _symbolic_inputs(graph: Graph, mode: Any, inputs: Sequence[Any]) -> list[Any]:
    """Fake tensors whose sizes are symbolic where the graph's are; symbols for its numbers."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    given: list[Any] = []
    for value, real in zip(graph.inputs, inputs):
        duck, static = DimDynamic.DUCK, DimDynamic.STATIC
        kinds = [duck if type(size) is IntExpr else static for size in value.type.shape]
        context = StatelessSymbolicContext(dynamic_sizes=kinds)
        source = ConstantSource(value.name)
        given.append(mode.from_tensor(real.detach(), symbolic_context=context, source=source))
    for symbol, number in zip(graph.symbols, inputs[len(graph.inputs) :]):
        if type(number) is int:
            source = ConstantSource(str(symbol))
            kind = DimDynamic.DYNAMIC
            made = mode.shape_env.create_unspecified_symbol(number, source, kind)
            number = mode.shape_env.create_symintnode(made, hint=number, source=source)
        given.append(number)
    return given
