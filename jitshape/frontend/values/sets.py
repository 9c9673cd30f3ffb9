"""Sets and frozensets: elements stored under their hash keys.

In: elements, or a real set with its source: read as a whole, its elements are held by the guard.
Out: set algebra with CPython's results.  The order is that of a real set of the same elements
where all are constants; a set of other objects has no order that a program may rely on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Equals, Is
from jitshape.frontend.operators import COMPARE
from jitshape.frontend.sources import Held, Source
from jitshape.frontend.values.base import Break, Value, builds, wraps
from jitshape.frontend.values.constants import FRESH, from_python
from jitshape.frontend.values.iterators import IteratorValue
from jitshape.frontend.values.sequences import TupleValue, construct, fill_attributes, is_plain
from jitshape.frontend.values.storage import Storage, guard_identity, guard_type

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class SetValue(Storage):
    """A set, a frozenset or an instance of a subclass of one."""

    builtin = set

    def __init__(
        self,
        cls: type = set,
        elements: dict[Any, Value] | None = None,
        source: Source | None = None,
    ) -> None:
        self.cls, self.source = cls, source
        self.elements: dict[Any, Value] = elements or {}
        self.builtin = frozenset if issubclass(cls, frozenset) else set
        self.changes = 0

    @classmethod
    def of(cls, m: Machine, items: Iterable[Value], kind: type = set) -> SetValue:
        result = cls(kind)
        for item in items:
            result.elements.setdefault(item.hash_key(m), item)
        return result

    def __repr__(self) -> str:
        return f"SetValue({list(self.elements.values())!r})"

    def ordered(self, m: Machine) -> list[Value]:
        """The elements in iteration order, which hashes decide: those of texts and objects are
        others in each process."""
        keys = list(self.elements)
        if len(keys) > 1 and not all(type(k) in (int, bool, float) for k in keys):
            m.bound_by = "the order of a set"
        if self.object is not None and not self.changes:
            return list(self.elements.values())
        if all(is_plain(k) for k in keys):
            keys = list(set(keys))
        return [self.elements[k] for k in keys]

    def children(self) -> Iterable[Value]:
        return self.elements.values()

    def is_constant(self) -> bool:
        return self.cls is frozenset and all(v.is_constant() for v in self.elements.values())

    def constant(self) -> frozenset:
        return frozenset(v.constant() for v in self.elements.values())

    def add(self, m: Machine, item: Value) -> None:
        hashed = item.hash_key(m)
        if hashed not in self.elements:
            self.touch(m)
            self.elements[hashed] = item
            self.changes += 1

    def asked_for(self, m: Machine, item: Value) -> Any:
        """The key of an item that is looked for: of a set, which cannot be in it, that of the
        frozen one."""
        if isinstance(item, SetValue) and item.builtin is set and item.inherits("__hash__"):
            return frozenset(item.elements)
        return item.hash_key(m)

    def remove(self, m: Machine, item: Value) -> bool:
        hashed = self.asked_for(m, item)
        if hashed not in self.elements:
            return False
        m.let_go(self.elements[hashed])
        self.touch(m)
        del self.elements[hashed]
        self.changes += 1
        return True

    def replace(self, m: Machine, elements: dict[Any, Value]) -> None:
        self.touch(m)
        self.elements = elements
        self.changes += 1

    def truth(self, m: Machine) -> bool:
        if not self.inherits("__len__") or hasattr(self.cls, "__bool__"):
            return m.default_truth(self)
        return bool(self.elements)

    def length(self, m: Machine) -> Value:
        return m.const(len(self.elements)) if self.inherits("__len__") else m.default_length(self)

    def contains(self, m: Machine, item: Value) -> Value:
        if not self.inherits("__contains__"):
            return m.default_contains(self, item)
        return m.const(self.asked_for(m, item) in self.elements)

    def iterate(self, m: Machine) -> Value:
        if not self.inherits("__iter__"):
            return m.default_iterate(self)
        if self.object is not None and len(self.elements) > 1:
            m.guard(self.source, Is(self.object))  # equal sets may differ in order
        return SetIterator(m, self)

    def algebra(self, op: str, other: dict[Any, Value]) -> dict[Any, Value]:
        """The elements of `self op other`."""
        mine = self.elements
        if op == "&":
            return {k: v for k, v in mine.items() if k in other}
        if op == "-":
            return {k: v for k, v in mine.items() if k not in other}
        if op == "|":
            return {**other, **mine}
        return {
            **{k: v for k, v in mine.items() if k not in other},
            **{k: v for k, v in other.items() if k not in mine},
        }

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        plain = op.removesuffix("=")
        if plain not in ("&", "|", "-", "^") or not isinstance(other, SetValue):
            return NotImplemented
        if reflected:
            return NotImplemented
        if op != plain:
            if self.builtin is frozenset:
                return NotImplemented
            self.replace(m, self.algebra(plain, other.elements))
            return self
        return SetValue(self.builtin, self.algebra(op, other.elements))

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if not isinstance(other, SetValue):
            return NotImplemented
        compare = getattr(self.elements.keys(), COMPARE[op])
        return m.const(compare(other.elements.keys()))

    def hash_key(self, m: Machine) -> Any:
        if self.builtin is frozenset:
            return frozenset(self.elements)
        m.throw(TypeError, f"unhashable type: '{self.cls.__name__}'")

    def reconstruct(self, e: Emitter) -> None:
        if self.cls is set:
            for value in self.elements.values():
                e.value(value)
            e.build("set", len(self.elements))
        elif self.builtin is frozenset:
            e.begin_call()
            e.const(frozenset.__new__)
            e.const(self.cls)
            e.value(TupleValue(self.elements.values()))
            e.end_call(2)
            e.bind(self)
            fill_attributes(e, self)
        else:
            construct(e, set.__new__, self.cls)
            e.bind(self)
            self.emit_update(e)
            fill_attributes(e, self)

    def emit_update(self, e: Emitter) -> None:
        e.begin_call()
        e.const(set.update)
        e.value(self)
        e.value(TupleValue(self.elements.values()))
        e.end_call(2)
        e.pop()

    def write_back(self, e: Emitter) -> None:
        e.begin_call()
        e.const(set.clear)
        e.value(self)
        e.end_call(1)
        e.pop()
        self.emit_update(e)


FRESH[frozenset] = lambda m, s: SetValue.of(m, [from_python(m, x) for x in s], frozenset)
FRESH[set] = lambda m, s: SetValue.of(m, [from_python(m, x) for x in s])


class SetIterator(IteratorValue):
    """Over a set; a change of size is an error."""

    kind = type(iter(set()))

    def __init__(self, m: Machine, elements: SetValue) -> None:
        self.elements: SetValue | None = elements
        self.rest = list(reversed(elements.ordered(m)))
        self.length = len(self.rest)

    def advance(self, m: Machine) -> Value | None:
        if self.elements is not None and len(self.elements.elements) != self.length:
            self.elements = None
            m.throw(RuntimeError, "Set changed size during iteration")
        if not self.rest:
            self.elements = None
            return None
        return self.rest.pop()


builds("set")(lambda m, items: SetValue.of(m, items))
builds("frozenset")(lambda m, items: SetValue.of(m, items, frozenset))


class UnreadSet(SetValue):
    """A set of objects that exists outside: no check compares its elements, so that it is only
    handed on.  A frozenset is pinned, and its elements are read when they are asked for."""

    def __init__(self, m: Machine, real: set | frozenset, source: Source) -> None:
        self.cls, self.object, self.source, self.changes = type(real), real, source, 0
        self.builtin = frozenset if issubclass(type(real), frozenset) else set
        self.machine = m

    def __getattr__(self, name: str) -> Any:
        if name != "elements":
            raise AttributeError(name)
        if self.builtin is set:
            raise Break("set", "a set of objects that exists outside the compiled code is read")
        m = self.machine
        items = (m.wrap(x, None) for x in frozenset.__iter__(self.object))
        self.elements = SetValue.of(m, items).elements
        return self.elements

    def replace(self, m: Machine, elements: dict[Any, Value]) -> None:
        raise Break("set", "a set of objects that exists outside the compiled code is changed")

    def is_constant(self) -> bool:
        return self.cls is frozenset and all(map(is_plain, self.object))

    def constant(self) -> frozenset:
        return self.object

    def __repr__(self) -> str:
        return f"UnreadSet({self.cls.__name__})"

    def children(self) -> Iterable[Value]:
        return ()


ELEMENT_TYPES = (str, int, bytes, type(None))


@wraps(set, frozenset, subclasses=True)
def wrap_set(m: Machine, real: set | frozenset, source: Source | None) -> Value:
    """A real frozenset is guarded by identity, a set by its elements, which must be literals."""
    if issubclass(type(real), frozenset):
        return UnreadSet(m, real, guard_identity(m, real, source))
    if type(real) is not set or any(type(x) not in ELEMENT_TYPES for x in real):
        return UnreadSet(m, real, guard_type(m, real, source))
    held = source or Held(real, "a set")
    m.guard(held, Equals(set(real)))
    value = SetValue.of(m, (m.wrap(x, None) for x in real))
    value.object, value.source = real, held
    return value
