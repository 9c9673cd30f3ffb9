"""Facts: conditions under which compiled code is right, and the symbols they speak of.

In: nothing; the ShapeEnv makes them.  Out: records, and their texts.
Invariant: a fact never changes, so whoever holds one may keep it beyond the trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitshape.ir.conditions import Bool, BoolExpr
from jitshape.ir.symint import IntExpr

if TYPE_CHECKING:
    from jitshape.ir.graph import Location

LAYOUT, DECLARED = "layout of an input", "dynamic_shapes"  # reasons of facts


@dataclass(frozen=True)
class Fact:
    """A condition that must hold for the compiled code to be right, and who needed it.
    `specialised`: it leaves one value for some symbol."""

    condition: Bool
    location: Location | None
    op: str
    specialised: bool

    def __str__(self) -> str:
        return str(self.condition)


@dataclass(frozen=True)
class Symbol:
    """A size, stride, offset or int that may differ between calls.  `hints`: every value seen,
    the actual one last; empty if unbacked."""

    expr: IntExpr
    name: str
    hints: tuple[int, ...]

    @property
    def unbacked(self) -> bool:
        return not self.hints


def assumption(fact: Fact) -> str:
    """What names an assert in every trace of a function."""
    return f"{fact.condition} at {fact.location}" if fact.location else str(fact.condition)


def describe(fact: Fact, names: Mapping[str, str]) -> str:
    """The condition as the user would write it: `names` maps symbols to source texts."""
    if not isinstance(fact.condition, BoolExpr):
        return str(fact.condition)
    return fact.condition.print(lambda atom: names.get(atom.name, atom.name))
