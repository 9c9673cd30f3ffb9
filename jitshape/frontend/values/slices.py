"""Slices and ranges: their ends are values, so that symbolic integers stay symbolic.

In: values for start, stop, step.  Out: for containers of known length the three bounds of
`slice.indices`; for a range of constants a real range, else iteration by symbolic steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.sources import Field, Source
from jitshape.frontend.values.base import Value, builds, wraps
from jitshape.frontend.values.constants import FRESH, ConstantValue, fold
from jitshape.frontend.values.storage import guard_type

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class SliceValue(Value):
    """`slice(start, stop, step)`."""

    def __init__(
        self, start: Value, stop: Value, step: Value, source: Source | None = None
    ) -> None:
        self.start, self.stop, self.step, self.source = start, stop, step, source

    def __repr__(self) -> str:
        return f"SliceValue({self.start!r}, {self.stop!r}, {self.step!r})"

    def python_type(self) -> type:
        return slice

    def children(self) -> Iterable[Value]:
        return (self.start, self.stop, self.step)

    def is_constant(self) -> bool:
        return all(v.is_constant() for v in self.children())

    def constant(self) -> slice:
        return slice(*(v.constant() for v in self.children()))

    def specialised(self, m: Machine) -> list[int | None]:
        """start, stop, step as real ints or None."""
        bounds: list[int | None] = []
        for value in self.children():
            if value.is_constant() and value.constant() is None:
                bounds.append(None)
            elif m.defines(value, "__index__"):
                bounds.append(m.as_int(value))
            else:
                m.throw(
                    TypeError, "slice indices must be integers or None or have an __index__ method"
                )
        return bounds

    def indices(self, m: Machine, length: int) -> tuple[int, int, int]:
        """The bounds for a container of this length, as real ints."""
        try:
            return slice(*self.specialised(m)).indices(length)
        except ValueError as error:
            m.throw(ValueError, *error.args)
            raise

    def getattr(self, m: Machine, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return getattr(self, name)
        return m.default_getattr(self, name)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if isinstance(other, SliceValue):
            from jitshape.frontend.values.sequences import TupleValue

            return TupleValue(self.children()).richcompare(m, op, TupleValue(other.children()))
        return NotImplemented

    def hash_key(self, m: Machine) -> Any:
        if hasattr(slice, "__hash__") and slice.__hash__ is not None:
            return ("slice", *(v.hash_key(m) for v in self.children()))
        m.throw(TypeError, "unhashable type: 'slice'")

    def reconstruct(self, e: Emitter) -> None:
        for value in self.children():
            e.value(value)
        e.build("slice", 3)


class RangeValue(Value):
    """`range(start, stop, step)`; the ends may be symbolic."""

    def __init__(
        self, start: Value, stop: Value, step: Value, source: Source | None = None
    ) -> None:
        self.start, self.stop, self.step, self.source = start, stop, step, source

    def __repr__(self) -> str:
        return f"RangeValue({self.start!r}, {self.stop!r}, {self.step!r})"

    def python_type(self) -> type:
        return range

    def children(self) -> Iterable[Value]:
        return (self.start, self.stop, self.step)

    def is_constant(self) -> bool:
        return all(v.is_constant() for v in self.children())

    def constant(self) -> range:
        return range(*(v.constant() for v in self.children()))

    def concrete(self, m: Machine) -> range:
        """A real range: symbolic ends are specialised."""
        return range(*(m.as_int(v) for v in self.children()))

    def known_empty(self, m: Machine) -> bool | None:
        up = self.step.is_constant() and self.step.constant() > 0
        return not m.compare("<" if up else ">", self.start, self.stop).truth(m)

    def truth(self, m: Machine) -> bool:
        if self.step.is_constant():
            return not self.known_empty(m)
        return bool(self.concrete(m))

    def length(self, m: Machine) -> Value:
        if self.is_constant():
            return fold(m, len, self.constant())
        if self.step.is_constant() and self.step.constant() == 1:
            if not self.truth(m):
                return m.const(0)
            count = m.binary("-", self.stop, self.start)
            within_word = getattr(count, "within_word", None)  # of a symbolic number
            if within_word is not None and not within_word(m):
                return fold(m, len, self.concrete(m))  # raises
            return count
        return m.const(len(self.concrete(m)))

    def getitem(self, m: Machine, key: Value) -> Value:
        real = self.concrete(m)
        if isinstance(key, SliceValue):
            return fold(m, range.__getitem__, real, slice(*key.specialised(m)))
        return fold(m, range.__getitem__, real, m.as_int(key))

    def contains(self, m: Machine, item: Value) -> Value:
        if item.is_constant() and self.is_constant():
            return fold(m, range.__contains__, self.constant(), item.constant())
        if self.step.is_constant() and self.step.constant() == 1:
            if not m.compare(">=", item, self.start).truth(m):
                return m.const(False)
            return m.const(m.compare("<", item, self.stop).truth(m))
        return m.const(m.as_int(item) in self.concrete(m))

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if isinstance(other, RangeValue) and op in ("==", "!="):
            same = self.concrete(m) == other.concrete(m)
            return m.const(same == (op == "=="))
        return NotImplemented

    def hash_key(self, m: Machine) -> Any:
        return self.concrete(m)

    def iterate(self, m: Machine) -> Value:
        from jitshape.frontend.values.iterators import MovedRangeIterator, PureIterator

        if not self.is_constant() and self.step.is_constant():
            distance = m.binary("-", self.stop, self.start)
            if distance.is_constant():  # only where it starts is unknown
                count = len(range(0, distance.constant(), self.step.constant()))
                return MovedRangeIterator(self, count)
        return PureIterator(iter(self.concrete(m)))

    def getattr(self, m: Machine, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return getattr(self, name)
        return m.default_getattr(self, name)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(range)
        for value in self.children():
            e.value(value)
        e.end_call(3)


def make_range(m: Machine, args: list[Value]) -> Value:
    """`range(...)` with CPython's checks."""
    if not 1 <= len(args) <= 3:
        count = len(args)
        least = "at least 1 argument, got 0" if not count else f"at most 3 arguments, got {count}"
        m.throw(TypeError, f"range expected {least}")
    for value in args:
        if not m.defines(value, "__index__"):
            name = value.python_type().__name__
            m.throw(TypeError, f"'{name}' object cannot be interpreted as an integer")
    args = [v if issubclass(v.python_type(), int) else m.const(m.as_int(v)) for v in args]
    one, zero = ConstantValue(1), ConstantValue(0)
    start, stop = (zero, args[0]) if len(args) == 1 else (args[0], args[1])
    step = args[2] if len(args) == 3 else one
    if step.is_constant() and step.constant() == 0:
        m.throw(ValueError, "range() arg 3 must not be zero")
    return RangeValue(start, stop, step)


FRESH[range] = lambda m, r: RangeValue(*(ConstantValue(x) for x in (r.start, r.stop, r.step)))
FRESH[slice] = lambda m, s: SliceValue(*(m.const(x) for x in (s.start, s.stop, s.step)))
builds("slice")(lambda m, start, stop, step: SliceValue(start, stop, step))


@wraps(range, slice)
def wrap_bounds(m: Machine, real: range | slice, source: Source | None) -> Value:
    """Each call may bring another one: what guards look at is its ends, which may be symbolic."""
    held = guard_type(m, real, source)
    names = ("start", "stop", "step")
    kind = RangeValue if type(real) is range else SliceValue
    return kind(*(m.wrap(getattr(real, name), Field(held, name)) for name in names), source=held)
