"""Changes of one object: everything of it that a program may read, one thing at a time.

In: an object that was found on the path of some guard, and the names that the traced code uses.
Out: `Change`s, each with a way to make it and to take it back.
They are made from the kind of the object alone, not from what is guarded, so that what nobody
thought of guarding is changed too.  A function put in the place of another raises `Marked`: if
eager meets it, compiled code must not have missed it.
"""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from jitshape.frontend.libraries import is_library

HEAP_TYPE, IMMUTABLE_TYPE = 1 << 9, 1 << 8
SPECIAL = (
    *("__getattr__", "__getattribute__", "__bool__", "__len__", "__iter__", "__next__", "__call__"),
    *(
        "__eq__",
        "__contains__",
        "__getitem__",
        "__missing__",
        "__index__",
        "__float__",
        "__enter__",
    ),
    *("__add__", "__radd__", "__mul__", "__neg__", "__lt__", "__instancecheck__", "__get__"),
)
NEW = "_not_there_before"


class Marked(Exception):
    """Raised by what a change put in the place of something else."""


def marked(*args: Any, **kwargs: Any) -> Any:
    raise Marked


@dataclass(frozen=True, eq=False)
class Change:
    """`make()` changes the object and returns what undoes it; `new` is what it puts there;
    `of_torch`: the object is one of torch's own, or of Python's."""

    text: str
    make: Callable[[], Callable[[], None]]
    new: Any = None
    of_torch: bool = False


def others(value: Any) -> Iterator[Any]:
    """Values of the same kind that a program can tell from this one."""
    kind = type(value)
    if kind is bool:
        yield not value
    elif kind is int:
        yield from (value + 1, float(value))
    elif kind is float:
        yield value * 2 + 1
    elif kind in (str, bytes):
        yield value + value[:1] + kind(b"_", "ascii") if kind is str else value + b"_"
    elif isinstance(value, torch.Tensor):
        yield from other_tensors(value)
    elif isinstance(value, nn.Module):
        yield from other_modules(value)
    elif kind in (list, tuple):
        yield from (value[:-1], value + value[-1:])
    elif kind in (dict, OrderedDict):
        yield kind(list(value.items())[:-1])
    elif kind is set:
        yield {*value, NEW}
    elif isinstance(value, type):
        yield type("Other", (), {})
    elif callable(value):
        yield marked
    else:
        yield marked
        with suppress(Exception):
            yield copy.copy(value)
    yield None if value is not None else 3


def other_tensors(value: torch.Tensor) -> Iterator[torch.Tensor]:
    with torch.no_grad():
        plain = value.detach().clone()
        longer = torch.cat([plain, plain]) if plain.dim() else plain[None]
        number = plain + 1 if plain.dtype is not torch.bool else ~plain
        results = [number, longer, plain.double(), plain.t() if plain.dim() == 2 else plain]
    for other in results:
        if isinstance(value, nn.Parameter):
            with suppress(RuntimeError):
                yield nn.Parameter(other, value.requires_grad)
        else:
            yield other


def other_modules(value: nn.Module) -> Iterator[nn.Module]:
    yield nn.Identity()
    twin = copy.deepcopy(value)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.is_floating_point():
                parameter.mul_(2).add_(0.25)
    yield twin


# ---- one kind of object, one function


def changes(value: Any, text: str, names: set[str]) -> Iterator[Change]:
    """All changes of the object itself; what it refers to has changes of its own."""
    if isinstance(value, torch.Tensor):
        yield from of_tensor(value, text)
    elif isinstance(value, type):
        yield from of_class(value, text, names)
    elif isinstance(value, types.ModuleType):
        yield from of_dict(vars(value), text, names)
    elif type(value) is types.FunctionType:
        yield from of_function(value, text)
    elif type(value) is types.CellType:
        yield from of_cell(value, text)
    elif isinstance(value, dict):
        yield from of_dict(value, text, names)
    elif isinstance(value, list):
        yield from of_list(value, text)
    elif isinstance(value, set):
        yield from of_set(value, text)
    if not isinstance(value, (type, types.ModuleType)):
        yield from of_instance(value, text, names)
    if isinstance(value, nn.Module):
        yield from of_module(value, text)


def of_dict(table: dict, text: str, names: set[str]) -> Iterator[Change]:
    large = "__name__" in table or len(table) > 40  # a namespace: only what the program names
    keys = [key for key in table if not large or key in names]
    for key in keys:
        for other in others(table[key]):
            make = setting_item(table, key, other)
            yield Change(f"{text}[{key!r}] = {short(other)}", make, other)
    new = [] if is_library_namespace(table) else [n for n in sorted(names) if n not in table]
    if type(table) is not dict or not all(type(key) is str for key in table):
        new = []
    for name in (*new, *(() if large else (NEW,))):
        yield Change(f"{text}[{name!r}] is new", setting_item(table, name, marked))
    if large:
        return
    for key in keys:
        yield Change(f"del {text}[{key!r}]", restoring(table, lambda key=key: table.pop(key)))
    if len(table) > 1:
        yield Change(f"{text} in another order", restoring(table, lambda: rotate(table)))


def is_library_namespace(table: dict) -> bool:
    """What functions of torch or Python read of their builtins is not the program's to change."""
    file = table.get("__file__")
    return isinstance(file, str) and is_library(file)


def rotate(table: dict) -> None:
    first = next(iter(table))
    table[first] = table.pop(first)


def restoring(table: dict, change: Callable[[], Any]) -> Callable[[], Callable[[], None]]:
    """A change of the order or number of keys, undone by writing them all."""

    def make() -> Callable[[], None]:
        saved = list(dict.items(table))
        change()

        def undo() -> None:
            table.clear()
            for key, item in saved:
                table[key] = item

        return undo

    return make


def setting_item(table: dict, key: Any, item: Any) -> Callable[[], Callable[[], None]]:
    def make() -> Callable[[], None]:
        had, old = key in table, dict.get(table, key)
        table[key] = item
        return lambda: table.__setitem__(key, old) if had else table.pop(key)

    return make


def of_list(items: list, text: str) -> Iterator[Change]:
    def restoring(change: Callable[[], Any]) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            saved = list(items)
            change()
            return lambda: items.__setitem__(slice(None), saved)

        return make

    for index, item in enumerate(items[:6]):
        for other in others(item):
            yield Change(
                f"{text}[{index}] = {short(other)}",
                restoring(lambda i=index, o=other: items.__setitem__(i, o)),
                other,
            )
    yield Change(f"{text} is longer", restoring(lambda: items.append(items[-1] if items else 1)))
    if items:
        yield Change(f"{text} is shorter", restoring(items.pop))
    if len(items) > 1:
        yield Change(f"{text} is reversed", restoring(items.reverse))


def of_set(items: set, text: str) -> Iterator[Change]:
    def make() -> Callable[[], None]:
        items.add(NEW)
        return lambda: items.discard(NEW)

    yield Change(f"{text} has one more", make)
    for item in list(items)[:2]:

        def without(item: Any = item) -> Callable[[], None]:
            items.discard(item)
            return lambda: items.add(item)

        yield Change(f"{text} lacks {short(item)}", without)


def setting_attribute(owner: Any, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    """With `type.__setattr__` or `object.__setattr__`, so that no code of the user's runs."""
    base = type if isinstance(owner, type) else object

    def make() -> Callable[[], None]:
        had = name in vars(owner) if hasattr(owner, "__dict__") else hasattr(owner, name)
        old = vars(owner)[name] if had and hasattr(owner, "__dict__") else getattr(owner, name, 0)
        base.__setattr__(owner, name, value)
        if had:
            return lambda: base.__setattr__(owner, name, old)
        return lambda: base.__delattr__(owner, name)

    return make


def of_class(cls: type, text: str, names: set[str]) -> Iterator[Change]:
    if not cls.__flags__ & HEAP_TYPE or cls.__flags__ & IMMUTABLE_TYPE:
        return
    own = cls.__module__.split(".")[0] not in ("torch", "enum", "collections", "typing")
    for name, value in list(vars(cls).items()):
        if name in names or (own and not name.startswith("__")) or name in SPECIAL:
            for other in (
                [marked] if callable(value) or hasattr(value, "__get__") else others(value)
            ):
                made = setting_attribute(cls, name, other)
                yield Change(f"{text}.{name} = {short(other)}", made)
    for name in sorted({*names, *(SPECIAL if own else ())}):
        if name not in vars(cls) and not (name.startswith("__") and name not in SPECIAL):
            yield Change(f"{text}.{name} is new", setting_attribute(cls, name, marked))
            if not name.startswith("__"):
                shadow = setting_attribute(cls, name, property(marked))
                yield Change(f"{text}.{name} is a new property", shadow)

    if own:
        yield from of_definition(cls, text, names)


def of_definition(cls: type, text: str, names: set[str]) -> Iterator[Change]:
    """Names and bases of a class, and whether it can be instantiated."""
    for name in ("__module__", "__doc__"):
        yield Change(f"{text}.{name} = 'Another'", setting_attribute(cls, name, "Another"))
    for name in ("__name__", "__qualname__"):
        yield Change(f"{text}.{name} = 'Another'", setting_field(cls, name, "Another"))
    abstract = setting_attribute(cls, "__abstractmethods__", frozenset({"missing"}))
    yield Change(f"{text} is abstract", abstract)
    for index, base in enumerate(cls.__bases__):
        if base is not object and base.__flags__ & HEAP_TYPE:
            bases = list(cls.__bases__)
            with suppress(Exception):  # some metaclasses have rules of their own
                bases[index] = twin_of(base)
                made = setting_field(cls, "__bases__", tuple(bases))
                yield Change(f"{text} has a twin of base {index}", made)
    hiding = {n: marked for n in names | set(SPECIAL) if callable(getattr(cls, n, None))}
    for name in hiding:
        if name not in vars(cls) and cls.__bases__ != (object,):
            first = type("First", (), {name: marked})
            made = setting_field(cls, "__bases__", (first, *cls.__bases__))
            yield Change(f"{text} has a first base with {name}", made)


def twin_of(cls: type) -> type:
    own = {n: v for n, v in vars(cls).items() if n not in ("__dict__", "__weakref__")}
    return type(cls)(cls.__name__, cls.__bases__, own)


def setting_field(cls: type, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    field = vars(type)[name]

    def make() -> Callable[[], None]:
        old = field.__get__(cls)
        field.__set__(cls, value)
        return lambda: field.__set__(cls, old)

    return make


def of_instance(value: Any, text: str, names: set[str]) -> Iterator[Change]:
    cls = type(value)
    if not cls.__flags__ & HEAP_TYPE:
        return
    methods = (n for n in names if n not in ("__class__", "__dict__", "__new__"))
    functions = {n: marked for n in methods if callable(getattr(cls, n, None))}
    derived = None
    with suppress(Exception):  # some metaclasses have rules of their own
        derived = type(cls)(cls.__name__, (cls,), functions)
    if functions and derived is not None:

        def make() -> Callable[[], None]:
            object.__setattr__(value, "__class__", derived)
            return lambda: object.__setattr__(value, "__class__", cls)

        yield Change(f"{text}.__class__ is a subclass", make)
    for base in cls.__mro__:
        for name in vars(base).get("__slots__", ()):
            if isinstance(vars(base).get(name), types.MemberDescriptorType):
                for other in others(getattr(value, name, None)):
                    made = setting_attribute(value, name, other)
                    yield Change(f"{text}.{name} = {short(other)}", made)


def of_function(function: types.FunctionType, text: str) -> Iterator[Change]:
    def setting(name: str, value: Any) -> Change:
        def make() -> Callable[[], None]:
            old = getattr(function, name)
            setattr(function, name, value)
            return lambda: setattr(function, name, old)

        return Change(f"{text}.{name} = {short(value)}", make)

    code = other_code(function.__code__)
    if code is not None:
        yield setting("__code__", code)
    for place, default in enumerate(function.__defaults__ or ()):
        for other in others(default):
            changed = list(function.__defaults__)
            changed[place] = other
            yield setting("__defaults__", tuple(changed))
    for name, default in (function.__kwdefaults__ or {}).items():
        for other in others(default):
            yield setting("__kwdefaults__", {**function.__kwdefaults__, name: other})
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        yield setting(name, "another")
    yield setting("__annotations__", {"x": "another"})


def other_code(code: types.CodeType) -> types.CodeType | None:
    """The code with another number in it."""
    consts = list(code.co_consts)
    for index, const in enumerate(consts):
        if type(const) in (int, float):
            consts[index] = const + 1
            return code.replace(co_consts=tuple(consts))
    return None


def of_cell(cell: types.CellType, text: str) -> Iterator[Change]:
    def make(other: Any) -> Callable[[], None]:
        old = cell.cell_contents
        cell.cell_contents = other
        return lambda: setattr(cell, "cell_contents", old)

    with suppress(ValueError):
        for other in others(cell.cell_contents):
            yield Change(f"{text} = {short(other)}", lambda other=other: make(other), other)

        def empty() -> Callable[[], None]:
            old = cell.cell_contents
            del cell.cell_contents
            return lambda: setattr(cell, "cell_contents", old)

        yield Change(f"del {text}", empty)


def of_tensor(tensor: torch.Tensor, text: str) -> Iterator[Change]:
    def with_data(other: torch.Tensor) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            old = tensor.data
            tensor.data = other
            return lambda: setattr(tensor, "data", old)

        return make

    if tensor.is_leaf and tensor.is_floating_point() and not tensor.is_inference():

        def toggle() -> Callable[[], None]:
            tensor.requires_grad_(not tensor.requires_grad)
            return lambda: tensor.requires_grad_(not tensor.requires_grad)

        yield Change(f"{text}.requires_grad_()", toggle)
        yield from of_leaf(tensor, text)
    for other in other_tensors(tensor.detach()):
        if other.dtype == tensor.dtype and not tensor.is_inference():
            yield Change(f"{text}.data = {short(other)}", with_data(other))


def of_leaf(tensor: torch.Tensor, text: str) -> Iterator[Change]:
    """What autograd keeps with a leaf."""

    def graded() -> Callable[[], None]:
        old = tensor.grad
        tensor.grad = None if old is not None else torch.ones_like(tensor)
        return lambda: setattr(tensor, "grad", old)

    yield Change(f"{text}.grad", graded)
    if tensor.requires_grad:
        yield Change(f"{text}.register_hook()", lambda: tensor.register_hook(marked).remove)


def shared_memory(tensors: list[tuple[torch.Tensor, str]]) -> Iterator[Change]:
    """Two tensors that become views of the same memory, or of parts of it that overlap."""

    def sharing(a: torch.Tensor, b: torch.Tensor, whole: bool) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            old_a, old_b = a.data, b.data
            memory = torch.arange(2.0 * a.numel() + 1, device=a.device).to(a.dtype)
            for tensor, start in ((a, 0), (b, 0 if whole else 1)):
                part = memory[start : start + a.numel()].view(a.shape)
                part.copy_(tensor.data)
                tensor.data = part

            def undo() -> None:
                a.data, b.data = old_a, old_b

            return undo

        return make

    for index, (a, name) in enumerate(tensors):
        for b, other in tensors[index + 1 :]:
            if a.shape == b.shape and a.dtype == b.dtype and a.is_contiguous() and a is not b:
                yield Change(f"{name} and {other} share memory", sharing(a, b, whole=True))
                yield Change(f"{name} and {other} overlap", sharing(a, b, whole=False))


def of_module(module: nn.Module, text: str) -> Iterator[Change]:
    def registering(register: Callable[[], Any]) -> Callable[[], Callable[[], None]]:
        return lambda: register().remove

    for name in (
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ):
        hook = getattr(module, name)
        yield Change(f"{text}.{name}()", registering(lambda hook=hook: hook(marked)))


def ambient() -> Iterator[Change]:
    """State of torch that every call sees."""

    def entering(manager: Callable[[], Any]) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            entered = manager()
            entered.__enter__()
            return lambda: entered.__exit__(None, None, None)

        return make

    def setting(get: Callable, put: Callable, value: Any) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            old = get()
            put(value)
            return lambda: put(old)

        return make

    other_grad = torch.no_grad if torch.is_grad_enabled() else torch.enable_grad
    yield Change("grad mode", entering(other_grad))
    yield Change("inference mode", entering(torch.inference_mode))
    yield Change("autocast", entering(lambda: torch.autocast("cpu", torch.bfloat16)))
    dtype = setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64)
    yield Change("default dtype", dtype)
    device = setting(lambda: None, torch.set_default_device, torch.device("meta"))
    yield Change("default device", device)
    deterministic = setting(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    )
    yield Change("deterministic algorithms", deterministic)
    off = torch.autocast("cpu", enabled=False)
    yield Change("autocast is disabled", entering(lambda: off))
    saved = torch.autograd.graph.saved_tensors_hooks
    yield Change("hooks on saved tensors", entering(lambda: saved(marked, marked)))
    anomaly = setting(torch.is_anomaly_enabled, torch.set_anomaly_enabled, True)
    yield Change("anomaly mode", anomaly)
    for name in ("forward_pre", "forward", "full_backward", "full_backward_pre"):
        hooks = getattr(nn.modules.module, f"register_module_{name}_hook")
        yield Change(f"a global {name} hook", lambda hooks=hooks: hooks(marked).remove)


def short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    text = value.__name__ if hasattr(value, "__name__") else repr(value)
    return text if len(text) < 40 else f"{text[:37]}..."
