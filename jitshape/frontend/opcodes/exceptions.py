"""Raising, handling, and with blocks."""

from __future__ import annotations

from types import CodeType
from typing import Any

from jitshape.frontend.coroutines import AsyncItem
from jitshape.frontend.frame import Frame, SavedException
from jitshape.frontend.generators import kind_of_code
from jitshape.frontend.opcodes.registry import inst, raw, unsupported
from jitshape.frontend.values.base import Raised, Value

unsupported("except* is left to the interpreter", "CHECK_EG_MATCH", "PREP_RERAISE_STAR")


@raw("RAISE_VARARGS")
def raise_varargs(m: Any, frame: Frame, arg: int) -> None:
    if arg == 0:
        handled = m.handling.current()
        if handled is None:
            m.stop("reraise", "`raise` without an exception that was caught in this trace")
        raise Raised(handled, again=True)
    exception = as_exception(m, frame.stack[-arg], "exceptions must derive from BaseException")
    if arg == 2:
        set_cause(m, exception, frame.stack[-1])
    m.raise_value(exception)


def as_exception(m: Any, value: Value, complaint: str) -> Any:
    """The instance that `raise value` raises: a class is called."""
    cls = m.real_class(value)
    if cls is not None and issubclass(cls, BaseException):
        made = m.call(value, [], {})
        if not issubclass(made.python_type(), BaseException):
            returned = made.python_type()
            m.throw(
                TypeError,
                f"calling {cls!r} should have returned an instance of BaseException,"
                f" not {returned!r}",
            )
        return made
    if not issubclass(value.python_type(), BaseException):
        m.throw(TypeError, complaint)
    return value


def set_cause(m: Any, exception: Any, cause: Value) -> None:
    fixed = None
    if cause.python_type() is not type(None):
        fixed = as_exception(m, cause, "exception causes must derive from BaseException")
    m.mutated(exception)
    exception.assign(m, "cause", fixed)
    exception.assign(m, "suppress_context", True)


@raw("RERAISE")
def reraise(m: Any, frame: Frame, arg: int) -> None:
    """The index that `arg` points to serves tracebacks only."""
    raise Raised(frame.stack[-1], again=True)


@raw("PUSH_EXC_INFO")
def push_exc_info(m: Any, frame: Frame, arg: int) -> None:
    exception = frame.stack[-1]
    frame.stack[-1:] = (SavedException(m.handling.value), exception)
    m.handling.value = exception


@raw("POP_EXCEPT")
def pop_except(m: Any, frame: Frame, arg: int) -> None:
    m.handling.value = frame.stack.pop().exception


@raw("CHECK_EXC_MATCH")
def check_exc_match(m: Any, frame: Frame, arg: int) -> None:
    """[exception, class or tuple of classes] -> [exception, bool]"""
    mro = frame.stack[-2].python_type().__mro__
    classes = [m.real_class(value) for value in alternatives(m, frame.stack[-1])]
    if any(cls is None or not issubclass(cls, BaseException) for cls in classes):
        m.throw(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    frame.stack[-1] = m.const(any(cls in mro for cls in classes))


def alternatives(m: Any, value: Value) -> list[Value]:
    return m.items_of(value) if issubclass(value.python_type(), tuple) else [value]


# ---- with


@raw("BEFORE_WITH")
def before_with(m: Any, frame: Frame, arg: int) -> None:
    """[manager] -> [its __exit__, what __enter__ returns]"""
    enter_with(m, frame, "", "context manager")


@raw("BEFORE_ASYNC_WITH")
def before_async_with(m: Any, frame: Frame, arg: int) -> None:
    """[manager] -> [its __aexit__, what __aenter__ returns]"""
    enter_with(m, frame, "a", "asynchronous context manager")


def enter_with(m: Any, frame: Frame, prefix: str, protocol: str) -> None:
    manager = frame.stack[-1]
    enter = manager.special(m, f"__{prefix}enter__")
    leave = manager.special(m, f"__{prefix}exit__")
    if enter is None or leave is None:
        name = manager.python_type().__name__
        missed = "" if enter is None else f" (missed __{prefix}exit__ method)"
        m.throw(TypeError, f"'{name}' object does not support the {protocol} protocol{missed}")
    frame.stack[-1:] = (leave, m.call(enter, [], {}))


@raw("WITH_EXCEPT_START")
def with_except_start(m: Any, frame: Frame, arg: int) -> None:
    """[exit, lasti, saved, exception] -> [..., exit(type, exception, traceback)]"""
    leave, exception = frame.stack[-4], frame.stack[-1]
    traceback = exception.traceback or m.const(None)
    details = [m.wrap_type(exception.python_type()), exception, traceback]
    frame.stack.append(m.call(leave, details, {}))


# ---- exceptions of generators


@inst("CALL_INTRINSIC_1", since=(3, 12))
def call_intrinsic_1(m: Any, arg: int, value: Value) -> Value:
    intrinsic = INTRINSICS.get(arg)
    if intrinsic is None:
        m.stop("unsupported_instruction", f"CALL_INTRINSIC_1 {arg}")
    return intrinsic(m, value)


def stop_iteration_error(m: Any, exception: Any, code: CodeType | None = None) -> Value:
    """A StopIteration that leaves a generator is a RuntimeError, as is a StopAsyncIteration that
    leaves an asynchronous one.  `code`: the generator's, by default that of the frame."""
    kind = kind_of_code(code or m.frame.callee.code)
    for end in (StopIteration, StopAsyncIteration):
        if issubclass(exception.python_type(), end):
            if end is StopAsyncIteration and kind != "async generator":
                return exception
            return caused(m, RuntimeError, f"{kind} raised {end.__name__}", exception)
    return exception


def caused(m: Any, type_: type[BaseException], text: str, cause: Value) -> Any:
    """An exception that C raises from another one."""
    error = m.call(m.wrap_type(type_), [m.const(text)], {})
    error.cause = error.context = cause
    error.suppress_context = True
    return error


def unary_positive(m: Any, value: Value) -> Value:
    return value.unary(m, "+")


def list_to_tuple(m: Any, value: Value) -> Value:
    return m.new_tuple(m.items_of(value))


def async_gen_wrap(m: Any, value: Value) -> Value:
    return AsyncItem(value)


INTRINSICS = {3: stop_iteration_error, 4: async_gen_wrap, 5: unary_positive, 6: list_to_tuple}

unsupported(
    "type parameters and except* are left to the interpreter", "CALL_INTRINSIC_2", since=(3, 12)
)
