"""A compile where torch is not installed: the frontend alone, as programs have no tensors.

In: what pipeline.py gets.  Out: an entry without a graph; and what stands in place of the other
things that compiler.py takes from the torch side (parts.py chooses).
Invariant: as with torch, everything read while tracing is guarded; a number is a literal, so that
a call with another one is compiled anew.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jitshape.frontend.builtins_  # noqa: F401  (registers builtins)
from jitshape.frontend import _evalframe
from jitshape.frontend.breaks import Continuations
from jitshape.frontend.checks import Guard
from jitshape.frontend.effects import Effects
from jitshape.frontend.guards import assemble
from jitshape.frontend.leave import Exit, leave
from jitshape.frontend.machine import Machine, Outcome, trace
from jitshape.frontend.sources import Local
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.functions import HANDLERS
from jitshape.frontend.values.storage import name_of
from jitshape.ir.shape_env import ShapeEnv
from jitshape.observe import counters
from jitshape.options import Options
from jitshape.outcomes import Made, check_outcome, tell_outcome, until_it_leaves
from jitshape.stages import stage


@dataclass(frozen=True, eq=False)
class NoSizes:
    """The tracer and the policy of a trace without tensors."""

    env: ShapeEnv = field(default_factory=ShapeEnv)
    symbols: dict[str, Any] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)
    decisions: dict[str, Any] = field(default_factory=dict)

    def became_dynamic(self) -> list[Any]:
        return []


@dataclass(frozen=True, eq=False)
class Traced:
    """The result of a trace; see frontend/capture.py."""

    function: types.FunctionType
    machine: Machine
    outcome: Outcome
    effects: Effects
    tracer: NoSizes = field(default_factory=NoSizes)
    policy: NoSizes = field(default_factory=NoSizes)
    ambient: dict[Any, Any] = field(default_factory=dict)

    def guards(self) -> list[Guard]:
        known = self.machine.known_values()
        return [*self.machine.guards, *self.effects.distinct(known)]

    def symbol_texts(self) -> list[str]:
        return []

    def release(self) -> None:
        self.machine.release()


def compile_call(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    continuations: Continuations,
    refuted: Collection[str] = (),
) -> Made:
    """From one call to an entry."""
    traced, exit_ = trace_and_leave(function, slots, options, continuations)
    tell_outcome(traced, options)
    with stage("publish"):
        entry = exit_.emitter.finish(function.__globals__)
        program = assemble(traced.guards(), exit_.emitter.extract)
    counters.count("guards", len(program.guards))
    return Made(program, entry, traced, (), "", None, False, frozenset(), False)


def trace_and_leave(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    continuations: Continuations,
) -> tuple[Traced, Exit]:
    """A trace and the code that leaves it, made again where a value turns out not to be able to
    leave, up to the instruction that made it."""

    def make(break_at: Mapping[int, Break]) -> Traced:
        with stage("capture"):
            return traced_call(function, slots, options, break_at)

    def finish(traced: Traced) -> tuple[Traced, Exit]:
        check_outcome(traced, options)
        with stage("leave"):
            return traced, leave(traced, continuations)

    return until_it_leaves(function, make, finish)


def traced_call(
    function: types.FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    break_at: Mapping[int, Break],
) -> Traced:
    """Trace `function` called with `slots`, at most up to a step of `break_at`."""
    code = function.__code__

    def make(break_at: Mapping[int, Break]) -> tuple[Machine, Any, list[Value | None]]:
        machine = Machine(effects=Effects(), options=options, break_at=break_at)
        names = code.co_varnames[: len(slots)]
        values = [machine.argument(o, Local(i, n)) for i, (o, n) in enumerate(zip(slots, names))]
        return machine, function, values

    _evalframe.push_bypass()
    try:
        machine, outcome = trace(make, break_at)
    finally:
        _evalframe.pop_bypass()
    return Traced(function, machine, outcome, machine.effects)


# ---- in place of the torch side


class Assumptions:
    """Of numbers that exist only when a graph runs: there are none."""

    def __init__(self, natively: Any, wrong: Any, again: Any) -> None:
        self.refuted: set[str] = set()

    def checked(self, entry: Callable[..., Any], count: int) -> Callable[..., Any]:
        return entry


class WarmStart:
    """Nothing is kept on disk."""

    def __init__(self, function: types.FunctionType, options: Options) -> None:
        pass

    def find(self, slots: tuple[Any, ...], refuted: Collection[str]) -> None:
        pass

    def keep(self, made: Made, slots: tuple[Any, ...], refuted: Collection[str]) -> None:
        pass


def install() -> None:
    """No tensors are read in C."""


def foreign_mode() -> str:
    return ""


def noting(entry: Callable[..., Any], texts: Collection[str]) -> Callable[..., Any]:
    return entry


def program_code(code: types.CodeType, slots: tuple[Any, ...]) -> types.CodeType:
    return code


def shadow_setting() -> None:
    """JITSHAPE_SHADOW compares tensors."""


def shadowed(entry: Callable[..., Any], *_: Any) -> Callable[..., Any]:
    return entry


def is_module(fn: Any) -> bool:
    return False


def is_wrapper(fn: Any) -> bool:
    return False


def wrap_module(fn: Any, *_: Any) -> Any:
    raise AssertionError("there are no modules without torch")


def disable(fn: Any) -> None:
    """From now on a call of `fn` is a break."""

    def refuse(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Break("disabled", f"{name_of(fn)} is called: it is marked jitshape.disable")

    HANDLERS[fn] = refuse


def allow(fn: Any) -> None:
    """Nothing is symbolic, so that every function may be inlined."""


def forget_graphs() -> None:
    """There are none."""
