"""Making Values: of real objects, one each, and of what the program makes.

In: objects with the sources they were found at; parts of new ones.  Out: Values.
Invariant: one Value per real object and trace, guarded at every source that it was found at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.coroutines import KINDS_OF_GENERATORS
from jitshape.frontend.frame import Frame
from jitshape.frontend.generators import kind_of_code
from jitshape.frontend.lookup import hashes_by_code
from jitshape.frontend.sources import Source
from jitshape.frontend.values.base import (
    BUILDERS,
    WRAPPERS,
    WRAPPERS_OF_BASES,
    Value,
    has_finalizer,
)


class Wrapping:
    """The part of the machine that makes Values."""

    if TYPE_CHECKING:
        _held: dict[int, tuple[Any, Value]]
        _literals: dict[int, tuple[Any, Value]]
        generators: list[Any]
        stop: Any
        unread: dict[int, Any]

    def const(self, object: Any) -> Value:
        return BUILDERS["const"](self, object)

    def literal(self, object: Any) -> Value:
        """The one Value of a constant of some code object."""
        found = self._literals.get(id(object))
        if found is None:
            found = self._literals[id(object)] = (object, self.const(object))
        return found[1]

    def new_tuple(self, items: list[Value]) -> Value:
        return BUILDERS["tuple"](self, items)

    def new_list(self, items: list[Value]) -> Value:
        return BUILDERS["list"](self, items)

    def new_set(self, items: list[Value]) -> Value:
        return BUILDERS["set"](self, items)

    def new_dict(self, pairs: list[tuple[Value, Value]]) -> Value:
        return BUILDERS["dict"](self, pairs)

    def build(self, kind: str, *parts: Any) -> Value:
        """A value of one of the kinds named in values/base.py."""
        return BUILDERS[kind](self, *parts)

    def new_generator(self, frame: Frame) -> Value:
        generator = KINDS_OF_GENERATORS[kind_of_code(frame.callee.code)](self, frame)
        self.generators.append(generator)
        return generator

    def wrap(self, object: Any, source: Source | None = None) -> Value:
        """The Value of a real object: one per object and trace, guarded at `source`."""
        held = self._held.get(id(object))
        if held is not None:
            value = held[1]
            if source is not None and value.source is not source and value.source != source:
                value.seen_again(self, source)
            return value
        self._refuse_odd_classes(object)
        wrapper = WRAPPERS.get(type(object)) or self.wrapper_of_base(type(object))
        if wrapper is None:
            name = type(object).__qualname__
            self.stop("unsupported_object", f"an object of class {name} cannot be traced")
        value = wrapper(self, object, source)
        if has_finalizer(type(object)):
            value.finalized = True
        if value.remembered:
            self._held[id(object)] = (object, value)
        return value

    def _refuse_odd_classes(self, object: Any) -> None:
        """Classes are asked for in dicts, which must run no code of the program's."""
        cls = type(object)
        if type(cls) is not type and hashes_by_code(cls):
            self.stop("user_hash", f"a class whose metaclass {type(cls).__name__} compares classes")
        if cls is not type and issubclass(cls, type) and hashes_by_code(object):
            self.stop("user_hash", f"a class whose metaclass {cls.__name__} compares classes")

    def wrapper_of_base(self, type_: type) -> Callable | None:
        for base in type_.__mro__:
            wrapper = WRAPPERS_OF_BASES.get(base)
            if wrapper is not None:
                return wrapper
        return None

    def wrap_type(self, type_: type) -> Value:
        """The Value of a class that needs no guard: it follows from one that there is."""
        held = self._held.get(id(type_))
        return held[1] if held is not None else self.wrap(type_, None)

    def remember(self, object: Any, value: Value) -> None:
        """Make `value` the Value of `object` from the start of its wrapper on (for objects that
        contain themselves)."""
        self._held[id(object)] = (object, value)

    def known_value(self, object: Any) -> Value | None:
        """The value of a real object that the trace met."""
        held = self._held.get(id(object))
        return None if held is None else held[1]

    def found_value(self, object: Any) -> Value | None:
        """The value of a real object that the trace met or was given."""
        value = self.known_value(object)
        if value is None and id(object) in self.unread:
            value = self.unread[id(object)].observed()
        return value

    def known_values(self) -> list[Value]:
        """The values of all real objects that the trace met."""
        return [value for _, value in self._held.values()]
