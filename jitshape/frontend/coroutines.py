"""Coroutines and asynchronous generators: what `await`, `async for` and `async with` ask of them.

In: frames of asynchronous functions, suspended as those of generators are.  Out: what awaiting
them gives, step by step.
Invariant: as for generators.  A coroutine that is dropped before it was awaited is made natively,
so that the warning comes; so is what hooks for asynchronous generators are to see.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable
from types import AsyncGeneratorType, CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.checks import AMBIENT, Ambient
from jitshape.frontend.generators import (
    AWAITED,
    METHODS,
    Delegate,
    GeneratorMethod,
    GeneratorValue,
    Method,
    thrown,
)
from jitshape.frontend.lookup import name_in_c
from jitshape.frontend.values.base import CLOCK, Break, Raised, Restart, Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.frame import Frame
    from jitshape.frontend.machine import Machine

_EVENT_LOOP = f"{sysconfig.get_path('stdlib')}/asyncio/"
_ITERABLE = 0x100  # CO_ITERABLE_COROUTINE: a generator that can be awaited
_WARNS = sys.version_info >= (3, 13)
_ENDS = (StopAsyncIteration, GeneratorExit)


def hooks_of_generators() -> str:
    """Who is to see asynchronous generators begin: "", "asyncio", which only remembers those that
    have not ended, or "others"."""
    first, last = sys.get_asyncgen_hooks()
    if first is None and last is None:
        return ""
    module = getattr(getattr(first, "__func__", None), "__module__", "")
    return "asyncio" if module == "asyncio.base_events" else "others"


AMBIENT["asyncgen_hooks"] = hooks_of_generators
AMBIENT["coroutine_origins"] = sys.get_coroutine_origin_tracking_depth


class CoroutineValue(GeneratorValue):
    """What a call of an `async def` function gives."""

    cls = CoroutineType
    kind = "coroutine"
    prefix = "cr_"
    delegate_name = "cr_await"
    reused = "cannot reuse already awaited coroutine"

    def __init__(self, m: Machine, frame: Frame) -> None:
        super().__init__(m, frame)
        m.guard(None, Ambient("coroutine_origins", 0))
        if sys.get_coroutine_origin_tracking_depth():
            cause = Break("async", "coroutines are to remember where they were made")
            raise Restart(self.made_at, cause)

    def methods(self) -> dict[str, Method]:
        return COROUTINE_METHODS

    def iterate(self, m: Machine) -> Value:
        m.throw(TypeError, "'coroutine' object is not iterable")

    def next(self, m: Machine) -> Value | None:
        m.throw(TypeError, "'coroutine' object is not an iterator")

    def must_be_closed(self, m: Machine) -> bool:
        """One that was never awaited is warned about."""
        return super().must_be_closed(m) or (self.frame is not None and not self.started)


def is_of_event_loop(value: Value) -> bool:
    """Whether it is a coroutine of asyncio's own, which is there to wait."""
    return isinstance(value, GeneratorValue) and value.code.co_filename.startswith(_EVENT_LOOP)


class AwaitIterator(Delegate):
    """What `coroutine.__await__()` gives."""

    def __init__(self, coroutine: CoroutineValue) -> None:
        self.coroutine = coroutine

    def python_type(self) -> type:
        return _AWAIT_ITERATOR

    def getattr(self, m: Machine, name: str) -> Value:
        return delegate_attribute(m, self, name)

    def iterate(self, m: Machine) -> Value:
        return self

    def next(self, m: Machine) -> Value | None:
        done, value = self.coroutine.advance(m, m.const(None))
        return None if done else value

    def advance(self, m: Machine, value: Value) -> tuple[bool, Value]:
        return self.coroutine.advance(m, value)

    def throw(self, m: Machine, exception: Value) -> tuple[bool, Value]:
        return self.coroutine.throw(m, exception)

    def close(self, m: Machine) -> Value:
        return self.coroutine.close(m)

    def children(self) -> Iterable[Value]:
        return (self.coroutine,)

    def reconstruct(self, e: Emitter) -> None:
        e.call(CoroutineType.__await__, lambda: e.value(self.coroutine))


async def _nothing() -> None: ...


_probe = _nothing()
_AWAIT_ITERATOR = type(_probe.__await__())
_probe.close()

COROUTINE_METHODS: dict[str, Method] = {
    **AWAITED,
    "__await__": lambda m, coroutine: AwaitIterator(coroutine),
}


def delegate_attribute(m: Machine, delegate: Delegate, name: str) -> Value:
    """An attribute of what is advanced by the methods of generators."""
    if name in METHODS:
        return GeneratorMethod(delegate, name, METHODS[name])
    return delegate.special(m, name) if name == "__await__" else m.default_getattr(delegate, name)


# ---- asynchronous generators


class AsyncItem(Value):
    """What an asynchronous generator yields, told from what it awaits: the interpreter's own
    object, which no program sees."""

    def __init__(self, item: Value) -> None:
        self.item = item

    def children(self) -> Iterable[Value]:
        return (self.item,)


class AsyncGeneratorValue(GeneratorValue):
    """What a call of an `async def` function with `yield` gives.  `busy`: a step of it waits."""

    cls = AsyncGeneratorType
    kind = "async generator"
    prefix = "ag_"
    delegate_name = "ag_await"
    busy = closed = begun = False
    hooks = ""

    def must_be_closed(self, m: Machine) -> bool:
        """One that has not ended is the event loop's to close."""
        open_ = self.begun and self.frame is not None
        return super().must_be_closed(m) or (open_ and bool(self.hooks))

    def methods(self) -> dict[str, Method]:
        return ASYNC_METHODS

    def state(self, m: Machine, name: str) -> Value | None:
        return m.const(self.busy) if name == "ag_running" else super().state(m, name)

    def iterate(self, m: Machine) -> Value:
        m.throw(TypeError, "'async_generator' object is not iterable")

    def next(self, m: Machine) -> Value | None:
        m.throw(TypeError, "'async_generator' object is not an iterator")

    def can_leave(self) -> bool:
        """Only its hooks, and those who await it, bring a real one further."""
        return not self.begun

    def step(self, m: Machine, action: str, *args: Value) -> Value:
        """The method of that name: what does it when awaited."""
        if not self.begun:
            self.hooks = hooks_of_generators()
            m.guard(None, Ambient("asyncgen_hooks", self.hooks))
            if self.hooks == "others":
                m.stop("async", "hooks are to see the asynchronous generators")
            self.begun = True
        made = AsyncGeneratorStep(self, action, args)
        m.generators.append(made)
        return made


ASYNC_METHODS: dict[str, Method] = {
    "__aiter__": lambda m, generator: generator,
    "__anext__": lambda m, generator: generator.step(m, "asend", m.const(None)),
    "asend": lambda m, generator, value: generator.step(m, "asend", value),
    "athrow": lambda m, generator, *args: generator.step(m, "athrow", *args),
    "aclose": lambda m, generator: generator.step(m, "aclose"),
}


class AsyncGeneratorStep(Delegate):
    """What `asend`, `athrow` and `aclose` give: awaited, it runs the generator to the next item.
    `state`: "new", "waiting" (for what the generator awaits), "closed"."""

    def __init__(
        self, generator: AsyncGeneratorValue, action: str, args: tuple[Value, ...]
    ) -> None:
        self.generator, self.action, self.args = generator, action, args
        self.qualname = f"{generator.qualname}.{action}"
        self.state = "new"
        self.made_at = CLOCK.step()

    def python_type(self) -> type:
        return STEP_TYPES[self.action]

    def getattr(self, m: Machine, name: str) -> Value:
        return delegate_attribute(m, self, name)

    def special(self, m: Machine, name: str) -> Value | None:
        if name == "__await__":
            return GeneratorMethod(self, name, lambda m, step: step)
        return super().special(m, name)

    def iterate(self, m: Machine) -> Value:
        return self

    def next(self, m: Machine) -> Value | None:
        done, value = self.advance(m, m.const(None))
        return None if done else value

    def must_be_closed(self, m: Machine) -> bool:
        """Newer interpreters warn of one that was never awaited."""
        return _WARNS and self.state == "new"

    def children(self) -> Iterable[Value]:
        return (self.generator, *self.args)

    # ---- running

    def advance(self, m: Machine, value: Value) -> tuple[bool, Value]:
        generator = self.generator
        self._check_open(m)
        if self.action != "asend" and generator.frame is None:
            self.state = "closed"
            return True, m.const(None)
        if self.state == "waiting":
            return self._ended_by(m, lambda: generator.advance(m, value))
        self._check_idle(m)
        m.mutated(self)
        none = value.python_type() is type(None)
        if self.action == "asend":
            self._begin()
            given = self.args[0] if none else value
            return self._ended_by(m, lambda: generator.advance(m, given))
        if generator.closed:
            self._refuse(m, StopAsyncIteration)
        if not none:
            m.throw(RuntimeError, "can't send non-None value to a just-started coroutine")
        self._begin()
        if self.action == "aclose":
            generator.closed = True
            error = m.call(m.wrap_type(GeneratorExit), [], {})
        else:
            error = thrown(m, self.args)
        return self._ended_by(m, lambda: generator.throw(m, error, closes=False))

    def throw(self, m: Machine, exception: Value) -> tuple[bool, Value]:
        self._check_open(m)
        if self.state == "new":
            m.stop("async", f"throw() into {self.qualname}() before it is awaited")
        return self._ended_by(m, lambda: self.generator.throw(m, exception))

    def close(self, m: Machine) -> Value:
        if self.state != "closed":
            if self.state == "waiting" or sys.version_info >= (3, 12):
                m.stop("async", f"close() of {self.qualname}()")
            m.mutated(self)
            self.state = "closed"
        return m.const(None)

    def _begin(self) -> None:
        self.state, self.generator.busy = "waiting", True

    def _check_open(self, m: Machine) -> None:
        if self.state == "closed":
            shown = "__anext__()/asend()" if self.action == "asend" else "aclose()/athrow()"
            m.throw(RuntimeError, f"cannot reuse already awaited {shown}")

    def _check_idle(self, m: Machine) -> None:
        if self.generator.busy:
            shown = "anext" if self.action == "asend" else self.action
            text = f"{shown}(): asynchronous generator is already running"
            if self.action != "asend" or sys.version_info >= (3, 12):
                self._refuse(m, RuntimeError, text)
            m.throw(RuntimeError, text)

    def _refuse(self, m: Machine, type_: type[BaseException], *args: Any) -> NoReturn:
        m.mutated(self)
        self.state = "closed"
        m.throw(type_, *args)

    def _ended_by(self, m: Machine, run: Any) -> tuple[bool, Value]:
        """The outcome of a step of the generator, as one of this step."""
        generator = self.generator
        try:
            done, value = run()
            if done:
                m.throw(StopAsyncIteration)
        except Raised as raised:
            ended = m.is_exception(raised, _ENDS)
            if ended:
                generator.closed = True
            generator.busy, self.state = False, "closed"
            if self.action == "aclose" and ended:
                return True, m.const(None)
            raise
        if not isinstance(value, AsyncItem):
            return False, value
        generator.busy, self.state = False, "closed"
        if self.action == "aclose":
            m.throw(RuntimeError, "async generator ignored GeneratorExit")
        return True, value.item


async def _no_items() -> Any:
    yield None


def _step_type(step: Any) -> type:
    step.close()
    return type(step)


STEP_TYPES: dict[str, type] = {
    "asend": _step_type(_no_items().asend(None)),
    "athrow": _step_type(_no_items().athrow(ValueError)),
    "aclose": _step_type(_no_items().aclose()),
}
KINDS_OF_GENERATORS: dict[str, type[GeneratorValue]] = {
    kind.kind: kind for kind in (GeneratorValue, CoroutineValue, AsyncGeneratorValue)
}


# ---- what the instructions ask


_WITH = {1: "__aenter__", 2: "__aexit__"}


def awaited(m: Machine, value: Value, where: int = 0) -> Value:
    """What `await value` waits for.  `where`: 1 and 2 in `async with`, for its two methods."""
    if isinstance(value, CoroutineValue) and value.delegate() is not None:
        m.throw(RuntimeError, "coroutine is being awaited already")
    own = isinstance(value, GeneratorValue) and value.code.co_flags & _ITERABLE
    if own or value.python_type() is CoroutineType:
        return value
    method = value.special(m, "__await__")
    if method is None:
        name = name_in_c(value.python_type())
        if where in _WITH:
            text = f"'async with' received an object from {_WITH[where]} that does not implement"
            m.throw(TypeError, f"{text} __await__: {name}")
        m.throw(TypeError, f"object {name} can't be used in 'await' expression")
    found = m.call(method, [], {})
    if found.python_type() is CoroutineType:
        m.throw(TypeError, "__await__() returned a coroutine")
    if not isinstance(found, Delegate) and not m.defines(found, "__next__"):
        name = name_in_c(found.python_type())
        m.throw(TypeError, f"__await__() returned non-iterator of type '{name}'")
    return found


def async_iterator(m: Machine, value: Value) -> Value:
    """What `async for` iterates over."""
    method = value.special(m, "__aiter__")
    if method is None:
        name = name_in_c(value.python_type())
        m.throw(TypeError, f"'async for' requires an object with __aiter__ method, got {name}")
    found = m.call(method, [], {})
    if not m.defines(found, "__anext__"):
        name = name_in_c(found.python_type())
        text = "'async for' received an object from __aiter__ that does not implement __anext__"
        m.throw(TypeError, f"{text}: {name}")
    return found


def next_awaited(m: Machine, iterator: Value) -> Value:
    """What to wait for, for the next item of an asynchronous iterator."""
    from jitshape.frontend.opcodes.exceptions import caused

    if isinstance(iterator, AsyncGeneratorValue):
        return iterator.step(m, "asend", m.const(None))
    name = name_in_c(iterator.python_type())
    method = iterator.special(m, "__anext__")
    if method is None:
        m.throw(TypeError, f"'async for' requires an iterator with __anext__ method, got {name}")
    found = m.call(method, [], {})
    try:
        return awaited(m, found)
    except Raised as raised:
        name = name_in_c(found.python_type())
        text = f"'async for' received an invalid object from __anext__: {name}"
        raise Raised(caused(m, TypeError, text, raised.value)) from None
