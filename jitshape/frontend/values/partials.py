"""Partials: a function with the arguments that it will be called with.

In: a real `functools.partial` with its source, or function and arguments of one that the program
made.  Out: calls of the function itself; attributes as on any object.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.sources import Field, Source
from jitshape.frontend.values.base import Value, wraps
from jitshape.frontend.values.functions import CallableValue
from jitshape.frontend.values.sequences import TupleValue, fill_attributes
from jitshape.frontend.values.storage import Storage, guard_type

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class PartialValue(Storage, CallableValue):
    """`functools.partial`: function, arguments, and whatever attributes were set on it."""

    cls = builtin = functools.partial

    def __init__(
        self,
        function: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        object: Any = None,
        source: Source | None = None,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.object, self.source = object, source

    def __repr__(self) -> str:
        return f"PartialValue({self.function!r}, {self.args!r}, {self.kwargs!r})"

    def parts(self) -> tuple[Value, ...]:
        return (self.function, *self.args, *self.kwargs.values())

    def children(self) -> Iterable[Value]:
        yield from self.parts()
        if self.instance_dict is not None:
            yield from self.instance_dict.children()

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return m.forward(self, self.function, [*self.args, *args], {**self.kwargs, **kwargs})

    def getattr(self, m: Machine, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return m.new_dict([(m.const(k), v) for k, v in self.kwargs.items()])
        return m.default_getattr(self, name)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(functools.partial)
        for value in self.parts():
            e.value(value)
        e.end_call(1 + len(self.args) + len(self.kwargs), tuple(self.kwargs))
        e.bind(self)
        fill_attributes(e, self)


@wraps(functools.partial)
def wrap_partial(m: Machine, real: functools.partial, source: Source | None) -> Value:
    held = guard_type(m, real, source)
    args = m.wrap(real.args, Field(held, "args"))
    keywords = m.wrap(real.keywords, Field(held, "keywords"))
    named = dict(
        zip([k.constant() for k in keywords.keys_in_order(m)], keywords.values_in_order(m))
    )
    return PartialValue(m.wrap(real.func, Field(held, "func")), args.items, named, real, source)
