"""Marks and dynamic_shapes end to end: one compile where they hold, an error where they cannot."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import jitshape
from jitshape import Dim
from jitshape.errors import BadSpec, BrokenPromise
from tests.programs.compare import assert_same


def add(x, y):
    return x + y


def unrolled(x):
    total = 0
    for i in range(x.shape[0]):
        total = total + x[i]
    return total


def branch(x):
    return x * 2 if x.shape[0] <= 8 else x + 1


def pairs(x):
    return x.reshape(-1, 2).sum(1)


def marked(size, **bounds):
    x = torch.randn(size)
    jitshape.mark_dynamic(x, 0, **bounds)
    return x


def refusal(fn, *args, **options):
    """The text of the error that compiling `fn` for these arguments raises."""
    jitshape.reset()
    with pytest.raises(BrokenPromise) as caught:
        jitshape.compile(fn, **options)(*args)
    return str(caught.value)


def serves(fn, calls, compiles=1, **options):
    jitshape.reset()
    compiled = jitshape.compile(fn, **options)
    for args in calls:
        assert_same(fn(*args), compiled(*args))
    assert jitshape.stats()["compiles"] == compiles


def test_a_mark_holds_from_the_first_call():
    serves(torch.sin, [(marked(4),), (torch.randn(7),), (torch.randn(1),), (torch.randn(0),)])
    serves(branch, [(marked(4, max=8),), (torch.randn(7),)])
    serves(pairs, [(marked(4),), (torch.randn(6),)])


def test_the_other_tensor_and_the_line_are_named():
    text = refusal(add, marked(4), torch.randn(4))
    assert "mark_dynamic of x.size(0) cannot hold: x.size(0) must be 4" in text
    assert re.search(r"test_declared_sizes.py:\d+ in add   return x \+ y", text)
    assert "broadcasting needs x.size(0) == 4; y.size(0) is 4" in text
    assert "mark_dynamic(y, 0) too, or maybe_mark_dynamic(x, 0)" in text
    serves(add, [(marked(4), marked(4)), (torch.randn(5), torch.randn(5))])


def test_only_tensors_of_that_line_are_named():
    def f(x, y, z):
        w = z * 2
        return x + y, w

    text = refusal(f, marked(4), torch.randn(4), torch.randn(4))
    assert "y.size(0) is 4" in text and "z.size" not in text


def test_another_size_of_the_same_tensor_is_named_where_no_tensor_is() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    jitshape.mark_dynamic(x, 0)
    text = refusal(add, x, y)
    assert "y.size(0) is 4" in text and "x.size(1)" not in text
    text = refusal(lambda x: x + x.t(), x)
    assert "x.size(1) is 4" in text and "mark_dynamic(x, 1) too" in text


def test_a_parameter_that_forces_a_size_is_named():
    layer = nn.Linear(4, 2)
    text = refusal(layer.forward, marked(4))
    assert "self.weight.size(1) is 4" in text


def test_a_line_that_needs_the_number():
    text = refusal(unrolled, marked(3))
    assert "for i in range(x.shape[0]):" in text and "needs x.size(0) == 3" in text
    x = torch.randn(3)
    jitshape.maybe_mark_dynamic(x, 0)
    serves(unrolled, [(x,)])


@pytest.mark.parametrize(
    ("fn", "bounds", "size"), [(branch, {"max": 16}, 9), (pairs, {"min": 2}, 3)]
)
def test_a_part_of_the_range_is_not_served(fn, bounds, size):
    text = refusal(fn, marked(4, **bounds))
    assert f"x.size(0) = {size} is in its range but not served" in text


def test_an_equal_size_takes_its_limits_along():
    def f(x, y):
        return x + y if y.shape[0] <= 8 else x - y

    text = refusal(f, marked(4, max=16), marked(4))
    assert "x.size(0) = 9 is in its range but not served" in text


def test_unbacked_takes_no_decision():
    def unbacked(size):
        x = torch.randn(size)
        jitshape.mark_unbacked(x, 0)
        return x

    assert "a decision is taken on it: x.size(0) <= 8" in refusal(branch, unbacked(4))
    serves(torch.softmax, [(unbacked(4), 0), (torch.randn(9), 0)])


def test_a_mark_on_a_size_that_only_a_returned_number_needs():
    def f(x):
        return x.shape[0] > 3

    text = refusal(f, marked(4, max=9))
    assert "x.size(0) = 2 is in its range but not served" in text


def test_marks_hold_again_behind_a_graph_break():
    @jitshape.disable
    def outside():
        pass

    def f(x):
        y = x * 2
        outside()
        return [y + i for i in range(y.shape[0])]

    jitshape.reset()
    compiled = jitshape.compile(f)
    assert_same(f(torch.ones(3)), compiled(torch.ones(3)))

    def g(x):
        y = x * 2
        z = [y, x.shape[0]]
        outside()
        return z[0] * z[1]

    serves(g, [(marked(3),), (torch.randn(5),), (torch.randn(4),)], compiles=2)


def test_results_with_symbolic_sizes_are_symbolic_where_they_go():
    first = jitshape.compile(lambda x: (x * 2, {"again": [x + 1]}))
    second = jitshape.compile(lambda p: p[0] + p[1]["again"][0])
    jitshape.reset()
    for x in (marked(4), torch.ones(5), torch.ones(7)):
        assert_same(second(first(x)), x * 3 + 1)
    assert jitshape.stats()["compiles"] == 2


def test_a_mark_inside_of_a_function_is_one_break_and_holds_behind_it():
    def f(x):
        y = x * 2
        jitshape.mark_dynamic(y, 0)
        return y + 1

    jitshape.reset()
    compiled = jitshape.compile(f)
    for n in (3, 4, 5):
        assert_same(f(torch.ones(n)), compiled(torch.ones(n)))
    stats = jitshape.stats()
    assert stats["compiles"] == 3 and stats["graph_breaks"] == 2
    (reason,) = stats["details"]["break_reasons"]
    assert "mark_dynamic: it marks a real tensor; mark it outside" in reason


B = Dim("b", max=64)


def test_equal_dims_are_one_size():
    spec = {"x": {0: B}, "y": {0: B}}
    calls = [(torch.randn(n), torch.randn(n)) for n in (3, 4, 1, 0, 64)]
    serves(add, calls, dynamic_shapes=spec)
    compiled = jitshape.compile(add, dynamic_shapes=spec)
    compiled(torch.randn(4), torch.randn(4))
    with pytest.raises(BadSpec, match=r"y.size\(0\) is b, but it is 1"):
        compiled(torch.randn(4), torch.randn(1))
    with pytest.raises(BadSpec, match=r"excludes this call: x.size\(0\) is 65"):
        compiled(torch.randn(65), torch.randn(65))


def test_different_dims_stay_apart():
    spec = {"x": {0: B}, "y": {0: Dim("c")}}
    text = refusal(add, torch.randn(4), torch.randn(4), dynamic_shapes=spec)
    assert "Dims b and c are related" in text and "needs x.size(0) == y.size(0)" in text
    assert "give both the same Dim" in text


def doubled(x, y):
    return torch.cat([x, x]) + y


@pytest.mark.parametrize("spec", [({0: B}, {0: 2 * B}), {"y": {0: 2 * B}, "x": (B,)}])
def test_related_dims(spec):
    calls = [(torch.randn(n), torch.randn(2 * n)) for n in (3, 5, 8)]
    serves(doubled, calls, dynamic_shapes=spec)


def test_a_multiple_is_divisible():
    serves(pairs, [(torch.randn(n),) for n in (4, 6, 10)], dynamic_shapes={"x": {0: 2 * Dim("n")}})


def test_a_limit_of_the_program_breaks_the_range_of_a_dim():
    text = refusal(branch, torch.randn(4), dynamic_shapes={"x": {0: B}})
    assert "dynamic_shapes of x.size(0) cannot hold: x.size(0) = 9" in text
    serves(branch, [(torch.randn(4),), (torch.randn(5),)], dynamic_shapes={"x": {0: Dim("free")}})


def test_auto_static_and_numbers():
    def f(x, n):
        return x * n

    calls = [(torch.randn(k, 3), k) for k in (2, 5, 9)]
    serves(f, calls, dynamic_shapes={"x": ("auto", None), "n": "auto"})
    serves(f, calls, compiles=3, dynamic_shapes={"x": None, "n": "auto"})


def test_modules_and_keyword_arguments():
    class Scale(nn.Module):
        def forward(self, x, *, by):
            return x * by

    jitshape.reset()
    compiled = jitshape.compile(Scale(), dynamic_shapes={"x": {0: B}, "by": {0: B}})
    for n in (3, 4):
        assert compiled(torch.ones(n), by=torch.ones(n)).shape == (n,)
    assert jitshape.stats()["compiles"] == 1
    with pytest.raises(BadSpec, match="is b, but it is 1"):
        compiled(torch.ones(5), by=torch.ones(1))


def test_a_hint_decides_only_what_is_optional():
    x = torch.randn(4, 3)
    jitshape.mark_dynamic(x, 0, hint=4096)
    serves(lambda x: torch.softmax(x, 0), [(x,), (torch.randn(5000, 3),), (torch.randn(2, 3),)])


def test_the_range_of_an_int_is_guarded() -> None:
    n = jitshape.Dim("n", min=1, max=10)
    compiled = jitshape.compile(lambda x, n: x * n, dynamic_shapes={"n": n})
    x = torch.ones(2)
    for number in (3, 5, 10):
        assert compiled(x, number)[0] == number
    for number in (50, 0, -3):
        with pytest.raises(BadSpec, match=f"n is {number}"):
            compiled(x, number)
