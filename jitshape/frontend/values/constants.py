"""Constants: immutable objects known while tracing, computed with by calling the real thing.

In: an object of a type in `CONSTANT_TYPES` (or an enum member), literal or guarded by whoever
wrapped it.  Out: operators folded, errors of the user's program with CPython's own text.
Invariant: folding never runs user code, for operands are of the types listed here only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Equals, Is, TypeIs
from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Value, builds, wraps
from jitshape.frontend.values.storage import PinnedValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

NUMBER_TYPES = (bool, int, float, complex)
CONSTANT_TYPES: set[type] = {
    *NUMBER_TYPES,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
}

UNARY: dict[str, Callable] = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
BINARY: dict[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
COMPARE: dict[str, Callable] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


def register_constant_type(cls: type) -> None:
    """Instances of `cls` are immutable, compare without user code and have an exact repr."""
    CONSTANT_TYPES.add(cls)
    wraps(cls)(wrap_constant)


def fold(m: Machine, function: Callable, *args: Any, **kwargs: Any) -> Value:
    """Call a pure function on real constants; its exception becomes the program's."""
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        m.throw(type(error), *error.args)
        raise AssertionError("throw returned") from error
    return from_python(m, result)


def from_python(m: Machine, result: Any) -> Value:
    """The Value of a fresh object that a pure function returned."""
    if type(result) in CONSTANT_TYPES:
        return ConstantValue(result)
    make = FRESH.get(type(result))
    return make(m, result) if make is not None else m.wrap(result, None)


# How a fresh container of constants, result of a pure function, becomes a Value.
FRESH: dict[type, Callable[[Machine, Any], Value]] = {}


TEXT_TYPES = (str, bytes)
EQUALS_TYPES = (*NUMBER_TYPES, *TEXT_TYPES, type(None))


def wrap_constant(m: Machine, real: Any, source: Source | None) -> Value:
    """A real immutable object: guarded by value, or by identity where Equals cannot compare."""
    if source is None or isinstance(source, Held):
        return ConstantValue(real, source)
    if type(real) in TEXT_TYPES:
        m.guard(source, TypeIs(type(real)))
        return TextValue(m, real, source)
    m.guard(source, Equals(real) if type(real) in EQUALS_TYPES else Is(real))
    return ConstantValue(real, source)


wraps(*CONSTANT_TYPES)(wrap_constant)


@builds("const")
def build_constant(m: Machine, real: Any) -> Value:
    """A literal; what is not immutable through and through is held by the trace."""
    if type(real) in CONSTANT_TYPES:
        return ConstantValue(real)
    make = FRESH.get(type(real))
    return make(m, real) if make is not None else m.wrap(real, None)


class ConstantValue(PinnedValue):
    """A known immutable object.  One that is `from_outside` is told from others by guards."""

    remembered = False
    from_outside = False

    def truth(self, m: Machine) -> bool:
        return bool(self.object)

    def getitem(self, m: Machine, key: Value) -> Value:
        if key.is_constant() and hasattr(type(self.object), "__getitem__"):
            return fold(m, operator.getitem, self.object, key.constant())
        return m.default_getitem(self, key)

    def contains(self, m: Machine, item: Value) -> Value:
        if item.is_constant() and hasattr(type(self.object), "__contains__"):
            return fold(m, operator.contains, self.object, item.constant())
        return m.default_contains(self, item)

    def length(self, m: Machine) -> Value:
        return fold(m, len, self.object)

    def iterate(self, m: Machine) -> Value:
        if isinstance(self.object, (str, bytes)):
            from jitshape.frontend.values.iterators import SequenceIterator

            kind = type(iter(self.object))
            return SequenceIterator([from_python(m, x) for x in self.object], kind)
        return m.default_iterate(self)

    def unary(self, m: Machine, op: str) -> Value:
        return fold(m, UNARY[op], self.object)

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        function = BINARY.get(op)
        if function is None:  # an in-place operator: these types have the plain ones only
            return NotImplemented
        if other.is_constant() and type(other.constant()) in CONSTANT_TYPES:
            pair = (other.constant(), self.object) if reflected else (self.object, other.constant())
            return fold(m, function, *pair)
        if op == "%" and not reflected and isinstance(self.object, (str, bytes)):
            return m.call(m.const(type(self.object).__mod__), [self, other], {})
        return NotImplemented

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if other.is_constant() and type(other.constant()) in CONSTANT_TYPES:
            return fold(m, COMPARE[op], self.object, other.constant())
        return NotImplemented

    def hash_key(self, m: Machine) -> Any:
        return self.object


class TextValue(ConstantValue):
    """A string from outside: its class is known, its text is guarded once something reads it."""

    from_outside = True

    def __init__(self, m: Machine, real: str | bytes, source: Source) -> None:
        self.machine, self.real, self.source = m, real, source
        self._guarded = False

    def __repr__(self) -> str:
        return f"TextValue({self.source})"

    def python_type(self) -> type:
        return type(self.real)

    @property
    def object(self) -> str | bytes:  # type: ignore[override]
        if not self._guarded:
            self.machine.guard(self.source, Equals(self.real))
            self._guarded = True
        return self.real
