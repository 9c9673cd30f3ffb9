"""The torch side of one trace: graph inputs from real tensors, symbols from real numbers.

In: real tensors and numbers with their sources, and the policy that says what is symbolic.
Out: SymbolicTensors in an ir Trace, guards on what was taken as static, and for every symbol the
Number source it is read from.
Invariant: a tensor object enters the graph once; everything of it that the trace relied on is
guarded or symbolic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import jitshape.ir.divisions
import jitshape.ir.foreach
import jitshape.ir.fused_steps
import jitshape.ir.grad_scaling
import jitshape.ir.lending
import jitshape.ir.literals
import jitshape.ir.metadata
import jitshape.ir.readings
import jitshape.ir.recurrent
import jitshape.ir.scatters
import jitshape.ir.shapes
import jitshape.ir.statistics
import jitshape.ir.symbolic_index  # noqa: F401  registers indexing
from jitshape.dims import Relation
from jitshape.errors import InternalError, UnsupportedTensor
from jitshape.frontend.checks import TensorMatches, TypeIs
from jitshape.frontend.dynamic import Policy
from jitshape.frontend.sources import Held, Number, Source
from jitshape.frontend.torchside.numbers import SymbolicFloat, SymbolicInt
from jitshape.frontend.torchside.tensors import DEVICES, TensorValue
from jitshape.frontend.torchside.watching import watched
from jitshape.frontend.values.base import CLOCK, Break, Value
from jitshape.ir.composites import REPLACED
from jitshape.ir.conditions import any_of, compare
from jitshape.ir.facts import DECLARED, LAYOUT
from jitshape.ir.graph import values_in
from jitshape.ir.intervals import INF
from jitshape.ir.layers import below_layers
from jitshape.ir.numbers import persist
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr, Size, sym_max
from jitshape.ir.torch_numbers import to_torch_float
from jitshape.ir.trace import Trace
from jitshape.ir.words import fits

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

LONGEST_NAME = 80  # of a graph input
TENSOR_CLASSES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True)
class GraphInput:
    """A tensor the graph reads: where it is found at each call, and what it was at this one."""

    source: Source
    tensor: SymbolicTensor
    real: torch.Tensor


class Tracer:
    """State of the torch side of a trace; `symbols` maps symbol names to Number sources."""

    internal_errors: tuple[type[BaseException], ...] = (InternalError, AssertionError)

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.env = ShapeEnv()
        self.trace = Trace(self.env)
        self.inputs: list[GraphInput] = []
        self.symbols: dict[str, Source] = {}
        self.read_at: dict[str, Any] = {}  # by symbol: the line that read it first
        self.with_gradients: list[TensorValue] = []  # whose `.grad` the program reads or writes
        self.floats: dict[str, FloatExpr] = {}  # the symbols among them that are floats
        self.called_back: list[Any] = []  # what the program gave to autograd (called_back.py)
        self.hooked: list[tuple[SymbolicTensor, Any]] = []  # tensors with hooks of the program's
        self.storages: dict[Any, Any] = {}  # that the program asked for, by graph input
        self.given_memory: list[Any] = []  # arguments that show other memory
        self.made_leaves: list[tuple[TensorValue, int | None]] = []  # with the step that made each
        self.nodes: dict[Any, Any] = {}  # autograd's nodes that the program saw
        self.named_inside: dict[Any, bool] = {}  # by function of torch's, see names_inside.py
        self.dependence: Callable[[Any], frozenset[Any]] | None = None  # of values in backward
        self.transforms = 0  # of torch.func, that the machine is in
        self._symbol_at: dict[Source, str] = {}
        self._dims: dict[str, tuple[Relation, IntExpr]] = {}  # by name: where it was met first
        self._names: set[str] = set()
        self._values: dict[int, TensorValue] = {}  # by id of the SymbolicTensor

    # ---- running torch

    def run(self, function: Callable, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call torch with the recording mode on."""
        if not self.transforms:  # whose layers know torch's own functions only
            function = REPLACED.get(function, function)
        with self.trace, watched(function):
            return persist(self.trace, function, args, kwargs)

    def close(self) -> None:
        """Let go of every symbolic tensor; the graph stays."""
        self.trace.close()
        self.inputs.clear()
        self._values.clear()
        for called in self.called_back:
            called.close()
        self.called_back.clear()
        self.hooked.clear()
        self.nodes.clear()
        self.made_leaves.clear()
        self.given_memory.clear()
        self.storages.clear()

    def graph_inputs(self) -> list[GraphInput]:
        """One for each input of the graph, in order: the program's tensors, and between them the
        constants that torch made while tracing, which the entry holds."""
        constants = dict(self.trace.constants)
        found = iter(self.inputs)
        values = self.trace.graph.inputs[: len(self.inputs) + len(constants)]
        return [
            GraphInput(Held(constants[value], value.name), leaf, constants[value])
            if value in constants
            else next(found)
            for value, leaf in zip(values, self.trace.leaves)
        ]

    def drop_unused_inputs(self, gradients: Mapping[int, Any]) -> None:
        """Leave out of the graph the tensors of which the program read what guards tell alone.
        Tangents behind them stay; `gradients` are those of leaves, by id."""
        trace, graph = self.trace, self.trace.graph
        used = {*values_in(graph.outputs), *gradients.values(), *graph.differentiated}
        used = used.union(*(node.inputs() for node in graph.nodes))
        rows = zip(graph.inputs, trace.leaves, self.graph_inputs())
        kept = [row for row in rows if row[0] in used or id(row[1]) in gradients]
        shown = [(graph.inputs[place], seen) for place, seen in graph.shown.items()]
        tangents = graph.inputs[len(trace.leaves) :]
        graph.inputs = [*(value for value, _, _ in kept), *tangents]
        for place, value in enumerate(graph.inputs):
            value.index = place
        graph.shown = {value.index: seen for value, seen in shown}
        trace.leaves = [leaf for _, leaf, _ in kept]
        trace.constants = [row for row in trace.constants if row[0] in used]
        constants = dict(trace.constants)
        self.inputs = [entry for value, _, entry in kept if value not in constants]

    def passed_symbols(self) -> list[IntExpr | FloatExpr]:
        """The symbols that the graph, or what they are known to equal in it, needs and that none
        of its inputs shows."""
        graph, env = self.trace.graph, self.env
        numbers = [*graph.sizes_used(), *(fact.condition for fact in env.asserts)]
        names = {atom.name for number in numbers for atom in number.symbols()}
        for name in names & self.symbols.keys() - self.floats.keys():
            simpler = env.simplify(self.expression(name))
            names = names.union(() if type(simpler) is int else (a.name for a in simpler.symbols()))
        for type_ in (value.type for value in graph.inputs[: len(self.trace.leaves)]):
            sizes = (*type_.shape, *type_.strides, type_.offset)
            names -= {s.symbol.name for s in sizes if type(s) is IntExpr and s.symbol is not None}
        return [self.expression(name) for name in self.symbols if name in names]

    def tensor_value(self, tensor: SymbolicTensor) -> TensorValue:
        """The one Value of a symbolic tensor."""
        value = self._values.get(id(tensor))
        if value is None:
            value = self._values[id(tensor)] = TensorValue(tensor)
            value.made_at = CLOCK.step()
        return value

    def known_tensors(self) -> Collection[TensorValue]:
        """Every tensor that the program has, or had."""
        return {id(value): value for value in self._values.values()}.values()

    @contextmanager
    def standing_in(self, inner: Sequence[tuple[TensorValue, SymbolicTensor]]) -> Iterator[None]:
        """Within, each of these values is another tensor, of the same content."""
        outer = [value.entered for value, _ in inner]
        for value, tensor in inner:
            value.show(tensor)
            self._values[id(tensor)] = value
        try:
            yield
        finally:
            for (value, tensor), shown in zip(inner, outer):
                value.show(shown)
                del self._values[id(tensor)]

    # ---- real tensors

    def enter(self, m: Machine, value: TensorValue) -> SymbolicTensor:
        """The graph input of a real tensor, guarded."""
        with below_layers():
            return self._enter(m, value)

    def _enter(self, m: Machine, value: TensorValue) -> SymbolicTensor:
        real, source = value.real, value.source
        assert real is not None
        if type(real) not in TENSOR_CLASSES:
            raise Break("tensor_subclass", f"{type(real).__name__} is a subclass of Tensor")
        _check_supported(real, source)
        if real.is_conj() or real.is_neg():
            raise Break("lazy_tensor", "elements of the tensor are conjugated or negated when read")
        if source is None:
            raise Break("lifted_tensor", "a tensor was reached that no guard can name")
        sizes = self._sizes(real, source)
        strides = self._strides(real, source, sizes)
        m.guard(
            source,
            TensorMatches(
                type(real),
                real.dtype,
                real.device,
                torch._C._dispatch_keys(real).raw_repr(),
                tuple(s if type(s) is int else None for s in sizes),
                tuple(s if type(s) is int else None for s in strides),
                real.requires_grad,
                real.is_leaf,
            ),
        )
        offset = self.symbol(Number(source, "offset"), real.storage_offset())
        name = self._name(source)
        tensor = self.trace.input(real, name, sizes=sizes, strides=strides, offset=offset)
        self.inputs.append(GraphInput(source, tensor, real))
        self._values[id(tensor)] = value
        return tensor

    def _name(self, source: Source) -> str:
        """A name for the graph input: the source's text as an identifier, made unique."""
        text = "".join(c if c.isalnum() else "_" for c in str(source)).strip("_")[-LONGEST_NAME:]
        name = text = text if text[:1].isalpha() else f"x_{text}"
        for number in itertools.count(1):
            if name not in self._names:
                self._names.add(name)
                return name
            name = f"{text}_{number}"
        raise AssertionError("unreachable")

    def _sizes(self, real: torch.Tensor, source: Source) -> tuple[Size, ...]:
        sizes: list[Size] = []
        for dim, size in enumerate(real.shape):
            decision = self.policy.size(source, real, dim)
            if not decision.dynamic:
                sizes.append(size)
                continue
            symbol = self.env.size_symbol(
                size, lo=decision.lo, hi=decision.hi, seen=decision.seen, typical=decision.hint
            )
            self._found_at(Number(source, "size", dim), symbol)
            if decision.unbacked:
                self.env.undecided.add(str(symbol))
            if decision.relation is not None:
                self._relate(decision.relation, symbol)
            sizes.append(symbol)
        return tuple(sizes)

    def _relate(self, relation: Relation, symbol: IntExpr) -> None:
        """`symbol` is related to the first size that was declared with the same Dim."""
        first, known = self._dims.setdefault(relation.root.name, (relation, symbol))
        mine = symbol - relation.offset
        if known is not symbol:
            other = known - first.offset
            self.require(compare("eq", mine * first.scale, other * relation.scale), DECLARED)
        elif relation.scale > 1:
            self.require(compare("eq", self.env.algebra.mod(mine, relation.scale), 0), DECLARED)

    def _strides(
        self, real: torch.Tensor, source: Source, sizes: tuple[Size, ...]
    ) -> tuple[Size, ...]:
        """Strides as expressions of the sizes where the layout is dense in some order of the
        dimensions; else static, or symbolic once they changed."""
        actual = real.stride()
        if all(type(s) is int for s in sizes):
            return self._free_strides(real, source, range(real.ndim))
        dense = _dense_strides(tuple(real.shape), actual, sizes)
        free = [d for d in range(real.ndim) if dense[d] is None]
        loose = self._free_strides(real, source, free)
        strides = tuple(loose[d] if s is None else s for d, s in enumerate(dense))
        for dim, stride in enumerate(strides):
            if type(stride) is int or dense[dim] is None:
                continue
            seen = self.symbol(Number(source, "stride", dim), actual[dim])
            small = compare("le", sizes[dim], 1)
            self.require(any_of((small, compare("eq", seen, stride))))
        return strides

    def _free_strides(self, real: torch.Tensor, source: Source, dims: Any) -> tuple[Size, ...]:
        """An expanded dimension (stride 0) stays static: layouts of results depend on it."""
        strides: list[Size] = list(real.stride())
        for dim in dims:
            stride = real.stride(dim)
            if self.policy.stride(source, real, dim).dynamic and stride != 0:
                strides[dim] = self.symbol(Number(source, "stride", dim), stride, lo=1)
        return tuple(strides)

    def require(self, condition: Any, why: str = LAYOUT) -> None:
        """A condition that the caller knows to hold now and that every later call must meet."""
        self.env.evaluate(condition, why)

    # ---- numbers

    def symbol(
        self,
        source: Number,
        value: int,
        lo: float = -INF,
        hi: float = INF,
        typical: int | None = None,
    ) -> IntExpr:
        """The symbol read from `source`."""
        name = self._symbol_at.get(source)
        if name is not None:
            return self.env.symbols[name].expr
        symbol = self.env.int_symbol(value, lo=lo, hi=hi, typical=typical)
        self._found_at(source, symbol)
        return symbol

    def _found_at(self, source: Number, symbol: IntExpr | FloatExpr) -> None:
        name = str(symbol)
        self.symbols[name] = source
        self.read_at[name] = self.env.location()
        self._symbol_at.setdefault(source, name)

    def expression(self, name: str) -> IntExpr | FloatExpr:
        """The symbol of this name."""
        return self.floats.get(name) or self.env.symbols[name].expr

    def symbolic_float(self, m: Machine, value: float, source: Source | None) -> Value | None:
        """The symbol of a Python float that changed; None: it is a literal."""
        if source is None or not self.policy.number(source, value).dynamic:
            return None
        m.guard(source, TypeIs(float))
        symbol = self.env.float_symbol(value)
        self._found_at(Number(source, "float"), symbol)
        self.floats[str(symbol)] = symbol
        number = SymbolicFloat(self.env, to_torch_float(symbol, self.env))
        number.source = source
        return number

    def symbolic_int(self, m: Machine, value: int, source: Source | None) -> Value | None:
        """The symbol of a Python int that changed; None: it is a literal, as those are that do
        not fit the machine's word."""
        if source is None or not fits(value):
            return None
        decision = self.policy.number(source, value)
        if not decision.dynamic:
            return None
        if not -(2**63) <= value < 2**63:  # C reads 64 bits
            return None
        m.guard(source, TypeIs(int))
        # instances that differ in the number alone choose alike, and share their graph
        first = decision.seen[0] if decision.seen else math.nan  # a float, if it was one
        typical = int(first) if first == first // 1 else None
        lo = -INF if decision.served_from is None else decision.lo
        symbol = self.symbol(Number(source, "int"), value, lo, decision.hi, typical)
        number = SymbolicInt(self.env, symbol)
        number.source = source
        return number


def _check_supported(real: torch.Tensor, source: Source | None) -> None:
    problem = ""
    if real.is_nested:
        problem = "it is nested"
    elif real.layout is not torch.strided:
        problem = f"its layout is {real.layout}"
    elif real.device.type not in DEVICES:
        problem = f"it is on device {real.device}"
    elif real.is_quantized:
        problem = "it is quantised"
    elif real._is_zerotensor():
        problem = "its zeros have no memory"
    if problem:
        raise UnsupportedTensor(
            f"jitshape has no kernels for the tensor {source}",
            because=problem,
            avoid="keep it outside the compiled function, or mark that part jitshape.disable",
        )


def _is_contiguous(shape: tuple[int, ...], actual: tuple[int, ...]) -> bool:
    """As torch has it: the strides of sizes of 1 do not count, and without elements none does."""
    number = 1
    for size, stride in zip(reversed(shape), reversed(actual)):
        if size not in (0, 1) and stride != number:
            return 0 in shape
        number *= size
    return True


def _dense_strides(
    shape: tuple[int, ...], actual: tuple[int, ...], sizes: tuple[Size, ...]
) -> list[Size | None]:
    """Strides as products of the sizes behind, for each dimension that fits; None elsewhere."""
    order = sorted(range(len(shape)), key=lambda d: (actual[d], shape[d] == 1, -d))
    if _is_contiguous(shape, actual):  # sizes of 1 leave the order open
        order = list(range(len(shape)))[::-1]
    found: list[Size | None] = [None] * len(shape)
    number, product = 1, 1
    expression: Size = 1
    for dim in order:
        if actual[dim] != number and shape[dim] > 1:
            return found
        found[dim] = expression
        product = max(shape[dim], 1)
        number, expression = number * product, expression * sym_max(sizes[dim], 1)
    return found
