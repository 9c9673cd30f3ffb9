"""Storage: what values of the built-in containers and of their subclasses share.

`cls` is the class (a subclass of the built-in keeps the same storage), `object` the real
container if it existed before the trace, `instance_dict` the attributes of a subclass instance.
Invariant: a real container is never written while tracing, so parts that were not read yet can
be read (and guarded) at any later time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import replace
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Guard, Is, Length, NullField, TypeIs
from jitshape.frontend.lookup import IMMUTABLE_TYPE
from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Value

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


# Values of subclasses of these ask the class itself which methods it overrides.
ASKED_NATIVELY = (dict, list, tuple, set, frozenset, BaseException, enum.Enum)


class PinnedValue(Value):
    """A real object that the trace knows by identity (or, of literals, by value)."""

    def __init__(self, object: Any, source: Source | None = None) -> None:
        self.object, self.source = object, source

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.object!r})"

    def python_type(self) -> type:
        return type(self.object)

    def is_constant(self) -> bool:
        return True

    def constant(self) -> Any:
        return self.object

    def seen_again(self, m: Machine, source: Source) -> None:
        guard_identity(m, self.object, source)

    def reconstruct(self, e: Emitter) -> None:
        e.const(self.object)


class Storage(Value):
    """Base of container values: subclass instances go by the protocols of their class."""

    builtin: type = object
    cls: type
    object: Any = None
    instance_dict: Any = None

    def python_type(self) -> type:
        return self.cls

    def is_exact(self) -> bool:
        """Not a subclass, so that no user method can stand in the way."""
        return self.cls is self.builtin

    def inherits(self, *names: str) -> bool:
        """Whether the class takes these methods from the built-in type."""
        if self.cls is self.builtin:
            return True
        return all(getattr(self.cls, n, None) is getattr(self.builtin, n, None) for n in names)

    def attributes(self, m: Machine) -> Any:
        if self.cls.__dictoffset__ == 0:
            return None
        if self.instance_dict is None:
            from jitshape.frontend.values.dicts import AttributeDict

            if self.source is None:
                self.instance_dict = AttributeDict(self)
            else:
                self.instance_dict = AttributeDict.of(m, self, self.object, self.source)
        return self.instance_dict

    def touch(self, m: Machine) -> None:
        """The contents are about to change."""
        m.mutated(self)
        if self.source is not None:
            m.effects.touch(self)


def real_instance_dict(instance: Any) -> dict:
    """`instance.__dict__` past any attribute of that name that the class defines itself."""
    for base in type(instance).__mro__:
        getter = vars(base).get("__dict__")
        if type(getter) in (GetSetDescriptorType, MemberDescriptorType):
            return getter.__get__(instance)
    return vars(instance)


def measured(m: Machine, source: Source | None, length: int) -> None:
    """The program learnt the length of an existing container."""
    if source is not None:
        m.guard(source, Length(length))


def reaches(start: Value, target: Value) -> bool:
    """Whether `target` is found below `start`: a container that contains itself."""
    seen: set[int] = set()
    stack: list[Value] = list(start.children())
    while stack:
        value = stack.pop()
        if value is target:
            return True
        if id(value) not in seen and value.source is None:
            seen.add(id(value))
            stack.extend(value.children())
    return False


def kept(values: Iterable[Any]) -> list[Value]:
    """The values that were read or made, of lazily read contents."""
    return [v for v in values if v is not None]


def wrap_field(m: Machine, owner: Any, source: Any, real: Any) -> Value:
    """The object that a field of a C struct gives, which reads as None where it is empty, too."""
    if real is None and _is_empty(replace(source, base=Held(owner, ""))):
        m.guard(source, NullField())
        return m.const(None)
    return m.wrap(real, source)


def _is_empty(source: Source) -> bool:
    from jitshape.frontend.guards import assemble

    return assemble((Guard(source, NullField()),), ()).run(()) is not None


def guard_type(m: Machine, real: Any, source: Source | None) -> Source:
    """Guard the exact class of the object; the source to read its contents from."""
    cls = type(real)
    m.guard_definition(cls)
    if issubclass(type(real), ASKED_NATIVELY):  # `isinstance` would ask for its `__class__`
        m.guard_special_methods(cls)
    if source is None:
        source = Held(real, name_of(real))
    if may_change_class(cls) or not (isinstance(source, Held) and source.object is real):
        m.guard(source, TypeIs(cls))
    return source


def guard_identity(m: Machine, real: Any, source: Source | None) -> Source:
    """Guard that it is the very object; contents are then read from the object held."""
    if source is not None and not (isinstance(source, Held) and source.object is real):
        m.guard(source, Is(real))
    held = Held(real, str(source) if source is not None else name_of(real))
    if may_change_class(type(real)):
        m.guard_definition(type(real))
        m.guard(held, TypeIs(type(real)))
    return held


def may_change_class(cls: type) -> bool:
    """Whether Python assigns to `__class__` of an instance."""
    return issubclass(cls, ModuleType) or not cls.__flags__ & IMMUTABLE_TYPE


def name_of(real: Any) -> str:
    """How a message calls an object that no path leads to."""
    return getattr(real, "__qualname__", None) or getattr(real, "__name__", type(real).__name__)
