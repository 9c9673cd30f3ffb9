"""Effects: writes to objects that exist outside the trace, done by the compiled code at its end.

In: `touch(value)` before a real object's value changes; `later(action)` for output such as
print.  Out: `replay(e)` emits code that brings every touched object to its final state.
Invariant: no real object is written while tracing, so an aborted trace leaves nothing, and final
states suffice: between the writes no code of the user's runs that could see them half done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Distinct, Guard
from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter


def _both_held(a: Source | None, b: Source | None) -> bool:
    """Objects pinned by the entry: known to be two."""
    return isinstance(a, Held) and isinstance(b, Held)


class Effects:
    """The log of one trace."""

    def __init__(self) -> None:
        self._touched: dict[int, Value] = {}
        self._calls: list[tuple[Any, list[Value], dict[str, Value]]] = []
        self._counted: list[tuple[Any, list[Value], dict[str, Value]]] = []

    def touch(self, value: Value) -> None:
        """The object of `value`, which exists outside, is about to change."""
        self._touched.setdefault(id(value), value)

    def call(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Call the real `function` after the graph, in program order: output of the program."""
        self._calls.append((function, args, kwargs))

    def count(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Call the real `function` after the graph: bookkeeping that the program cannot see but
        by asking for it, and so no effect that anything has to wait for."""
        self._counted.append((function, args, kwargs))

    def touched(self) -> Iterable[Value]:
        """The values whose objects are written, in the order of the first write."""
        return self._touched.values()

    def size(self) -> int:
        """Grows with every object that is written first, and with every call."""
        return len(self._touched) + len(self._calls)

    def empty(self) -> bool:
        return not self._touched and not self._calls

    def distinct(self, known: Iterable[Value]) -> Iterator[Guard]:
        """Guards that a written object is none of the other objects of its class that the trace
        read: under another name it would have shown the write."""
        by_class: dict[type, list[Value]] = {}
        for value in known:
            if value.source is not None:
                by_class.setdefault(value.python_type(), []).append(value)
        for value in self._touched.values():
            written = getattr(value, "owner", value)
            others = by_class.get(written.python_type(), ())
            for other in others:
                if other is not written and not _both_held(written.source, other.source):
                    yield Guard(written.source, Distinct(other.source))

    def replay(self, e: Emitter) -> None:
        """Emit all writes, then the calls, then what counts."""
        for value in self._touched.values():
            value.write_back(e)
        for function, args, kwargs in (*self._calls, *self._counted):
            e.begin_call()
            e.const(function)
            for value in (*args, *kwargs.values()):
                e.value(value)
            e.end_call(len(args) + len(kwargs), tuple(kwargs))
            e.pop()
