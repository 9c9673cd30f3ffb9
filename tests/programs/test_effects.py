"""Writes to Python objects: the compiled call leaves them as the plain one does."""

from __future__ import annotations

import torch

import jitshape
from tests.programs.compare import assert_same, check

STATE: dict = {}
COUNT = 0
ITEMS: list = []


def test_lists_dicts_and_sets_of_the_caller() -> None:
    def f(x: torch.Tensor, log: list, table: dict, names: set) -> torch.Tensor:
        log.append(x + 1)
        log.extend([1, x.shape[0]])
        log[0] = "first"
        table["y"] = x * 2
        table.setdefault("z", []).append(3)
        table.pop("gone", None)
        names.add("new")
        names.discard("old")
        return x

    calls = [(torch.randn(n), [0], {"gone": 1, "kept": 2}, {"old", "kept"}) for n in (3, 4, 5)]
    check(f, *calls, compiles=2)


def test_globals_and_nonlocals() -> None:
    total = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal total
        global COUNT
        total += 1
        COUNT += 2
        STATE["last"] = x * 2
        ITEMS.append(total)
        return x + total

    jitshape.reset()
    compiled, x = jitshape.compile(f), torch.ones(2)
    for call in range(1, 5):
        assert compiled(x).tolist() == [1.0 + call] * 2
        assert total == call and COUNT == 2 * call and ITEMS[-1] == call
        assert STATE["last"].tolist() == [2.0, 2.0]
    assert len(ITEMS) == 4


def test_attributes_of_objects() -> None:
    class Box:
        __slots__ = ("count", "value")

        def __init__(self) -> None:
            self.value, self.count = None, 0

    class Open:
        pass

    def f(box: Box, thing: Open, x: torch.Tensor) -> None:
        box.value = x * 2
        box.count += 1
        thing.name = "set"
        thing.box = box
        if hasattr(thing, "gone"):
            del thing.gone

    compiled, x = jitshape.compile(f), torch.ones(2)
    for call in range(1, 4):
        box, thing = Box(), Open()
        thing.gone = 1
        box.count = call
        assert compiled(box, thing, x) is None
        assert box.value.tolist() == [2.0, 2.0] and box.count == call + 1
        assert thing.name == "set" and thing.box is box and not hasattr(thing, "gone")


def test_class_attributes() -> None:
    class Model:
        items: list = []

        def run(self, x: torch.Tensor) -> torch.Tensor:
            Model.items.append(x)
            return x * len(Model.items)

    model = Model()
    compiled, x = jitshape.compile(model.run), torch.ones(1)
    assert compiled(x).item() == 1.0
    assert compiled(x).item() == 2.0
    assert len(Model.items) == 2 and Model.items[0] is x


def test_objects_made_inside_are_returned() -> None:
    class Node:
        def __init__(self, value: torch.Tensor, rest: object) -> None:
            self.value, self.rest = value, rest

    def f(x: torch.Tensor, n: int) -> object:
        node = None
        for i in range(n):
            node = Node(x + i, node)
        return node

    node = jitshape.compile(f)(torch.zeros(1), 3)
    assert [node.value.item(), node.rest.value.item(), node.rest.rest.value.item()] == [2, 1, 0]
    assert type(node) is Node and node.rest.rest.rest is None


def test_a_memo_is_used_by_the_next_call() -> None:
    memo: dict = {}

    def f(x: torch.Tensor, key: str) -> torch.Tensor:
        if key not in memo:
            memo[key] = x * 10
        return memo[key] + x

    compiled, x = jitshape.compile(f), torch.ones(1)
    assert compiled(x, "a").item() == 11.0
    first = memo["a"]
    assert compiled(x, "a").item() == 11.0 and memo["a"] is first
    assert compiled(x, "b").item() == 11.0 and list(memo) == ["a", "b"]


def test_generators_iterators_and_closures() -> None:
    def f(x: torch.Tensor) -> tuple:
        def halves():
            yield x / 2
            yield x / 4

        add = [lambda y, k=k: y + k for k in range(3)]
        pairs = dict(zip("ab", halves()))
        return pairs, [g(x) for g in add], sum(v for v in pairs.values()), max(1, x.shape[0])

    check(f, (torch.randn(3),), (torch.randn(4),), (torch.randn(5),), compiles=2)


def test_exceptions_are_the_users_own() -> None:
    def f(x: torch.Tensor, bad: bool) -> torch.Tensor:
        try:
            if bad:
                raise ValueError("inside")
            return x + 1
        except ValueError as error:
            if str(error) != "inside":
                raise
            return x - 1
        finally:
            x = x * 2

    check(f, (torch.ones(2), True), (torch.ones(2), False))

    def raises(x: torch.Tensor, log: list) -> None:
        log.append("before")
        raise KeyError(x.shape[0])

    compiled, log = jitshape.compile(raises), []
    try:
        compiled(torch.ones(3), log)
    except KeyError as error:
        assert error.args == (3,)
    assert log == ["before"]


def test_errors_of_torch_are_eagers() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    compiled = jitshape.compile(f)
    try:
        compiled(torch.ones(2, 3), torch.ones(2, 3))
    except RuntimeError as error:
        assert "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)" in str(error)
    else:
        raise AssertionError("no error")
    assert_same(torch.full((2, 2), 3.0), compiled(torch.ones(2, 3), torch.ones(3, 2)))
