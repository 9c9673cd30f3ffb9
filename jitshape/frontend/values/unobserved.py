"""Objects that the program holds and has not looked at: arguments, until something reads them.

In: the object in an argument slot, with its source.  Out: a Value that no guard stands for.
Invariant: an Unobserved lies only in slots of frames, on operand stacks between an instruction that
loads it and one that hands it on (opcodes/handing_on.py), and in tuples and dicts that were made of
it, which give it away observed.  So no value and no builtin meets one, and what the next call gives
in its place, of whatever class, goes the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import TypeIs
from jitshape.frontend.lookup import derives
from jitshape.frontend.sources import Source
from jitshape.frontend.values.base import Value, has_finalizer

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


class Unobserved(Value):
    """An object of the program's that leaves, if it does, as it came."""

    def __init__(self, m: Machine, real: Any, source: Source) -> None:
        self.machine, self.real, self.source = m, real, source
        self._observed: Value | None = None
        self._type_known = False

    def __repr__(self) -> str:
        return f"Unobserved({self.source})"

    def observed(self) -> Value:
        """The Value of the object, guarded as such Values are."""
        if self._observed is None:
            self._observed = self.machine.wrap(self.real, self.source)
        return self._observed

    def python_type(self) -> type:
        """The class alone: whether it is None, as a rule."""
        if self._observed is None and not self._type_known:
            self._type_known = True
            self.machine.guard(self.source, TypeIs(type(self.real)))
        return type(self.real)

    def is_constant(self) -> bool:
        return self.observed().is_constant()

    def constant(self) -> Any:
        return self.observed().constant()


def observed(value: Any) -> Any:
    """What an instruction gets that looks at its operand."""
    return value.observed() if type(value) is Unobserved else value


# Classes whose Values guard nothing before something of the object is asked, or never.
GUARDED_LATE: list[type] = []


def unread(m: Machine, real: Any, source: Source) -> Value:
    """The Value of what a call is given."""
    cls = type(real)
    if any(derives(cls, base) for base in GUARDED_LATE) or has_finalizer(cls):
        return m.wrap(real, source)
    value = Unobserved(m, real, source)
    m.unread.setdefault(id(real), value)
    return value
