"""Tensors as machine values, and calls of torch on them.

In: SymbolicTensors of ir.trace.  Out: TensorValue, and `call_native`, which runs a torch callable
on the symbolic counterparts of machine values and wraps what it returns.
Invariant: an exception that torch raises while tracing becomes a break, so that eager raises the
true one, with real sizes in its message.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from jitshape.errors import JitshapeError
from jitshape.frontend.checks import Length, Missing, TypeIs
from jitshape.frontend.lookup import class_attribute
from jitshape.frontend.sources import Field, Getter, Held, InstanceDict, Key, Source
from jitshape.frontend.torchside import natives
from jitshape.frontend.torchside.demands import demanded
from jitshape.frontend.torchside.names_inside import guard_names, is_foreign
from jitshape.frontend.torchside.number_rules import SYMBOLIC
from jitshape.frontend.torchside.numbers import (
    SymbolicBool,
    SymbolicNumber,
    number_value,
    raising_branch,
)
from jitshape.frontend.torchside.numpy_scalars import SCALARS
from jitshape.frontend.torchside.sizes import SizeValue, with_sizes
from jitshape.frontend.torchside.watching import has_formula_of_users, may_call_anything
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.functions import (
    BoundMethodValue,
    CallableValue,
    FunctionValue,
    guard_part,
    wrap_function,
)
from jitshape.frontend.values.sequences import SequenceValue, TupleValue
from jitshape.frontend.values.slices import SliceValue
from jitshape.frontend.values.storage import guard_identity
from jitshape.ir.composites import data
from jitshape.ir.layers import is_wrapped
from jitshape.ir.symbolic_tensor import SymbolicTensor

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine
    from jitshape.frontend.torchside.gradients import GradientSlot

OPERATORS = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "lshift",
    ">>": "rshift",
}
COMPARISONS = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
UNARY = {"-": operator.neg, "+": operator.pos, "~": operator.invert}

DEVICES = ("cpu", "cuda")

# Attributes that would let the program see or change what only a real tensor has.
BREAK_ATTRIBUTES = {
    "__cuda_array_interface__": "it must see real tensors",
    "__array_interface__": "it must see real tensors",
    "_grad_fn": "autograd nodes do not exist while tracing",
}
NOT_IN_TRANSFORMS = ("grad_fn", "grad", "_base", "_version", "data")

# Attributes that are views: computed by an op of the graph.
COMPUTED = {name: operator.attrgetter(name) for name in ("T", "mT", "H", "mH", "real", "imag")}
COMPUTED["data"] = data


# What other modules know to do here: by the torch callable, or by what the program does.
MODELS: dict[Any, Callable[..., Any]] = {}

# Asked of a call of an op, with its arguments: the result, or None.
DECLARED_OPS: list[Callable[..., Value | None]] = []


class TensorValue(Value):
    """A tensor of the graph; `cls` is the class that the program sees.  One that exists outside
    (`real`, found at `source`) enters the graph, and is guarded, when it is first needed."""

    def __init__(
        self,
        symbolic: SymbolicTensor | None,
        cls: type = torch.Tensor,
        real: torch.Tensor | None = None,
        source: Source | None = None,
    ) -> None:
        self._symbolic, self.cls, self.real, self.source = symbolic, cls, real, source
        self.machine: Machine | None = None
        self.gradient: GradientSlot | None = None

    def __repr__(self) -> str:
        return f"TensorValue({self._symbolic!r})"

    @property
    def entered(self) -> SymbolicTensor | None:
        """None: the graph has not needed it yet."""
        return self._symbolic

    @property
    def tensor(self) -> SymbolicTensor:
        if self._symbolic is None:
            self._symbolic = self.machine.tracer.enter(self.machine, self)
        return self._symbolic

    def show(self, tensor: SymbolicTensor | None) -> None:
        """It is `tensor` from now on."""
        self._symbolic = tensor

    @property
    def transformed(self) -> bool:
        """Whether it exists within a transform of torch.func only."""
        return self.real is None and is_wrapped(self._symbolic)

    @property
    def object(self) -> torch.Tensor | None:
        """The real tensor, as a key of a real dict."""
        return self.real

    def python_type(self) -> type:
        if self._symbolic is None:
            self.machine.guard(self.source, TypeIs(self.cls))
        return self.cls

    def truth(self, m: Machine) -> bool:
        if self.transformed:
            raise Break("data_dependent_branch", "a transform of torch.func has no one truth")
        value = self.tensor.value
        is_truth = value.type.dtype is torch.bool and all(s == 1 for s in value.type.shape)
        if is_truth and raising_branch(m) is not None:  # the number decides, by an assert
            return call_native(m, torch.Tensor.item, [self]).truth(m)
        raise Break(
            "data_dependent_branch",
            f"{value.name} is {value.type}, computed in the graph and unknown while tracing",
            "torch.where(cond, a, b), or torch.cond for two larger branches",
        )

    def getattr(self, m: Machine, name: str) -> Value:
        if name in BREAK_ATTRIBUTES:
            raise Break("tensor_attribute", f"Tensor.{name}: {BREAK_ATTRIBUTES[name]}")
        if name in NOT_IN_TRANSFORMS and self.transformed:
            raise Break("tensor_attribute", f"Tensor.{name} in a transform of torch.func")
        if name == "grad_fn":
            return MODELS["read .grad_fn"](m, self)
        if name == "grad" and (self.real is not None or self.gradient is not None):
            return MODELS["read .grad"](m, self)
        if name == "__class__":
            return m.wrap_type(self.cls)
        m.guard_class(self.cls, name)
        if name == "__dict__":
            return self._instance_dict(m)
        if name == "_base" and self.real is not None and self.source is not None:
            return m.wrap(self.real._base, Getter(self.source, name))
        if name == "_version" and m.tracer.trace.is_input_memory(self.tensor):
            raise Break("tensor_attribute", "Tensor._version: it counts writes before the call too")
        found = getattr(self.cls, name, None)
        if (found is None and name != "__doc__") or self._shadows(m, name, found):
            return self._instance_attribute(m, name)
        if callable(found) and not isinstance(found, property):
            return TorchMethod(self, found, name)
        if name in COMPUTED:
            return call_native(m, COMPUTED[name], [self])
        return from_real(m, getattr(self.tensor, name))

    def _shadows(self, m: Machine, name: str, found: Any) -> bool:
        """Whether the tensor has an attribute of its own in place of what its class has."""
        if self.real is None or self.source is None or hasattr(type(found), "__set__"):
            return False
        held = vars(self.real)
        if name not in held:
            self._guard_missing(m, name)
        return name in held

    def _guard_missing(self, m: Machine, name: str) -> None:
        """One guard for all names, as long as the tensor has no attributes at all."""
        check = Missing(name) if vars(self.real) else Length(0)
        m.guard(InstanceDict(self.source), check)

    def _instance_dict(self, m: Machine) -> Value:
        if self.real is None or self.source is None:
            raise Break("tensor_attribute", "the __dict__ of a tensor of the graph")
        return m.wrap(vars(self.real), InstanceDict(self.source))

    def _instance_attribute(self, m: Machine, name: str) -> Value:
        held = getattr(self.real, "__dict__", {})
        if self.source is not None and name in held:
            return m.wrap(held[name], Key(InstanceDict(self.source), name))
        if self.source is not None and self.real is not None:
            self._guard_missing(m, name)
        m.throw(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def setattr(self, m: Machine, name: str, value: Value) -> None:
        if self.transformed:
            raise Break("tensor_attribute", f"Tensor.{name} is set in a transform of torch.func")
        if name == "grad":
            MODELS["write .grad"](m, self, value)
            return
        if name == "requires_grad":
            MODELS["write .requires_grad"](m, self, value)
            return
        if name == "data":
            MODELS["write .data"](m, self, value)
            return
        raise Break("tensor_attribute", f"assignment to Tensor.{name}", "assign it outside")

    def unary(self, m: Machine, op: str) -> Value:
        m.guard_special_methods(self.cls)
        return call_native(m, UNARY[op], [self])

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        inplace = op.endswith("=")
        stem = OPERATORS[op.rstrip("=")]
        if not _is_operand(other):
            return NotImplemented
        m.guard_special_methods(self.cls)
        if inplace:
            return call_native(m, getattr(operator, f"i{stem}"), [self, other])
        sides = [other, self] if reflected else [self, other]
        return call_native(
            m, getattr(operator, stem if stem not in ("and", "or") else stem + "_"), sides
        )

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if not _is_operand(other):
            return NotImplemented
        m.guard_special_methods(self.cls)
        return call_native(m, getattr(operator, COMPARISONS[op]), [self, other])

    def getitem(self, m: Machine, key: Value) -> Value:
        m.guard_special_methods(self.cls)
        return call_native(m, operator.getitem, [self, key])

    def setitem(self, m: Machine, key: Value, value: Value) -> None:
        m.guard_special_methods(self.cls)
        call_native(m, operator.setitem, [self, key, value])

    def contains(self, m: Machine, item: Value) -> Value:
        raise Break("data_dependent_branch", "`in` on a tensor needs its values")

    def _asks(self, m: Machine, name: str) -> None:
        """It answers in place of a method of torch's that is Python code, which must stay with
        all that it names; in place of another it cannot."""
        m.guard_special_methods(self.cls)
        method = class_attribute(self.cls, name)
        if isinstance(method, types.FunctionType):
            if not guard_names(m, method) or is_foreign(method):
                raise Break("torch_call", f"{name} of tensors is not torch's own")

    def length(self, m: Machine) -> Value:
        self._asks(m, "__len__")
        if self.tensor.dim() == 0:
            m.throw(TypeError, "len() of a 0-d tensor")
        return from_real(m, self.tensor.size(0))

    def iterate(self, m: Machine) -> Value:
        self._asks(m, "__iter__")
        if self.tensor.dim() == 0:
            m.throw(TypeError, "iteration over a 0-d tensor")
        return call_native(m, torch.Tensor.unbind, [self, m.const(0)]).iterate(m)

    def hash_key(self, m: Machine) -> Any:
        self._asks(m, "__hash__")
        return self  # identity, as torch.Tensor.__hash__

    def reconstruct(self, e: Any) -> None:
        if self.transformed:
            self.cannot_leave("a tensor leaves the transform of torch.func that it belongs to")
        e.output(self)


def _is_operand(value: Value) -> bool:
    if isinstance(value, (TensorValue, SymbolicNumber, SymbolicBool)):
        return True
    return value.is_constant() and isinstance(value.constant(), (int, float, complex, *SCALARS))


class TorchMethod(Value):
    """A method of a tensor, bound."""

    def __init__(self, owner: TensorValue, function: Any, name: str) -> None:
        self.owner, self.function, self.name = owner, function, name

    def python_type(self) -> type:
        return type(getattr(self.owner.tensor, self.name))

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if getattr(self.function, "__self__", None) is not None:  # a class method
            return call_native(m, self.function, args, kwargs)
        return call_torch(m, self.function, [self.owner, *args], kwargs)

    def reconstruct(self, e: Any) -> None:
        e.begin_call()
        e.const(getattr)
        e.value(self.owner)
        e.const(self.name)
        e.end_call(2)


class TorchCallable(CallableValue):
    """A torch function, builtin or op: called natively on symbolic tensors."""

    def __init__(self, function: Any, source: Source | None = None) -> None:
        self.function, self.source = function, source

    def __repr__(self) -> str:
        return f"TorchCallable({getattr(self.function, '__name__', self.function)})"

    def python_type(self) -> type:
        return type(self.function)

    def is_constant(self) -> bool:
        return True

    def constant(self) -> Any:
        return self.function

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.function, types.FunctionType) and isinstance(self.source, Held):
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                guard_part(m, self.function, Field(self.source, part))
        return call_torch(m, self.function, args, kwargs)

    def seen_again(self, m: Machine, source: Source) -> None:
        guard_identity(m, self.function, source)

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        return self if instance is None else BoundMethodValue(self, instance)

    def getattr(self, m: Machine, name: str) -> Value:
        if hasattr(self.function, name):
            found = getattr(self.function, name)
            if isinstance(found, (str, type(None))) or natives.policy(found):
                return from_real(m, found)
        return m.default_getattr(self, name)

    def reconstruct(self, e: Any) -> None:
        e.const(self.function)


class BreakingFunction(TorchCallable):
    """A function whose calls are breaks, known by its code only."""

    def is_constant(self) -> bool:
        return False

    def seen_again(self, m: Machine, source: Source) -> None:
        Value.seen_again(self, m, source)


def call_torch(
    m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """Call a torch callable as its model or its policy says."""
    model = natives.lookup(MODELS, function)
    if model is not None:
        if m.tracer.transforms:
            _check_transformed(function, args)
        return model(m, *args, **(kwargs or {}))
    kind = natives.policy(function)
    if kind == "break":
        name = getattr(function, "__name__", str(function))
        raise Break("torch_call", f"{name}: {natives.why_break(function)}")
    if kind == "answer":
        return m.const(natives.ANSWERS[function])
    if kind == "ambient":
        return m.ambient.call(m, function, args, kwargs or {})
    told = m.ambient.told(m, function, args, bool(kwargs))
    if told is not None:
        return told
    answer = demanded(m, function, args, kwargs or {})
    if answer is not None:
        return answer
    return _call_declared(m, function, args, kwargs or {})


def _check_transformed(function: Any, args: list[Value]) -> None:
    """Models know tensors of the trace alone, not what a transform makes of them."""
    if any(isinstance(a, TensorValue) and a.transformed for a in args):
        name = getattr(function, "__name__", str(function))
        raise Break("torch_call", f"{name} of a tensor in a transform of torch.func")


def _call_declared(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of what is declared to run while tracing, formulas for autograd are not."""
    if not may_call_anything(function) or getattr(function, "namespace", "") == "aten":
        return call_native(m, function, args, kwargs)
    op = getattr(function, "default", function)
    if isinstance(op, torch._ops.OpOverload):
        for rule in DECLARED_OPS:
            if (result := rule(m, op, args, kwargs)) is not None:
                return result
    first = torch.autograd._get_sequence_nr()
    result = call_native(m, function, args, kwargs)
    if has_formula_of_users(tensors_below(result), first):
        name = getattr(function, "__name__", str(function))
        raise Break("autograd", f"{name} has a formula for autograd that is not traced")
    return result


def call_native(
    m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None
) -> Value:
    """Run `function` on the symbolic counterparts of the values; wrap its result.  A Python
    function of torch's that gets functions or objects of the program's, or names some, is run by
    the machine."""
    inlined = isinstance(function, types.FunctionType) and _is_of_torch(function)
    given = (*args, *(kwargs or {}).values())
    if inlined and any(isinstance(value, FunctionValue) for value in given):
        return _by_machine(m, function, args, kwargs or {})
    try:
        real_args = [to_real(m, a) for a in with_sizes(m, function, args)]
        real_kwargs = {k: to_real(m, v) for k, v in (kwargs or {}).items()}
    except Break as cause:
        if cause.kind != "torch_argument" or not inlined:
            raise
        return _by_machine(m, function, args, kwargs or {})
    if not guard_names(m, function) and inlined:
        return _by_machine(m, function, args, kwargs or {})
    leaf = real_kwargs.pop("requires_grad", False)
    try:
        result = m.tracer.run(function, real_args, real_kwargs)
    except (Break, JitshapeError):
        raise
    except m.tracer.internal_errors:
        raise
    except Exception as error:
        name = getattr(function, "__name__", str(function))
        raise Break("raises", f"{name} raises {type(error).__name__}: {error}").with_traceback(
            error.__traceback__
        ) from error
    for value, real in zip(args, real_args):
        if isinstance(value, TensorValue) and real is result:
            return value  # in-place: the same object
    if leaf is True and isinstance(result, SymbolicTensor):
        return MODELS[torch.Tensor.requires_grad_](m, from_real(m, result))
    return from_real(m, result)


def tensors_below(value: Value) -> list[SymbolicTensor]:
    """The tensors in a result of torch."""
    if isinstance(value, TensorValue):
        return [value.tensor]
    items = value.items if isinstance(value, SequenceValue) else ()
    return [t for item in items for t in tensors_below(item)]


def _is_of_torch(function: types.FunctionType) -> bool:
    return natives.policy(function) == "native" and not natives.is_allowed(function)


def _by_machine(
    m: Machine, function: types.FunctionType, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    held = Held(function, function.__qualname__)
    return m.call(wrap_function(m, function, held), args, kwargs)


# ---- crossing the boundary


def to_real(m: Machine, value: Value) -> Any:
    """The object that torch gets for a machine value."""
    if isinstance(value, TensorValue):
        return value.tensor
    if isinstance(value, SymbolicNumber):
        return value.for_torch(m)
    if isinstance(value, SymbolicBool):
        return value.to_torch()
    if value.is_constant():
        return value.constant()
    if isinstance(value, SizeValue):
        return tuple(to_real(m, item) for item in value.items)
    if isinstance(value, SequenceValue) and value.is_exact():
        return value.builtin(to_real(m, item) for item in value.items)
    if isinstance(value, SliceValue):
        return slice(*(to_real(m, part) for part in value.children()))
    if isinstance(value, DictValue) and value.is_exact():
        loaded = value.load(m)
        return {e.key.constant(): to_real(m, value.find(m, h).value) for h, e in loaded.items()}
    raise Break(
        "torch_argument", f"{value.python_type().__name__} as an argument of a torch function"
    )


def from_real(m: Machine, result: Any) -> Value:
    """The machine value of what a torch call returned."""
    if is_wrapped(result):
        return m.tracer.tensor_value(result)
    if isinstance(result, SymbolicTensor):
        if result.value.type.device.type not in DEVICES:
            raise Break("torch_call", f"the call gives a tensor on device {result.device}")
        return m.tracer.tensor_value(result)
    kind = type(result)
    if issubclass(kind, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number_value(m, m.tracer.env, result)
    if issubclass(kind, tuple):
        items = [from_real(m, item) for item in result]
        if kind is torch.Size:
            return SizeValue(items)
        return m.new_tuple(items) if kind is tuple else TupleValue(items, kind)
    if kind is list:
        return m.new_list([from_real(m, item) for item in result])
    if kind is dict:
        pairs = result.items()
        return m.new_dict([(from_real(m, key), from_real(m, item)) for key, item in pairs])
    if issubclass(kind, torch.Tensor):
        raise Break("torch_call", "the call gave a real tensor while tracing")
    if callable(result) and natives.policy(result):
        return TorchCallable(result)
    return m.const(result)


def _of_element(kind: type) -> Callable[[Machine, list[Value]], Value | None]:
    """`int(t)`, `float(t)`: of the element, then as for the number it is."""
    number_rule = SYMBOLIC[kind]

    def rule(m: Machine, args: list[Value]) -> Value | None:
        if len(args) != 1 or not isinstance(args[0], TensorValue):
            return number_rule(m, args)
        element = call_native(m, torch.Tensor.item, args)
        return m.call(m.const(kind), [element], {})

    return rule


SYMBOLIC.update({kind: _of_element(kind) for kind in (int, float)})
