"""Signatures of callables: all that one is made of is guarded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch

import jitshape

X = torch.ones(2)


def told(callable: Callable[..., Any]) -> float:
    """A number that differs where signatures do."""
    parameters = inspect.signature(callable).parameters.values()
    total = float(len(parameters))
    for place, p in enumerate(parameters):
        total += 10 * (place + 1) * int(p.kind)
        total += 100 * p.default if isinstance(p.default, int) else 0
        total += 1000 if p.annotation is int else 0
    return total


def of_one(a) -> None: ...  # type: ignore[no-untyped-def]


def replace_code(f: Any) -> None:
    f.__code__ = (lambda a, b, c, e, f=4: a).__code__


CHANGES: dict[str, Callable[[Any], Any]] = {
    "wrapped": lambda f: setattr(f, "__wrapped__", of_one),
    "defaults": lambda f: setattr(f, "__defaults__", (5,)),
    "a default of a name": lambda f: f.__kwdefaults__.update(d=7),
    "defaults of names": lambda f: setattr(f, "__kwdefaults__", {"d": 8}),
    "code": replace_code,
    "an annotation": lambda f: f.__annotations__.update(b=int),
    "annotations": lambda f: setattr(f, "__annotations__", {"b": int}),
}


def make() -> Any:
    def f(a, b, c=3, *, d=2):  # type: ignore[no-untyped-def]
        return a

    return f


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_what_makes_a_signature_is_guarded(name: str, bound: bool) -> None:
    jitshape.reset()
    function = make()
    box = SimpleNamespace(f=MethodType(function, 1) if bound else function)
    compiled = jitshape.compile(lambda x: x + told(box.f))
    before = told(box.f)
    assert compiled(X)[0] == 1 + before
    CHANGES[name](function)
    assert compiled(X)[0] == 1 + told(box.f) != 1 + before
    assert not jitshape.stats()["fallbacks"]


def test_a_signature_that_is_set() -> None:
    jitshape.reset()
    function = make()
    compiled = jitshape.compile(lambda x: x + told(function), fullgraph=True)
    assert compiled(X)[0] == 1 + told(function)
    function.__signature__ = inspect.signature(of_one)
    assert compiled(X)[0] == 1 + told(of_one) == 1 + told(function)
    del function.__signature__
    assert compiled(X)[0] == 1 + told(function)
    assert jitshape.stats()["compiles"] == 2


def test_of_classes() -> None:
    class Plain:
        def __init__(self, a):  # type: ignore[no-untyped-def]
            pass

    compiled = jitshape.compile(lambda x: x + len(inspect.signature(Plain).parameters))
    assert compiled(X)[0] == 2.0
    Plain.__init__ = lambda self, a, b: None  # type: ignore[method-assign, assignment]
    assert compiled(X)[0] == 3.0
    Plain.__signature__ = inspect.signature(of_one)  # type: ignore[attr-defined]
    assert compiled(X)[0] == 2.0


def test_annotations_are_guarded() -> None:
    function = make()
    function.__annotations__ = {"a": int}
    compiled = jitshape.compile(lambda x: x + len(function.__annotations__), fullgraph=True)
    assert compiled(X)[0] == 2.0
    function.__annotations__["b"] = int
    assert compiled(X)[0] == 3.0
    function.__annotations__ = {}
    assert compiled(X)[0] == 1.0
