"""Exceptions of the program: how the machine raises them, and which one is being handled.

In: classes and values of exceptions.  Out: `Raised`, with `__context__` linked as the interpreter
links it.
Invariant: what is handled outside the trace is read under a guard.
"""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.checks import AMBIENT, Ambient
from jitshape.frontend.values.base import Raised, Value

if TYPE_CHECKING:
    from jitshape.frontend.frame import Frame

AMBIENT["handled_exception"] = lambda: sys.exception() is not None


class Handling:
    """The exception being handled: one per thread of control, as the interpreter's exc_info
    stack (a generator has its own, above its caller's)."""

    __slots__ = ("below", "value")

    def __init__(self, below: Handling | None = None) -> None:
        self.value: Value | None = None
        self.below = below

    def current(self) -> Value | None:
        """`sys.exc_info()[1]`."""
        handling: Handling | None = self
        while handling is not None:
            if handling.value is not None:
                return handling.value
            handling = handling.below
        return None


class Handlers:
    """The part of the machine that raises."""

    called_in_handler = False
    handling: Handling  # of the thread of control that runs

    if TYPE_CHECKING:
        call: Any
        const: Any
        guard: Any
        wrap_type: Any

    def throw(self, type_: type[BaseException], *args: Any) -> NoReturn:
        """Raise in the user's program: arguments are Values or constants."""
        values = [a if isinstance(a, Value) else self.const(a) for a in args]
        self.raise_value(self.call(self.wrap_type(type_), values, {}))

    def raise_value(self, exception: Value) -> NoReturn:
        """Raise an exception value; the one being handled becomes its context."""
        self.set_context(exception)
        raise Raised(exception)

    def set_context(self, exception: Any) -> None:
        """What PyErr_SetObject does to `__context__`: no cycles."""
        handled: Any = self.handling.current()
        if handled is exception:
            return
        exception.outermost = handled is None
        if handled is None:
            return
        link, seen = handled, set()
        while link.context is not None and id(link) not in seen:
            if link.context is exception:
                link.assign(self, "context", None)
                break
            seen.add(id(link))
            link = link.context
        exception.assign(self, "context", handled)

    def caller_handles(self) -> bool:
        """Whether an exception is being handled where the outermost frame is called; guarded."""
        self.guard(None, Ambient("handled_exception", self.called_in_handler))
        return self.called_in_handler

    def is_exception(self, raised: Raised, types: Any) -> bool:
        return issubclass(raised.value.python_type(), types)


def lets_pass(m: Any, frame: Frame, index: int, thrown: type[BaseException]) -> bool:
    """Whether the handler at `index` only asks whether an exception of class `thrown` is of other
    classes, of builtin names, and raises it again."""
    program = frame.program
    index += 1  # behind PUSH_EXC_INFO
    while True:
        first, *more = program.instructions[index : index + 3]
        if first.opname == "RERAISE":
            return True
        names = [instruction.opname for instruction in more]
        if first.opname != "LOAD_GLOBAL" or names[:1] != ["CHECK_EXC_MATCH"]:
            return False
        name = program.names[first.arg >> 1]
        asked = vars(builtins).get(name)
        if not isinstance(asked, type) or issubclass(thrown, asked):
            return False
        value = None if name in frame.scope.globals else m.find_global(frame.scope, name)
        jump = more[1]
        if value is None or getattr(value, "object", None) is not asked or jump.target is None:
            return False
        index = jump.target
