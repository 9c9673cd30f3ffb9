"""Accumulators of CPU loops.

In: an accumulator and the number of lanes it runs in.  Out: its uniform result, or, in a serial
loop inside a vector loop, one result a lane.
Invariant: each lane is an accumulator of its own until `folded`; an extreme's position is the
smallest of those that hold it, nan counting as the extreme.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitshape.backend.codegen.cpu_ops import COMBINE, ELEMENT, GREATER, HALF, LESS, cast
from jitshape.backend.codegen.cpu_sizes import SizeWriter
from jitshape.backend.codegen.llvm_text import Value, Variable
from jitshape.backend.loops import Accumulator, neutral


class Running:
    """The running state of one accumulator, in `lanes` lanes (0: uniform)."""

    def __init__(self, f: SizeWriter, accumulator: Accumulator, lanes: int) -> None:
        self.f, self.accumulator, self.lanes = f, accumulator, lanes
        self.by_position = accumulator.combine.startswith("arg")
        dtype = accumulator.value.dtype if self.by_position else accumulator.dtype
        self.dtype = torch.float32 if dtype in HALF else dtype
        kind, name = ELEMENT[self.dtype], accumulator.name
        self.states = [Variable(f, kind, lanes, name)]
        self.states[0].set(neutral(accumulator.combine, self.dtype))
        if self.by_position:
            self.states.append(Variable(f, "i64", lanes, f"{name}_at"))
            self.states[1].set(0)

    def update(self, value: Value, position: Callable[[], Value], mask: Value | None) -> None:
        value = cast(value, self.accumulator.value.dtype, self.dtype)
        old = [state.get() for state in self.states]
        contribution = [value, position()] if self.by_position else [value]
        new = self._combine(old, contribution, first=True)
        for state, before, after in zip(self.states, old, new):
            state.set(after if mask is None else mask.select(after, before))

    def _combine(self, a: list[Value], b: list[Value], first: bool = False) -> list[Value]:
        """`first`: a comes before b in the loop, so a stays where both are extreme."""
        if not self.by_position:
            return [COMBINE[self.accumulator.combine](self.dtype, a[0], b[0])]
        better = GREATER if self.accumulator.combine == "argmax" else LESS
        wins = better(self.dtype, b[0], a[0])
        equal = a[0].compare("oeq" if a[0].is_float else "eq", b[0])
        if a[0].is_float:
            a_nan, b_nan = (x[0].compare("uno", x[0]) for x in (a, b))
            wins = (wins & ~a_nan) | (b_nan & ~a_nan)
            equal = equal | (a_nan & b_nan)
        if not first:
            wins = wins | (equal & b[1].compare("slt", a[1]))
        return [wins.select(y, x) for x, y in zip(a, b)]

    def folded(self, lanes: int = 0) -> Running:
        """The same in fewer lanes."""
        values = [state.get() for state in self.states]
        while self.lanes > lanes and values[0].lanes > max(lanes, 1):
            lower, upper = [v.half(False) for v in values], [v.half(True) for v in values]
            values = self._combine(lower, upper)
        if lanes == 0:
            values = [v.extract(0) for v in values]
        result = Running(self.f, self.accumulator, lanes)
        for state, value in zip(result.states, values):
            state.set(value)
        return result

    def fold_into(self, other: Running) -> None:
        for target, source in zip(other.states, self.folded(other.lanes).states):
            target.set(source.get())

    def absorb(self, other: Running) -> None:
        """Combine with a state of as many lanes."""
        mine, theirs = ([state.get() for state in r.states] for r in (self, other))
        for state, value in zip(self.states, self._combine(mine, theirs)):
            state.set(value)

    def result(self) -> Value:
        value = self.states[-1].get()
        source = torch.int64 if self.by_position else self.dtype
        return cast(value, source, self.accumulator.dtype)
