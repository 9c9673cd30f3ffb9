"""What the user says of sizes before the first call: `dynamic_shapes={...}` and its `Dim`s.

In: a spec by argument name: `{0: Dim("batch", max=64), 1: None}` or `(batch, None)` for a tensor,
the same nested in lists, tuples and dicts as the argument is.  Out: a `Promise` for each number
named in it, keyed as sources are written ("x.size(0)").
Invariant: `resolve` returns only promises that this call keeps; a spec that does not fit the
call is a BadSpec.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jitshape.errors import BadSpec

INF = float("inf")
AVOID = "see dynamic_shapes in docs/guide.md"


@dataclass(frozen=True, init=False)
class Dim:
    """A size with a name.  Equal names are equal sizes; `2 * b + 1` is related to `b`.  With
    `min` or `max` the compiled code must serve the whole range."""

    name: str
    min: int | None
    max: int | None

    AUTO = "auto"
    DYNAMIC = "dynamic"
    STATIC = "static"

    def __init__(self, name: str, min: int | None = None, max: int | None = None) -> None:
        if type(name) is not str or not name.isidentifier():
            raise BadSpec(f"Dim({name!r}): the name must be an identifier")
        check_range(f"Dim({name!r})", min, max, BadSpec)
        for key, value in (("name", name), ("min", min), ("max", max)):
            object.__setattr__(self, key, value)

    def __mul__(self, factor: Any) -> Relation:
        return Relation(self) * factor

    def __add__(self, number: Any) -> Relation:
        return Relation(self) + number

    def __sub__(self, number: Any) -> Relation:
        return Relation(self) - number

    __rmul__, __radd__ = __mul__, __add__


@dataclass(frozen=True)
class Relation:
    """`scale * root + offset`."""

    root: Dim
    scale: int = 1
    offset: int = 0

    def __mul__(self, factor: Any) -> Relation:
        if type(factor) is not int or factor < 1:
            raise BadSpec(f"{self} * {factor!r}: a Dim is multiplied by a positive int")
        return Relation(self.root, self.scale * factor, self.offset * factor)

    def __add__(self, number: Any) -> Relation:
        if type(number) is not int:
            raise BadSpec(f"{self} + {number!r}: only an int is added to a Dim")
        return Relation(self.root, self.scale, self.offset + number)

    def __sub__(self, number: Any) -> Relation:
        return self + (-number if type(number) is int else number)

    __rmul__, __radd__ = __mul__, __add__

    def __str__(self) -> str:
        scaled = self.root.name if self.scale == 1 else f"{self.scale}*{self.root.name}"
        return f"{scaled} {'-+'[self.offset > 0]} {abs(self.offset)}" if self.offset else scaled

    def root_value(self, size: int) -> int | None:
        """The value of the root at which this is `size`; None: there is none."""
        value, rest = divmod(size - self.offset, self.scale)
        return None if rest else value

    def bounds(self) -> tuple[int | None, int | None]:
        """The range that the root's gives."""
        ends = (self.root.min, self.root.max)
        return tuple(None if e is None else e * self.scale + self.offset for e in ends)  # type: ignore[return-value]


@dataclass(frozen=True)
class Promise:
    """What was said of one number.  kind: "static", "auto" (symbolic, may be specialised),
    "dynamic" (symbolic, and no single value of it may be needed)."""

    kind: str
    min: int | None = None
    max: int | None = None
    relation: Relation | None = None
    value: int | None = None  # of a static size that is given as a number

    def __str__(self) -> str:
        return str(self.relation or self.value or self.kind)


def check_range(what: str, low: Any, high: Any, error: type[Exception]) -> None:
    """`low` and `high` are bounds of a size, or None."""
    for bound in (low, high):
        if bound is not None and (type(bound) is not int or bound < 0):
            raise error(f"{what}: min and max are ints of 0 or more, not {bound!r}")
    if low is not None and high is not None and low > high:
        raise error(f"{what}: min={low} is above max={high}")


def promise_of(x: Any) -> Promise | None:
    """The promise that a leaf of a spec stands for; None: it is no leaf."""
    if x is None or x == "static":
        return Promise("static")
    if isinstance(x, str) and x in ("auto", "dynamic"):
        return Promise(x)
    if type(x) is int:
        return Promise("static", value=x)
    if isinstance(x, (Dim, Relation)):
        relation = x if isinstance(x, Relation) else Relation(x)
        return Promise("dynamic", *relation.bounds(), relation)
    return _of_torch_export(x)


def _of_torch_export(x: Any) -> Promise | None:
    """Of a Dim or hint of torch.export, told by its class alone, since importing that brings in
    much more."""
    if type(x).__module__ != "torch.export.dynamic_shapes":
        return None

    def bound(value: Any) -> int | None:
        return value if type(value) is int else None  # unbounded is an object of its own

    if hasattr(x, "type"):
        kind = x.type.name.lower()
        return Promise(kind, bound(x.min), bound(x.max)) if kind != "static" else Promise(kind)
    root = getattr(x, "root", x)
    dim = Dim(root.__name__, bound(root.min) or None, bound(root.max))
    if root is x:
        return promise_of(dim)
    offset = x.fn(0)
    return promise_of(Relation(dim, x.fn(1) - offset, offset))


@dataclass(frozen=True, eq=False)
class ShapeSpec:
    """The spec of one compiled function, by argument name."""

    arguments: dict[str, Any]

    def key(self) -> str:
        """A text that is the same for specs that say the same."""
        return repr(_key(self.arguments))

    def resolve(self, arguments: Mapping[str, tuple[str, Any]]) -> dict[str, Promise]:
        """The promises about a call with `arguments`: name -> (how its source is written, what
        was given)."""
        found: dict[str, Promise] = {}
        values: dict[str, tuple[int, str]] = {}
        for name, spec in self.arguments.items():
            if name not in arguments:
                continue  # left to its default
            for text, number, promise in numbers_of(spec, *arguments[name]):
                _check_kept(text, number, promise, values)
                found[text] = promise
        return found


def _key(spec: Any) -> Any:
    promise = promise_of(spec)
    if promise is not None:
        return promise
    if isinstance(spec, Mapping):
        return {key: _key(part) for key, part in spec.items()}
    return tuple(map(_key, spec))


def _check_kept(
    text: str, number: int | float, promise: Promise, values: dict[str, tuple[int, str]]
) -> None:
    """This call's `number` is as promised; `values`: of the Dims so far, and where it was seen."""
    if promise.value is not None and promise.value != number:
        raise BadSpec(
            f"dynamic_shapes says that {text} is {promise.value}, but it is {number}", avoid=AVOID
        )
    low, high = promise.min or 0, INF if promise.max is None else promise.max
    if promise.kind != "static" and type(number) is int and not low <= number <= high:
        raise BadSpec(
            f"dynamic_shapes excludes this call: {text} is {number}",
            because=f"{promise} is in [{low}, {high}]",
            avoid="widen min and max",
        )
    relation = promise.relation
    if relation is None:
        return
    assert type(number) is int
    value = relation.root_value(number)
    name = relation.root.name
    if value is None:
        raise BadSpec(f"dynamic_shapes says that {text} is {relation}, but it is {number}")
    first, where = values.setdefault(name, (value, f"{text} is {number}"))
    if first != value:
        raise BadSpec(
            f"dynamic_shapes says that {text} is {relation}, but it is {number}",
            because=f"{where}, so {name} is {first}",
            avoid="give sizes that differ Dims of different names",
        )


def numbers_of(spec: Any, text: str, real: Any) -> Iterator[tuple[str, Any, Promise]]:
    """(source text, actual number, promise) for all that `spec` says of the object `real`."""
    leaf = promise_of(spec)
    shape = getattr(real, "shape", None)
    if shape is not None:
        yield from _sizes_of(spec, leaf, text, shape)
    elif type(real) in (int, float):
        if leaf is None:
            raise _mismatch(spec, text, f"of type {type(real).__name__}")
        yield text, real, leaf
    elif isinstance(real, (list, tuple, Mapping)):
        yield from _parts_of(spec, leaf, text, real)
    elif spec is not None:
        raise _mismatch(spec, text, f"of type {type(real).__name__}")


def _sizes_of(
    spec: Any, leaf: Promise | None, text: str, shape: tuple[int, ...]
) -> Iterator[tuple[str, int, Promise]]:
    if leaf is not None and leaf.relation is None and leaf.value is None:
        dims: dict[Any, Any] = dict.fromkeys(range(len(shape)), spec)
    elif isinstance(spec, Mapping):
        dims = dict(spec)
    elif isinstance(spec, (list, tuple)) and len(spec) == len(shape):
        dims = dict(enumerate(spec))
    else:
        raise _mismatch(spec, text, f"a tensor with {len(shape)} dimensions")
    for dim, said in dims.items():
        promise = promise_of(said)
        if promise is None or type(dim) is not int or not -len(shape) <= dim < len(shape):
            raise _mismatch({dim: said}, text, f"a tensor with {len(shape)} dimensions")
        dim %= len(shape)
        yield f"{text}.size({dim})", shape[dim], promise


def _parts_of(
    spec: Any, leaf: Promise | None, text: str, real: Any
) -> Iterator[tuple[str, Any, Promise]]:
    keyed = isinstance(real, Mapping)
    parts = real.items() if keyed else enumerate(real)
    if leaf is not None and leaf.relation is None and leaf.value is None:
        said = {key: spec for key, _ in parts}
    elif keyed and isinstance(spec, Mapping) and set(spec) <= set(real):
        said = spec
    elif not keyed and isinstance(spec, (list, tuple)) and len(spec) == len(real):
        said = dict(enumerate(spec))
    else:
        raise _mismatch(spec, text, f"a {type(real).__name__} of {len(real)}")
    for key, part in said.items():
        yield from numbers_of(part, f"{text}[{key!r}]", real[key])


def _mismatch(spec: Any, text: str, is_: str) -> BadSpec:
    return BadSpec(
        f"dynamic_shapes does not fit the argument {text}",
        because=f"it is {is_}, and the spec says {spec!r}",
        avoid=AVOID,
    )


def make_spec(spec: Any, fn: Callable[..., Any]) -> ShapeSpec | None:
    """The spec for `fn`, a function, method or (by its forward) a module; a tuple or list goes by
    position.  Raises BadSpec for what can be told before a call."""
    if spec is None:
        return None
    named = getattr(fn, "forward", fn)
    if not inspect.isroutine(named) or inspect.isbuiltin(named):
        raise BadSpec(
            f"dynamic_shapes of a {type(fn).__name__}, whose arguments have no names of their own",
            avoid="compile a function, a method or a module",
        )
    names = list(inspect.signature(named).parameters)
    if isinstance(spec, (list, tuple)):
        if len(spec) > len(names):
            raise BadSpec(
                f"dynamic_shapes has {len(spec)} items, and there are {len(names)} arguments"
            )
        spec = dict(zip(names, spec))
    if not isinstance(spec, Mapping):
        raise BadSpec(f"dynamic_shapes is a dict by argument name, not {type(spec).__name__}")
    unknown = [name for name in spec if name not in names]
    if unknown:
        raise BadSpec(
            f"dynamic_shapes names an unknown argument {unknown[0]!r}",
            because=f"the arguments are {', '.join(names)}",
            avoid="correct its spelling",
        )
    _check_leaves(spec, {})
    return ShapeSpec(dict(spec))


def _check_leaves(spec: Any, dims: dict[str, Dim]) -> None:
    promise = promise_of(spec)
    if promise is None:
        if not isinstance(spec, (list, tuple, Mapping)):
            raise BadSpec(
                f"dynamic_shapes holds {spec!r}",
                because='a size is a Dim, an int, None (static), "auto" or "dynamic"',
            )
        for part in spec.values() if isinstance(spec, Mapping) else spec:
            _check_leaves(part, dims)
    elif promise.relation is not None:
        root = promise.relation.root
        if dims.setdefault(root.name, root) != root:
            raise BadSpec(f"dynamic_shapes has two different Dims of the name {root.name!r}")
