"""Checks: what a guard demands of the object at a source.

frontend/guards.py turns (source, check, user line) into the C program; a failed check is what a
recompile is explained with.  All are frozen; `str(check)` completes the sentence "source ...".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jitshape.frontend.sources import Source


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's program: the fields of ir.graph.Location, without its imports."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Guard:
    """`check` must hold of the object at `source`, because of the user's line `location`."""

    source: Source
    check: Any
    location: Location | None = None


@dataclass(frozen=True)
class TypeIs:
    """Exact type, by pointer."""

    type: type


@dataclass(frozen=True, eq=False)
class Is:
    """The very object."""

    object: Any


@dataclass(frozen=True)
class Equals:
    """Exact type and equal value of an int, float (by bits), str, bytes, bool, None, complex."""

    value: Any


@dataclass(frozen=True)
class Length:
    """Of a tuple, list, dict or set."""

    length: int


@dataclass(frozen=True)
class Keys:
    """A dict has exactly these keys, in this order."""

    keys: tuple


@dataclass(frozen=True)
class Missing:
    """A dict has no such key (a global found in builtins, an attribute found on the class)."""

    key: Any


@dataclass(frozen=True)
class NoTypeAttribute:
    """The class's method resolution order holds no such name."""

    name: str


@dataclass(frozen=True)
class NullField:
    """The field is empty (no closure, unset slot or cell)."""


@dataclass(frozen=True)
class TensorMatches:
    """Class, dtype, device, dispatch keys, rank, requires_grad, is_leaf; sizes and strides where
    given (None: dynamic; strides of dimensions of size <= 1 are not compared)."""

    type: type
    dtype: Any
    device: Any
    keys: int  # raw dispatch key set
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    requires_grad: bool
    is_leaf: bool | None = None


@dataclass(frozen=True)
class SameObject:
    """The object at the guard's source is the object at `other`."""

    other: Source


@dataclass(frozen=True)
class Distinct:
    """The object at the guard's source is not the object at `other`."""

    other: Source


@dataclass(frozen=True)
class NoOverlap:
    """The tensor shares no memory with the tensor at `other`."""

    other: Source


@dataclass(frozen=True)
class Holds:
    """A relation between sizes: `condition` (ir BoolExpr) with its symbols bound to the Numbers
    in `symbols`: ((name, Number source), ...).  The guard's own source is the first of them."""

    condition: Any
    symbols: tuple[tuple[str, Source], ...]

    def __str__(self) -> str:
        return f"satisfies {self.condition}"


@dataclass(frozen=True)
class Ambient:
    """Global state read while tracing: "grad_mode", "inference_mode", "default_dtype",
    "autocast", "deterministic", "default_device", "training modes" ... with the value seen."""

    name: str
    value: Any
