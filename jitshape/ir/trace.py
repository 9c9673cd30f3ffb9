"""Records the ATen calls that reach the dispatcher into a graph, forward and backward.

In: torch calls on symbolic tensors while the mode is on.  Out: a Graph in program order, not yet
functional.  Invariant: every tensor recorded has the shape, strides and dtype that eager would
give it; each call of the user's program is recorded once.

An op is resolved by the first of: an interception here; its block in the registry; C++'s own
decomposition; an extern call, whose result types come from a run at the hint sizes.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable
from torch.utils._python_dispatch import TorchDispatchMode

from jitshape.errors import DataDependent, JitshapeError
from jitshape.ir import plain_ops
from jitshape.ir.conditions import BoolExpr, compare
from jitshape.ir.graph import Graph, Location, Node, Storage, Value, tensor_type
from jitshape.ir.known_numbers import known_number
from jitshape.ir.ops.elements import with_elements
from jitshape.ir.ops.externs import eager_error
from jitshape.ir.ops.families import number_dtype
from jitshape.ir.ops.registry import OPS, OpDef
from jitshape.ir.ops.trials import try_call
from jitshape.ir.overlap import check_arguments
from jitshape.ir.passes.functionalize import written_arguments
from jitshape.ir.strides import preserved_strides
from jitshape.ir.symbolic_tensor import SymbolicTensor, make_symbolic
from jitshape.ir.symint import Size
from jitshape.ir.torch_numbers import from_torch, to_torch, to_torch_float
from jitshape.ir.types import ScalarType, TensorType

aten = torch.ops.aten
_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymBool, torch.SymFloat)


class Trace(TorchDispatchMode):
    """`with trace:` records.  Set by the frontend: `location`, which gives the user's line, and
    `lift`, which turns a real tensor met on the way into a symbolic one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import dynamo to wrap the handler

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = env
        self.graph = Graph(env)
        self.location: Callable[[], Location | None] = lambda: None
        self.lift: Callable[[torch.Tensor], SymbolicTensor] = self.constant
        self.constants: list[tuple[Value, torch.Tensor]] = []
        self.extern_unknown: collections.Counter[str] = collections.Counter()
        self.leaves: list[SymbolicTensor] = []  # one for each input, in their order
        self._arguments: list[tuple[SymbolicTensor, Value]] = []
        self._lifted: dict[int, SymbolicTensor] = {}
        self._memories: dict[int, Storage | None] = {}
        self._inference: dict[Storage | None, bool] = {}  # by memory: made in inference mode
        self.consumes = False  # a backward recorded here has freed what its graph had saved
        self.in_backward = False
        self.probing = False  # a backward that is undone: what autograd calls does nothing
        self._lines: dict[int, Location | None] = {}  # by the number of the autograd node
        self._tokens = 0
        self._written: set[Storage] = set()
        self.exact_copies = False  # copies are made where eager makes them, by facts
        self.copies: list[tuple[Storage | None, Storage | None, int]] = []  # see ir/copies.py
        self.region: int | None = None  # that what is recorded now belongs to
        self._regions = itertools.count()

    def close(self) -> None:
        """Let go of every symbolic tensor; the graph stays."""
        self._lifted.clear()
        self.leaves.clear()
        self._arguments.clear()
        self.env.wrapped.clear()
        self.lift = self.constant
        self.location = lambda: None
        self.env.location = lambda: None

    # ---- tensors in

    def input(
        self,
        tensor: torch.Tensor,
        name: str,
        sizes: Sequence[Size] | None = None,
        strides: Sequence[Size] | None = None,
        offset: Size | None = None,
    ) -> SymbolicTensor:
        """A graph input like `tensor`, leaf and requires_grad as it."""
        if offset is None:
            offset = int(tensor.storage_offset())
        type_ = TensorType(
            tuple(tensor.shape if sizes is None else sizes),
            tuple(tensor.stride() if strides is None else strides),
            tensor.dtype,
            tensor.device,
            offset,
        )
        if self._memories.get(tensor.untyped_storage()._cdata) in self._written:
            check_arguments(self.env, [type_])
        taken = {value.name for value in self.graph.inputs}
        value = self.graph.add_input(type_, _unused(name, taken))
        value.storage = self._storage(tensor, value.storage)
        value.requires_grad = tensor.requires_grad
        self._inference[value.storage] = tensor.is_inference()
        with torch.inference_mode(tensor.is_inference()):
            leaf = make_symbolic(value, self.env, tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            leaf._is_param = True
        self.leaves.append(leaf)
        entered = leaf
        if not tensor.is_leaf:
            with torch.enable_grad():  # wherever the program first meets it
                entered = _Identity.apply(leaf, self)
        self._arguments.append((entered, value))
        return entered

    def argument(self, tensor: SymbolicTensor) -> Value | None:
        """The input that `tensor` stands for, if it is an argument itself."""
        return next((value for entered, value in self._arguments if entered is tensor), None)

    def _storage(self, tensor: torch.Tensor, new: Any) -> Any:
        """The memory of a real tensor: inputs that share it alias."""
        return self._memories.setdefault(tensor.untyped_storage()._cdata, new)

    def is_input_memory(self, tensor: SymbolicTensor) -> bool:
        """Whether the tensor lies in the memory of an input."""
        return any(value.storage is tensor.value.storage for value in self.graph.inputs)

    def constant(self, tensor: torch.Tensor) -> SymbolicTensor:
        """A real tensor as a further graph input; the same one each time."""
        known = self._lifted.get(id(tensor))
        if known is None:
            with torch._C._DisableTorchDispatch():
                known = self.input(tensor, f"c{len(self.constants)}")
            self.constants.append((known.value, tensor))
            self._lifted[id(tensor)] = known
        return known

    def wrap(self, value: Value) -> SymbolicTensor:
        """A new tensor for `value`: views of inputs are inference tensors if these are."""
        kind = self._inference.get(value.storage)
        if kind is None or kind == torch.is_inference_mode_enabled():
            return make_symbolic(value, self.env)
        with torch.inference_mode(kind):
            return make_symbolic(value, self.env)

    @staticmethod
    def value(tensor: SymbolicTensor) -> Value:
        return tensor.value

    # ---- recording

    def new_region(self) -> int:
        """The number of a further checkpointed region."""
        return next(self._regions)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _HANDLERS.get(func)
        if handler is None:
            handler = _HANDLERS[func] = _resolve(func)
        return handler(self, func, args, kwargs or {})

    def unwrap(self, x: Any) -> Any:
        """An argument as the graph holds it."""
        kind = type(x)
        if kind is SymbolicTensor:
            return x.value
        if kind is float and x in self.env.lent:
            self.env.returned.add(x)
            return self.env.lent[x]
        if kind in _PLAIN or kind is torch.memory_format:
            return x
        if kind is list or kind is tuple:
            return [self.unwrap(item) for item in x]
        if isinstance(x, torch.Tensor):
            return self.lift(x).value
        return self._number(from_torch(x)) if isinstance(x, _SYMBOLIC_NUMBERS) else x

    def _number(self, x: Any) -> Any:
        """A number as the graph holds it: a truth is decided."""
        return self.env.evaluate(x, "an argument") if isinstance(x, BoolExpr) else x

    def record(
        self,
        op: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        types: Sequence[Any],
        storage: Storage | None = None,
    ) -> tuple[Value, ...]:
        """Append a node with outputs of `types`; the Value of a missing output is empty."""
        graph = self.graph
        node = Node(op, tuple(args), kwargs, self._location())
        node.backward, node.region = self.in_backward, self.region
        outs = tuple([graph.new_value(t if t is not None else _NOTHING, storage) for t in types])
        graph.add_node(node, outs)
        return outs

    def _location(self) -> Location | None:
        """The user's line; in backward that of the forward op."""
        if self.in_backward:
            current = torch._C._current_autograd_node()
            place = None if current is None else self._lines.get(current._sequence_nr())
            if torch.is_grad_enabled():  # create_graph: there will be a backward of this one
                self._lines[torch.autograd._get_sequence_nr() - 1] = place
            return place
        location = self.location()
        if torch.is_grad_enabled():
            self._lines[torch.autograd._get_sequence_nr() - 1] = location
        return location

    def call(self, definition: OpDef, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Record an op with a block, on Values; its output Value, or the list of them."""
        env, block = self.env, definition.block
        env.current_op = definition.name
        given = args, kwargs
        if definition.has("canonical"):
            args, kwargs = block.canonical(env, *args, **kwargs)
        if definition.has("check"):
            block.check(env, *args, **kwargs)
        types = block.type(env, *args, **kwargs)
        for position in written_arguments(definition, args):
            self._check_overlap(args[position])
        family = definition.family
        shared = block.alias(args).storage if family in ("view", "inplace") else None
        single = isinstance(types, (TensorType, ScalarType))
        rows = (types,) if single else types
        made = next((t for t in rows if t is not None), None)  # an unwanted gradient is None
        if made is not None:
            args, kwargs = with_elements(env, definition, args, kwargs, made.dtype)
        if not self.in_backward:
            try_call(env, definition, *given, rows)
        if family == "factory":
            self._check_sizes(types.shape)
        outs = self.record(definition.name, args, kwargs, rows, shared)
        env.current_op = ""
        if family == "random" or (family == "inplace" and _draws(definition)):
            self.draw()
        if single:
            return outs[0]
        return [out if t is not None else None for out, t in zip(outs, rows)]

    def number(self, x: Any) -> Value:
        """A number where an op wants a tensor: torch.div(x.size(0), 2)."""
        dtype = number_dtype(x)
        return self.call(OPS["aten.scalar_tensor.default"], [x], {"dtype": dtype})

    def _check_overlap(self, target: Any) -> None:
        """A write to the memory of an argument, the first one, is possible."""
        storage = target.storage if type(target) is Value else None
        if storage is None or storage in self._written:
            return
        self._written.add(storage)
        arguments = [value for value in self.graph.inputs if value.storage is storage]
        check_arguments(self.env, map(tensor_type, arguments))

    def _check_sizes(self, shape: Sequence[Size]) -> None:
        """Sizes that the program made up are not negative."""
        for size in shape:
            if not self.env.assume(compare("ge", size, 0)):
                raise RuntimeError(f"negative size {size}")

    def draw(self) -> None:
        """The last node draws random numbers: it keeps its place among those that do."""
        self.graph.nodes[-1].token = self._tokens
        self._tokens += 1

    # ---- backward

    def backward(
        self,
        outputs: Sequence[SymbolicTensor],
        tangents: Sequence[TensorType | None] | None = None,
        inputs: Sequence[SymbolicTensor] | None = None,
    ) -> list[SymbolicTensor | None]:
        """The gradients of `inputs` (by default every leaf that requires grad, in order) from
        fresh inputs `tangent0`, ... of the given types; by default like the outputs, dense."""
        leaves = [t for t in self.leaves if t.requires_grad] if inputs is None else list(inputs)
        types = list(tangents or [None] * len(outputs))
        grads = tuple(
            self.wrap(self.graph.add_input(type_ or self.tangent_type(out), f"tangent{place}"))
            for place, (out, type_) in enumerate(zip(outputs, types))
        )
        if not leaves:
            return []
        start = len(self.graph.nodes)
        try:
            return self.gradients(outputs, grads, leaves, retain_graph=True)
        except RuntimeError as error:
            if isinstance(error, JitshapeError):
                raise
        del self.graph.nodes[start:]  # sizes above 1 were taken for granted
        return self.gradients(outputs, grads, leaves, general=False)

    def gradients(
        self,
        outputs: Sequence[SymbolicTensor],
        tangents: Sequence[SymbolicTensor],
        inputs: Sequence[SymbolicTensor],
        retain_graph: bool = False,
        create_graph: bool = False,
        general: bool = True,
    ) -> list[SymbolicTensor | None]:
        """The gradients of `inputs`, leaves or not, from `tangents` of the outputs.  Not
        `general`: what C++ asks of sizes is answered as it is at this call, by facts."""
        # In backward C++ asks for sizes of 0 and 1 to choose between copies and views of gradients,
        # which nobody can observe, and for what was broadcast, where forward took none for 1.
        self.consumes = self.consumes or not retain_graph
        self.in_backward, self.env.general = True, general
        try:
            with self, torch.autograd.set_detect_anomaly(False):
                found: tuple[Any, ...] = Variable._execution_engine.run_backward(
                    tuple(outputs),
                    tuple(tangents),
                    retain_graph,
                    create_graph,
                    tuple(inputs),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
                return list(found)
        finally:
            self.in_backward = self.env.general = False

    def is_consumed(self, output: SymbolicTensor) -> bool:
        """Whether a backward recorded here has freed what a backward of `output` needs."""
        if not self.consumes:
            return False
        nodes, inputs = len(self.graph.nodes), len(self.graph.inputs)
        tangent = self.wrap(self.graph.add_input(self.tangent_type(output), "tangent"))
        leaves = [t for t in self.leaves if t.requires_grad]
        self.probing = True
        try:
            self.gradients([output], [tangent], leaves, retain_graph=True)
            return False
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            return True
        finally:
            self.probing = False
            del self.graph.nodes[nodes:], self.graph.inputs[inputs:]

    def tangent_type(self, output: SymbolicTensor) -> TensorType:
        """A dense tensor laid out as `output`."""
        type_ = output.value.type
        strides = preserved_strides(self.env, type_.shape, type_.strides)
        return TensorType(type_.shape, strides, type_.dtype, type_.device)


def _unused(name: str, taken: set[str]) -> str:
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


_NOTHING = TensorType((0,), (1,), torch.bool)
_PLAIN = frozenset(
    [int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout]
)


class _Identity(torch.autograd.Function):
    """A non-leaf input: what autograd sees as computed from a hidden leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: SymbolicTensor, trace: Trace) -> SymbolicTensor:
        return trace.wrap(leaf.value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def written_with_autograd(tensor: SymbolicTensor) -> bool:
    """Whether a non-leaf input was written where autograd looked: its gradient goes through what
    was written, not past it."""
    return bool(tensor._version) and type(tensor.grad_fn) is not _Identity._backward_cls


def _draws(definition: OpDef) -> bool:
    """Whether an in-place op fills its argument with random numbers."""
    return OPS[definition.block.functional].family == "random"  # type: ignore[attr-defined]


# ---- how ops are resolved

_HANDLERS: dict[Any, plain_ops.Handler] = {}
_FAMILIES: dict[str, plain_ops.Handler] = {}  # by the start of the op's name


def _resolve(func: Any) -> plain_ops.Handler:
    for start, handler in _FAMILIES.items():
        if func.name().startswith(start):
            return handler
    definition = OPS.get(str(func))
    if definition is not None:
        return partial(_written if definition.mutates else block, definition)
    if _is_composite(func):
        return _decomposed
    return plain_ops.resolve(func)


def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )


def intercept(*ops: Any) -> Callable[[plain_ops.Handler], plain_ops.Handler]:
    """Use the decorated handler for `ops`, before anything else."""

    def register(handler: plain_ops.Handler) -> plain_ops.Handler:
        for op in ops:
            _HANDLERS[op] = handler
        return handler

    return register


def family(start: str) -> Callable[[plain_ops.Handler], plain_ops.Handler]:
    """Use the decorated handler for ops whose names start so, unless they are intercepted."""

    def register(handler: plain_ops.Handler) -> plain_ops.Handler:
        _FAMILIES[start] = handler
        return handler

    return register


def block(definition: OpDef, trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    values = [trace.unwrap(a) for a in args]
    if kwargs:
        kwargs = {key: trace.unwrap(a) for key, a in kwargs.items()}
    if definition.family == "pointwise" and not any(type(v) is Value for v in values):
        values[0] = trace.number(values[0])
    try:
        out = trace.call(definition, values, kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise eager_error(trace.env, func, values, kwargs, error) from None
    if type(out) is Value:
        return trace.wrap(out)
    return [None if v is None else trace.wrap(v) for v in out]


def _written(
    definition: OpDef, trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]
) -> Any:
    """An in-place op: the same tensor, with its new content."""
    target = args[0]
    if type(target) is not SymbolicTensor:
        target = trace.lift(target)
    values = [trace.unwrap(a) for a in args]
    kwargs = {key: trace.unwrap(a) for key, a in kwargs.items()}
    try:
        target.value = trace.call(definition, values, kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise eager_error(trace.env, func, values, kwargs, error) from None
    return args[0]


def _decomposed(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    with trace:
        return func.decompose(*args, **kwargs)


# ---- interceptions


@intercept(aten.detach.default)
def _same_value(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The same memory under another autograd identity needs no node: autograd itself detaches what
    it saves.  For the program's own see ir/composites.py."""
    (x,) = args
    return trace.wrap(trace.unwrap(x))


@intercept(aten.alias.default)
def _whole(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x[...]` is a view as any other."""
    x = trace.unwrap(args[0])
    return trace.wrap(trace.call(OPS["aten.view.default"], [x, list(x.type.shape)], {}))


@intercept(aten.lift_fresh.default)
def _fresh_constant(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """torch.tensor(...): the program may write to it, so it is a copy of the constant."""
    (x,) = args
    if type(x) is SymbolicTensor:
        return x
    if x.ndim == 0:
        row = {"dtype": x.dtype, "device": x.device}
        with torch._C._DisableTorchDispatch():
            number = x.item()
        return trace.__torch_dispatch__(aten.scalar_tensor.default, (), (number,), row)
    return trace.__torch_dispatch__(aten.clone.default, (), (trace.constant(x),))


@intercept(aten._local_scalar_dense.default)
def _item(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A number that exists only at run time: an unbacked symbol."""
    x = trace.unwrap(args[0])
    known = known_number(trace.graph, trace.env, x)
    if known is not None:
        return to_torch(known, trace.env)
    dtype = x.type.dtype
    if dtype.is_floating_point:
        real = trace.env.unbacked_float()
        trace.record(str(func), (x,), {}, (ScalarType(torch.float64, real),))
        return to_torch_float(real, trace.env)
    if dtype is torch.bool or dtype.is_complex:
        raise DataDependent(
            "a Python number is needed of a tensor's value",
            because=f"{x.name} is {x.type}, computed in the graph and unknown while tracing",
            avoid="keep it a tensor, or torch.where for a choice of values",
        )
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    symbol = trace.env.unbacked(low, high)
    trace.record(str(func), (x,), {}, (ScalarType(torch.int64, symbol),))
    return to_torch(symbol, trace.env)


@intercept(aten.size.default)
def _size(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """C++ code that is not ready for symbolic sizes asked for them: they become static."""
    return [trace.env.specialize(s, "C++ needs the size") for s in trace.unwrap(args[0]).type.shape]


@intercept(aten._has_same_storage_numel.default, aten._has_compatible_shallow_copy_type.default)
def _same_storage_numel(trace: Trace, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return True
