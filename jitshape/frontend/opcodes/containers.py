"""Displays, comprehensions' appends, unpacking."""

from __future__ import annotations

from typing import Any

from jitshape.frontend.frame import Frame
from jitshape.frontend.instructions import Instruction, Program
from jitshape.frontend.opcodes.calls import handed_on_pairs
from jitshape.frontend.opcodes.registry import inst, raw
from jitshape.frontend.values.base import Value


@inst("BUILD_TUPLE")
def build_tuple(m: Any, arg: int, *items: Value) -> Value:
    return m.new_tuple(list(items))


@inst("BUILD_LIST")
def build_list(m: Any, arg: int, *items: Value) -> Value:
    return m.new_list(list(items))


@inst("BUILD_SET")
def build_set(m: Any, arg: int, *items: Value) -> Value:
    return m.new_set(list(items))


@raw("BUILD_MAP")
def build_map(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    base = len(stack) - 2 * arg
    stack[base:] = (m.new_dict(list(zip(stack[base::2], stack[base + 1 :: 2]))),)


@raw("BUILD_CONST_KEY_MAP")
def build_const_key_map(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    base = len(stack) - arg - 1
    keys = [m.literal(key) for key in stack[-1].constant()]
    stack[base:] = (m.new_dict(list(zip(keys, stack[base:-1]))),)


@inst("LIST_TO_TUPLE", until=(3, 12))
def list_to_tuple(m: Any, arg: int, items: Value) -> Value:
    return m.new_tuple(m.items_of(items))


@raw("LIST_APPEND")
def list_append(m: Any, frame: Frame, arg: int) -> None:
    call_builtin_method(m, frame.stack[-arg - 1], list.append, frame.stack[-1])
    frame.stack.pop()


@raw("SET_ADD")
def set_add(m: Any, frame: Frame, arg: int) -> None:
    call_builtin_method(m, frame.stack[-arg - 1], set.add, frame.stack[-1])
    frame.stack.pop()


@raw("MAP_ADD")
def map_add(m: Any, frame: Frame, arg: int) -> None:
    frame.stack[-arg - 2].setitem(m, frame.stack[-2], frame.stack[-1])
    del frame.stack[-2:]


@raw("LIST_EXTEND")
def list_extend(m: Any, frame: Frame, arg: int) -> None:
    other = frame.stack[-1]
    cls = other.python_type()
    if not m.iterable(other):
        m.throw(TypeError, f"Value after * must be an iterable, not {cls.__name__}")
    call_builtin_method(m, frame.stack[-arg - 1], list.extend, other)
    frame.stack.pop()


@raw("SET_UPDATE")
def set_update(m: Any, frame: Frame, arg: int) -> None:
    call_builtin_method(m, frame.stack[-arg - 1], set.update, frame.stack[-1])
    frame.stack.pop()


@raw("DICT_UPDATE")
def dict_update(m: Any, frame: Frame, arg: int) -> None:
    other = frame.stack[-1]
    if not m.defines(other, "keys"):
        m.throw(TypeError, f"'{other.python_type().__name__}' object is not a mapping")
    call_builtin_method(m, frame.stack[-arg - 1], dict.update, other)
    frame.stack.pop()


def merge_places(program: Program, instruction: Instruction) -> tuple[int, int]:
    """Where the dict and the callable lie, from the top."""
    return -instruction.arg - 1, -instruction.arg - 3


def merge_places_313(program: Program, instruction: Instruction) -> tuple[int, int]:
    return -instruction.arg - 1, -instruction.arg - 4


@raw("DICT_MERGE", until=(3, 13), arg=merge_places)
@raw("DICT_MERGE", since=(3, 13), arg=merge_places_313)
def dict_merge(m: Any, frame: Frame, arg: tuple[int, int]) -> None:
    """`f(**a, **b)`: a key given twice is an error."""
    stack = frame.stack
    target, function, other = stack[arg[0]], stack[arg[1]], stack[-1]
    if not m.defines(other, "keys"):
        shown = m.function_name(function)
        name = other.python_type().__name__
        m.throw(TypeError, f"{shown} argument after ** must be a mapping, not {name}")
    pairs = handed_on_pairs(m, other)
    for key, _ in pairs:
        if key.python_type() is str and target.contains(m, key).truth(m):
            shown = m.function_name(function)
            text = key.constant()
            m.throw(TypeError, f"{shown} got multiple values for keyword argument '{text}'")
    for key, value in pairs:
        target.setitem(m, key, value)
    stack.pop()


def call_builtin_method(m: Any, target: Value, method: Any, *args: Value) -> None:
    m.call(m.wrap(method), [target, *args], {})


# ---- unpacking


@raw("UNPACK_SEQUENCE")
def unpack_sequence(m: Any, frame: Frame, arg: int) -> None:
    items, more = take(m, frame.stack[-1], arg)
    if len(items) < arg:
        m.throw(ValueError, f"not enough values to unpack (expected {arg}, got {len(items)})")
    if more:
        m.throw(ValueError, f"too many values to unpack (expected {arg})")
    frame.stack[-1:] = items[::-1]


@raw("UNPACK_EX")
def unpack_ex(m: Any, frame: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    check_iterable(m, frame.stack[-1])
    items = m.items_of(frame.stack[-1])
    if len(items) < before + after:
        m.throw(
            ValueError,
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})",
        )
    end = len(items) - after
    unpacked = [*items[:before], m.new_list(items[before:end]), *items[end:]]
    frame.stack[-1:] = unpacked[::-1]


def check_iterable(m: Any, value: Value) -> None:
    if not m.iterable(value):
        m.throw(TypeError, f"cannot unpack non-iterable {value.python_type().__name__} object")


def take(m: Any, value: Value, count: int) -> tuple[list[Value], bool]:
    """Up to `count` items, and whether there is one more: an iterator is asked no further."""
    check_iterable(m, value)
    iterator = value.iterate(m)
    items: list[Value] = []
    while len(items) < count:
        item = iterator.next(m)
        if item is None:
            return items, False
        items.append(item)
    return items, iterator.next(m) is not None
