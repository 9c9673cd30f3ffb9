"""Argument binding of Python functions.

In: a Callee, positional and keyword arguments.  Out: its frame slots (positional, keyword-only,
`*args`, `**kwargs`; the rest unbound), or None where the call is wrong.  The text of the
TypeError comes from the interpreter itself: a twin of the same signature is called with as many
placeholders.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType

from jitshape.frontend.frame import Callee
from jitshape.frontend.values.base import Value

VARARGS, VARKEYWORDS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
_EMPTY = (lambda: None).__code__


def bind_arguments(
    callee: Callee,
    args: list[Value],
    kwargs: dict[str, Value],
    make_tuple: Callable[[list[Value]], Value],
    make_dict: Callable[[list[tuple[str, Value]]], Value],
) -> list[Value | None] | None:
    """The slots of a frame for this call; None: the arguments do not fit."""
    code = callee.code
    count, flags = code.co_argcount, code.co_flags
    n_slots = code.co_nlocals
    if not kwargs and len(args) == count and not flags & (VARARGS | VARKEYWORDS):
        slots: list[Value | None] = [*args, *[None] * (n_slots - count)]
    else:
        if len(args) > count and not flags & VARARGS:
            return None
        slots = [*args[:count], *[None] * (n_slots - min(count, len(args)))]
        extra = _bind_keywords(code, slots, kwargs)
        if extra is None or (extra and not flags & VARKEYWORDS):
            return None
        at = count + code.co_kwonlyargcount
        if flags & VARARGS:
            slots[at] = make_tuple(args[count:])
            at += 1
        if flags & VARKEYWORDS:
            slots[at] = make_dict(extra)
    return slots if _fill_defaults(callee, slots) else None


def _bind_keywords(
    code: CodeType, slots: list[Value | None], kwargs: dict[str, Value]
) -> list[tuple[str, Value]] | None:
    """Put keyword arguments in their slots; those left over, or None where one is given twice."""
    extra = []
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for key, value in kwargs.items():
        if key in names and (index := names.index(key)) >= code.co_posonlyargcount:
            if slots[index] is not None:
                return None
            slots[index] = value
        else:
            extra.append((key, value))
    return extra


def _fill_defaults(callee: Callee, slots: list[Value | None]) -> bool:
    code = callee.code
    count = code.co_argcount
    first = count - len(callee.defaults)
    for index in range(count):
        if slots[index] is None:
            if index < first:
                return False
            slots[index] = callee.defaults[index - first]
    kwdefaults = callee.kwdefaults or {}
    for index in range(count, count + code.co_kwonlyargcount):
        if slots[index] is None:
            default = kwdefaults.get(code.co_varnames[index])
            if default is None:
                return False
            slots[index] = default
    return True


def argument_error(callee: Callee, name: str, n_args: int, keywords: Iterable[str]) -> str:
    """The interpreter's message for a call of the function `name` that does not fit."""
    code = callee.code
    twin = FunctionType(
        code.replace(
            co_code=_EMPTY.co_code,
            co_consts=_EMPTY.co_consts,
            co_names=(),
            co_linetable=_EMPTY.co_linetable,
            co_exceptiontable=b"",
            co_stacksize=_EMPTY.co_stacksize,
            co_cellvars=(),
            co_freevars=(),
            co_flags=code.co_flags & (VARARGS | VARKEYWORDS) | inspect.CO_OPTIMIZED,
        ),
        {},
    )
    twin.__qualname__ = name
    twin.__defaults__ = (None,) * len(callee.defaults)
    twin.__kwdefaults__ = dict.fromkeys(callee.kwdefaults or {})
    try:
        twin(*[None] * n_args, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    raise AssertionError(f"arguments of {name} fit after all")
