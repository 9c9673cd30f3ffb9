"""Weak references that exist outside: what they refer to, if the program found it elsewhere too.

In: a real `weakref.ref`, called.  Out: the value of its referent, which another source leads to; a
guard says that it is still the one.  Invariant: no entry keeps a referent alive.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import RefersTo
from jitshape.frontend.sources import Source
from jitshape.frontend.values.base import Break, Value, wraps
from jitshape.frontend.values.functions import CallableValue
from jitshape.frontend.values.storage import guard_type

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine


class ReferenceValue(CallableValue):
    """A weak reference."""

    def __init__(self, object: weakref.ref, source: Source) -> None:
        self.object, self.source = object, source

    def python_type(self) -> type:
        return weakref.ref

    def hash_key(self, m: Machine) -> Any:
        m.stop("user_hash", "a weak reference hashes as what it refers to")

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if op in ("==", "!="):
            m.stop("user_hash", "weak references compare as what they refer to")
        return NotImplemented

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`ref()`."""
        if args or kwargs:
            raise Break("builtin_arguments", "a weak reference takes no arguments")
        referent = self.object()
        value = None if referent is None else m.found_value(referent)
        if value is None or value.source is None:
            raise Break("builtin", "what a weak reference refers to is known by nothing else")
        if value.dropped:
            raise Break("builtin", "a weak reference may have lost what it refers to")
        m.guard(self.source, RefersTo(value.source))
        return value


@wraps(weakref.ref)
def wrap_reference(m: Machine, real: weakref.ref, source: Source | None) -> Value:
    return ReferenceValue(real, guard_type(m, real, source))
