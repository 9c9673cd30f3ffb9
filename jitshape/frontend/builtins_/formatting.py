"""Formatting of text with objects in it: `str.format` and `%`.

In: a format string and values.  Out: the text, where the objects' own `__format__`, `__str__` and
`__repr__` ran in the machine, in the order of the fields.
"""

from __future__ import annotations

import itertools
import re
import string
from _string import formatter_field_name_split
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jitshape.frontend.builtins_.numbers import builtin_format, literal, text
from jitshape.frontend.builtins_.registry import models
from jitshape.frontend.values.base import Break, Value
from jitshape.frontend.values.constants import fold
from jitshape.frontend.values.dicts import DictValue
from jitshape.frontend.values.sequences import TupleValue

if TYPE_CHECKING:
    from jitshape.frontend.machine import Machine

PERCENT = re.compile(r"%(?:\((\w*)\))?[#0\- +]*(?:\d+)?(?:\.\d+)?[hlL]?(.)", re.DOTALL)
SHOWS = {"s": "__str__", "r": "__repr__", "a": "__repr__"}


@models(str.format)
def str_format(m: Machine, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    args = tuple(literal(m, a) for a in args)
    named = {k: literal(m, v) for k, v in kwargs.items()}
    if all(v.is_constant() for v in (*args, *named.values())):
        constants = {k: v.constant() for k, v in named.items()}
        return fold(m, str.format, self.constant(), *(a.constant() for a in args), **constants)
    return m.const(filled(m, self.constant(), args, named, itertools.count()))


def filled(
    m: Machine,
    template: str,
    args: tuple[Value, ...],
    named: dict[str, Value],
    next_: Iterator[int],
) -> str:
    """The text of a format string; what raises is left to the interpreter."""
    parts = []
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise Break("text", f"str.format raises {error}") from error
    for before, field, spec, conversion in fields:
        parts.append(before)
        if field is None:
            continue
        value = field_value(m, field, args, named, next_)
        if conversion:
            value = m.const(shown(m, value, conversion))
        wanted = filled(m, spec, args, named, next_) if spec else ""
        result = builtin_format(m, value, m.const(wanted))
        if not result.is_constant():
            raise Break("text", "__format__ returns text that is unknown while tracing")
        parts.append(result.constant())
    return "".join(parts)


def field_value(
    m: Machine, field: str, args: tuple[Value, ...], named: dict[str, Value], next_: Iterator[int]
) -> Value:
    first, path = formatter_field_name_split(field)
    if first == "":
        first = next(next_)
    try:
        value = args[first] if isinstance(first, int) else named[first]
    except (IndexError, KeyError) as error:
        raise Break("text", f"str.format has no argument {first!r}") from error
    for is_attribute, key in path:
        value = value.getattr(m, key) if is_attribute else value.getitem(m, m.const(key))
    return value


def shown(m: Machine, value: Value, conversion: str) -> str:
    """What `!s`, `!r` and `!a` give."""
    if conversion not in SHOWS:
        raise Break("text", f"conversion {conversion!r}")
    found = text(m, value, SHOWS[conversion])
    return fold(m, ascii, found).constant()[1:-1] if conversion == "a" else found


@models(str.__mod__)
def str_percent(m: Machine, self: Value, args: Value, /) -> Value:
    args = literal(m, args)
    if args.is_constant():
        return fold(m, str.__mod__, self.constant(), args.constant())
    by_name = isinstance(args, DictValue)
    given = iter(args.items if isinstance(args, TupleValue) else [args])
    template, values = self.constant(), []

    def show(match: re.Match[str]) -> str:
        """The conversion, of text where the value is no constant."""
        name, conversion = match.groups()
        if conversion == "%":
            return match[0]
        value = args.getitem(m, m.const(name)) if by_name else next(given, None)
        value = None if value is None else literal(m, value)
        if value is None or (by_name and name is None):
            raise Break("text", "a format string that does not fit its arguments")
        if value.is_constant():
            values.append(value.constant())
        elif conversion in SHOWS:
            values.append(shown(m, value, conversion))
            return re.sub(r"\(\w*\)", "", match[0][:-1] + "s")
        else:
            raise Break("text", f"%{conversion} of a {value.python_type().__name__}")
        return re.sub(r"\(\w*\)", "", match[0])

    template = PERCENT.sub(show, template)
    if (not by_name and next(given, None) is not None) or "*" in template:
        raise Break("text", "a format string that does not fit its arguments")
    return fold(m, str.__mod__, template, tuple(values))
