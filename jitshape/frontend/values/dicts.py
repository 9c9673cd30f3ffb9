"""Dicts: order, any hashable key, lazily read when they exist already; views; attribute dicts.

In: entries made by the program, or a real dict with its source.  A single key that was read
guards that key (by walking to it, or `Missing`); length, order and iteration guard `Keys`.
Out: values, views, and for effects the final entries.  Subclasses (OrderedDict, defaultdict,
Counter, user classes) share the storage; their methods are inlined.
Invariant: `entries` is in program order once `complete`; before, it holds what was touched.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from jitshape.frontend.checks import Keys, Missing, Present
from jitshape.frontend.sources import Held, InstanceDict, Key, Slot, Source
from jitshape.frontend.values.base import Value, builds, unpack, wraps
from jitshape.frontend.values.constants import CONSTANT_TYPES
from jitshape.frontend.values.sequences import (
    TupleValue,
    construct,
    fill_attributes,
    is_plain,
    same_or_equal,
)
from jitshape.frontend.values.storage import (
    Storage,
    guard_type,
    reaches,
    real_instance_dict,
    wrap_field,
)
from jitshape.frontend.values.unobserved import Unobserved, unread

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


@dataclass
class Entry:
    """One item; `value` None: not read from the real dict yet.  `old`: the key has had this
    place in the real dict all along; `written`: the value is not the real dict's."""

    key: Value
    value: Value | None
    old: bool = False
    written: bool = True


class DictValue(Storage):
    """A dict or an instance of a subclass."""

    builtin = dict

    def __init__(
        self,
        cls: type = dict,
        object: Any = None,
        source: Source | None = None,
    ) -> None:
        self.cls, self.object, self.source = cls, object, source
        self.default_factory: Value | None = None  # of a defaultdict
        self.entries: dict[Any, Entry] = {}
        self.missing: set[Any] = set()  # keys known not to be, or no longer, in the real dict
        self.deleted: list[Value] = []  # keys of old entries
        self.complete = source is None
        self.changes = 0  # of the set of keys: what iterators look at
        self.readers: list[dict[Any, Value]] = []  # what others keep of it while it is unchanged

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[(e.key, e.value) for e in self.entries.values()]!r})"

    # ---- storage

    def hashed(self, m: Machine, key: Value) -> Any:
        return key.hash_key(m)

    def find(self, m: Machine, hashed: Any) -> Entry | None:
        """The entry under a hash key, read from the real dict if it was not yet."""
        entry = self.entries.get(hashed)
        if entry is None and not self.complete and hashed not in self.missing:
            entry = self._read_real(m, hashed)
        if entry is not None and entry.value is None:
            self._read_value(m, hashed, entry, m.wrap)
        elif entry is not None and type(entry.value) is Unobserved:
            entry.value = entry.value.observed()
        return entry

    def _read_real(self, m: Machine, hashed: Any) -> Entry | None:
        if not is_plain(hashed):  # keys that are objects: only by the list of all keys
            self.load(m)
            return self.entries.get(hashed)
        for kind in set(map(type, dict.keys(self.object))) - CONSTANT_TYPES:
            if compares_by_user_code(kind):
                m.stop("user_hash", f"a dict whose keys compare by code of {kind.__name__}")
        if not dict.__contains__(self.object, hashed):
            self.missing.add(hashed)
            m.guard(self.source, Missing(hashed))
            return None
        entry = Entry(m.const(hashed), None, old=True, written=False)
        self.entries[hashed] = entry
        return entry

    def handed_on(self, m: Machine) -> list[tuple[Value, Value]]:
        """All pairs, as arguments of a call that need not look at the values."""
        for hashed, entry in self.load(m).items():
            if entry.value is None:
                self._read_value(m, hashed, entry, partial(unread, m))
        return [(entry.key, entry.value) for entry in self.entries.values() if entry.value]

    def _read_value(self, m: Machine, hashed: Any, entry: Entry, make: Callable) -> None:
        key = entry.key.constant() if entry.key.is_constant() else real_key(entry.key)
        place = None if is_plain(key) else list(self.entries).index(hashed)
        entry.value = make(dict.__getitem__(self.object, key), Key(self.source, key, place))

    def load(self, m: Machine) -> dict[Any, Entry]:
        """All keys, in order; values stay unread."""
        if self.complete:
            return self.entries
        self.complete = True
        kept = OrderedDict if issubclass(type(self.object), OrderedDict) else dict
        real = tuple(kept.__iter__(self.object))  # its own order, whatever the class overrides
        m.guard(self.source, Keys(real))
        touched, self.entries = self.entries, {}
        for key in real:
            value = m.const(key) if is_plain(key) else m.wrap(key, Held(key, repr_key(key)))
            hashed = value.hash_key(m)
            if hashed in self.missing:  # deleted
                continue
            entry = touched.pop(hashed, None)
            self.entries[hashed] = entry or Entry(value, None, old=True, written=False)
        self.entries.update(touched)
        return self.entries

    def lookup(self, m: Machine, key: Value) -> Value | None:
        """`dict.get` without default: the storage only."""
        entry = self.find(m, self.hashed(m, key))
        return entry.value if entry is not None else None

    def store(self, m: Machine, key: Value, value: Value) -> None:
        """`dict.__setitem__`: a new key goes last, an old one stays in place."""
        hashed = self.hashed(m, key)
        known = self.entries.get(hashed)
        if known is not None:
            m.let_go(known.value)
        self.touch(m)
        self._forget(hashed)
        if not self.complete and hashed not in self.entries and hashed not in self.missing:
            self._read_real(m, hashed)
        entry = self.entries.get(hashed)
        if entry is None:
            self.entries[hashed] = Entry(key, value)
            self.changes += 1
        else:
            entry.value, entry.written = value, True

    def remove(self, m: Machine, key: Value) -> Value | None:
        """Take the key out; its value, or None if there is no such key."""
        hashed = self.hashed(m, key)
        entry = self.find(m, hashed)
        if entry is None:
            return None
        m.let_go(entry.value, entry.key)
        self.touch(m)
        self._drop(m, hashed)
        return entry.value

    def _drop(self, m: Machine, hashed: Any) -> None:
        self._forget(hashed)
        entry = self.entries.pop(hashed)
        if entry.old:
            if entry.key.is_constant():  # it may have been written, and never read
                m.guard(Key(self.source, entry.key.constant()), Present())
            self.deleted.append(entry.key)
        if not self.complete:
            self.missing.add(hashed)
        self.changes += 1

    def _forget(self, hashed: Any) -> None:
        for reader in self.readers:
            reader.pop(hashed, None)

    def clear(self, m: Machine) -> None:
        for entry in self.load(m).values():
            m.let_go(entry.value, entry.key)
        self.touch(m)
        for hashed in list(self.entries):
            self._drop(m, hashed)

    # ---- by name: attributes, globals

    def get_named(self, m: Machine, name: str) -> Value | None:
        """The attribute in the storage, or None."""
        entry = self.find(m, name)
        return entry.value if entry is not None else None

    def set_named(self, m: Machine, name: str, value: Value) -> None:
        self.store(m, m.const(name), value)

    def delete_named(self, m: Machine, name: str) -> bool:
        return self.remove(m, m.const(name)) is not None

    # ---- all of it

    def values_in_order(self, m: Machine) -> list[Value]:
        return [self.find(m, hashed).value for hashed in list(self.load(m))]

    def keys_in_order(self, m: Machine) -> list[Value]:
        return [entry.key for entry in self.load(m).values()]

    def update(self, m: Machine, other: Value) -> None:
        """`dict.update(other)`: a mapping (has `keys`) or pairs."""
        if isinstance(other, DictValue) and (
            other.cls.__iter__ is dict.__iter__ or other.cls is OrderedDict
        ):  # the storage itself, whatever the class overrides, as CPython does
            for key, value in zip(other.keys_in_order(m), other.values_in_order(m)):
                self.store(m, key, value)
        elif m.defines(other, "keys"):
            for key in unpack(m, m.call(other.getattr(m, "keys"), [], {})):
                self.store(m, key, other.getitem(m, key))
        else:
            self._update_pairs(m, other)

    def _update_pairs(self, m: Machine, other: Value) -> None:
        for index, pair in enumerate(unpack(m, other)):
            if not m.defines(pair, "__iter__"):
                m.throw(
                    TypeError,
                    f"cannot convert dictionary update sequence element #{index} to a sequence",
                )
            items = unpack(m, pair)
            if len(items) != 2:
                m.throw(
                    ValueError,
                    f"dictionary update sequence element #{index} has length {len(items)};"
                    " 2 is required",
                )
            self.store(m, items[0], items[1])

    def children(self) -> Iterable[Value]:
        for entry in self.entries.values():
            yield entry.key
            if entry.value is not None:
                yield entry.value

    # ---- protocols

    def truth(self, m: Machine) -> bool:
        if not self.inherits("__len__") or hasattr(self.cls, "__bool__"):
            return m.default_truth(self)
        return bool(self.load(m))

    def length(self, m: Machine) -> Value:
        return m.const(len(self.load(m))) if self.inherits("__len__") else m.default_length(self)

    def get(self, m: Machine, key: Value) -> Value:
        """`dict.__getitem__`, `__missing__` of a subclass included."""
        value = self.lookup(m, key)
        if value is None and hasattr(self.cls, "__missing__"):
            return m.call(self.getattr(m, "__missing__"), [key], {})
        if value is None:
            m.throw(KeyError, key)
        return value

    def getitem(self, m: Machine, key: Value) -> Value:
        return self.get(m, key) if self.inherits("__getitem__") else m.default_getitem(self, key)

    def inherits_store(self) -> bool:
        """Whether the class takes `__setitem__` from dict or OrderedDict."""
        return self.cls.__setitem__ in (dict.__setitem__, OrderedDict.__setitem__)

    def setitem(self, m: Machine, key: Value, value: Value) -> None:
        if self.inherits_store():
            self.store(m, key, value)
        else:
            m.default_setitem(self, key, value)

    def delitem(self, m: Machine, key: Value) -> None:
        if self.cls.__delitem__ not in (dict.__delitem__, OrderedDict.__delitem__):
            m.default_delitem(self, key)
        elif self.remove(m, key) is None:
            m.throw(KeyError, key)

    def contains(self, m: Machine, item: Value) -> Value:
        if not self.inherits("__contains__"):
            return m.default_contains(self, item)
        return m.const(self.lookup(m, item) is not None)

    def iterate(self, m: Machine) -> Value:
        if self.cls.__iter__ not in (dict.__iter__, OrderedDict.__iter__):
            return m.default_iterate(self)
        from jitshape.frontend.values.iterators import DictIterator

        return DictIterator(self, "keys")

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        if self.cls.__or__ not in (dict.__or__, OrderedDict.__or__):
            return m.default_binary(self, op, other, reflected)
        if op == "|=":
            self.update(m, other)
            return self
        if op != "|" or not isinstance(other, DictValue):
            return NotImplemented
        left, right = (other, self) if reflected else (self, other)
        kind = OrderedDict if issubclass(left.cls, OrderedDict) else dict
        result = left.copy(m, kind)
        result.update(m, right)
        return result

    def copy(self, m: Machine, cls: type = dict) -> DictValue:
        """A new dict with the same entries."""
        result = DictValue(cls)
        for key, value in zip(self.keys_in_order(m), self.values_in_order(m)):
            result.store(m, key, value)
        return result

    def richcompare(self, m: Machine, op: str, other: Value) -> Any:
        """`dict.__eq__`: same keys and equal values, in any order."""
        if op not in ("==", "!=") or not isinstance(other, DictValue):
            return NotImplemented
        return m.const(self._equals(m, other) == (op == "=="))

    def _equals(self, m: Machine, other: DictValue) -> bool:
        if len(self.load(m)) != len(other.load(m)):
            return False
        for hashed in list(self.entries):
            mine, theirs = self.find(m, hashed), other.find(m, hashed)
            if theirs is None or not same_or_equal(m, mine.value, theirs.value):
                return False
        ordered = issubclass(self.cls, OrderedDict) and issubclass(other.cls, OrderedDict)
        return not ordered or list(self.entries) == list(other.entries)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if self.cls.__eq__ not in (dict.__eq__, OrderedDict.__eq__):
            return m.default_compare(self, op, other)
        return self.richcompare(m, op, other)

    def hash_key(self, m: Machine) -> Any:
        if not self.inherits("__hash__"):
            return m.default_hash_key(self)
        m.throw(TypeError, f"unhashable type: '{self.cls.__name__}'")

    # ---- leaving the trace

    def reconstruct(self, e: Emitter) -> None:
        if self.cls is dict and not reaches(self, self):
            for entry in self.entries.values():
                e.value(entry.key)
                e.value(entry.value)
            e.build("map", len(self.entries))
            return
        new = next(base for base in self.cls.__mro__ if base in NEW)
        construct(e, new.__new__, self.cls)
        e.bind(self)
        if self.default_factory is not None:
            e.value(self.default_factory)
            e.value(self)
            e.store_attr("default_factory")
        fill_attributes(e, self)
        for entry in self.entries.values():
            self.emit_store(e, entry)

    def write_back(self, e: Emitter) -> None:
        """Bring the real dict to the final entries: old entries kept their places, so that
        deleting what went and storing what is new or changed gives the final order too."""
        for key in self.deleted:
            self.emit_delete(e, key)
        for entry in self.entries.values():
            if entry.written:
                self.emit_store(e, entry)

    def emit_delete(self, e: Emitter, key: Value) -> None:
        deleter = OrderedDict.__delitem__ if issubclass(self.cls, OrderedDict) else dict.__delitem__
        e.begin_call()
        e.const(deleter)
        e.value(self)
        e.value(key)
        e.end_call(2)
        e.pop()

    def emit_store(self, e: Emitter, entry: Entry) -> None:
        """Write one entry to the object, past user methods."""
        setter = OrderedDict.__setitem__ if issubclass(self.cls, OrderedDict) else dict.__setitem__
        e.begin_call()
        e.const(setter)
        e.value(self)
        e.value(entry.key)
        e.value(entry.value)
        e.end_call(3)
        e.pop()


NEW = (dict, OrderedDict, defaultdict)  # whose `__new__` makes the storage


def compares_by_user_code(kind: type) -> bool:
    """Whether a lookup among keys of this class may run code of the user's."""
    return type(kind.__eq__) is FunctionType or type(kind.__hash__) is FunctionType


def repr_key(key: Any) -> str:
    return getattr(key, "__qualname__", type(key).__name__)


def real_key(key: Value) -> Any:
    """The real object behind a key that came out of a real dict."""
    return key.object


class AttributeDict(DictValue):
    """`owner.__dict__`: the storage of instance attributes, keys are strings."""

    def __init__(self, owner: Value, object: Any = None, source: Source | None = None) -> None:
        super().__init__(dict, object, source)
        self.owner = owner

    @classmethod
    def of(cls, m: Machine, owner: Value, instance: Any, source: Source) -> DictValue:
        """The dict of the existing object `instance`: one value for all that share the dict, such
        as a module and the functions whose globals it is."""
        real = real_instance_dict(instance)
        known = m.known_value(real)
        if known is None:
            known = cls(owner, real, InstanceDict(source))
            m.remember(real, known)
        return known

    def seen_again(self, m: Machine, source: Source) -> None:
        """The dict of an object that is pinned is pinned with it."""
        held = self.source.base if isinstance(self.source, InstanceDict) else None
        if not (isinstance(held, Held) and isinstance(source, Held)):
            super().seen_again(m, source)

    def write_all(self, e: Emitter) -> None:
        """Emit the writes of all attributes to an object that the program made."""
        for name, entry in self.entries.items():
            write_attribute(e, self.owner, name, entry.value)

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(real_instance_dict)
        e.value(self.owner)
        e.end_call(1)

    def emit_store(self, e: Emitter, entry: Entry) -> None:
        write_attribute(e, self.owner, entry.key.constant(), entry.value)


def write_attribute(e: Emitter, owner: Value, name: str, value: Value) -> None:
    """Emit `owner.name = value` past a `__setattr__` of the user's."""
    cls = owner.python_type()
    if cls.__setattr__ is object.__setattr__ and not hasattr(cls, name):
        e.value(value)
        e.value(owner)
        e.store_attr(name)
        return
    e.value(value)
    e.begin_call()
    e.const(real_instance_dict)
    e.value(owner)
    e.end_call(1)
    e.const(name)
    e.store_item()


def from_pairs(m: Machine, pairs: Iterable[tuple[Value, Value]], cls: type = dict) -> DictValue:
    """A new dict of these entries."""
    result = DictValue(cls)
    for key, value in pairs:
        result.store(m, key, value)
    return result


@wraps(dict, subclasses=True)
def wrap_dict(m: Machine, real: dict, source: Source | None) -> Value:
    """A real dict: only its class is guarded until it is read."""
    value = DictValue(type(real), real, guard_type(m, real, source))
    if issubclass(type(real), defaultdict):
        found = Slot(value.source, "default_factory")
        value.default_factory = wrap_field(m, real, found, real.default_factory)
    return value


builds("dict")(from_pairs)


class ViewValue(Value):
    """`d.keys()`, `d.values()`, `d.items()`."""

    TYPES = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
    ORDERED = {
        "keys": type(OrderedDict().keys()),
        "values": type(OrderedDict().values()),
        "items": type(OrderedDict().items()),
    }

    def __init__(self, mapping: DictValue, kind: str) -> None:
        self.mapping, self.kind = mapping, kind

    def __repr__(self) -> str:
        return f"ViewValue({self.kind}, {self.mapping!r})"

    def python_type(self) -> type:
        ordered = issubclass(self.mapping.cls, OrderedDict)
        return (self.ORDERED if ordered else self.TYPES)[self.kind]

    def children(self) -> Iterable[Value]:
        return (self.mapping,)

    def elements(self, m: Machine) -> list[Value]:
        """What the view shows now."""
        if self.kind == "keys":
            return self.mapping.keys_in_order(m)
        values = self.mapping.values_in_order(m)
        if self.kind == "values":
            return values
        return [TupleValue(pair) for pair in zip(self.mapping.keys_in_order(m), values)]

    def truth(self, m: Machine) -> bool:
        return bool(self.mapping.load(m))

    def length(self, m: Machine) -> Value:
        return m.const(len(self.mapping.load(m)))

    def iterate(self, m: Machine) -> Value:
        from jitshape.frontend.values.iterators import DictIterator

        return DictIterator(self.mapping, self.kind)

    def contains(self, m: Machine, item: Value) -> Value:
        if self.kind == "keys":
            return m.const(self.mapping.lookup(m, item) is not None)
        return m.const(any(same_or_equal(m, value, item) for value in self.elements(m)))

    def as_set(self, m: Machine) -> Value:
        from jitshape.frontend.values.sets import SetValue

        return SetValue.of(m, self.elements(m))

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        if self.kind == "values" or op not in ("&", "|", "-", "^"):
            return NotImplemented
        from jitshape.frontend.values.sets import SetValue

        pair = [self.as_set(m), SetValue.of(m, unpack(m, other))]
        return m.binary(op, *(reversed(pair) if reflected else pair))

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        if self.kind == "values":
            return NotImplemented
        if isinstance(other, ViewValue):
            other = other.as_set(m)
        return self.as_set(m).compare(m, op, other)

    def hash_key(self, m: Machine) -> Any:
        if self.kind == "values":
            return self
        m.throw(TypeError, f"unhashable type: '{self.python_type().__name__}'")

    def reconstruct(self, e: Emitter) -> None:
        ordered = issubclass(self.mapping.cls, OrderedDict)
        e.begin_call()
        e.const(getattr(OrderedDict if ordered else dict, self.kind))
        e.value(self.mapping)
        e.end_call(1)
