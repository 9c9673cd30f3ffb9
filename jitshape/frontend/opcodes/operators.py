"""Operators, subscripts, attributes, formatting."""

from __future__ import annotations

from typing import Any

from jitshape.frontend.frame import NULL, Frame
from jitshape.frontend.instructions import Instruction, Program
from jitshape.frontend.opcodes.registry import inst, name, raw
from jitshape.frontend.values.base import Value

BINARY = ("+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^")
BINARY += tuple(f"{op}=" for op in BINARY)
COMPARE = ("<", "<=", "==", "!=", ">", ">=")
_FORMAT_WITH_SPEC = 4


def operator(program: Program, instruction: Instruction) -> str:
    return BINARY[instruction.arg]


def comparison(program: Program, instruction: Instruction) -> str:
    return COMPARE[instruction.arg]


def comparison_312(program: Program, instruction: Instruction) -> str:
    return COMPARE[instruction.arg >> 4]


def comparison_313(program: Program, instruction: Instruction) -> tuple[str, bool]:
    return COMPARE[instruction.arg >> 5], bool(instruction.arg & 16)


def name_and_bit(program: Program, instruction: Instruction) -> tuple[str, bool]:
    return program.names[instruction.arg >> 1], bool(instruction.arg & 1)


@inst("BINARY_OP", arg=operator)
def binary_op(m: Any, arg: str, lhs: Value, rhs: Value) -> Value:
    return m.binary(arg, lhs, rhs)


@inst("UNARY_NEGATIVE")
def unary_negative(m: Any, arg: int, value: Value) -> Value:
    return value.unary(m, "-")


@inst("UNARY_POSITIVE", until=(3, 12))
def unary_positive(m: Any, arg: int, value: Value) -> Value:
    return value.unary(m, "+")


@inst("UNARY_INVERT")
def unary_invert(m: Any, arg: int, value: Value) -> Value:
    return value.unary(m, "~")


@inst("UNARY_NOT")
def unary_not(m: Any, arg: int, value: Value) -> Value:
    return m.const(not value.truth(m))


@inst("TO_BOOL", since=(3, 13))
def to_bool(m: Any, arg: int, value: Value) -> Value:
    return m.const(value.truth(m))


@inst("COMPARE_OP", until=(3, 12), arg=comparison)
@inst("COMPARE_OP", since=(3, 12), until=(3, 13), arg=comparison_312)
def compare_op(m: Any, arg: str, lhs: Value, rhs: Value) -> Value:
    return m.compare(arg, lhs, rhs)


@inst("COMPARE_OP", since=(3, 13), arg=comparison_313)
def compare_op_313(m: Any, arg: tuple[str, bool], lhs: Value, rhs: Value) -> Value:
    result = m.compare(arg[0], lhs, rhs)
    return m.const(result.truth(m)) if arg[1] else result


@inst("IS_OP")
def is_op(m: Any, arg: int, lhs: Value, rhs: Value) -> Value:
    return m.const(m.is_same(lhs, rhs) != bool(arg))


@inst("CONTAINS_OP")
def contains_op(m: Any, arg: int, item: Value, container: Value) -> Value:
    found = container.contains(m, item)
    return m.const(not found.truth(m)) if arg else found


# ---- subscripts


@inst("BINARY_SUBSCR")
def binary_subscr(m: Any, arg: int, container: Value, key: Value) -> Value:
    return container.getitem(m, key)


@inst("STORE_SUBSCR")
def store_subscr(m: Any, arg: int, item: Value, container: Value, key: Value) -> None:
    container.setitem(m, key, item)


@inst("DELETE_SUBSCR")
def delete_subscr(m: Any, arg: int, container: Value, key: Value) -> None:
    container.delitem(m, key)


@inst("BINARY_SLICE", since=(3, 12))
def binary_slice(m: Any, arg: int, container: Value, start: Value, stop: Value) -> Value:
    return container.getitem(m, m.build("slice", start, stop, m.const(None)))


@inst("STORE_SLICE", since=(3, 12))
def store_slice(m: Any, arg: int, item: Value, container: Value, start: Value, stop: Value) -> None:
    container.setitem(m, m.build("slice", start, stop, m.const(None)), item)


@inst("BUILD_SLICE")
def build_slice(m: Any, arg: int, *parts: Value) -> Value:
    start, stop, *step = parts
    return m.build("slice", start, stop, step[0] if step else m.const(None))


# ---- attributes


@inst("LOAD_ATTR", until=(3, 12), arg=name)
def load_attr(m: Any, arg: str, owner: Value) -> Value:
    return m.attribute(owner, arg)


@raw("LOAD_METHOD", until=(3, 12), arg=name)
def load_method(m: Any, frame: Frame, arg: str) -> None:
    frame.stack[-1:] = (NULL, m.attribute(frame.stack[-1], arg))


@raw("LOAD_ATTR", since=(3, 12), until=(3, 13), arg=name_and_bit)
def load_attr_312(m: Any, frame: Frame, arg: tuple[str, bool]) -> None:
    value = m.attribute(frame.stack[-1], arg[0])
    frame.stack[-1:] = (NULL, value) if arg[1] else (value,)


@raw("LOAD_ATTR", since=(3, 13), arg=name_and_bit)
def load_attr_313(m: Any, frame: Frame, arg: tuple[str, bool]) -> None:
    value = m.attribute(frame.stack[-1], arg[0])
    frame.stack[-1:] = (value, NULL) if arg[1] else (value,)


@inst("STORE_ATTR", arg=name)
def store_attr(m: Any, arg: str, value: Value, owner: Value) -> None:
    owner.setattr(m, arg, value)


@inst("DELETE_ATTR", arg=name)
def delete_attr(m: Any, arg: str, owner: Value) -> None:
    owner.delattr(m, arg)


# ---- text

_CONVERSIONS = (None, str, repr, ascii)


def convert(m: Any, value: Value, conversion: int) -> Value:
    function = _CONVERSIONS[conversion]
    if function is None or (function is str and value.python_type() is str):
        return value
    return m.call(m.wrap(function), [value], {})


def format_value(m: Any, value: Value, spec: Value | None) -> Value:
    """`format(value, spec)`; a plain str stays as it is."""
    if spec is None and value.python_type() is str:
        return value
    return m.call(m.wrap(format), [value] if spec is None else [value, spec], {})


@raw("FORMAT_VALUE", until=(3, 13))
def format_value_op(m: Any, frame: Frame, arg: int) -> None:
    stack = frame.stack
    n = 2 if arg & _FORMAT_WITH_SPEC else 1
    spec = stack[-1] if n == 2 else None
    stack[-n:] = (format_value(m, convert(m, stack[-n], arg & 3), spec),)


@inst("CONVERT_VALUE", since=(3, 13))
def convert_value(m: Any, arg: int, value: Value) -> Value:
    return convert(m, value, arg)


@inst("FORMAT_SIMPLE", since=(3, 13))
def format_simple(m: Any, arg: int, value: Value) -> Value:
    return format_value(m, value, None)


@inst("FORMAT_WITH_SPEC", since=(3, 13))
def format_with_spec(m: Any, arg: int, value: Value, spec: Value) -> Value:
    return format_value(m, value, spec)


@inst("BUILD_STRING")
def build_string(m: Any, arg: int, *parts: Value) -> Value:
    if all(part.is_constant() for part in parts):
        return m.const("".join(part.constant() for part in parts))
    return m.call(m.const("").getattr(m, "join"), [m.new_list(list(parts))], {})
