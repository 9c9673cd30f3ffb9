"""Dims and dynamic_shapes: which specs fit which functions and calls."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch

import jitshape
from jitshape.dims import Dim, Promise, Relation, make_spec, promise_of
from jitshape.errors import BadSpec

B, C = Dim("b", min=2, max=64), Dim("c")


def f(x, y=None, *rest, scale=1.0, **more):
    pass


def resolved(spec, **arguments):
    """source -> text of the promise."""
    made = make_spec(spec, f)
    found = made.resolve({name: (name, value) for name, value in arguments.items()})
    return {source: str(promise) for source, promise in found.items()}


def test_arithmetic_of_dims():
    assert str(2 * (B + 1) - 3) == "2*b - 1" and str(B * 3) == "3*b" and str(C + 2) == "c + 2"
    assert (2 * B + 1).bounds() == (5, 129) and (C * 2).bounds() == (None, None)
    assert [(3 * B + 1).root_value(n) for n in (7, 8, 9, 10)] == [2, None, None, 3]
    assert 1 + B == B + 1 and promise_of(B) == Promise("dynamic", 2, 64, Relation(B))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dim("two words"), "must be an identifier"),
        (lambda: Dim(3), "must be an identifier"),
        (lambda: Dim("b", min=4, max=3), "min=4 is above max=3"),
        (lambda: Dim("b", max=True), "ints of 0 or more"),
        (lambda: B * 0, "multiplied by a positive int"),
        (lambda: B * C, "multiplied by a positive int"),
        (lambda: B + 0.5, "only an int is added"),
        (lambda: B - C, "only an int is added"),
    ],
)
def test_what_is_no_dim(make, message):
    with pytest.raises(BadSpec, match=message):
        make()


def test_forms_of_a_spec():
    x = torch.empty(4, 6)
    assert resolved({"x": {0: B, -1: None}}, x=x) == {"x.size(0)": "b", "x.size(1)": "static"}
    assert resolved({"x": (B, "auto")}, x=x) == {"x.size(0)": "b", "x.size(1)": "auto"}
    assert resolved({"x": [4, Dim.DYNAMIC]}, x=x) == {"x.size(0)": "4", "x.size(1)": "dynamic"}
    assert resolved({"x": None}, x=x) == {"x.size(0)": "static", "x.size(1)": "static"}
    assert resolved(({0: 2 * C}, Dim.AUTO), x=x, y=3) == {"x.size(0)": "2*c", "y": "auto"}
    assert resolved({"y": {0: B}}, x=x) == {}, "an argument left to its default"


def test_specs_of_containers():
    x = torch.empty(4, 6)
    assert resolved({"x": [{0: B}, None]}, x=[x, torch.empty(3)]) == {
        "x[0].size(0)": "b",
        "x[1].size(0)": "static",
    }
    assert resolved({"x": {"a": (B, 6)}}, x={"a": x, "rest": 3}) == {
        "x['a'].size(0)": "b",
        "x['a'].size(1)": "6",
    }
    assert resolved({"rest": ({1: C},), "more": {"z": "auto"}}, rest=(x,), more={"z": 2}) == {
        "rest[0].size(1)": "c",
        "more['z']": "auto",
    }
    assert resolved({"x": None}, x=object()) == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"z": None}, "unknown argument 'z'(.|\n)*x, y, rest, scale, more"),
        ([None] * 6, "6 items, and there are 5 arguments"),
        (5, "a dict by argument name, not int"),
        ({"x": "foo"}, "holds 'foo'"),
        ({"x": {0: 2.5}}, "holds 2.5"),
        ({"x": {0: Dim("b", max=3)}, "y": {0: B}}, "two different Dims of the name 'b'"),
    ],
)
def test_specs_that_fit_no_call(spec, message):
    with pytest.raises(BadSpec, match=message):
        jitshape.compile(f, dynamic_shapes=spec)


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ({"x": {2: B}}, {"x": torch.empty(4, 6)}, "a tensor with 2 dimensions, .* {2: Dim"),
        ({"x": [B]}, {"x": torch.empty(4, 6)}, "a tensor with 2 dimensions"),
        ({"x": B}, {"x": torch.empty(4)}, "a tensor with 1 dimensions"),
        ({"x": {0: B}}, {"x": torch.empty(65)}, r"excludes this call: x.size\(0\) is 65"),
        ({"x": {0: 3}}, {"x": torch.empty(4)}, r"x.size\(0\) is 3, but it is 4"),
        ({"x": {0: 2 * C}}, {"x": torch.empty(5)}, r"x.size\(0\) is 2\*c, but it is 5"),
        (
            {"x": {0: C}, "y": {0: C + 1}},
            {"x": torch.empty(5), "y": torch.empty(5)},
            r"y.size\(0\) is c \+ 1, but it is 5(.|\n)*x.size\(0\) is 5, so c is 5",
        ),
        ({"x": [None]}, {"x": [1, 2]}, "a list of 2"),
        ({"x": {"b": None}}, {"x": {"a": 1}}, "a dict of 1"),
        ({"x": {0: B}}, {"x": "text"}, "of type str"),
    ],
)
def test_specs_that_do_not_fit_the_call(spec, arguments, message):
    with pytest.raises(BadSpec, match=message):
        resolved(spec, **arguments)


@pytest.mark.parametrize(
    "fn", [functools.partial(f, 1), torch.sin, type("C", (), {"__call__": f})()]
)
def test_only_functions_methods_and_modules_have_specs(fn):
    with pytest.raises(BadSpec, match="arguments have no names of their own"):
        jitshape.compile(fn, dynamic_shapes={"x": {0: B}})


def test_dynamic_false_contradicts_a_spec():
    with pytest.raises(BadSpec, match="dynamic=False contradicts dynamic_shapes"):
        jitshape.compile(f, dynamic=False, dynamic_shapes={"x": {0: B}})


def test_dims_of_torch_export_are_understood():
    program = """
from jitshape.dims import promise_of
from torch.export import Dim
b = Dim("b", min=2, max=64)
shown = [promise_of(x) for x in (b, 2 * b + 1, Dim("c"), Dim.AUTO, Dim.DYNAMIC(max=5), Dim.STATIC)]
print(*shown, shown[1].relation.root, shown[4].max, sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True
    )
    assert done.stdout.strip() == ("b|2*b + 1|c|auto|dynamic|static|Dim(name='b', min=2, max=64)|5")
