"""Checks: what a guard demands of the object at a source.

frontend/guards.py turns (source, check, user line) into the C program; a failed check is what a
recompile is explained with.  All are frozen and compare by what they demand; `check.text(source)`
is the guard as the user reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jitshape.frontend.remembering import Remembering, ask
from jitshape.frontend.sources import Source, class_field


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's program: the fields of ir.graph.Location, without its imports."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} in {self.function}" if self.function else where


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: every class that a `class` statement made has it
LITERALS = (int, float, complex, str, bytes, bool, type(None))


class Check:
    """Base of all checks."""

    __slots__ = ()

    def text(self, source: Source) -> str:
        raise NotImplementedError(type(self).__name__)


def short(value: Any) -> str:
    """A value as a guard shows it; runs no user code."""
    if issubclass(type(value), type):  # isinstance would ask value.__class__
        return value.__qualname__
    if type(value) is ModuleType:
        return f"module {ModuleType.__getattribute__(value, '__dict__').get('__name__', '?')}"
    if type(value) in LITERALS or (
        type(value) is tuple and all(type(x) in LITERALS for x in value)
    ):
        return _cut(_written(value))
    if not type(value).__flags__ & _HEAP_TYPE:
        if type(value).__module__ == "torch":
            return repr(value)  # a dtype, device, layout or memory format
        name = getattr(value, "__qualname__", None)
        if type(name) is str and type(value).__module__ == "builtins":
            return name
    return f"<{type(value).__qualname__}>"


def _written(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an int of more digits than Python writes
        return hex(value) if type(value) is int else f"<{type(value).__qualname__}>"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True, slots=True)
class Guard:
    """`check` must hold of the object at `source` (None for ambient state), because of the user's
    line `location`."""

    source: Source | None
    check: Check
    location: Any = None

    def __str__(self) -> str:
        text = self.check.text(self.source)  # type: ignore[arg-type]
        return f"{text}   # {self.location}" if self.location else text


@dataclass(frozen=True)
class Present(Check):
    """The path to the source can be walked: nothing on it is missing."""

    def text(self, source: Source) -> str:
        return f"{source} exists"


@dataclass(frozen=True)
class IsWord(Check):
    """An int that guards and kernels can take (ir/words.py)."""

    def text(self, source: Source) -> str:
        return f"{source} is within 2**62"


@dataclass(frozen=True)
class TypeIs(Check):
    """Exact type, by pointer."""

    type: type

    def text(self, source: Source) -> str:
        return f"type({source}) is {short(self.type)}"


@dataclass(frozen=True, eq=False)
class Is(Check):
    """The very object."""

    object: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)

    def text(self, source: Source) -> str:
        return f"{source} is {short(self.object)}"


@dataclass(frozen=True, eq=False)
class Equals(Check):
    """Exact type and equal value of an int, float (by bits), str, bytes, bool, None, complex."""

    value: Any

    def key(self) -> tuple:
        """What is compared: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
        if type(self.value) is float:
            return float, struct.pack("<d", self.value)
        if type(self.value) is complex:
            return complex, struct.pack("<dd", self.value.real, self.value.imag)
        if type(self.value) is set:
            return set, frozenset((type(x), x) for x in self.value)
        return type(self.value), self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equals) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def text(self, source: Source) -> str:
        return f"{source} == {short(self.value)}"


@dataclass(frozen=True)
class Length(Check):
    """Of a tuple, list, dict or set."""

    length: int

    def text(self, source: Source) -> str:
        return f"len({source}) == {self.length}"


@dataclass(frozen=True, eq=False)
class Keys(Check):
    """A dict has exactly these keys, in this order."""

    keys: tuple

    def told(self) -> tuple:
        """The keys, told apart without running code of theirs."""
        return tuple(Equals(k).key() if type(k) in LITERALS else id(k) for k in self.keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self.told() == other.told()

    def __hash__(self) -> int:
        return hash(self.told())

    def text(self, source: Source) -> str:
        return f"list({source}) == [{', '.join(map(short, self.keys))}]"


@dataclass(frozen=True)
class Missing(Check):
    """A dict has no such key (a global found in builtins, an attribute found on the class)."""

    key: Any

    def text(self, source: Source) -> str:
        return f"{short(self.key)} not in {source}"


@dataclass(frozen=True)
class NoTypeAttribute(Check):
    """The class's method resolution order holds no such name."""

    name: str

    def text(self, source: Source) -> str:
        return f"{source} has no attribute {self.name!r}"


@dataclass(frozen=True, eq=False)
class SpecialMethods(Check):
    """The class's method resolution order holds these very methods, and none of the others."""

    present: tuple[tuple[str, Any], ...]
    absent: tuple[str, ...]

    def key(self) -> tuple:
        return tuple((name, id(method)) for name, method in self.present), self.absent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecialMethods) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def changed(self, cls: type) -> list[str]:
        """The names that `cls` has other methods for."""
        held = {name: base.__dict__[name] for base in cls.__mro__[::-1] for name in base.__dict__}
        other = [name for name, method in self.present if held.get(name, self) is not method]
        return other + [name for name in self.absent if name in held]

    def text(self, source: Source) -> str:
        return f"{source} has the same special methods"


def told(field: Any) -> Any:
    return tuple(map(id, field)) if type(field) is tuple else field


@dataclass(frozen=True, eq=False)
class Definition(Check):
    """The class has the very names, and the order of bases, that it was met with: what the
    machine reads of a class beyond the attributes that it looks up."""

    fields: tuple[tuple[str, Any], ...]

    def key(self) -> tuple:
        """Texts by value; classes by identity, since a metaclass may define `==`."""
        return tuple(told(value) for _, value in self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def changed(self, cls: type) -> list[str]:
        return [n for n, value in self.fields if told(class_field(cls, n)) != told(value)]

    def text(self, source: Source) -> str:
        return f"{source} has the same name and bases"


@dataclass(frozen=True)
class NullField(Check):
    """The field is empty (no closure, unset slot or cell)."""

    def text(self, source: Source) -> str:
        return f"{source} is empty"


@dataclass(frozen=True, eq=False)
class MethodIs(Check):
    """A bound method of C: that of `object`, bound to whatever."""

    object: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MethodIs) and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)

    def text(self, source: Source) -> str:
        return f"{source} is {self.object.__qualname__} of an object"


@dataclass(frozen=True)
class TensorMatches(Check):
    """Class, dtype, device, dispatch keys, rank, requires_grad, is_leaf; sizes and strides where
    given (None: dynamic; strides of dimensions of size <= 1 are not compared)."""

    type: type
    dtype: Any
    device: Any
    keys: int  # raw dispatch key set
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    requires_grad: bool
    is_leaf: bool | None = None

    def text(self, source: Source) -> str:
        sizes = ", ".join("?" if n is None else str(n) for n in self.sizes)
        dtype = str(self.dtype).removeprefix("torch.")
        grad = ", requires_grad" if self.requires_grad else ""
        return f"{source} is {self.type.__qualname__} {dtype}[{sizes}] on {self.device}{grad}"


@dataclass(frozen=True)
class SameObject(Check):
    """The object at the guard's source is the object at `other`."""

    other: Source

    def text(self, source: Source) -> str:
        return f"{source} is {self.other}"


@dataclass(frozen=True)
class RefersTo(Check):
    """The weak reference at the guard's source refers to the object at `other`."""

    other: Source

    def text(self, source: Source) -> str:
        return f"{source}() is {self.other}"


@dataclass(frozen=True)
class HasMemory(Check):
    """Whether the tensor's storage holds all of its elements; else it is empty."""

    whole: bool

    def text(self, source: Source) -> str:
        size = f"{source}.nbytes" if self.whole else "0"
        return f"{source}.untyped_storage().nbytes() == {size}"


@dataclass(frozen=True)
class Distinct(Check):
    """The object at the guard's source is not the object at `other`."""

    other: Source

    def text(self, source: Source) -> str:
        return f"{source} is not {self.other}"


@dataclass(frozen=True)
class NoOverlap(Check):
    """The tensor shares no memory with the tensor at `other`."""

    other: Source

    def text(self, source: Source) -> str:
        return f"{source} shares no memory with {self.other}"


@dataclass(frozen=True)
class Apart(Check):
    """Of the tensor and `others` the first `written` share memory with none of another group
    (`groups`: one number for each, the tensor's first)."""

    others: tuple[Source, ...]
    written: int
    groups: tuple[int, ...]

    def text(self, source: Source) -> str:
        first, last = (source, *self.others)[:: max(self.written - 1, 1)][:2]
        return (
            f"{first} to {last}, {self.written} tensors, share no memory with each other or with "
            f"the {len(self.others) + 1 - self.written} tensors besides"
        )


@dataclass(frozen=True)
class SharesStorage(Check):
    """The tensor lies in the same storage as the tensor at `other`."""

    other: Source

    def text(self, source: Source) -> str:
        return f"{source} shares its storage with {self.other}"


@dataclass(frozen=True)
class Holds(Check):
    """A relation between sizes: `condition` (ir BoolExpr) with its symbols bound to the Numbers
    in `symbols`: ((name, Number source), ...).  The guard's own source is the first of them.
    `words`: 64 bits were enough to compute it."""

    condition: Any
    symbols: tuple[tuple[str, Source], ...]
    words: bool = True

    def text(self, source: Source) -> str:
        names = {name: str(number) for name, number in self.symbols}
        return self.condition.print(lambda atom: names[atom.name])


# Name of ambient state -> reader without arguments.
AMBIENT: dict[str, Callable[[], Any]] = {}


@dataclass(frozen=True)
class Ambient(Check):
    """Global state read while tracing: "grad_mode", "inference_mode", "default_dtype",
    "autocast", "deterministic", "default_device", "training modes" ... with the value seen."""

    name: str
    value: Any

    def text(self, source: Source) -> str:
        return f"{self.name} is {short(self.value)}"


def call_with(function: Any, args: tuple, kwargs: tuple[tuple[str, Any], ...]) -> Any:
    return function(*args, **dict(kwargs))


@dataclass(frozen=True)
class Remembers(Ambient):
    """A function that remembers its results (`functools.lru_cache`), or reads the state of the
    process, gives `value` for these arguments; `name` is the call as text."""

    function: Any
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]

    def holds(self) -> bool:
        """Call it, as the program would; what is remembered is looked up."""
        call = ask if type(self.function) is Remembering else call_with
        try:
            now = call(self.function, self.args, self.kwargs)
        except Exception:
            return False
        alike = type(now) in LITERALS and type(self.value) in LITERALS
        return now is self.value or (alike and Equals(now) == Equals(self.value))
