"""Arguments that no instruction looks at are not guarded; those that one does are, as ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jitshape
from tests.programs.compare import assert_same

X = torch.arange(3.0)
VALUES = ("a", [1], None, X, 2, 2.5, b"b", True, (1, "b"), len, int)


def entries(fn: Callable, calls: list[tuple], **kwargs: Any) -> int:
    """How many entries served the calls, with eager's results."""
    jitshape.reset()
    compiled = jitshape.compile(fn, **kwargs)
    for args in calls:
        assert_same(fn(*args), compiled(*args), str(args))
    stats = jitshape.stats()
    assert stats["fallbacks"] == stats["graph_breaks"] == 0
    return stats["compiles"] + stats["graph_hits"]


def unused(x: torch.Tensor, value: Any) -> torch.Tensor:
    return x + 1


def returned(x: torch.Tensor, value: Any) -> tuple:
    return x + 1, value


def nested(x: torch.Tensor, value: Any) -> Any:
    return {"x": (x + 1, value), "value": value}


def renamed(x: torch.Tensor, value: Any) -> tuple:
    other = value
    return other, x * 2


def passed(x: torch.Tensor, value: Any) -> torch.Tensor:
    def inner(a: torch.Tensor, *more: Any, b: Any = None, **rest: Any) -> torch.Tensor:
        return a * 2

    return inner(x, value, value, b=value, c=value)


def packed(x: torch.Tensor, *values: Any, **named: Any) -> torch.Tensor:
    def inner(x: torch.Tensor, value: Any) -> torch.Tensor:
        return x - 1

    return inner(x, **named)


@pytest.mark.parametrize("fn", [unused, returned, nested, renamed, passed])
def test_one_entry_serves_whatever_is_not_looked_at(fn: Callable) -> None:
    assert entries(fn, [(X, value) for value in VALUES]) == 1


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_numbers_are_not_looked_at_in_any_mode(dynamic: bool | None) -> None:
    assert entries(unused, [(X, value) for value in range(6)], dynamic=dynamic) == 1


def test_keywords_of_a_call_are_handed_on() -> None:
    jitshape.reset()
    compiled = jitshape.compile(packed)
    for value in VALUES:
        assert_same(packed(X, value, value=value), compiled(X, value, value=value))
    stats = jitshape.stats()
    assert stats["compiles"] + stats["graph_hits"] == 1


class Layer(nn.Module):
    def forward(self, x: torch.Tensor, note: Any = None, verbose: Any = False) -> torch.Tensor:
        return x * 3


def test_arguments_of_modules_are_handed_on() -> None:
    jitshape.reset()
    compiled = jitshape.compile(Layer())
    for value in VALUES:
        assert_same(X * 3, compiled(X, value, verbose=value))
    stats = jitshape.stats()
    assert stats["compiles"] + stats["graph_hits"] == 1


def test_a_test_for_none_needs_the_class_alone() -> None:
    def f(x: torch.Tensor, note: Any) -> torch.Tensor:
        return x + 1 if note is None else x + 2

    assert entries(f, [(X, note) for note in (None, "a", "b", "c", 1, 2, None, 3)]) == 3


# Each of these gives another result for [1] than for other values.
OBSERVERS: dict[str, Callable] = {
    "compared": lambda x, v: (x + 1, [1] == v),
    "in_a_tuple": lambda x, v: (x + 1, (v, 2) == ([1], 2)),
    "in_a_dict": lambda x, v: (x + 1, {"v": v} == {"v": [1]}),
    "read_from_a_tuple": lambda x, v: (x + 1, (v, 2)[0] == [1]),
    "asked_for": lambda x, v: (x + 1, isinstance(v, list)),
    "in_locals": lambda x, v: (x + 1, locals()["v"] == [1]),
    "in_a_closure": lambda x, v: (x + 1, (lambda: v)() == [1]),
    "returned_inside": lambda x, v: (x + 1, (lambda w: w)(v) == [1]),
    "given_inside": lambda x, v: (x + 1, (lambda w: w == [1])(v)),
    "starred": lambda x, v: (x + 1, (lambda *w: w[0] == [1])(v)),
    "named": lambda x, v: (x + 1, (lambda **w: w["v"] == [1])(v=v)),
    "unpacked": lambda x, v: (x + 1, (lambda *w: [*w] == [[1]])(v)),
    "yielded": lambda x, v: (x + 1, [w == [1] for w in (v,)]),
    "chosen": lambda x, v: x + 1 if v else x - 1,
    "formatted": lambda x, v: (x + 1, f"{v}"),
}


@pytest.mark.parametrize("name", OBSERVERS)
def test_what_is_looked_at_is_guarded(name: str) -> None:
    calls: list[tuple] = [(X, value) for value in ("", [1], None)]
    assert entries(OBSERVERS[name], calls) >= 2
    assert entries(OBSERVERS[name], calls[::-1]) >= 2


def test_what_is_returned_is_the_object_itself() -> None:
    compiled = jitshape.compile(returned)
    for value in VALUES:
        assert compiled(X, value)[1] is value


def test_a_list_written_under_another_name_is_the_one_returned() -> None:
    def f(x: torch.Tensor, a: list, b: Any) -> tuple:
        a.append(x + 1)
        return b, len(a)

    def calls() -> list[tuple]:
        shared: list = []
        return [(X, [], "a"), (X, shared, shared), (X, [], None)]

    jitshape.reset()
    compiled = jitshape.compile(f)
    for mine, theirs in zip(calls(), calls()):
        assert_same(f(*mine), compiled(*theirs))
        assert_same(mine[1], theirs[1])


class Item:
    def __init__(self, name: Any) -> None:
        self.name = name


def moved(x: torch.Tensor, item: Item, into: dict, texts: list) -> Any:
    into["name"], other = item.name, texts[0]
    texts[0] = item.name
    return x + 1, other, isinstance(other, str), item.name is None, [text for text in texts]


def replaced_if_new(x: torch.Tensor, item: Item, kept: Item) -> torch.Tensor:
    if item.name is kept.name:
        return x
    kept.name = item.name
    return x * 2


def test_text_that_is_only_moved_is_not_read() -> None:
    """From attributes, lists and dicts into others and out again."""
    jitshape.reset()
    compiled = jitshape.compile(moved)
    for number in range(4):
        results = []
        for fn in (moved, compiled):
            item, into, texts = Item(f"a{number}"), {"name": 1}, [f"b{number}", "c"]
            results.append((fn(X, item, into, texts), into, texts))
        assert_same(*results)
    assert jitshape.stats()["compiles"] == 1
    into, texts = {"name": 1}, [b"b", "c"]
    assert_same(compiled(X, Item(7), into, texts)[1:], (b"b", False, False, [7, "c"]))
    with pytest.raises(AttributeError):
        compiled(X, object(), into, ["b", "c"])


def test_text_is_told_apart_by_identity_where_the_program_asks_for_it() -> None:
    jitshape.reset()
    compiled = jitshape.compile(replaced_if_new)
    for number in range(3):
        one, same = f"text {number}", "".join(["text ", str(number)])
        kept = Item(one)
        assert_same(compiled(X, Item(one), kept), X)
        assert_same(compiled(X, Item(same), kept), X * 2)
        assert kept.name is same
    assert jitshape.stats()["compiles"] + jitshape.stats()["graph_hits"] == 2


def test_text_that_is_read_is_guarded_by_its_value() -> None:
    def f(x: torch.Tensor, item: Item) -> torch.Tensor:
        name = item.name
        return x * 2 if name == "double" else x[:1] if name else x

    compiled = jitshape.compile(f)
    for name in ("double", "first", "", b"double", "doub" + "le", "first"):
        assert_same(compiled(X, Item(name)), f(X, Item(name)))
