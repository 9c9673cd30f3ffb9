"""Traces one call of a function: machine and torch side together.

In: a function, the objects in its argument slots, options.  Out: a Capture: how the trace ended,
the graph as recorded, guards, effects, inputs with their sources.
Invariant: when `capture` returns or raises, torch's global state is what it was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import jitshape.frontend.builtins_  # registers builtins
import jitshape.frontend.torchside.wrap  # registers the wrappers
from jitshape.frontend import _evalframe
from jitshape.frontend.checks import Guard, Holds
from jitshape.frontend.dynamic import Policy, history_of
from jitshape.frontend.effects import Effects
from jitshape.frontend.machine import Machine, Outcome, trace
from jitshape.frontend.sources import Local, Number, Source
from jitshape.frontend.torchside.ambient import AmbientState
from jitshape.frontend.torchside.tracer import Tracer
from jitshape.frontend.values.base import Break, Value
from jitshape.ir.shape_env import Fact
from jitshape.ir.symint import BoolExpr
from jitshape.options import Options

_ = jitshape.frontend.torchside.wrap


@dataclass(frozen=True, eq=False)
class Capture:
    """The result of a trace.  `ambient` is state to set again after the graph."""

    function: FunctionType
    machine: Machine
    outcome: Outcome
    tracer: Tracer
    effects: Effects
    policy: Policy
    ambient: dict[str, Any]

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
        return Guard(bound[0][1], Holds(fact.condition, bound), fact.location)

    def symbol_texts(self) -> list[str]:
        return [f"{name} = {source}" for name, source in self.tracer.symbols.items()]


class SymbolicMachine(Machine):
    """The machine with its torch side."""

    def __init__(self, policy: Policy, options: Options, break_at: Mapping[int, Break]) -> None:
        super().__init__(effects=Effects(), options=options, break_at=break_at)
        self.tracer = Tracer(policy)
        self.ambient = AmbientState()
        self.tracer.env.location = self.location
        self.tracer.trace.location = self.location


def capture(function: FunctionType, slots: tuple[Any, ...], options: Options) -> Capture:
    """Trace `function` called with `slots` (arguments in frame order)."""
    policy = Policy(history_of(function.__code__), options.dynamic)
    code = function.__code__
    made: list[SymbolicMachine] = []
    ambient: dict[str, Any] = {}

    def make(break_at: Mapping[int, Break]) -> tuple[Machine, FunctionType, list[Value | None]]:
        machine = SymbolicMachine(policy, options, break_at)
        if made:
            made[-1].tracer.close()
        made.append(machine)
        machine.ambient.guard_always(machine)
        names = code.co_varnames
        values = [machine.argument(o, Local(i, names[i])) for i, o in enumerate(slots)]
        return machine, function, values

    _evalframe.push_bypass()
    try:
        with Tracer.recording():
            machine, outcome = trace(make)
            ambient.update(machine.ambient.changes())
    finally:
        _evalframe.pop_bypass()
    assert isinstance(machine, SymbolicMachine)
    return Capture(function, machine, outcome, machine.tracer, machine.effects, policy, ambient)


def source_number(source: Source) -> bool:
    """Whether a symbol at `source` is not read off a graph input by the program itself."""
    return not (isinstance(source, Number) and source.kind == "size")
