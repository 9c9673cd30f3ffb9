"""Sources: where an object that the program read came from.

A source is a path from what a call is given (arguments, or objects held for ever such as the
function's globals) to an object.  The same path is walked in C before each call: it loads the
object for the compiled code (frontend/guards.py assembles the walk) and it is what a guard names.
Sources are immutable and compare by structure.  `str(source)` is the user's way to write it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T")


class Source:
    """Base of all paths."""

    _hash: ClassVar[int | None] = None
    _text: ClassVar[str | None] = None


@dataclass_transform(frozen_default=True)
def path(cls: type[T]) -> type[T]:
    """A frozen record that computes its hash and its text once: paths are nested deeply, and
    tables are keyed by them."""
    cls = dataclass(frozen=True)(cls)
    cls.__hash__ = _once("_hash", cls.__hash__)  # type: ignore[method-assign]
    cls.__str__ = _once("_text", cls.__str__)  # type: ignore[method-assign]
    return cls


def _once(attribute: str, compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        known = getattr(self, attribute)
        if known is None:
            known = compute(self)
            object.__setattr__(self, attribute, known)
        return known

    return method


@path
class Local(Source):
    """Argument slot `index` of the frame: positional, keyword-only, then *args, **kwargs.
    `parts`: what the user calls the items of *args (and, if not None, the keys of **kwargs),
    where they are handed on to a function with these parameters."""

    index: int
    name: str
    parts: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return self.name


def _is_literal(key: object) -> bool:
    if type(key) is tuple:
        return all(map(_is_literal, key))
    return key is None or type(key) in (int, str, bytes, bool, float)


@path
class Held(Source):
    """An object held for ever by the cache entry: a globals dict, a class, a closure cell."""

    object: object
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)

    def __str__(self) -> str:
        return self.text


def root(source: Source) -> Source:
    """The slot or the held object that the path starts from."""
    while not isinstance(source, (Local, Held)):
        source = source.base  # type: ignore[attr-defined]
    return source


@path
class InstanceDict(Source):
    """`base.__dict__` of an ordinary object (also a module's or a class instance's)."""

    base: Source

    def __str__(self) -> str:
        return f"{self.base}.__dict__"


@path
class Key(Source):
    """`base[key]` of a dict (storage of the dict itself: no user __getitem__), constant key;
    `place`: that of a key which is an object, among the dict's keys, to name it by."""

    base: Source
    key: object
    place: int | None = field(default=None, compare=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key) or self.base != other.base:
            return False
        if self.key is other.key:  # `==` of other objects is the user's, or a tensor's
            return True
        return type(self.key) is type(other.key) and _is_literal(self.key) and self.key == other.key

    def __str__(self) -> str:
        if isinstance(self.base, Held) and self.base.text == "globals()":
            return str(self.key)
        if isinstance(self.base, Local) and self.base.parts is not None:
            return str(self.key)
        if isinstance(self.base, InstanceDict):
            return f"{self.base.base}.{self.key}"
        if isinstance(self.base, Key) and self.base.key in ("_parameters", "_buffers", "_modules"):
            module = self.base.base.base if isinstance(self.base.base, InstanceDict) else self.base
            text = str(self.key)
            return f"{module}[{text}]" if text.isdigit() else f"{module}.{text}"
        if _is_literal(self.key):
            return f"{self.base}[{self.key!r}]"
        return f"{self.base}[<{type(self.key).__name__} {self.place}>]"


@path
class Item(Source):
    """`base[index]` of a tuple or list (of the exact storage, subclasses included)."""

    base: Source
    index: int

    def __str__(self) -> str:
        if isinstance(self.base, Local) and self.index < len(self.base.parts or ()):
            return self.base.parts[self.index]  # type: ignore[index]
        return f"{self.base}[{self.index}]"


@path
class TypeOf(Source):
    """`type(base)`."""

    base: Source

    def __str__(self) -> str:
        return f"type({self.base})"


@path
class TypeAttribute(Source):
    """What the method resolution order of class `base` holds under `name`, unbound."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@path
class Slot(Source):
    """The value in a `__slots__` member `name` of `base`."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


FIELDS = {
    "function": (
        *("__code__", "__defaults__", "__kwdefaults__", "__closure__", "__globals__"),
        *("__name__", "__qualname__", "__doc__", "__module__"),
    ),
    "method": ("__self__", "__func__"),
    "builtin_method": ("__self__",),
    "cell": ("cell_contents",),
    "partial": ("func", "args", "keywords"),
    "property": ("fget", "fset", "fdel"),
    "staticmethod": ("__func__",),
    "classmethod": ("__func__",),
    "slice, range": ("start", "stop", "step"),
    "class": ("__name__", "__qualname__", "__mro__", "__bases__"),
}


def class_field(cls: type, name: str) -> Any:
    """A field of the struct of a class, past any attribute of that name that its metaclass has."""
    return vars(type)[name].__get__(cls)


@path
class Field(Source):
    """A field that the interpreter's own C structs hold: see FIELDS, by the type of `base`."""

    base: Source
    name: str

    def __str__(self) -> str:
        return str(self.base) if self.name == "cell_contents" else f"{self.base}.{self.name}"


@path
class Getter(Source):
    """A C getter of a tensor that runs no user code: grad, _base, data; read at each call."""

    base: Source
    name: str

    def __str__(self) -> str:
        return f"{self.base}.{self.name}"


@path
class Number(Source):
    """A machine integer read from `base`: kind "size"/"stride" (of dimension `dim`), "offset" of
    a tensor, "int" of a Python int, "len" of a container, "float" (as f64) of a Python float."""

    base: Source
    kind: str
    dim: int = 0

    def __str__(self) -> str:
        return {
            "size": f"{self.base}.size({self.dim})",
            "stride": f"{self.base}.stride({self.dim})",
            "offset": f"{self.base}.storage_offset()",
            "len": f"len({self.base})",
        }.get(self.kind, str(self.base))
