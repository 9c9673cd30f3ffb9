"""Generators: suspended frames of the machine, and the protocols of send, throw and close.

In: a frame that reached RETURN_GENERATOR.  Out: its values, one at a time, exceptions included.
Invariant: a generator that the program made runs natively only where it left the trace, as a real
one that is suspended at the same place; a break while it runs ends the trace before it goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import CodeType, GeneratorType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.frame import Frame
from jitshape.frontend.handling import Handling, lets_pass
from jitshape.frontend.values.base import Raised, Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine

_DELEGATES = 2  # in the argument of the RESUME behind a YIELD_VALUE: yield from, await
_CONVERTS_STOP_ITERATION = sys.version_info < (3, 12)  # later the compiler emits code for it


def kind_of_code(code: CodeType) -> str:
    """What messages call an object whose frame suspends."""
    if code.co_flags & CO_ASYNC_GENERATOR:
        return "async generator"
    return "coroutine" if code.co_flags & CO_COROUTINE else "generator"


class Delegate(Value):
    """What `yield from` and `await` can wait for inside the machine."""

    def advance(self, m: Machine, value: Value) -> tuple[bool, Value]:
        """Go on with `value`: (False, what is yielded) or (True, what is returned)."""
        raise NotImplementedError(type(self).__name__)

    def throw(self, m: Machine, exception: Value) -> tuple[bool, Value]:
        """Go on with an exception, as `advance`."""
        raise NotImplementedError(type(self).__name__)

    def close(self, m: Machine) -> Value:
        """The method of that name."""
        raise NotImplementedError(type(self).__name__)


class GeneratorValue(Delegate):
    """A generator of the program.  `yielded` tells a yield from a return."""

    cls: type = GeneratorType
    kind = "generator"
    prefix = "gi_"  # of the attributes that show its state
    delegate_name = "gi_yieldfrom"
    reused = ""  # the complaint about one that has ended

    def __init__(self, m: Machine, frame: Frame) -> None:
        self.frame: Frame | None = frame
        self.code = frame.callee.code
        self.handling = Handling()
        self.started = self.running = self.yielded = self.leaves = False
        self.qualname = frame.callee.qualname
        self.function: Any = frame.callee.function
        written = getattr(self.function, "parts", {})  # as it is called now
        self.names = {n: written[n] for n in ("__name__", "__qualname__") if n in written}
        self.made_at = _step_of_caller(m, frame)
        frame.generator, frame.resumable = self, False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.qualname})"

    def python_type(self) -> type:
        return self.cls

    def methods(self) -> dict[str, Method]:
        """Its methods by name."""
        return METHODS

    def getattr(self, m: Machine, name: str) -> Value:
        if name in ("__name__", "__qualname__"):
            return self.named(m, name)
        if name in self.methods():
            return GeneratorMethod(self, name, self.methods()[name])
        state = self.state(m, name)
        return super().getattr(m, name) if state is None else state

    def special(self, m: Machine, name: str) -> Value | None:
        if name in ASYNC and name in self.methods():
            return GeneratorMethod(self, name, self.methods()[name])
        return super().special(m, name)

    def state(self, m: Machine, name: str) -> Value | None:
        """What an attribute shows of the suspended frame; its frame object is the real one's."""
        if name == f"{self.prefix}running":
            return m.const(self.running)
        if name == f"{self.prefix}suspended":
            return m.const(self.started and self.frame is not None and not self.running)
        if name == f"{self.prefix}code":
            return m.wrap(self.code, None)
        if name == self.delegate_name:
            return self.delegate() or m.const(None)
        return None

    def named(self, m: Machine, attribute: str) -> Value:
        """Its name: the function's when it was called, which may not be that of the code."""
        if attribute not in self.names:
            code = self.code
            plain = {"__name__": code.co_name, "__qualname__": code.co_qualname}[attribute]
            real = getattr(self.function, "object", None) is not None
            self.names[attribute] = self.function.getattr(m, attribute) if real else m.const(plain)
        return self.names[attribute]

    def iterate(self, m: Machine) -> Value:
        return self

    def next(self, m: Machine) -> Value | None:
        """The next item; a plain loop drops what the generator returns."""
        done, value = self.advance(m, m.const(None))
        return None if done else value

    def truth(self, m: Machine) -> bool:
        return True

    def must_be_closed(self, m: Machine) -> bool:
        """Whether code of it that can be noticed runs when it is dropped: it waits inside a `with`,
        or a `try` that does more than let GeneratorExit pass."""
        frame = self.frame
        if frame is None or not self.started:
            return False
        program, row = frame.program, frame.program.handlers[frame.index]
        while row is not None:
            handles = program.instructions[row.target].opname == "PUSH_EXC_INFO"
            if handles and not lets_pass(m, frame, row.target, GeneratorExit):
                return True
            row = program.handlers[row.target]  # that of a handler which only cleans up
        return False

    def hash_key(self, m: Machine) -> Any:
        return self

    # ---- running

    def advance(self, m: Machine, value: Value) -> tuple[bool, Value]:
        """Go on with `value`: (False, what is yielded) or (True, what is returned)."""
        if self.frame is not None and not self.started and not _is_none(value):
            m.throw(TypeError, f"can't send non-None value to a just-started {self.kind}")
        return self.resume(m, value, None)

    def resume(self, m: Machine, value: Value | None, raised: Raised | None) -> tuple[bool, Value]:
        """Run to the next yield, or to the end."""
        if self.running:
            m.throw(ValueError, f"{self.kind} already executing")
        frame = self.frame
        if frame is None:
            if self.reused:
                m.throw(RuntimeError, self.reused)
            if raised is not None:
                raise raised
            return True, m.const(None)
        m.mutated(self)
        if raised is not None and not self.started:
            self.frame = None
            raise raised
        if value is not None:
            frame.stack.append(value)
            frame.index += 1
        return self._run(m, frame, raised)

    def _run(self, m: Machine, frame: Frame, raised: Raised | None) -> tuple[bool, Value]:
        outer = m.handling
        self.started = self.running = True
        self.yielded = False
        self.handling.below = outer
        m.handling = self.handling
        try:
            result = m.execute(frame, raised)
        except Raised as error:
            self.frame = None
            m.handling = outer
            if _CONVERTS_STOP_ITERATION:
                from jitshape.frontend.opcodes.exceptions import stop_iteration_error

                converted = stop_iteration_error(m, error.value, self.code)
                if converted is not error.value:
                    raise Raised(converted) from None
            raise
        finally:
            m.handling = outer
            self.running = False
        if not self.yielded:
            self.frame = None
        return not self.yielded, result

    # ---- throw and close

    def delegate(self) -> Value | None:
        """The iterator that `yield from` waits for."""
        frame = self.frame
        if frame is None or not self.started:
            return None
        following = frame.program.instructions[frame.index + 1]
        if following.opname == "RESUME" and following.arg & 3 >= _DELEGATES:
            return frame.stack[-1]
        return None

    def throw(self, m: Machine, exception: Value, closes: bool = True) -> tuple[bool, Value]:
        """Raise `exception` where the generator waits; `closes`: GeneratorExit closes what it
        waits for."""
        receiver = self.delegate()
        if receiver is None or self.running:
            return self.resume(m, None, Raised(exception))
        m.mutated(self)
        if closes and issubclass(exception.python_type(), GeneratorExit):
            try:
                self._guarded(lambda: close_iterator(m, receiver))
            except Raised as raised:
                return self.resume(m, None, raised)
            return self.resume(m, None, Raised(exception))
        return self._throw_into(m, receiver, exception)

    def _throw_into(self, m: Machine, receiver: Value, exception: Value) -> tuple[bool, Value]:
        try:
            if isinstance(receiver, Delegate):
                done, value = self._guarded(lambda: receiver.throw(m, exception))
                if not done:
                    return False, value
            else:
                method = find_attribute(m, receiver, "throw")
                if method is None:
                    return self.resume(m, None, Raised(exception))
                return False, self._guarded(lambda: m.call(method, [exception], {}))
        except Raised as raised:
            if not m.is_exception(raised, StopIteration):
                return self.resume(m, None, raised)
            value = raised.value.getattr(m, "value")
        return self._finish_delegation(m, value)

    def _finish_delegation(self, m: Machine, value: Value) -> tuple[bool, Value]:
        """The iterator ended with `value` while an exception was thrown into it."""
        frame = self.frame
        assert frame is not None
        send = frame.index - 1
        frame.index = frame.program.instructions[send].target - 1
        frame.stack.pop()
        if frame.program.instructions[frame.index + 1].opname == "END_SEND":
            frame.stack.append(m.const(None))
        return self.resume(m, value, None)

    def _guarded(self, action: Any) -> Any:
        self.running = True
        try:
            return action()
        finally:
            self.running = False

    def close(self, m: Machine) -> Value:
        if self.frame is None:
            return m.const(None)
        if not self.started:
            self.frame = None
            return m.const(None)
        error = m.call(m.wrap_type(GeneratorExit), [], {})
        receiver = self.delegate()
        pending = Raised(error)
        if receiver is not None and not self.running:
            try:
                self._guarded(lambda: close_iterator(m, receiver))
            except Raised as raised:
                pending = raised
        try:
            done, value = self.resume(m, None, pending)
        except Raised as raised:
            if m.is_exception(raised, (GeneratorExit, StopIteration)):
                return m.const(None)
            raise
        if not done:
            m.throw(RuntimeError, f"{self.kind} ignored GeneratorExit")
        return value if _CLOSE_RETURNS else m.const(None)

    def children(self) -> Iterable[Value]:
        frame = self.frame
        if frame is not None:
            yield from (x for x in (*frame.slots, *frame.stack) if isinstance(x, Value))

    def can_leave(self) -> bool:
        """Whether a real one can be brought to where it stands."""
        return True

    def reconstruct(self, e: Emitter) -> None:
        """A real generator, suspended at the same place.  One that it refers to itself, or that
        ran to its end, is made natively."""
        from jitshape.frontend.breaks import push_generator

        if self.frame is None or self.running or self.leaves or not self.can_leave():
            self.cannot_leave(f"the {self.kind} {self.qualname} outlives the trace")
        self.leaves = True
        push_generator(e, self)


_CLOSE_RETURNS = sys.version_info >= (3, 13)


def _step_of_caller(m: Machine, frame: Frame) -> int:
    """The step at which to break so that this generator is made natively."""
    here, m.frame = m.frame, frame.back if frame.resumable else frame
    try:
        return m.step_to_break_at()
    finally:
        m.frame = here


def _is_none(value: Value) -> bool:
    return value.python_type() is type(None)


def find_attribute(m: Machine, value: Value, name: str) -> Value | None:
    try:
        return value.getattr(m, name)
    except Raised as raised:
        if m.is_exception(raised, AttributeError):
            return None
        raise


def close_iterator(m: Machine, receiver: Value) -> None:
    if isinstance(receiver, Delegate):
        receiver.close(m)
        return
    method = find_attribute(m, receiver, "close")
    if method is not None:
        m.call(method, [], {})


def send_to(m: Machine, receiver: Value, value: Value) -> tuple[bool, Value]:
    """The SEND of `yield from`: (ended, value)."""
    if isinstance(receiver, Delegate):
        return receiver.advance(m, value)
    try:
        if _is_none(value):
            item = receiver.next(m)
            return (False, item) if item is not None else (True, m.const(None))
        return False, m.call(receiver.getattr(m, "send"), [value], {})
    except Raised as raised:
        if not m.is_exception(raised, StopIteration):
            raise
        return True, raised.value.getattr(m, "value")


Method = Callable[..., Value]  # of the Machine, the value and the arguments


class GeneratorMethod(Value):
    """A bound method of a generator, or of what else is advanced."""

    def __init__(self, generator: Value, name: str, method: Method) -> None:
        self.generator, self.name, self.method = generator, name, method

    def python_type(self) -> type:
        return type((x for x in ()).send)

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.method(m, self.generator, *args, **kwargs)

    def children(self) -> Iterable[Value]:
        return (self.generator,)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(getattr)
        e.value(self.generator)
        e.const(self.name)
        e.end_call(2)


def send_method(m: Machine, delegate: Delegate, value: Value) -> Value:
    """The method `send`: the end is StopIteration."""
    return _result(m, delegate.advance(m, value))


def next_method(m: Machine, delegate: Delegate) -> Value:
    return _result(m, delegate.advance(m, m.const(None)))


def throw_method(m: Machine, delegate: Delegate, *args: Value) -> Value:
    return _result(m, delegate.throw(m, thrown(m, args)))


def close_method(m: Machine, delegate: Delegate) -> Value:
    return delegate.close(m)


def _result(m: Machine, outcome: tuple[bool, Value]) -> Value:
    done, value = outcome
    if done:
        m.throw(StopIteration, *([] if _is_none(value) else [value]))
    return value


def thrown(m: Machine, args: tuple[Value, ...]) -> Value:
    """The exception that the arguments of `throw` say, as it is raised."""
    from jitshape.frontend.opcodes.exceptions import as_exception

    if len(args) > 1 and m.real_class(args[0]) in args[1].python_type().__mro__:
        args = args[1:2]  # the old form: type, value, traceback
    elif len(args) > 1:
        m.stop("generator", "throw(type, value) with a value that is no such exception")
    name = args[0].python_type().__name__
    if m.real_class(args[0]) is None and not issubclass(args[0].python_type(), BaseException):
        text = "exceptions must be classes or instances deriving from BaseException, not "
        m.throw(TypeError, text + name)
    exception = as_exception(m, args[0], "")
    m.set_context(exception)
    return exception


ASYNC = ("__await__", "__aiter__", "__anext__")
AWAITED: dict[str, Method] = {"send": send_method, "throw": throw_method, "close": close_method}
METHODS: dict[str, Method] = {
    **AWAITED,
    "__next__": next_method,
    "__iter__": lambda m, generator: generator,
}
