"""Marks of tensors: what contradicts what, and how long they live."""

from __future__ import annotations

import gc

import pytest

import jitshape
from jitshape.errors import BadDimension, BadMark, JitshapeError
from jitshape.frontend.marks import _varying, marks_of, note_varying, varying_dims

torch = pytest.importorskip("torch")


def test_marks_of_one_tensor():
    x = torch.ones(4, 5, 6)
    jitshape.mark_dynamic(x, [0, -1], min=2, max=9, hint=3)
    jitshape.maybe_mark_dynamic(x, 1)
    assert [str(marks_of(x)[d]) for d in range(3)] == [
        "mark_dynamic, min=2, max=9",
        "maybe_mark_dynamic",
        "mark_dynamic, min=2, max=9",
    ]
    jitshape.mark_unbacked(x, 1)
    assert marks_of(x)[1].kind == "unbacked"
    y = torch.ones(4, 5)
    jitshape.mark_static(y)
    assert {m.kind for m in marks_of(y).values()} == {"static"} and marks_of(x.detach()) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min": 5}, r"excludes the tensor that it marks: size\(0\) is 4"),
        ({"max": 3}, r"the range given is \[0, 3\]"),
        ({"min": 9, "max": 2}, "min=9 is above max=2"),
        ({"min": -1}, "ints of 0 or more, not -1"),
        ({"max": 8.0}, r"not 8\.0"),
        ({"max": 8, "hint": 9}, "hint=9 is no size in the range given"),
    ],
)
def test_marks_that_no_call_can_keep(arguments, message):
    x = torch.ones(4)
    with pytest.raises(BadMark, match=message) as caught:
        jitshape.mark_dynamic(x, 0, **arguments)
    assert isinstance(caught.value, ValueError) and marks_of(x) == {}


@pytest.mark.parametrize("first", ["mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"])
def test_static_contradicts_every_other_mark(first):
    x, y = torch.ones(4), torch.ones(4)
    getattr(jitshape, first)(x, 0)
    jitshape.mark_static(y, 0)
    with pytest.raises(BadMark, match=f"this dimension was marked: {first}; and now: mark_static"):
        jitshape.mark_static(x)
    with pytest.raises(BadMark, match=f"marked: mark_static; and now: {first}"):
        getattr(jitshape, first)(y, 0)


def test_ranges_contradict_where_no_size_is_in_both():
    x = torch.ones(4)
    jitshape.mark_dynamic(x, 0, max=8)
    jitshape.mark_dynamic(x, 0, min=3, max=9)
    x.data = torch.ones(20)
    with pytest.raises(BadMark, match="contradicts an earlier mark"):
        jitshape.mark_dynamic(x, 0, min=10)


def test_dimension_that_is_not_there():
    with pytest.raises(
        BadDimension, match=r"mark_static of dimension 2(.|\n)*2 dimensions"
    ) as caught:
        jitshape.mark_static(torch.ones(2, 2), 2)
    assert isinstance(caught.value, IndexError) and isinstance(caught.value, JitshapeError)


def test_dimensions_that_are_no_numbers():
    with pytest.raises(BadMark, match=r"mark_dynamic of dimension 'rows'(.|\n)*is an int"):
        jitshape.mark_dynamic(torch.ones(2, 2), "rows")
    jitshape.mark_dynamic(torch.ones(2, 2), range(2))


def test_a_note_belongs_to_one_tensor_and_dies_with_it():
    x = torch.ones(3, 4)
    before = len(_varying)
    note_varying(x, [1])
    assert varying_dims(x) == {1} and varying_dims(x.detach()) == frozenset()
    del x
    gc.collect()
    assert len(_varying) == before
