"""Objects of the program as records: where to find one, and what it must be like.

In: an object that a guard demands, or that emitted code holds.  Out: a row of the object table, of
two trees.  The *path* finds the object in another process: by import, at a source of the call, or
as a part of another row's object.  The *content* is all that its identity stands for in a trace:
the code of a function and which globals and cells it has, the name and bases of a class, the
items of a tuple.  What
can change while the object stays the same is not in it: of that the trace has guards.
Invariant: an object of a kind without a content here makes the entry one that is not kept.  A row
is read only if the object found has, now, the very content that was written.
"""

from __future__ import annotations

import builtins
import enum
import functools
import hashlib
import sys
import types
from _collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Callable, Iterator
from typing import Any

from jitshape.frontend.torchside import natives
from jitshape.ir.records.plain import Tree, Unreadable, Unrecordable, tree
from jitshape.profile import code_key

DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
)
PARTS: dict[type, tuple[str, ...]] = {  # read-only fields that hold objects
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
}
STATELESS = ("PyCapsule", "pybind11_detail_function_record")  # what functions of C are bound to
SINGLE = {"Ellipsis": ..., "NotImplemented": NotImplemented}

# Sequence, mapping, immutable, heap type, base, abstract, subclasses of builtins; the others tell
# how far the class is initialised, or of its version.
LASTING_FLAGS = sum(1 << bit for bit in (5, 6, 8, 9, 10, 20, *range(24, 32)))

Ref = Callable[[Any], Tree]


def value(x: Any, ref: Ref) -> Tree:
    """A tuple by its items, a number or text by itself; `ref` gives the tree of what can change,
    and of what has an identity that is told."""
    if type(x) is tuple:
        return ["tuple", *[value(item, ref) for item in x]]
    return ref(x) if type(x) in (list, dict, set) else tree(x, ref)


# ---- content


def content(x: Any, ref: Ref) -> Tree:
    """`ref` gives the tree of another object.  Raises Unrecordable."""
    kind = type(x)
    if isinstance(x, type):
        return [
            "class",
            *_names(x),
            x.__flags__ & LASTING_FLAGS,
            _members(x),
            _told(x),
            *[ref(other) for other in (kind, *x.__mro__[1:]) if other not in (object, type)],
        ]
    if isinstance(x, enum.Enum):
        return ["member", ref(kind), x._name_, tree(x._value_)]
    if isinstance(x, types.ModuleType):
        return ["module", _module_name(x), None if kind is types.ModuleType else ref(kind)]
    if kind is types.FunctionType:
        return [*_function(x), ref(x.__globals__), *map(ref, x.__closure__ or ())]
    if kind is tuple:
        return ["items", *[value(item, ref) for item in x]]
    if kind in PARTS:
        return ["parts", kind.__name__, *[value(getattr(x, name), ref) for name in PARTS[kind]]]
    if kind in DESCRIPTORS:
        return ["descriptor", kind.__name__, *_names(x.__objclass__), x.__name__]
    if kind is types.BuiltinFunctionType:
        owner = x.__self__
        stateless = owner is None or type(owner).__name__.startswith(STATELESS)
        if not stateless and not isinstance(owner, (types.ModuleType, type)):
            raise Unrecordable(f"a method of C that is bound: {x.__qualname__}")
        return ["builtin", x.__module__, x.__qualname__, _told(x)]
    simple = CONTENTS.get(kind)
    if simple is None:
        raise Unrecordable(f"an object of {kind.__module__}.{kind.__qualname__}")
    return simple(x)


def _names(cls: type) -> Tree:
    return [cls.__module__, cls.__qualname__]


def _module_name(x: types.ModuleType) -> str:
    """Without the module's own `__getattr__`, which may be anyone's."""
    return str(types.ModuleType.__getattribute__(x, "__dict__").get("__name__", ""))


def _members(cls: type) -> Tree:
    """Of an enumeration, which may be asked for all at once."""
    if not isinstance(cls, enum.EnumMeta):
        return None
    return [[name, tree(member._value_)] for name, member in cls.__members__.items()]


def _function(x: types.FunctionType) -> Tree:
    own = getattr(x, "__builtins__", None)
    cells = tuple(filter(lambda held: callable(held), map(_held, x.__closure__ or ())))
    return [
        *("function", digest_of(x.__code__), x.__module__, x.__name__, x.__qualname__),
        *(shallow(x.__defaults__), shallow(x.__kwdefaults__), shallow(x.__annotations__)),
        *(own is vars(builtins) or own is builtins, shallow(cells)),
        _told(x),
    ]


def _told(x: Any) -> Tree:
    """What the user said of a callable: disable, allow_in_graph."""
    known = isinstance(x, (types.FunctionType, types.BuiltinFunctionType)) or type(x) is type
    return [natives.is_allowed(x), natives.lookup(natives.BREAKS, x)] if known else None


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def shallow(x: Any) -> Tree:
    """Numbers, texts and containers of them by value, functions by their code, other objects by
    their class."""

    def leaf(item: Any) -> Tree:
        if type(item) is types.FunctionType:
            return ["function", digest_of(item.__code__), item.__qualname__]
        return ["of", *_names(item if isinstance(item, type) else type(item))]

    return tree(x, leaf)


CONTENTS: dict[type, Callable[[Any], Tree]] = {
    types.CodeType: lambda x: ["code", digest_of(x), x.co_qualname],
    types.CellType: lambda x: ["cell"],
    _tuplegetter: lambda x: ["item", x.__reduce__()[1][0]],  # a field of a namedtuple
    dict: lambda x: ["dict"],
}

_digests: dict[types.CodeType, str] = {}


def digest_of(code: types.CodeType) -> str:
    """Of all that code does."""
    found = _digests.get(code)
    if found is None:
        rest = code.co_exceptiontable, code.co_stacksize, code.co_nlocals
        text = f"{code_key(code)} {rest}"
        found = _digests[code] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return found


# ---- paths


def imported(module: str, qualname: str) -> Any:
    """What a module that is loaded has under a dotted name.  Raises Unreadable."""
    found = sys.modules.get(module)
    try:
        for name in qualname.split("."):
            found = vars(found)[name]
    except (TypeError, KeyError) as error:
        raise Unreadable(f"{module} has no {qualname}") from error
    return found


def import_path(x: Any) -> Tree | None:
    """["import", module, name] where that leads to `x`."""
    if isinstance(x, types.ModuleType):
        name = _module_name(x)
        return ["module", name] if sys.modules.get(name) is x else None
    if x is sys.modules:
        return ["import", "sys", "modules"]
    if type(x) is dict:
        module = sys.modules.get(x.get("__name__", ""))
        return ["vars", module.__name__] if module and vars(module) is x else None
    owner, name = None, None
    if isinstance(x, (type, types.FunctionType, types.BuiltinFunctionType)):
        owner, name = x.__module__, x.__qualname__
    if isinstance(x, enum.Enum):
        owner, name = type(x).__module__, f"{type(x).__qualname__}.{x._name_}"
    if type(x) is types.BuiltinFunctionType and isinstance(x.__self__, type):
        owner, name = x.__self__.__module__, f"{x.__self__.__qualname__}.{x.__name__}"
    if type(x) in DESCRIPTORS:
        owner, name = x.__objclass__.__module__, f"{x.__objclass__.__qualname__}.{x.__name__}"
    if type(owner) is not str or type(name) is not str:
        return None
    try:
        return ["import", owner, name] if imported(owner, name) is x else None
    except Unreadable:
        return None


def steps_from(x: Any) -> Iterator[tuple[Any, str, Any]]:
    """(part, step, place) for the objects that `x` leads to for as long as it lives."""
    kind = type(x)
    if kind is types.FunctionType:
        yield x.__globals__, "field", "__globals__"
        yield x.__code__, "field", "__code__"
        yield x.__defaults__, "field", "__defaults__"
        for place, cell in enumerate(x.__closure__ or ()):
            yield cell, "closure", place
    elif kind is types.CellType:
        if type(_held(x)) is types.FunctionType:  # what a wrapper wraps
            yield _held(x), "field", "cell_contents"
    elif kind is types.CodeType:
        for place, constant in enumerate(x.co_consts):
            if type(constant) is types.CodeType:
                yield constant, "constant", place
    elif isinstance(x, type):
        yield kind, "type", None
        for place, base in enumerate(x.__mro__):
            yield base, "mro", place
    elif kind in PARTS:
        for name in PARTS[kind]:
            yield getattr(x, name), "field", name


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "field": lambda x, name: getattr(x, name),
    "closure": lambda x, place: x.__closure__[place],
    "constant": lambda x, place: x.co_consts[place],
    "type": lambda x, _: type(x),
    "mro": lambda x, place: x.__mro__[place],
    "attribute": lambda x, name: next(vars(c)[name] for c in x.__mro__ if name in vars(c)),
}


class Table:
    """Writes the rows of one entry.  `root` is the compiled function; `held`: objects that some
    source of the call leads to, with the tree of that source (written when it is needed)."""

    def __init__(self, root: Any, found_at: Callable[[Any], Tree | None]) -> None:
        self.found_at = found_at
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        self._pending: set[int] = set()
        self._parts: dict[int, tuple[Any, str, Any]] = {}
        self._paths: list[Tree] = []
        self._given = {id(root): ["root"]}
        self.note(root)

    def note(self, x: Any) -> None:
        """`x` may lead to others."""
        todo = [x]
        while todo:
            x = todo.pop()
            for part, step, place in steps_from(x):
                if part is not None and id(part) not in self._parts:
                    self._parts[id(part)] = (x, step, place)
                    todo.append(part)

    def note_attribute(self, cls: type, name: str, x: Any) -> None:
        """`x` is what the bases of `cls` hold under the name."""
        self._parts.setdefault(id(x), (cls, "attribute", name))
        self.note(x)

    def ref(self, x: Any) -> Tree:
        """The tree that stands for `x`.  Raises Unrecordable."""
        for name, single in SINGLE.items():
            if x is single:
                return ["single", name]
        number = self._numbers.get(id(x))
        if number is None:
            if id(x) in self._pending:
                raise Unrecordable(f"{type(x).__qualname__} is found by way of itself")
            self._pending.add(id(x))
            try:
                path = self._path(x)
            finally:
                self._pending.discard(id(x))
            number = self._numbers[id(x)] = len(self._objects)
            self._objects.append(x)
            self._paths.append(path)
        return ["object", number]

    def _path(self, x: Any) -> Tree:
        path = self._given.get(id(x)) or import_path(x)
        if path is None and id(x) in self._parts:
            owner, step, place = self._parts[id(x)]
            try:
                path = ["part", self.ref(owner)[1], step, place]
            except Unrecordable:
                path = None
        if path is None:
            path = self.found_at(x)
        if path is None:
            name = getattr(x, "__qualname__", "")
            what = f"a {type(x).__qualname__} that no path leads to"
            raise Unrecordable(f"{what}: {name}" if name else what)
        return path

    def finish(self) -> list[Tree]:
        """All rows, [path, content]; contents may add rows."""
        rows: list[Tree] = []
        while len(rows) < len(self._objects):
            place = len(rows)
            made = content(self._objects[place], self.ref)
            rows.append([self._paths[place], made])
        return rows


class Found:
    """Reads a table: `objects` are those found, in order."""

    def __init__(self, root: Any, at: Callable[[Tree], Any]) -> None:
        self.root, self.at = root, at
        self.objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def read(self, rows: list[Tree]) -> None:
        """Raises Unreadable, with the first object that is missing or has changed."""
        for path, _ in rows:
            found = self._find(path)
            if self._numbers.setdefault(id(found), len(self.objects)) != len(self.objects):
                raise Unreadable(f"{_named(path, found)} was two objects")
            self.objects.append(found)
        for x, (path, written) in zip(self.objects, rows):
            try:
                same = content(x, self._ref) == written
            except Unrecordable:
                same = False
            if not same:
                raise Unreadable(f"{_named(path, x)} is not what it was")

    def _find(self, path: Tree) -> Any:
        kind, *parts = path
        if kind == "root":
            return self.root
        if kind == "import":
            return imported(*parts)
        if kind in ("module", "vars"):
            module = sys.modules.get(parts[0])
            if module is None:
                raise Unreadable(f"{parts[0]} is not loaded")
            return module if kind == "module" else vars(module)
        if kind == "part":
            owner, step, place = parts
            try:
                return STEPS[step](self.objects[owner], place)
            except (AttributeError, LookupError, TypeError, StopIteration) as error:
                raise Unreadable(f"no {step} {place}") from error
        return self.at(path)

    def _ref(self, x: Any) -> Tree:
        for name, single in SINGLE.items():
            if x is single:
                return ["single", name]
        number = self._numbers.get(id(x))
        if number is None:
            raise Unrecordable("another object")
        return ["object", number]


def _named(path: Tree, x: Any) -> str:
    name = getattr(x, "__qualname__", None) or getattr(x, "__name__", None)
    return str(name or path[-1])
