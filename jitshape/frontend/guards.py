"""Guards: what a compiled entry relies on, collected while tracing and assembled for C.

In: (source, check, user line) from the machine, and the sources that the entry needs as objects.
Out: a GuardProgram that C evaluates before each call (guard_program.py writes it), that says
which guard a call failed and with what value, and that prints as the user's conditions.
Invariant: a source is walked only after its parents were loaded and their own checks passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jitshape.frontend import sources as S
from jitshape.frontend._evalframe import Program
from jitshape.frontend.checks import (
    Ambient,
    Check,
    Definition,
    Equals,
    Guard,
    Holds,
    NullField,
    SpecialMethods,
    TensorMatches,
    TypeIs,
    short,
)
from jitshape.frontend.sources import Source


@dataclass(frozen=True)
class Failure:
    """The first guard that a call failed, and what was there instead."""

    guard: Guard
    observed: str

    def __str__(self) -> str:
        where = f"   # {self.guard.location}" if self.guard.location else ""
        return f"{self.guard.check.text(self.guard.source)} failed: {self.observed}{where}"


@dataclass
class GuardSet:
    """The guards of one trace, each (source, check) once, with the line that asked first."""

    guards: dict[tuple[Source | None, Check], Guard] = field(default_factory=dict)

    def add(self, source: Source | None, check: Check, location: Any = None) -> None:
        self.guards.setdefault((source, check), Guard(source, check, location))

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.guards.values())

    def __len__(self) -> int:
        return len(self.guards)

    def snapshot(self) -> int:
        """A mark for `rollback`."""
        return len(self.guards)

    def rollback(self, mark: int) -> None:
        """Forget the guards added since `mark`."""
        for key in list(self.guards)[mark:]:
            del self.guards[key]


class Assembled(NamedTuple):
    """What C makes a program of; `extract`: registers."""

    steps: tuple[tuple, ...]
    slots: int
    objects: int
    numbers: int
    extract: tuple[int, ...]


class GuardProgram:
    """`program` evaluates `guards` (in this order) and extracts the objects at `extract`.
    `assembled` is there for as long as it may be written to disk."""

    def __init__(
        self,
        program: Program,
        guards: tuple[Guard, ...],
        extract: tuple[Source, ...],
        assembled: Assembled | None = None,
    ) -> None:
        self.program, self.guards, self.extract = program, guards, extract
        self.assembled = assembled

    def run(self, slots: tuple) -> tuple | None:
        """The extracted objects, or None where a guard fails."""
        result = self.program.run(slots)
        return result if type(result) is tuple else None

    def __str__(self) -> str:
        return "\n".join(map(str, self.guards))


def assemble(
    guards: Iterable[Guard], extract: Iterable[Source], to_keep: bool = False
) -> GuardProgram:
    """Order the guards, each kept once, and write the program."""
    from jitshape.frontend.guard_program import Assembler

    kept: dict[tuple[Source | None, Check], Guard] = {}
    for guard in guards:
        kept.setdefault((guard.source, guard.check), guard)
    read = {
        guard.source
        for guard in kept.values()
        if type(guard.check) is Equals and type(guard.check.value) in (str, bytes)
    }
    needed = (  # the text has the class, too
        guard
        for guard in kept.values()
        if type(guard.check) is not TypeIs or guard.source not in read
    )
    return Assembler(tuple(needed), tuple(extract)).finish(to_keep)


def explain(program: GuardProgram, slots: tuple) -> Failure | None:
    """Why this call does not hit; None where it does."""
    result = program.program.run(slots)
    if type(result) is tuple:
        return None
    guard = program.guards[result]
    return Failure(guard, observed(guard, slots))


# ---- reading sources from Python, for explanations and for entries that are read back


class Absent(Exception):
    """Nothing is found at a source."""


READERS: dict[type, Callable[[Any, Any], Any]] = {
    S.Item: lambda source, base: (tuple if isinstance(base, tuple) else list).__getitem__(
        base, source.index
    ),
    S.TypeOf: lambda source, base: type(base),
    S.InstanceDict: lambda source, base: object.__getattribute__(base, "__dict__"),
    S.Key: lambda source, base: (
        dict.__getitem__(base, source.key) if isinstance(base, dict) else base[source.key]
    ),
    S.TypeAttribute: lambda source, base: next(
        c.__dict__[source.name] for c in base.__mro__ if source.name in c.__dict__
    ),
    S.Slot: lambda source, base: getattr(base, source.name),
    S.Field: lambda source, base: (
        S.class_field(base, source.name) if isinstance(base, type) else getattr(base, source.name)
    ),
    S.Getter: lambda source, base: getattr(base, source.name),
}
NUMBERS: dict[str, Callable[[Any, int], Any]] = {
    "size": lambda base, dim: type(base).size(base, dim),
    "stride": lambda base, dim: type(base).stride(base, dim),
    "offset": lambda base, dim: type(base).storage_offset(base),
    "len": lambda base, dim: len(base),
}


def read(source: Source, slots: tuple, known: dict[Source, Any] | None = None) -> Any:
    """The object at a source for a call with these slots; raises Absent.  `known` remembers what
    was read of the same call."""
    if isinstance(source, S.Local):
        return slots[source.index]
    if isinstance(source, S.Held):
        return source.object
    if known is not None and source in known:
        return known[source]
    base = read(source.base, slots, known)  # type: ignore[attr-defined]
    try:
        if isinstance(source, S.Number):
            found = NUMBERS.get(source.kind, lambda base, dim: base)(base, source.dim)
        else:
            found = READERS[type(source)](source, base)
    except Exception as error:
        raise Absent(str(source)) from error
    if known is not None:
        known[source] = found
    return found


def observed(guard: Guard, slots: tuple) -> str:
    """What a failed guard met, as text."""
    check = guard.check
    try:
        if isinstance(check, Holds):
            return ", ".join(f"{s} = {short(read(s, slots))}" for _, s in check.symbols)
        if isinstance(check, Ambient):
            return "changed"
        assert guard.source is not None
        value = read(guard.source, slots)
        if isinstance(check, TensorMatches):
            return ", ".join(f"{what} is {seen}" for what, _, seen in differences(check, value))
    except Absent:
        return "nothing there"
    if isinstance(check, NullField):
        return "it holds an object"
    if isinstance(check, (Definition, SpecialMethods)):
        return f"changed: {', '.join(check.changed(value))}"
    if type(value) in (dict, list, tuple, set):
        return f"a {type(value).__name__} of {len(value)}"
    return short(value)


def differences(check: TensorMatches, tensor: Any) -> list[tuple[str, Any, Any]]:
    """(what, expected, seen) for all that keeps `tensor` from matching."""
    if type(tensor) is not check.type:
        return [("type", short(check.type), short(type(tensor)))]
    methods = type(tensor)  # a tensor may have attributes of these names
    found: list[tuple[str, Any, Any]] = []
    for name in ("dtype", "device", "requires_grad", "is_leaf"):
        expected, seen = getattr(check, name), getattr(tensor, name)
        if expected is not None and seen != expected:
            found.append((name, expected, seen))
    if methods.dim(tensor) != len(check.sizes):
        return [*found, ("dim()", len(check.sizes), methods.dim(tensor))]
    for dim, size in enumerate(check.sizes):
        if size is not None and methods.size(tensor, dim) != size:
            found.append((f"size({dim})", size, methods.size(tensor, dim)))
    for dim, stride in enumerate(check.strides):
        seen = methods.stride(tensor, dim)
        if stride is not None and seen != stride and methods.size(tensor, dim) > 1:
            found.append((f"stride({dim})", stride, seen))
    return found or [("dispatch key set", hex(check.keys), "another")]
