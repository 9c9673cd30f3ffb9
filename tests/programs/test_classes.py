"""Classes that change behind a trace: their bases, names, metaclass, and what is registered."""

from __future__ import annotations

import abc
import collections.abc
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same

Program = tuple[Callable, Callable[[], Any]]  # what is compiled, and what then changes


class First:
    k = 1.0

    def __len__(self) -> int:
        return 1

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Second:
    k = 2.0

    def __len__(self) -> int:
        return 2

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2


def derived() -> type:
    class Derived(First):
        def shifted(self, x: torch.Tensor) -> torch.Tensor:
            return super().shifted(x)

    return Derived


def matched(value: object) -> float:
    match value:
        case First():
            return 1.0
        case Second():
            return 2.0
    return 3.0


def caught(kind: type) -> float:
    try:
        raise kind
    except KeyError:
        return 1.0
    except Exception:
        return 2.0


READ_BASES: dict[str, Callable[[type, Any, torch.Tensor], Any]] = {
    "attribute": lambda cls, value, x: x * value.k,
    "isinstance": lambda cls, value, x: x + isinstance(value, First),
    "issubclass": lambda cls, value, x: x + issubclass(cls, First),
    "__mro__": lambda cls, value, x: x + (First in cls.__mro__),
    "__bases__": lambda cls, value, x: x + (cls.__bases__ == (First,)),
    "__base__": lambda cls, value, x: x + (cls.__base__ is First),
    "mro()": lambda cls, value, x: x + (First in cls.mro()),
    "super": lambda cls, value, x: value.shifted(x),
    "super of two": lambda cls, value, x: x * super(cls, value).k,
    "special method": lambda cls, value, x: x + len(value),
    "class pattern": lambda cls, value, x: x + matched(value),
}


@pytest.mark.parametrize("name", READ_BASES)
@pytest.mark.parametrize("far", [False, True])
def test_bases(name: str, far: bool) -> None:
    """Of the class itself, or of one that it is derived from."""
    near, read = derived(), READ_BASES[name]
    cls = type("Far", (near,), {}) if far else near
    value = cls()
    compiled, x = jitshape.compile(read), torch.ones(3)
    assert_same(read(cls, value, x), compiled(cls, value, x))
    near.__bases__ = (Second,)
    assert_same(read(cls, value, x), compiled(cls, value, x))
    near.__bases__ = (First,)
    before = jitshape.stats()["compiles"]
    assert_same(read(cls, value, x), compiled(cls, value, x))
    assert jitshape.stats()["compiles"] == before  # the first entry serves again


def test_bases_of_an_exception() -> None:
    class Missing(KeyError):
        pass

    compiled = jitshape.compile(lambda x: x * caught(Missing))
    x = torch.ones(3)
    assert_same(x, compiled(x))
    Missing.__bases__ = (LookupError,)
    assert_same(x * 2, compiled(x))


class Empty:
    pass


def failed(run: Callable) -> str:
    try:
        run()
    except Exception as error:
        return str(error)
    return ""


READ_TEXT: dict[str, Callable[[type], str]] = {
    "__name__": lambda cls: cls.__name__,
    "of an instance": lambda cls: type(cls()).__qualname__,
    "__module__": lambda cls: cls.__module__,
    "__doc__": lambda cls: cls.__doc__ or "",
    "repr": lambda cls: repr(cls),
    "format": lambda cls: f"{cls}",
    "AttributeError": lambda cls: failed(lambda: cls().missing),
    "TypeError": lambda cls: failed(lambda: cls() + 1),
}


@pytest.mark.parametrize("name", READ_TEXT)
def test_texts(name: str) -> None:
    cls, read = type("Named", (Empty,), {"__doc__": "a class"}), READ_TEXT[name]

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * len(read(cls))

    compiled, x = jitshape.compile(f), torch.ones(3)
    assert_same(f(x), compiled(x))
    cls.__name__ = cls.__qualname__ = "AnotherOne"
    cls.__module__, cls.__doc__ = "elsewhere", "another class"
    assert_same(f(x), compiled(x))


def metaclass() -> Program:
    class Meta(type):
        k = 1.0

    class Other(type):
        k = 2.0

    cls = Meta("Cls", (), {})
    return lambda x: x * cls.k, lambda: setattr(cls, "__class__", Other)


def module_class() -> Program:
    class Other(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            return 2.0

    module = types.ModuleType("settings")
    module.k = 1.0  # type: ignore[attr-defined]
    return lambda x: x * module.k, lambda: setattr(module, "__class__", Other)


def module_property() -> Program:
    class Other(types.ModuleType):
        @property
        def k(self) -> float:
            return 2.0

    module = types.ModuleType("settings")
    vars(module)["k"] = 1.0
    return lambda x: x * module.k, lambda: setattr(module, "__class__", Other)


def enum_value() -> Program:
    kind = enum.Enum("kind", {"A": 1})
    return lambda x: x * kind.A.value, lambda: setattr(kind.A, "_value_", 2)


def abstract() -> Program:
    class Base(abc.ABC):  # noqa: B024
        pass

    def change() -> None:
        Base.__abstractmethods__ = frozenset({"missing"})

    return lambda x: x * len(failed(Base)), change


def annotations() -> Program:
    class Typed:
        a: int

    def change() -> None:
        Typed.__annotations__ = {}

    return lambda x: x * len(Typed.__annotations__), change


def sequence_pattern() -> Program:
    class Items:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> float:
            return [3.0][index]

    def f(x: torch.Tensor) -> torch.Tensor:
        match items:
            case [factor]:
                return x * factor
            case _:
                return x * 2

    items = Items()
    return f, lambda: collections.abc.Sequence.register(Items)


def reflected_operator() -> Program:
    class Base:
        def __add__(self, other: object) -> float:
            return 1.0

        def __radd__(self, other: object) -> float:
            return 2.0

    class Later(Base):
        pass

    a, b = Base(), Later()
    return lambda x: x * (a + b), lambda: setattr(Later, "__radd__", lambda s, o: 3.0)


def swapped_comparison() -> Program:
    class Base:
        def __lt__(self, other: object) -> bool:
            return True

    class Later(Base):
        pass

    a, b = Base(), Later()
    return lambda x: x * (a < b), lambda: setattr(Later, "__gt__", lambda s, o: False)


CHANGES = (
    metaclass,
    module_class,
    module_property,
    enum_value,
    abstract,
    annotations,
    sequence_pattern,
    reflected_operator,
    swapped_comparison,
)


@pytest.mark.parametrize("make", CHANGES)
def test_changes(make: Callable[[], Program]) -> None:
    f, change = make()
    compiled, x = jitshape.compile(f), torch.ones(3)
    before = f(x)
    assert_same(before, compiled(x))
    change()
    assert not torch.equal(before, f(x))
    assert_same(f(x), compiled(x))


class Wrapped:
    @staticmethod
    def fixed(a: int = 3) -> int:
        """Text of fixed."""
        return a

    @classmethod
    def shared(cls, a: int = 4) -> int:
        """Text of shared."""
        return a

    of_c = staticmethod(len)


Wrapped.__dict__["fixed"].marked = [1]


def names_of(method: Any) -> list[Any]:
    found = [getattr(method, name, "none") for name in ("__name__", "__qualname__", "__doc__")]
    return [*found, method.__func__.__name__, getattr(method, "__annotations__", None)]


def test_static_and_class_methods_have_the_names_of_their_functions() -> None:
    def program(fixed: Any, shared: Any, of_c: Any) -> list[Any]:
        def made(cls: type, x: int) -> int:
            """Text of made."""
            return x

        method = classmethod(made)
        fixed.later = [*fixed.marked, 2]
        found = [names_of(each) for each in (fixed, shared, of_c, method, staticmethod(made))]
        wrapper = functools.wraps(shared)(lambda: 0)
        return [*found, wrapper.__name__, wrapper.__doc__, sorted(vars(method)), method]

    def told(function: Callable[..., Any]) -> list[Any]:
        methods = [vars(Wrapped)[name] for name in ("fixed", "shared", "of_c")]
        *found, method = function(*methods)
        del methods[0].later
        return [*found, names_of(method), method.__get__(None, int)(7)]

    assert told(jitshape.compile(program)) == told(program)


class Generating:
    def send(self, value): ...
    def throw(self, *args): ...
    def close(self): ...
    def __iter__(self): ...
    def __next__(self): ...


class Shows:
    """A proxy: its class is what it stands for."""

    def __init__(self, cls):
        self.cls = cls

    @property
    def __class__(self):
        return self.cls


def abstract_of_proxies(x, *proxies):
    return [isinstance(proxy, collections.abc.Generator) for proxy in proxies], [
        isinstance(proxy, (collections.abc.Mapping, Shows)) for proxy in proxies
    ]


def test_abstract_classes_ask_proxies_for_the_class_that_they_show():
    compiled, x = jitshape.compile(abstract_of_proxies), torch.ones(2)
    for classes in ((Generating, int), (dict, Generating)):
        args = (x, *map(Shows, classes))
        assert compiled(*args) == abstract_of_proxies(*args)
