"""The match statement."""

from __future__ import annotations

from typing import Any

from jitshape.frontend.frame import Frame
from jitshape.frontend.lookup import IMMUTABLE_TYPE
from jitshape.frontend.opcodes.registry import VERSION, raw
from jitshape.frontend.values.base import Raised, Value

SEQUENCE, MAPPING, MATCH_SELF = 1 << 5, 1 << 6, 1 << 22  # Py_TPFLAGS of patterns

_CLASS = "type" if VERSION < (3, 12) else "class"


@raw("MATCH_SEQUENCE")
def match_sequence(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(m.const(has_flag(m, frame.stack[-1].python_type(), SEQUENCE)))


@raw("MATCH_MAPPING")
def match_mapping(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(m.const(has_flag(m, frame.stack[-1].python_type(), MAPPING)))


def has_flag(m: Any, cls: type, flag: int) -> bool:
    """Whether patterns take instances for a sequence or mapping; a class may still become one."""
    found = bool(cls.__flags__ & flag)
    if not found and not cls.__flags__ & IMMUTABLE_TYPE:
        m.guard_registrations()
    return found


@raw("GET_LEN")
def get_len(m: Any, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-1].length(m))


@raw("MATCH_KEYS")
def match_keys(m: Any, frame: Frame, arg: int) -> None:
    """[subject, keys] -> [subject, keys, tuple of values or None]"""
    subject, keys = frame.stack[-2], m.items_of(frame.stack[-1])
    m.guard_class(subject.python_type(), "get")
    if getattr(subject.python_type(), "get", None) is not dict.get:
        m.stop("match", "a mapping pattern on a mapping with its own `get`")
    seen: set[Any] = set()
    found: list[Value] = []
    for key in keys:
        hashed = key.hash_key(m)
        if hashed in seen:
            text = repr(key.constant())
            m.throw(ValueError, f"mapping pattern checks duplicate key ({text})")
        seen.add(hashed)
        if len(found) == len(seen) - 1 and subject.contains(m, key).truth(m):
            found.append(subject.getitem(m, key))
    complete = len(found) == len(keys)
    frame.stack.append(m.new_tuple(found) if complete else m.const(None))


@raw("MATCH_CLASS")
def match_class(m: Any, frame: Frame, arg: int) -> None:
    """[subject, class, names of keyword patterns] -> [tuple of attributes or None]"""
    subject, cls, names = frame.stack[-3:]
    matched = match_attributes(m, subject, cls, arg, names.constant())
    frame.stack[-3:] = (m.const(None) if matched is None else m.new_tuple(matched),)


def match_attributes(
    m: Any, subject: Value, cls: Value, positional: int, keywords: tuple[str, ...]
) -> list[Value] | None:
    real = m.real_class(cls)
    if real is None:
        m.throw(TypeError, f"called match pattern must be a {_CLASS}")
    if not m.call(m.wrap(isinstance), [subject, cls], {}).truth(m):
        return None
    found: list[Value] = []
    names: list[str] = []
    if positional:
        match_args = positional_names(m, cls, real)
        allowed = 1 if match_args is None else len(match_args)
        if positional > allowed:
            plural = "" if allowed == 1 else "s"
            m.throw(
                TypeError,
                f"{real.__name__}() accepts {allowed} positional sub-pattern{plural}"
                f" ({positional} given)",
            )
        if match_args is None:
            found.append(subject)
        else:
            names = match_args[:positional]
    for name in [*names, *keywords]:
        if (names + list(keywords)).count(name) > 1:
            shown = real.__name__
            m.throw(TypeError, f"{shown}() got multiple sub-patterns for attribute {name!r}")
        try:
            found.append(subject.getattr(m, name))
        except Raised as raised:
            if m.is_exception(raised, AttributeError):
                return None
            raise
    return found


def positional_names(m: Any, cls: Value, real: type) -> list[str] | None:
    """`__match_args__`; None for the classes that match the subject itself."""
    try:
        value = cls.getattr(m, "__match_args__")
    except Raised as raised:
        if not m.is_exception(raised, AttributeError):
            raise
        return None if real.__flags__ & MATCH_SELF else []
    if value.python_type() is not tuple:
        kind = value.python_type().__name__
        m.throw(TypeError, f"{real.__name__}.__match_args__ must be a tuple (got {kind})")
    names = m.items_of(value)
    for name in names:
        if name.python_type() is not str:
            kind = name.python_type().__name__
            m.throw(TypeError, f"__match_args__ elements must be strings (got {kind})")
    return [name.constant() for name in names]
