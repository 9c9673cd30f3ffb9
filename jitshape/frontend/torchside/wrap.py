"""Registers how torch's objects become machine values.

Tensors become graph inputs, torch's callables are called natively, dtypes and devices are
constants, modules get quick attribute reads; Python ints that changed become symbols.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

import jitshape.frontend.torchside.autograd_functions
import jitshape.frontend.torchside.checkpoints
import jitshape.frontend.torchside.declared_ops
import jitshape.frontend.torchside.generator
import jitshape.frontend.torchside.given_memory
import jitshape.frontend.torchside.gradients
import jitshape.frontend.torchside.higher_order
import jitshape.frontend.torchside.hooks
import jitshape.frontend.torchside.leaves
import jitshape.frontend.torchside.storages
import jitshape.frontend.torchside.transforms  # noqa: F401  registers calls of autograd
from jitshape.frontend.sources import Source
from jitshape.frontend.torchside.markers import look_behind
from jitshape.frontend.torchside.modules import ModuleObject
from jitshape.frontend.torchside.natives import policy
from jitshape.frontend.torchside.tensors import BreakingFunction, TensorValue, TorchCallable
from jitshape.frontend.torchside.triton_kernels import Kernel, is_kernel
from jitshape.frontend.values.base import WRAPPERS, WRAPPERS_OF_BASES, Value, wraps
from jitshape.frontend.values.classes import GETTERS, PURE_GETTER_OWNERS
from jitshape.frontend.values.constants import register_constant_type
from jitshape.frontend.values.functions import (
    PURE_OWNERS,
    FunctionValue,
    guard_code,
    is_made_by_each_call,
)
from jitshape.frontend.values.storage import guard_identity, guard_type
from jitshape.frontend.values.unobserved import GUARDED_LATE

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
for _cls in CONSTANTS:
    register_constant_type(_cls)
PURE_OWNERS.update(CONSTANTS)
PURE_GETTER_OWNERS.update(CONSTANTS)


GUARDED_LATE.append(torch.Tensor)


@wraps(torch.Tensor, subclasses=True)
def wrap_tensor(m: Machine, real: torch.Tensor, source: Source | None) -> Value:
    """Nothing is guarded until something of the tensor is read."""
    value = TensorValue(None, type(real), real, source)
    value.machine = m
    return value


def _reads_place(cls: type) -> None:
    """The fields of the named tuples that torch's functions return."""
    for place, name in enumerate(cls.__match_args__):  # type: ignore[attr-defined]
        GETTERS[vars(cls)[name]] = lambda m, instance, place=place: instance.items[place]


for _cls in vars(torch.return_types).values():
    if isinstance(_cls, type) and issubclass(_cls, tuple):
        _reads_place(_cls)


@wraps(torch.nn.Module, subclasses=True)
def wrap_module(m: Machine, real: torch.nn.Module, source: Source | None) -> Value:
    return ModuleObject(type(real), real, guard_type(m, real, source))


@wraps(torch._ops.OpOverload, torch._ops.OpOverloadPacket)
def wrap_op(m: Machine, real: Any, source: Source | None) -> Value:
    return TorchCallable(real, guard_identity(m, real, source))


def _before(cls: type) -> None:
    """Callables of torch's among objects of `cls`; the rest as before."""
    plain = WRAPPERS[cls]

    def wrapper(m: Machine, real: Any, source: Source | None) -> Value:
        kind = policy(real)
        if kind is None:
            value = plain(m, real, source)
            return look_behind(value, real) if isinstance(value, FunctionValue) else value
        if kind == "break" and is_made_by_each_call(real, source):
            return BreakingFunction(real, guard_code(m, real, source))
        return TorchCallable(real, guard_identity(m, real, source))

    WRAPPERS[cls] = wrapper


for _cls in (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
):
    _before(_cls)

_plain_int = WRAPPERS[int]


@wraps(int)
def wrap_int(m: Machine, real: int, source: Source | None) -> Value:
    symbolic = m.tracer and m.tracer.symbolic_int(m, real, source)
    return _plain_int(m, real, source) if symbolic is None else symbolic


_plain_float = WRAPPERS[float]


@wraps(float)
def wrap_float(m: Machine, real: float, source: Source | None) -> Value:
    symbolic = m.tracer and m.tracer.symbolic_float(m, real, source)
    return _plain_float(m, real, source) if symbolic is None else symbolic


_plain_object = WRAPPERS_OF_BASES[object]


@wraps(object, subclasses=True)
def wrap_other(m: Machine, real: Any, source: Source | None) -> Value:
    if is_kernel(real):
        return Kernel(type(real), real, guard_identity(m, real, source))
    return _plain_object(m, real, source)
