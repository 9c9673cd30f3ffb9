"""Tensors of every layout, kind and aliasing as arguments, and Python objects around them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitshape
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Graph
from tests.programs.compare import assert_same, check

Pair = namedtuple("Pair", "first second")


def mixed(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2 + x.sum(-1, keepdim=True)


LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "transposed": lambda n: torch.randn(n, 4).t(),
    "permuted": lambda n: torch.randn(2, n, 3).permute(2, 0, 1),
    "expanded": lambda n: torch.randn(1, 4).expand(n, 4),
    "expanded last": lambda n: torch.randn(n, 1).expand(n, 4),
    "offset": lambda n: torch.randn(n + 2, 4)[2:],
    "columns": lambda n: torch.randn(n, 6)[:, 1:5],
    "stepped": lambda n: torch.randn(2 * n, 4)[::2],
    "channels last": lambda n: torch.randn(2, 3, n, 4).to(memory_format=torch.channels_last),
    "empty": lambda n: torch.randn(n, 0, 4),
    "one": lambda n: torch.randn(1, n, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    check(mixed, *[(LAYOUTS[name](n),) for n in (3, 5, 8)], compiles=2)


def test_layouts_one_after_the_other() -> None:
    calls = [(make(4),) for make in LAYOUTS.values() if make(4).ndim == 2]
    check(mixed, *calls)


def test_zero_dimensional() -> None:
    check(
        lambda x, y: x * y + y,
        (torch.tensor(2.0), torch.randn(3)),
        (torch.tensor(3.0), torch.randn(4)),
    )


def test_the_same_tensor_twice() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    x = torch.ones(4)
    compiled = check(f, (torch.ones(4), torch.ones(4)))
    assert compiled(x, x).tolist() == [4.0] * 4
    assert compiled(torch.ones(4), torch.ones(4)).tolist() == [3.0] * 4


def test_overlapping_views_with_a_write() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    compiled = check(f, (torch.ones(4), torch.ones(4)))
    base = torch.ones(8)
    assert compiled(base[:4], base[2:6]).tolist() == [4.0, 4.0, 3.0, 3.0]
    assert base.tolist() == [2.0] * 4 + [1.0] * 4


def test_output_is_input() -> None:
    compiled = check(lambda x: (x, x + 1), (torch.randn(3),))
    x = torch.randn(3)
    assert compiled(x)[0] is x


def test_output_is_written_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    compiled = check(f, (torch.randn(3),), (torch.randn(4),), (torch.randn(5),), compiles=2)
    x = torch.zeros(3)
    assert compiled(x) is x and x.tolist() == [1.0] * 3


def test_output_is_a_view_of_an_input() -> None:
    def f(x: torch.Tensor) -> tuple:
        return x[1:].t(), x.view(-1), x[0]

    compiled = check(f, (torch.randn(3, 4),), (torch.randn(5, 4),))
    x = torch.randn(3, 4)
    a, b, c = compiled(x)
    x.zero_()
    assert not a.any() and not b.any() and not c.any()


def test_views_of_inputs_at_other_offsets() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[1:]

    base = torch.arange(12.0).view(6, 2)
    compiled = check(f, (base[:3],))
    for x in (base[2:5], base[3:6], base[:3]):
        y = compiled(x)
        assert_same(x[1:], y)
        assert y.data_ptr() == x[1:].data_ptr()
    assert jitshape.stats()["compiles"] == 1


def test_one_storage_then_two() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple:
        x.mul_(2)
        return x + y, y.view(-1)

    base = torch.ones(8)
    compiled = jitshape.compile(f)
    assert compiled(base[:4], base[2:6])[0].tolist() == [4.0, 4.0, 3.0, 3.0]
    assert compiled(torch.ones(4), torch.ones(4))[0].tolist() == [3.0] * 4
    assert compiled(base[:4], base[4:])[0].tolist() == [5.0] * 4


def test_one_tensor_or_two_is_guarded_where_the_program_asks() -> None:
    compiled = jitshape.compile(lambda x, y: x + 1 if x is y else x - 1)
    x, y = torch.zeros(2), torch.zeros(2)
    for pair in ((x, y), (x, x), (y, x), (y, y)):
        assert compiled(*pair).tolist() == [1.0 if pair[0] is pair[1] else -1.0] * 2


def test_outputs_alias_each_other() -> None:
    def f(x: torch.Tensor) -> tuple:
        y = x + 1
        return y, y[1:], y.view(-1)

    compiled = check(f, (torch.randn(3, 4),), (torch.randn(5, 4),))
    a, b, c = compiled(torch.randn(3, 4))
    a.zero_()
    assert not b.any() and not c.any()


def test_the_same_output_twice() -> None:
    def f(x: torch.Tensor) -> tuple:
        y = x * 2
        return y, y

    a, b = check(f, (torch.randn(3),))(torch.randn(3))
    assert a is b


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    scale: float = 1.0
    names: list = dataclasses.field(default_factory=list)


def test_dataclass_argument_and_result() -> None:
    def f(batch: Batch) -> Batch:
        return Batch(batch.tokens * batch.scale, batch.scale, [*batch.names, "seen"])

    compiled = jitshape.compile(f)
    for n in (3, 4, 5):
        batch = Batch(torch.randn(n), 2.0, ["a"])
        got = compiled(batch)
        assert type(got) is Batch and got.names == ["a", "seen"] and got.scale == 2.0
        assert_same(batch.tokens * 2.0, got.tokens)
    assert jitshape.stats()["fallbacks"] == 0


def test_containers_as_arguments_and_results() -> None:
    def f(x: Any) -> Any:
        return {
            "list": [x["a"] + 1, x["b"][0]],
            "tuple": (x["b"][1] * 2, None, 3, 2.5, "s", True),
            "nested": {"k": [x["a"].sum()]},
            "named": Pair(x["a"], 1),
            "ordered": OrderedDict(z=x["a"] * 3),
        }

    def call(n: int) -> tuple:
        return ({"a": torch.randn(n), "b": [torch.randn(2), torch.randn(n)], "unused": "text"},)

    check(f, call(3), call(4), call(5), compiles=2)


def test_keywords_defaults_and_variadic_arguments() -> None:
    def f(x: torch.Tensor, *rest: Any, scale: float = 2.0, bias: Any = None, **others: Any) -> Any:
        y = x * scale
        for r in rest:
            y = y + r
        if bias is not None:
            y = y + bias
        return y, sorted(others)

    compiled = jitshape.compile(f)
    x = torch.randn(4)
    calls: list[tuple[tuple, dict]] = [
        ((x,), {}),
        ((x, x), {}),
        ((x, 1, x), {"scale": 3.0}),
        ((x,), {"bias": x, "other": 1}),
        ((x,), {"other": x, "also": None}),
    ]
    for args, kwargs in calls * 2:
        assert_same(f(*args, **kwargs), compiled(*args, **kwargs))
    assert jitshape.stats()["fallbacks"] == 0


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ],
)
def test_dtypes(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple:
        return x + y, x * 2, x.float().sum(0), torch.where(x == y, 1.5, y)

    def make(n: int) -> tuple:
        return (torch.randint(0, 5, (n, 4)).to(dtype), torch.randn(n, 4))

    check(f, make(3), make(5), make(6), compiles=2)


def test_promotion_of_dtypes() -> None:
    kinds = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool]
    calls = [(torch.ones(3).to(a), torch.ones(3).to(b)) for a in kinds for b in kinds]
    check(lambda x, y: (x + y, x * 2.0, y / 2), *calls)


def test_ints_that_change() -> None:
    def f(x: torch.Tensor, n: int) -> tuple:
        return x * n + n // 2, n + 1

    check(f, *[(torch.randn(3), n) for n in (3, 4, 7, -2, 0, 1)], compiles=2)


def test_flags_and_strings_specialise() -> None:
    def f(x: torch.Tensor, flag: bool, mode: str) -> torch.Tensor:
        y = x + 1 if flag else x - 1
        return y.relu() if mode == "relu" else y

    calls = [(torch.randn(3), flag, mode) for flag in (True, False) for mode in ("relu", "id")]
    check(f, *calls, *calls)
    assert jitshape.stats()["compiles"] == 4


def test_int_is_not_bool_is_not_float() -> None:
    compiled = jitshape.compile(lambda x, k: x * k)
    x = torch.ones(2, dtype=torch.int64)
    for k in (1, True, 1.0, 2, 0, False, 2.5):
        assert_same(x * k, compiled(x, k))


def test_none_then_tensor() -> None:
    def f(x: torch.Tensor, mask: Any) -> torch.Tensor:
        return x if mask is None else x.masked_fill(mask, 0.0)

    x, mask = torch.randn(4), torch.tensor([True, False, True, False])
    check(f, (x, None), (x, mask), (x, None))
    assert jitshape.stats()["compiles"] == 2


def test_functions_and_classes_as_arguments() -> None:
    compiled = jitshape.compile(lambda fn, x: fn(x) + 1)
    x = torch.randn(3)
    for fn in (torch.sin, torch.cos, lambda y: y * 2, torch.nn.ReLU(), torch.sin):
        assert_same(fn(x) + 1, compiled(fn, x))


@pytest.mark.parametrize("backend", ["cpu", "eager"])
def test_floats_that_change(backend: str) -> None:
    def f(x: torch.Tensor, s: float) -> tuple:
        bounded = x.clamp(max=s), x.clamp(-s, s), torch.where(x > s, s, x)
        return (
            x * s + s * 2,
            s + 1,
            x.double() / s,
            (x * 3).long() * s,
            torch.full((2,), s),
            bounded,
        )

    values = (0.5, 1.5, -2.25, 0.0, 1.0, float("nan"))
    check(
        f, *[(torch.randn(3, requires_grad=True), s) for s in values], compiles=2, backend=backend
    )


def test_floats_that_decide_are_guarded_by_value() -> None:
    def f(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * s if s > 1 else x - s

    check(f, *[(torch.randn(3), s) for s in (0.5, 1.5, 0.25, 2.0, -0.0, 0.0, float("nan"))])


def test_reals_of_sizes() -> None:
    def f(x: torch.Tensor) -> tuple:
        n = x.shape[0]
        return x * n**-0.5, x.softmax(-1) * (1 / n), n / 3, x.mean() * (n - 1) / n

    check(f, *[(torch.rand(n, 2, requires_grad=True),) for n in (3, 4, 5, 7)], compiles=2)


def graph_inputs(f: Callable, *calls: tuple) -> list[tuple[int, list[str]]]:
    """How many tensors, and which numbers, each graph of `f` takes over these calls."""
    seen = []

    def backend(graph: Graph, example_inputs: list) -> Callable:
        seen.append((len(graph.inputs), [str(s) for s in graph.symbols]))
        assert len(example_inputs) == len(graph.inputs) + len(graph.symbols)
        return lambda *inputs: evaluate(graph, inputs)

    check(f, *calls, dynamic=True, backend=backend)
    return seen


def test_a_tensor_that_is_only_asked_for_its_size_is_no_graph_input() -> None:
    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return x * like.shape[0] + like.dim()

    calls = [(torch.randn(3), torch.randn(n, 2)) for n in (4, 5, 6)]
    assert graph_inputs(f, *calls) == [(1, ["s0"])]
    other = torch.randn(3, requires_grad=True), torch.randn(4)
    check(f, *calls, other, dynamic=True, compiles=2)


def test_offsets_and_strides_are_read_off_the_tensors() -> None:
    def f(x: torch.Tensor) -> tuple:
        return x[1:], x + 1, x.storage_offset() * 2, x.as_strided((2,), (x.stride(0),))

    calls = [(torch.randn(9, 2 * n)[n:, ::2],) for n in (2, 3, 4)]
    assert graph_inputs(f, *calls)[-1] == (1, [])


def test_a_size_known_only_from_a_tensor_left_out() -> None:
    def f(like: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if like.shape[0] == x.shape[1]:
            return x.sum(1) * like.shape[0] + like.shape[1]
        return x - 1

    def calls(more: int) -> list[tuple]:
        return [(torch.randn(n, 3), torch.randn(2, n + more)) for n in (4, 6, 9)]

    for backend in ("cpu", "eager"):
        check(f, *calls(0), *calls(1), dynamic=True, backend=backend, compiles=2)


def test_an_assertion_on_the_size_of_a_tensor_left_out() -> None:
    def f(x: torch.Tensor, index: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        n = index.item()
        torch._check(n < like.shape[0])
        return x * n

    calls = [(torch.randn(3), torch.tensor(n), torch.randn(n + 1)) for n in (2, 4, 7)]
    compiled = check(f, *calls, dynamic=True)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(3), torch.tensor(5), torch.randn(5))


def test_a_written_tensor_and_one_that_shares_its_memory() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple:
        x.mul_(2)
        return x + 1, y.shape

    base = torch.randn(6)
    check(f, (base[:4], base[2:]), (torch.randn(5), torch.randn(3)), compiles=2)
    eager, compiled = torch.randn(6), jitshape.compile(f)
    mine = eager.clone()
    f(eager[:4], eager[2:])
    compiled(mine[:4], mine[2:])
    assert_same(eager, mine)


def doubled_if_whole(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x._base is None else x * 3


def doubled_if_a_view(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x._is_view() else x * 3


def written_by_the_base(x: torch.Tensor) -> torch.Tensor:
    if x._base is not None:
        x._base.add_(1)
    return x * 2


@pytest.mark.parametrize("f", [doubled_if_whole, doubled_if_a_view, written_by_the_base])
@pytest.mark.parametrize("first", [True, False])
def test_whether_an_argument_is_a_view_is_guarded(f: Callable, first: bool) -> None:
    compiled = jitshape.compile(f)
    for view in (first, not first, first):
        mine, own = torch.arange(8.0), torch.arange(8.0)
        x, y = (mine[:4], own[:4]) if view else (mine, own)
        assert_same(f(x), compiled(y))
        assert_same(mine, own)
