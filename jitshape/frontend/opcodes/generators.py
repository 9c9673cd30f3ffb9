"""Generators, coroutines and asynchronous generators: making, yielding, delegating, awaiting."""

from __future__ import annotations

from inspect import CO_COROUTINE, CO_ITERABLE_COROUTINE
from types import CoroutineType
from typing import Any, NoReturn

from jitshape.frontend.coroutines import (
    AsyncItem,
    async_iterator,
    awaited,
    is_of_event_loop,
    next_awaited,
)
from jitshape.frontend.frame import Frame
from jitshape.frontend.generators import Delegate, GeneratorValue, send_to
from jitshape.frontend.opcodes.registry import LEAVE, inst, raw
from jitshape.frontend.positions import is_piece
from jitshape.frontend.values.base import SUSPENDS, Break, Raised, Restart, Value

AWAITS = CO_COROUTINE | CO_ITERABLE_COROUTINE


@raw("RETURN_GENERATOR")
def return_generator(m: Any, frame: Frame, arg: int) -> int | None:
    if is_piece(frame.callee.code):
        frame.stack.append(m.const(None))
        return None
    frame.result = m.new_generator(frame)
    return LEAVE


def suspend(m: Any, frame: Frame, opname: str) -> NoReturn:
    """A piece ends where its function waits."""
    m.stop(SUSPENDS, f"{frame.callee.code.co_qualname} waits at {opname}")


@raw("YIELD_VALUE")
def yield_value(m: Any, frame: Frame, arg: int) -> int:
    if frame.generator is None:
        suspend(m, frame, "a yield")
    frame.result = frame.stack.pop()
    frame.generator.yielded = True
    return LEAVE


@raw("GET_YIELD_FROM_ITER")
def get_yield_from_iter(m: Any, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if value.python_type() is CoroutineType:
        if not frame.callee.code.co_flags & AWAITS:
            text = "cannot 'yield from' a coroutine object in a non-coroutine generator"
            m.throw(TypeError, text)
        return
    frame.stack[-1] = value if isinstance(value, GeneratorValue) else value.iterate(m)


@raw("SEND", until=(3, 12))
def send(m: Any, frame: Frame, arg: int) -> int | None:
    """[receiver, value] -> [receiver, what it yields], at its end [its result] and a jump."""
    done, result = delegated(m, frame)
    if done:
        frame.stack[-2:] = (result,)
        return arg
    frame.stack[-1] = result
    return None


@raw("SEND", since=(3, 12))
def send_312(m: Any, frame: Frame, arg: int) -> int | None:
    done, frame.stack[-1] = delegated(m, frame)
    return arg if done else None


def delegated(m: Any, frame: Frame) -> tuple[bool, Value]:
    """A step of what the frame waits for.  A piece goes on only with what ends at once: else its
    function waits there from the start."""
    receiver, value = frame.stack[-2:]
    if frame.generator is not None:
        return send_to(m, receiver, value)
    if not isinstance(receiver, Delegate) or is_of_event_loop(receiver):
        suspend(m, frame, "an await or yield from")
    done, result = receiver.advance(m, value)
    if not done:
        cause = Break(SUSPENDS, f"{frame.callee.code.co_qualname} waits at an await or yield from")
        raise Restart(frame.step, cause)
    return done, result


@inst("END_SEND", since=(3, 12))
def end_send(m: Any, arg: int, receiver: Value, value: Value) -> Value:
    return value


@raw("CLEANUP_THROW", since=(3, 12))
def cleanup_throw(m: Any, frame: Frame, arg: int) -> None:
    """[receiver, sent, exception] -> [None, result] if the exception is the receiver's end."""
    exception = frame.stack[-1]
    if not issubclass(exception.python_type(), StopIteration):
        raise Raised(exception, again=True)
    frame.stack[-3:] = (m.const(None), exception.getattr(m, "value"))


# ---- awaiting


@inst("GET_AWAITABLE")
def get_awaitable(m: Any, arg: int, value: Value) -> Value:
    return awaited(m, value, arg)


@inst("GET_AITER")
def get_aiter(m: Any, arg: int, value: Value) -> Value:
    return async_iterator(m, value)


@raw("GET_ANEXT")
def get_anext(m: Any, frame: Frame, arg: int) -> None:
    """[iterator] -> [iterator, what gives its next item when awaited]"""
    frame.stack.append(next_awaited(m, frame.stack[-1]))


@raw("END_ASYNC_FOR")
def end_async_for(m: Any, frame: Frame, arg: int) -> None:
    """[iterator, exception] -> [] if that is the end of the loop."""
    exception = frame.stack[-1]
    if not issubclass(exception.python_type(), StopAsyncIteration):
        raise Raised(exception, again=True)
    del frame.stack[-2:]


@inst("ASYNC_GEN_WRAP", until=(3, 12))
def async_gen_wrap(m: Any, arg: int, value: Value) -> Value:
    return AsyncItem(value)
