"""The default generator as the program speaks of it, and guards that nothing is there to see.

In: calls of torch.manual_seed and of methods of torch.default_generator, which get_rng_state,
set_rng_state and fork_rng make too.  Out: nodes that keep their place among those that draw
random numbers.  Objects that keep modes and transforms from seeing calls as long as they live
(torch._C._DisableTorchDispatch) have nothing to do in a trace, since it is made, and its entry
serves, under no mode and no transform only.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from jitshape.frontend.builtins_.registry import models, pure
from jitshape.frontend.checks import Remembers
from jitshape.frontend.sources import Held
from jitshape.frontend.torchside.numbers import SymbolicInt
from jitshape.frontend.torchside.tensors import TensorValue, from_real
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.functions import HANDLERS, CallableValue
from jitshape.ir.ops.registry import OPS
from jitshape.ir.torch_numbers import from_torch

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine

Generator = torch._C.Generator
DEFAULT = Held(torch.default_generator, "torch.default_generator")
SEEDS = range(-(2**63), 2**64)


def _call(m: Machine, name: str, *args: Any) -> Any:
    """Record the op; its result."""
    trace = m.tracer.trace
    if trace.region is not None:
        raise Break("generator", "a checkpointed function reads or sets the generator's state")
    try:
        return trace.call(OPS[f"jitshape.{name}.default"], list(args), {})
    except (RuntimeError, TypeError) as error:
        raise Break("raises", f"{name} raises {type(error).__name__}: {error}") from error


def _is_default(generator: Value) -> None:
    if getattr(generator, "object", None) is not torch.default_generator:
        raise Break("generator", "a generator of the user's")


@models(Generator.get_state)
def get_state(m: Machine, self: Value) -> Value:
    _is_default(self)
    return from_real(m, m.tracer.trace.wrap(_call(m, "get_rng_state")))


@models(Generator.set_state)
def set_state(m: Machine, self: Value, new_state: Value, /) -> Value:
    _is_default(self)
    if not isinstance(new_state, TensorValue):
        raise Break("generator", "the state of a generator is a tensor")
    _call(m, "set_rng_state", new_state.tensor.value)
    return self


@models(torch.random.manual_seed)  # torch.manual_seed may have been wrapped
def manual_seed(m: Machine, seed: Value) -> Value:
    """Returns the default generator."""
    if isinstance(seed, SymbolicInt):
        _call(m, "manual_seed", from_torch(seed.to_torch()))
    elif seed.is_constant() and type(seed.constant()) is int and seed.constant() in SEEDS:
        _call(m, "manual_seed", seed.constant())
    else:
        raise Break("generator", "a seed that is no int of 64 bits")
    return m.wrap(torch.default_generator, DEFAULT)


class BlindGuard(CallableValue):
    """An object that keeps modes or transforms from seeing calls, from when it is made until it is
    left or dropped.  Where it leaves the trace, one is made that lives on in the program."""

    def __init__(self, cls: type) -> None:
        self.cls, self.left = cls, False

    def python_type(self) -> type:
        return self.cls

    def special(self, m: Machine, name: str) -> Value | None:
        return BlindMethod(self, name) if name in BlindMethod.NAMES else super().special(m, name)

    def reconstruct(self, e: Emitter) -> None:
        if self.left:
            self.cannot_leave(f"a {self.cls.__name__} that was left")
        e.begin_call()
        e.const(self.cls)
        e.end_call(0)


class BlindMethod(CallableValue):
    """Its `__enter__`, which does nothing, or `__exit__`, bound."""

    NAMES = ("__enter__", "__exit__")

    def __init__(self, owner: BlindGuard, name: str) -> None:
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return types.MethodType

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.name == "__exit__":
            m.mutated()
            self.owner.left = True
        return m.const(None)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(getattr)
        e.value(self.owner)
        e.const(self.name)
        e.end_call(2)


def _guard(cls: type) -> None:
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            raise Break("builtin_arguments", f"{cls.__name__} does not take these arguments")
        return BlindGuard(cls)

    HANDLERS[cls] = make


for _cls in (torch._C._DisableTorchDispatch, torch._C._DisableFuncTorch):
    _guard(_cls)

# What they tell stays as it is while the process lives.
pure(torch.get_device_module, torch.accelerator.current_accelerator)


@models(torch.cuda.device_count)
def device_count(m: Machine) -> Value:
    """Asked of the driver, which is no part of the program; it stands from CUDA's start on."""
    ask = torch.cuda.device_count
    count = ask()
    if torch.cuda._is_compiled() and not torch.cuda.is_initialized():
        m.guard(None, Remembers("torch.cuda.device_count()", count, ask, (), ()))
    return m.const(count)
