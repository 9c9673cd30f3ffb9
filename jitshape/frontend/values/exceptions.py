"""Exception objects: arguments, chain, traceback, attributes.

In: an exception class and its arguments.  Out: a value with `args`, `cause`, `context`,
`suppress_context`, members such as `StopIteration.value`, and the text `str()` gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Break, Value, wraps
from jitshape.frontend.values.classes import GETTERS, SETTERS, HasSlots
from jitshape.frontend.values.functions import HANDLERS
from jitshape.frontend.values.sequences import TupleValue, fill_attributes
from jitshape.frontend.values.storage import Storage, guard_identity, guard_type, kept
from jitshape.frontend.values.tracebacks import FormerTraceback, TracebackValue

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.frame import Frame
    from jitshape.frontend.machine import Machine


class ExceptionValue(Storage, HasSlots):
    """An exception."""

    builtin = BaseException
    outermost = False  # raised last where the trace handles none: perhaps its caller does

    def __init__(self, cls: type, args: list[Value]) -> None:
        self.cls, self.args = cls, TupleValue(args)
        self.cause: Value | None = None
        self.context: Value | None = None
        self.traceback: Value | None = None
        self.suppress_context = False
        self.slots: dict[Any, Value | None] = {}
        self.stored_slots: set[Any] = set()
        self.written: set[str] = set()  # fields of one that exists outside

    def __repr__(self) -> str:
        return f"ExceptionValue({self.cls.__name__}, {self.args!r})"

    def truth(self, m: Machine) -> bool:
        plain = not hasattr(self.cls, "__len__") and not hasattr(self.cls, "__bool__")
        return plain or m.default_truth(self)

    def children(self) -> Iterable[Value]:
        yield self.args
        yield from kept(self.slots.values())
        if self.instance_dict is not None:
            yield from self.instance_dict.children()

    def get_slot(self, m: Machine, member: Any) -> Value:
        """C members are None until set; slots of Python classes are unset."""
        of_c = member.__objclass__ in BUILTIN_EXCEPTIONS and self.source is None
        if of_c and member not in self.slots:
            self.slots[member] = m.const(None)
        return super().get_slot(m, member)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(self.builtin_base().__new__)
        e.const(self.cls)
        for value in self.args.items:
            e.value(value)
        e.end_call(1 + len(self.args.cells))
        e.bind(self)
        for member in sorted(self.stored_slots, key=lambda d: d.__name__):
            if self.slots[member] is not None:
                self._store(e, member.__name__, self.slots[member])
        fill_attributes(e, self)
        if self.cause is not None:
            self._store(e, "__cause__", self.cause)
        if self.context is not None:
            self._store(e, "__context__", self.context)
        self._link(e)
        if self.suppress_context or self.cause is not None:
            e.const(self.suppress_context)
            e.value(self)
            e.store_attr("__suppress_context__")

        if self.traceback is not None:
            self._store(e, "__traceback__", self.traceback)

    def _link(self, e: Emitter) -> None:
        if self.outermost:
            e.begin_call()
            e.const(link_to_handled)
            e.value(self)
            e.end_call(1)
            e.pop()

    def passes(self, m: Machine, frame: Frame) -> None:
        """The exception is raised in this frame, or comes through it."""
        self.assign(m, "traceback", TracebackValue(frame, self.traceback))

    def asked(self, m: Machine, owner: Value, name: str) -> None:
        """An AttributeError comes out of `owner.name`: the first such place is noted."""
        members = (AttributeError.name, AttributeError.obj)
        if all(is_none(self.slots.get(member)) for member in members):
            for member, value in zip(members, (m.const(name), owner)):
                self.slots[member] = value
                self.stored_slots.add(member)

    def assign(self, m: Machine, field: str, value: Any) -> None:
        """Set one of the fields that the interpreter keeps beside the attributes."""
        if self.source is not None:
            self.touch(m)
            self.written.add(field)
        setattr(self, field, value)

    def write_back(self, e: Emitter) -> None:
        for field in [f for f in FIELDS if f in self.written]:
            value = getattr(self, field)
            if isinstance(value, Value):
                e.value(value)
            else:
                e.const(value)
            e.value(self)
            e.store_attr(FIELDS[field])
        self._link(e)
        for member in sorted(self.stored_slots, key=lambda d: d.__name__):
            if self.slots[member] is not None:
                self._store(e, member.__name__, self.slots[member])

    def builtin_base(self) -> type:
        return next(base for base in self.cls.__mro__ if base in BUILTIN_EXCEPTIONS)

    def _store(self, e: Emitter, name: str, value: Value) -> None:
        e.value(value)
        e.value(self)
        e.store_attr(name)


# In the order to write them: setting the cause sets the flag.
FIELDS = {
    "args": "args",
    "cause": "__cause__",
    "context": "__context__",
    "suppress_context": "__suppress_context__",
    "traceback": "__traceback__",
}
BUILTIN_EXCEPTIONS = {
    cls
    for cls in vars(__import__("builtins")).values()
    if isinstance(cls, type) and issubclass(cls, BaseException)
}
# Their constructors do more than keep the arguments.
SPECIAL = (OSError, ImportError, SyntaxError, UnicodeError, BaseExceptionGroup)


def new_exception(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`BaseException.__new__`."""
    cls = args[0].constant()
    if issubclass(cls, SPECIAL) and len(args) > 2:
        raise Break("exception", f"{cls.__name__} is made with special arguments")
    return ExceptionValue(cls, args[1:])


def init_exception(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`BaseException.__init__` and those of its subclasses."""
    instance, rest = args[0], args[1:]
    members = KEYWORDS.get(next((b for b in instance.cls.__mro__ if b in KEYWORDS), None), {})
    for name, value in kwargs.items():
        if name not in members:
            _refuse_keywords(m, instance, tuple(kwargs))
        instance.set_slot(m, members[name], value)
    instance.assign(m, "args", TupleValue(rest))
    first = FIRST.get(next((b for b in instance.cls.__mro__ if b in FIRST), None))
    if first is not None:
        whole = first is SystemExit.code and len(rest) > 1
        value = instance.args if whole else rest[0] if rest else m.const(None)
        instance.set_slot(m, first, value)
    return m.const(None)


def _refuse_keywords(m: Machine, instance: Any, names: tuple[str, ...]) -> NoReturn:
    """What the class itself says of these keywords: no code of the program's runs."""
    base = instance.builtin_base()
    if base not in KEYWORDS:
        m.throw(TypeError, f"{instance.cls.__name__}() takes no keyword arguments")
    try:
        base(**dict.fromkeys(names))
    except TypeError as error:
        m.throw(TypeError, *error.args)
    raise AssertionError(f"{base.__name__} takes {names}")


KEYWORDS: dict[Any, dict[str, Any]] = {
    AttributeError: {"name": AttributeError.name, "obj": AttributeError.obj},
    NameError: {"name": NameError.name},
    ImportError: {"name": ImportError.name, "path": ImportError.path},
}
# The member that keeps the first argument.
FIRST: dict[Any, Any] = {
    StopIteration: StopIteration.value,
    SystemExit: SystemExit.code,
    ImportError: ImportError.msg,
    SyntaxError: SyntaxError.msg,
}


def text_of(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`BaseException.__str__`."""
    items = args[0].args.items
    if not items:
        return m.const("")
    return m.call(m.const(str), [items[0] if len(items) == 1 else args[0].args], {})


def text_of_key_error(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = args[0].args.items
    if len(items) == 1:
        return m.call(m.const(repr), [items[0]], {})
    return text_of(m, args, kwargs)


def repr_of(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`BaseException.__repr__`."""
    exception = args[0]
    inner = m.call(m.const(repr), [exception.args], {}).constant()
    inner = f"{inner[:-2]})" if len(exception.args.cells) == 1 else inner
    return m.const(f"{exception.cls.__name__}{inner}")


def with_traceback(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _set_traceback(m, args[0], args[1])
    return args[0]


for _cls in BUILTIN_EXCEPTIONS:
    if "__new__" in vars(_cls):
        HANDLERS[_cls.__new__] = new_exception
    if "__init__" in vars(_cls):
        HANDLERS[_cls.__init__] = init_exception
    if "__str__" in vars(_cls) and _cls not in SPECIAL:
        HANDLERS[_cls.__str__] = text_of
HANDLERS[KeyError.__str__] = text_of_key_error
HANDLERS[BaseException.__repr__] = repr_of
HANDLERS[BaseException.with_traceback] = with_traceback


def _set_args(m: Machine, exception: Any, value: Value) -> None:
    m.mutated(exception)
    exception.assign(m, "args", m.call(m.const(tuple), [value], {}))


def _set_cause(m: Machine, exception: Any, value: Value) -> None:
    m.mutated(exception)
    exception.assign(m, "cause", _exception_or_none(value))
    exception.assign(m, "suppress_context", True)


def _set_context(m: Machine, exception: Any, value: Value) -> None:
    m.mutated(exception)
    exception.assign(m, "context", _exception_or_none(value))


def _set_suppress(m: Machine, exception: Any, value: Value) -> None:
    m.mutated(exception)
    exception.assign(m, "suppress_context", value.truth(m))


def _set_traceback(m: Machine, exception: Any, value: Value) -> None:
    if value.python_type() not in (TracebackType, type(None)):
        m.throw(TypeError, "__traceback__ must be a traceback or None")
    m.mutated(exception)
    exception.assign(m, "traceback", _exception_or_none(value))


def is_none(value: Value | None) -> bool:
    return value is None or value.python_type() is type(None)


def _exception_or_none(value: Value) -> Value | None:
    return None if value.is_constant() and value.constant() is None else value


def link_to_handled(exception: BaseException) -> None:
    """Called by compiled code: what raising does where the caller handles an exception.  An
    exception that was raised before may be among the contexts of that one: no cycles."""
    handled = sys.exception()
    if handled is None or handled is exception:
        return
    link, seen = handled, set()
    while link.__context__ is not None and id(link) not in seen:
        if link.__context__ is exception:
            link.__context__ = None
            break
        seen.add(id(link))
        link = link.__context__
    exception.__context__ = handled


def _context(m: Machine, exception: Any) -> Value:
    if exception.outermost and m.caller_handles():
        raise Break("exception", "the context of an exception is one that the caller handles")
    return exception.context or m.const(None)


def _traceback(m: Machine, exception: Any) -> Value:
    if isinstance(exception.traceback, FormerTraceback):
        raise Break("exception", "__traceback__ of an exception raised outside the graph")
    return exception.traceback or m.const(None)


GETTERS.update(
    {
        BaseException.args: lambda m, x: x.args,
        BaseException.__cause__: lambda m, x: x.cause or m.const(None),
        BaseException.__context__: _context,
        BaseException.__suppress_context__: lambda m, x: m.const(x.suppress_context),
        BaseException.__traceback__: _traceback,
    }
)
SETTERS.update(
    {
        BaseException.args: _set_args,
        BaseException.__cause__: _set_cause,
        BaseException.__context__: _set_context,
        BaseException.__suppress_context__: _set_suppress,
        BaseException.__traceback__: _set_traceback,
    }
)


@wraps(BaseException, subclasses=True)
def wrap_exception(m: Machine, real: BaseException, source: Source | None) -> Value:
    """A real exception.  No source names its C members, so that they are not read: of one that
    each call raises anew the class is known."""
    held = isinstance(source, Held) or source is None
    pinned = guard_identity(m, real, source) if held else guard_type(m, real, source)
    return CaughtException(real, pinned)


class CaughtException(ExceptionValue):
    """An exception that was raised outside the trace: what it holds is not read in it."""

    def __init__(self, real: BaseException, source: Source) -> None:
        self.cls, self.object, self.source = type(real), real, source
        self.slots, self.stored_slots, self.written = {}, set(), set()
        self.traceback = FormerTraceback(self)

    def __repr__(self) -> str:
        return f"CaughtException({self.cls.__name__})"

    def __getattr__(self, name: str) -> Any:
        if name in ("args", "cause", "context", "suppress_context"):
            raise Break("exception", f"{name} of an exception that was raised outside the graph")
        raise AttributeError(name)

    def children(self) -> Iterable[Value]:
        return ()
