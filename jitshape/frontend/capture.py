"""Traces one call of a function: machine and torch side together.

In: a function, the objects in its argument slots, options.  Out: a Capture: how the trace ended,
the graph as recorded, guards, effects, inputs with their sources.
Invariant: when `capture` returns or raises, torch's global state is what it was before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

import jitshape.frontend.builtins_  # registers builtins
import jitshape.frontend.torchside.wrap  # registers the wrappers
from jitshape.dims import Promise
from jitshape.frontend import _evalframe
from jitshape.frontend.checks import Equals, Guard, Holds, Location
from jitshape.frontend.dynamic import Policy, history_of
from jitshape.frontend.effects import Effects
from jitshape.frontend.libraries import is_library
from jitshape.frontend.machine import Machine, Outcome, trace
from jitshape.frontend.sources import Local
from jitshape.frontend.torchside.ambient import AmbientState, GlobalState
from jitshape.frontend.torchside.tracer import Tracer
from jitshape.frontend.values.base import Break, Value
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.facts import Fact
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.words import computed_in_words
from jitshape.options import Options

_ = jitshape.frontend.torchside.wrap


@dataclass(frozen=True, eq=False)
class Capture:
    """The result of a trace.  `ambient` is state to set again after the graph,
    by the function that does."""

    function: FunctionType
    machine: Machine
    outcome: Outcome
    tracer: Tracer
    effects: Effects
    policy: Policy
    ambient: dict[Any, Any]

    def release(self) -> None:
        """Let go of the program's objects now: machine and values refer to each other."""
        self.tracer.close()
        self.machine.release()

    def guards(self) -> list[Guard]:
        """Guards on objects, then those that the answers about sizes rely on."""
        known = self.machine.known_values()
        return [
            *self.machine.guards,
            *self.effects.distinct(known),
            *map(self._size_guard, self.tracer.env.facts),
        ]

    def _size_guard(self, fact: Fact) -> Guard:
        assert isinstance(fact.condition, BoolExpr)
        names = [atom.name for atom in fact.condition.symbols()]
        bound = tuple((name, self.tracer.symbols[name]) for name in names)
        left, right = fact.condition.args[:2]
        if fact.condition.op == "eq" and isinstance(left, FloatExpr) and left.symbol:
            if type(right) is float:  # bit by bit: nan and the sign of zero count
                return Guard(bound[0][1].base, Equals(right), fact.location)
        words = computed_in_words(self.tracer.env, fact.condition)
        return Guard(bound[0][1], Holds(fact.condition, bound, words), fact.location)

    def symbol_texts(self) -> list[str]:
        """The symbols that people ask for: every offset is one."""
        symbols = self.tracer.symbols.items()
        return [f"{name} = {source}" for name, source in symbols if source.kind != "offset"]


class SymbolicMachine(Machine):
    """The machine with its torch side."""

    def __init__(
        self,
        policy: Policy,
        options: Options,
        break_at: Mapping[int, Break],
        state: GlobalState,
    ) -> None:
        super().__init__(effects=Effects(), options=options, break_at=break_at)
        self.tracer = Tracer(policy)
        self.ambient = AmbientState(state)
        self.tracer.env.location = self.location
        self.tracer.trace.location = self.location

    def location(self) -> Location | None:
        """The line of the innermost frame that is the user's: not of torch or of Python."""
        innermost = frame = self.frame
        while frame is not None and is_library(frame.program.file):
            frame = frame.back
        self.frame = frame or innermost
        try:
            return super().location()
        finally:
            self.frame = innermost


def capture(
    function: FunctionType,
    slots: tuple[Any, ...],
    options: Options,
    break_at: Mapping[int, Break] | None = None,
    varying: Collection[str] = (),
    refuted: Collection[str] = (),
    exact_copies: bool = False,
) -> Capture:
    """Trace `function` called with `slots` (arguments in frame order), at most up to a step of
    `break_at`.  `varying`: the sources whose numbers were symbolic in the code before it;
    `refuted`: what earlier runs showed not to hold of numbers of run time; `exact_copies`: the
    program can tell copies from views."""
    code = function.__code__
    arguments = argument_sources(code, slots)
    history = history_of(program_code(code, slots))
    promises = promises_of(code, slots, options)
    policy = Policy(history, options.dynamic, promises, varying)
    made: list[SymbolicMachine] = []
    state = GlobalState.now()

    def make(break_at: Mapping[int, Break]) -> tuple[Machine, FunctionType, list[Value | None]]:
        state.restore()
        torch.set_autocast_cache_enabled(False)
        machine = SymbolicMachine(policy, options, break_at, state)
        machine.tracer.env.refuted = refuted
        machine.tracer.trace.exact_copies = exact_copies
        if made:
            former = made.pop()
            former.tracer.close()
            vars(former).clear()
        made.append(machine)
        machine.ambient.guard_always(machine)
        values = [machine.argument(o, source) for o, source in zip(slots, arguments)]
        return machine, function, values

    _evalframe.push_bypass()
    try:
        machine, outcome = trace(make, break_at)
        machine.ambient.guard_memory(machine)
        ambient = machine.ambient.changes()
    finally:
        state.restore()
        _evalframe.pop_bypass()
    assert isinstance(machine, SymbolicMachine)
    return Capture(function, machine, outcome, machine.tracer, machine.effects, policy, ambient)


def promises_of(code: CodeType, slots: tuple[Any, ...], options: Options) -> dict[str, Promise]:
    """What `dynamic_shapes` says of a call.  Raises BadSpec."""
    spec = options.dynamic_shapes
    if spec is None:
        return {}
    return spec.resolve(named_arguments(code, argument_sources(code, slots), slots))


def argument_sources(code: CodeType, slots: tuple[Any, ...]) -> list[Local]:
    """The source of each slot.  What is called with a module is named as its forward names it."""
    sources = [Local(i, name) for i, name in enumerate(code.co_varnames[: len(slots)])]
    if code is nn.Module.__call__.__code__:
        forward = program_code(code, slots)
        names = () if forward is code else forward.co_varnames[1 : forward.co_argcount]
        sources[1:] = [Local(1, sources[1].name, names), Local(2, sources[2].name, ())]
    return sources


def program_code(code: CodeType, slots: tuple[Any, ...]) -> CodeType:
    """The code that tells programs apart: of modules, which share `__call__`, the forward's."""
    if code is not nn.Module.__call__.__code__:
        return code
    return getattr(type(slots[0]).forward, "__code__", code)


def named_arguments(
    code: CodeType, sources: Sequence[Local], slots: tuple[Any, ...]
) -> dict[str, tuple[str, Any]]:
    """By the name of the parameter, also of a module's forward: how its source is written, and
    what this call gives."""
    if code is not nn.Module.__call__.__code__:
        return {s.name: (s.name, value) for s, value in zip(sources, slots)}
    by_place = dict(zip(sources[1].parts or (), slots[1]))
    return {name: (name, value) for name, value in {**by_place, **slots[2]}.items()}
