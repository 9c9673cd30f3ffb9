"""Jumps, loops and returns."""

from __future__ import annotations

from typing import Any

from jitshape.frontend.frame import Frame
from jitshape.frontend.opcodes.registry import LEAVE, inst, raw
from jitshape.frontend.opcodes.variables import const
from jitshape.frontend.values.base import Value
from jitshape.frontend.values.unobserved import observed


@raw("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(m: Any, frame: Frame, arg: int) -> int:
    return arg


@raw("JUMP_BACKWARD")
def jump_backward(m: Any, frame: Frame, arg: int) -> int:
    rounds = frame.rounds
    count = rounds[arg] = rounds.get(arg, 0) + 1
    if count > m.unroll_limit:
        m.stop(
            "unroll_limit",
            f"a loop ran more than {m.unroll_limit} times while tracing",
            "call the loop's function outside the compiled one, or raise `unroll_limit`",
        )
    return arg


@raw("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(m: Any, frame: Frame, arg: int) -> int | None:
    truth = frame.stack[-1].truth(m)
    frame.stack.pop()
    return None if truth else arg


@raw("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(m: Any, frame: Frame, arg: int) -> int | None:
    truth = frame.stack[-1].truth(m)
    frame.stack.pop()
    return arg if truth else None


@raw("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(m: Any, frame: Frame, arg: int) -> int | None:
    return arg if frame.stack.pop().python_type() is type(None) else None


@raw("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m: Any, frame: Frame, arg: int) -> int | None:
    return None if frame.stack.pop().python_type() is type(None) else arg


@raw("JUMP_IF_TRUE_OR_POP", until=(3, 12))
def jump_if_true_or_pop(m: Any, frame: Frame, arg: int) -> int | None:
    if frame.stack[-1].truth(m):
        return arg
    frame.stack.pop()
    return None


@raw("JUMP_IF_FALSE_OR_POP", until=(3, 12))
def jump_if_false_or_pop(m: Any, frame: Frame, arg: int) -> int | None:
    if not frame.stack[-1].truth(m):
        return arg
    frame.stack.pop()
    return None


# ---- loops


@inst("GET_ITER")
def get_iter(m: Any, arg: int, value: Value) -> Value:
    return value.iterate(m)


@raw("FOR_ITER", until=(3, 12))
def for_iter(m: Any, frame: Frame, arg: int) -> int | None:
    item = frame.stack[-1].next(m)
    if item is None:
        frame.stack.pop()
        return arg
    frame.stack.append(item)
    return None


@raw("FOR_ITER", since=(3, 12))
def for_iter_312(m: Any, frame: Frame, arg: int) -> int | None:
    """At the end what END_FOR takes off is pushed first."""
    item = frame.stack[-1].next(m)
    if item is None:
        frame.stack.append(m.const(None))
        return arg
    frame.stack.append(item)
    return None


@raw("END_FOR", since=(3, 12), until=(3, 13))
def end_for(m: Any, frame: Frame, arg: int) -> None:
    del frame.stack[-2:]


@raw("END_FOR", since=(3, 13))
def end_for_313(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.pop()


# ---- returns


@raw("RETURN_VALUE")
def return_value(m: Any, frame: Frame, arg: int) -> int:
    if frame.back is not None:  # the caller looks at it
        frame.stack[-1] = observed(frame.stack[-1])
    m.let_go_of_locals(frame, frame.stack[-1])
    frame.result, frame.ended = frame.stack.pop(), True
    return LEAVE


@raw("RETURN_CONST", since=(3, 12), arg=const)
def return_const(m: Any, frame: Frame, arg: Any) -> int:
    result = m.literal(arg)
    m.let_go_of_locals(frame, result)
    frame.result, frame.ended = result, True
    return LEAVE
