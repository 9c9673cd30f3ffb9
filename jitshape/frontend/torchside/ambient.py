"""Ambient state of torch that a program reads and writes: grad mode, default dtype, autocast.

In: calls of the functions tabled in natives.py.  Out: guards on what was read before it was
written, the state as it must be while tracing, and for emit the writes to repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import DeviceContext

from jitshape.frontend.checks import LITERALS, Ambient, Remembers
from jitshape.frontend.guard_program import AMBIENT
from jitshape.frontend.torchside.autocast import AutocastState
from jitshape.frontend.torchside.natives import (
    AMBIENT_READS,
    AMBIENT_SETTERS,
    AMBIENT_WRITES,
    tells_state,
)
from jitshape.frontend.values.base import Value
from jitshape.ir.uninitialised import asks_for_filling, fills

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

# What every graph depends on, whether or not the program asks.
ALWAYS = ("grad_mode", "inference_mode", "default_dtype", "dispatch_keys", "mode_stacks")


def foreign_mode() -> str:
    """What wants to see every call of torch: a mode of the user's, a transform of functorch,
    hooks on saved tensors (checkpoint); "" if nothing does.  The mode behind a default device
    only changes arguments."""
    if torch._C._len_torch_dispatch_stack():
        return "a dispatch mode"
    if AMBIENT["functorch"]():
        return "a functorch transform"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "a pair of hooks on saved tensors"
    if torch._C._len_torch_function_stack():
        for mode in torch.overrides._get_current_function_mode_stack():
            if type(mode) is not DeviceContext:
                return f"the function mode {type(mode).__name__}"
    return ""


@dataclass(frozen=True)
class GlobalState:
    """What a trace changes of torch's state, as it was before."""

    grad: bool
    autocast: AutocastState

    @classmethod
    def now(cls) -> GlobalState:
        return cls(torch.is_grad_enabled(), AutocastState.now())

    def restore(self) -> None:
        torch._C._set_grad_enabled(self.grad)
        self.autocast.restore()


class AmbientState:
    """One per trace; `start` is the state before it."""

    def __init__(self, start: GlobalState) -> None:
        self.start = start
        self.cache = start.autocast.cache  # as the program sees it
        self.seen = {name: AMBIENT[name]() for name in ALWAYS}

    def guard(self, m: Machine, name: str) -> None:
        """What the program found before it changed anything must be found again."""
        if name not in self.seen:
            self.seen[name] = AMBIENT[name]()
        m.guard(None, Ambient(name, self.seen[name]))

    def guard_always(self, m: Machine) -> None:
        for name in ALWAYS:
            self.guard(m, name)
        if self.seen["mode_stacks"] >> 1:  # function modes
            self.guard(m, "default_device")
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.guard(m, "autocast")

    def guard_memory(self, m: Machine) -> None:
        """Whether memory that nobody has written is filled, where the graph makes such."""
        if asks_for_filling(m.tracer.trace.graph.nodes):
            self.guard(m, "deterministic")
            if self.seen["deterministic"]:
                m.guard(None, Remembers(f"{fills.__name__}()", fills(), fills, (), ()))

    def call(self, m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A call of a tabled function."""
        name = AMBIENT_READS.get(function) or AMBIENT_WRITES[function]
        self.guard(m, name)
        values = [a.constant() for a in args]
        named = {k: v.constant() for k, v in kwargs.items()}
        if function is torch.is_autocast_cache_enabled:
            m.guard(None, Ambient("autocast_cache", self.start.autocast.cache))
            return m.const(self.cache)
        if function is torch.set_autocast_cache_enabled:
            (self.cache,) = values
            return m.const(None)
        return m.const(function(*values, **named))

    def told(self, m: Machine, function: Any, args: list[Value], named: bool) -> Value | None:
        """What a function of torch's that is asked for state says, guarded; None: it is none."""
        texts = tuple(a.constant() for a in args if a.is_constant())
        if named or len(texts) != len(args) or not tells_state(function):
            return None
        if any(type(text) is not str for text in texts):
            return None
        result = function(*texts)
        if type(result) not in (*LITERALS, torch.dtype):
            return None
        name = f"{function.__name__}({', '.join(map(repr, texts))})"
        m.guard(None, Remembers(name, result, function, texts, ()))
        return m.const(result)

    def changes(self) -> dict[Any, Any]:
        """State that differs from what the program found, by the function that compiled code
        sets it again with."""
        before, now = self.start.autocast, AutocastState.now()
        now = AutocastState(now.modes, self.cache, now.nesting)
        changed: dict[str, Any] = {} if now == before else {"autocast": now.since(before)}
        for name in self.seen:
            value = AMBIENT[name]()
            if value != self.seen[name] and name in AMBIENT_SETTERS:
                changed.setdefault(name, value)
        return {AMBIENT_SETTERS[name]: value for name, value in changed.items()}


AMBIENT["autocast_cache"] = torch.is_autocast_cache_enabled
