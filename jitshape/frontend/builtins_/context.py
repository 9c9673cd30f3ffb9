"""Context variables: `get`, `set` and `reset` while tracing.

In: a real ContextVar.  Out: what it held when the trace began (guarded by an ambient check that
asks for the very object), what the program set since, and at the end one `set` if that differs.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, Token
from typing import TYPE_CHECKING, Any

from jitshape.frontend.builtins_.registry import models
from jitshape.frontend.checks import AMBIENT, Ambient
from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Break, Value, wraps
from jitshape.frontend.values.functions import CallableValue
from jitshape.frontend.values.storage import guard_identity

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine

UNSET: Any = object()


class ContextVarValue(CallableValue):
    """A context variable; `content` None: unset."""

    def __init__(self, object: ContextVar, source: Source) -> None:
        self.object, self.source = object, source
        self.content: Value | None = None
        self.initial: Value | None = None
        self.loaded = False

    def python_type(self) -> type:
        return ContextVar

    def seen_again(self, m: Machine, source: Source) -> None:
        guard_identity(m, self.object, source)

    def read(self, m: Machine) -> Value | None:
        if not self.loaded:
            self.loaded = True
            variable, real = self.object, self.object.get(UNSET)
            name = f"{variable.name} ({id(variable):x}, {id(real):x})"
            AMBIENT[name] = lambda: variable.get(UNSET) is real
            m.guard(self.source, Ambient(name, True))
            if real is not UNSET:
                self.content = m.wrap(real, Held(real, variable.name))
            self.initial = self.content
        return self.content

    def write(self, m: Machine, value: Value | None) -> None:
        m.mutated(self)
        m.effects.touch(self)
        self.content = value

    def write_back(self, e: Emitter) -> None:
        if self.content is self.initial:
            return
        if self.content is None:
            raise Break("side_effect", f"{self.object.name} is left unset")
        e.begin_call()
        e.const(self.object.set)
        e.value(self.content)
        e.end_call(1)
        e.pop()


class TokenValue(CallableValue):
    """What `set` returns: what `reset` brings back."""

    def __init__(self, variable: ContextVarValue, old: Value | None) -> None:
        self.variable, self.old = variable, old

    def python_type(self) -> type:
        return Token


@wraps(ContextVar)
def wrap_context_variable(m: Machine, real: ContextVar, source: Source | None) -> Value:
    return ContextVarValue(real, guard_identity(m, real, source))


@models(ContextVar.get)
def get(m: Machine, self: Any, default: Value | None = None, /) -> Value:
    value = self.read(m) or default
    if value is None:
        try:
            real = Context().run(self.object.get)  # the default it was made with
        except LookupError:
            m.throw(LookupError, self)
        value = m.wrap(real, Held(real, self.object.name))
    return value


@models(ContextVar.set)
def set_(m: Machine, self: Any, value: Value, /) -> Value:
    token = TokenValue(self, self.read(m))
    self.write(m, value)
    return token


@models(ContextVar.reset)
def reset(m: Machine, self: Any, token: Any, /) -> None:
    if not isinstance(token, TokenValue) or token.variable is not self:
        raise Break("context", f"{self.object.name} is reset with another token")
    self.write(m, token.old)
