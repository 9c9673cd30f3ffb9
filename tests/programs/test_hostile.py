"""Programs that lean on corners of Python and of memory."""

from __future__ import annotations

import abc
from collections import OrderedDict

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same


class Box:
    pass


def test_an_attribute_set_and_deleted_may_not_have_existed() -> None:
    box = Box()
    box.t = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        box.t = x + 1
        del box.t
        return x * 2

    compiled = jitshape.compile(f)
    for _ in range(3):
        assert_same(torch.ones(2) * 2, compiled(torch.ones(2)))
        assert not hasattr(box, "t")
    assert jitshape.stats()["graph_hits"] == 1


def test_a_key_set_and_deleted_may_not_have_existed() -> None:
    table = {"a": 1, "b": 2}

    def f(x: torch.Tensor) -> torch.Tensor:
        table["a"] = x
        del table["a"]
        return x * 2

    compiled = jitshape.compile(f)
    for _ in range(3):
        compiled(torch.ones(2))
        assert table == {"b": 2}


def test_an_ordered_dict_has_an_order_of_its_own() -> None:
    table = OrderedDict(a=1, b=2, c=3)
    compiled = jitshape.compile(lambda x: ([*table], x + len(table)))
    for moved in ("a", "b", "a"):
        table.move_to_end(moved)
        assert compiled(torch.ones(2))[0] == [*table]


def test_aliases_without_elements_share_their_memory() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    compiled = jitshape.compile(f)
    for n in (2, 5, 0, 3):
        a = torch.ones(n, 3)
        b = torch.ones(n, 3)
        assert_same([f(a, a[0:1]), a], [compiled(b, b[0:1]), b])


def test_a_tensor_in_a_text_is_the_real_one() -> None:
    compiled = jitshape.compile(lambda x: (f"{x.sum()}", f"{x.sum():.2f}", f"{x.shape[0]} {x}"))
    for n in (2, 3):
        x = torch.ones(n)
        assert compiled(x) == (f"{float(n)}", f"{n:.2f}", f"{n} {x}")


@pytest.mark.parametrize("name", ["relu", "__add__", "__neg__", "sum", "T"])
def test_methods_of_tensors_may_be_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {
        "relu": lambda x: x.relu(),
        "__add__": lambda x: x + 1,
        "__neg__": lambda x: -x,
        "sum": lambda x: x.sum(),
        "T": lambda x: x.T,
    }
    compiled = jitshape.compile(programs[name])
    x = torch.ones(2, 2)
    compiled(x)
    with monkeypatch.context() as patch:
        other = (lambda t, *a: t * 7) if name != "T" else property(lambda t: t * 7)
        patch.setattr(torch.Tensor, name, other, raising=False)
        assert_same(x * 7, compiled(x))
    assert_same(programs[name](x), compiled(x))


def test_attributes_of_tensors_may_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitshape.compile(lambda x: x * 2 if hasattr(x, "marked") else x)
    x = torch.ones(2)
    assert_same(x, compiled(x))
    monkeypatch.setattr(torch.Tensor, "marked", True, raising=False)
    assert_same(x * 2, compiled(x))


@pytest.mark.parametrize("function", [int, round])
@pytest.mark.parametrize("start, error", [("inf", OverflowError), ("nan", ValueError)])
def test_no_int_is_near_infinity(function, start, error) -> None:
    compiled = jitshape.compile(lambda x, n: (x + 1, function(float(start) * n)))
    for n in (2, 3, 4):
        with pytest.raises(error, match="cannot convert float"):
            compiled(torch.ones(2), n)


@pytest.mark.parametrize("ask", [isinstance, lambda value, cls: issubclass(type(value), cls)])
def test_a_class_may_become_a_virtual_subclass(ask) -> None:
    Shape = abc.ABCMeta("Shape", (), {})

    class Square:
        pass

    square = Square()
    compiled = jitshape.compile(lambda x: x + 1 if ask(square, Shape) else x + 2)
    x = torch.ones(2)
    assert_same(x + 2, compiled(x))
    Shape.register(Square)
    assert_same(x + 1, compiled(x))
