"""What was compiled in other surroundings (autocast, default dtype, globals, ...) is not used, and
what was compiled in the same ones is, however many objects share it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch

import jitshape
from jitshape.cache import store as stores
from tests.programs.compare import assert_same

Context = Callable[[], contextlib.AbstractContextManager]


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path / "cache"))


def as_a_new_process() -> None:
    """Nothing is in memory, the store is on disk."""
    stores._opened = None
    jitshape.reset()


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


SURROUNDINGS: dict[str, Context] = {
    "none": contextlib.nullcontext,
    "bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "off": lambda: torch.autocast("cpu", enabled=False),
    "float64": lambda: default_dtype(torch.float64),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "deterministic": deterministic,
}


def sums(x: torch.Tensor) -> torch.Tensor:
    return x + 1 * x


def products(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x @ x + torch.ones(4)
    return y, torch.empty(2, dtype=y.dtype).fill_(torch.is_grad_enabled())


def factories(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.arange(2.0) + 1, torch.full((2,), 0.5), x.new_zeros(2), torch.tensor(1.5) + x


@pytest.mark.parametrize("function", [sums, products, factories])
def test_every_pair_of_surroundings(function: Callable) -> None:
    x = torch.arange(16.0).view(4, 4).requires_grad_()
    for name in (*SURROUNDINGS, *reversed(SURROUNDINGS)):
        as_a_new_process()
        with SURROUNDINGS[name]():
            expected, got = function(x), jitshape.compile(function)(x)
        assert_same(expected, got)


# ---- what a function reads besides its arguments

FACTOR, TABLE = 2.0, {"by": 2}


class Settings:
    by = 2.0


def with_names(x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    return (x * FACTOR + TABLE["by"]) * Settings.by - factor


def variants() -> Iterator[FunctionType]:
    """The same code beside other globals, contents, attributes, defaults."""
    settings = [("FACTOR", 3.0), ("FACTOR", -0.0), ("FACTOR", 2), ("FACTOR", torch.tensor(2.0))]
    settings += [
        ("TABLE", {"by": 3}),
        ("TABLE", {"by": 2.5}),
        ("Settings", type("S", (), {"by": 9})),
    ]
    for name, value in settings:
        names: dict[str, Any] = {**globals(), name: value}
        yield FunctionType(with_names.__code__, names, "with_names", with_names.__defaults__)
    yield FunctionType(with_names.__code__, globals(), "with_names", (7.0,))
    yield with_names


def test_other_values_of_names_are_not_taken_for_these() -> None:
    x = torch.rand(3, 4)
    for function in (with_names, *variants()):
        as_a_new_process()
        assert_same(function(x), jitshape.compile(function)(x))


def test_other_contents_of_closures_and_containers() -> None:
    def make(by: Any, items: list) -> Callable:
        def f(x: torch.Tensor) -> torch.Tensor:
            return sum((x * i for i in items), x) * by

        return f

    x = torch.rand(3)
    for by, items in ((2, [1]), (3, [1]), (2, [1, 2]), (2.0, [1]), (True, [2]), (2, [])):
        as_a_new_process()
        function = make(by, items)
        assert_same(function(x), jitshape.compile(function)(x))


def test_other_helpers_are_not_taken_for_these() -> None:
    texts = ("x.sin() + 20", "x.cos()", "x.sin() + 21", "x.sin().add(20)")
    for text in (*texts, texts[0]):
        as_a_new_process()
        names: dict[str, Any] = {}
        exec(f"def helper(x):\n    return {text}\ndef f(x, y):\n    return helper(x) + y", names)
        x = torch.ones(1)
        assert_same(names["f"](x, x), jitshape.compile(names["f"])(x, x))


# ---- objects that share


class Norm(torch.nn.Module):
    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.weight, self.name = torch.nn.Parameter(torch.rand(16)), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen[self.name] = x.mean()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


seen: dict[str, torch.Tensor] = {}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_layers_of_a_class_are_compiled_once_by_all_processes(shared: bool, named: bool) -> None:
    x = torch.rand(2, 16)
    for compiles in (1, 0):
        as_a_new_process()
        layers = [Norm(str(i) if named else "") for i in range(20)]
        one = jitshape.compile(Norm.forward)
        for layer in layers:
            expected = layer(x)
            seen.clear()
            got = one(layer, x) if shared else jitshape.compile(layer)(x)
            assert_same(expected, got)
            assert list(seen) == [layer.name] and torch.allclose(seen[layer.name], x.mean())
        stats = jitshape.stats()
        assert stats["compiles"] == compiles and stats["fallbacks"] == 0
        assert stats["cache"]["program"] == {"hit": 1 - compiles, "miss": compiles}


# ---- what the process says of itself

STATES: dict[str, tuple[Callable, Callable, tuple]] = {
    "threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        ("highest", "high"),
    ),
    "mkldnn": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, (True, False)),
    "anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, (False, True)),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit, (2100, 2200)),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("same_process", [True, False])
def test_state_that_a_function_asks_for(name: str, same_process: bool) -> None:
    read, write, values = STATES[name]

    def f(x: torch.Tensor) -> tuple:
        return x + 1, read()

    as_a_new_process()
    x, before, compiled = torch.rand(3), read(), jitshape.compile(f)
    try:
        for value in (*values, values[0]):
            write(value)
            if not same_process:
                as_a_new_process()
                compiled = jitshape.compile(f)
            assert_same(f(x), compiled(x))
    finally:
        write(before)
    stats = jitshape.stats()
    if not same_process:  # the first of the three is found again
        assert stats["cache"]["entry"] == {"hit": 1, "miss": 0}, stats["details"]
    else:
        assert stats["cache"]["entry"]["miss"] == 2 and stats["graph_breaks"] == 0


PLACES = ("helper.__code__.co_firstlineno", "len(helper.__code__.co_filename)", "line()")
PLACED = """
def helper():
    raise ValueError
def line():
    try:
        helper()
    except ValueError as error:
        return error.__traceback__.tb_lineno
def f(x):
    return x * {}
"""


@pytest.mark.parametrize("place", PLACES)
def test_where_code_stands_is_read_anew(place: str) -> None:
    for above, file in ((0, "a"), (3, "a"), (0, "longer")):
        as_a_new_process()
        names: dict[str, Any] = {}
        exec(compile("\n" * above + PLACED.format(place), file, "exec"), names)
        assert_same(names["f"](torch.ones(2)), jitshape.compile(names["f"])(torch.ones(2)))
    assert jitshape.stats()["details"]["not_kept"] == {"entry: where code stands was read": 1}


# ---- objects that were two and are one


def _made(kind: str) -> tuple[Any, str]:
    """An object of a class or function of its own, and what tells it from another."""

    def h(x: torch.Tensor) -> torch.Tensor:
        return x

    class Own:
        k = 1

    return {
        "function": (h, "a is b"),
        "class": (Own, "a is b"),
        "type": (Own(), "type(a) is type(b)"),
    }[kind]


@pytest.mark.parametrize("kind", ["function", "class", "type"])
def test_two_objects_alike_are_not_taken_for_one(kind: str) -> None:
    (a, test), (b, _) = _made(kind), _made(kind)
    for first, second in ((a, b), (a, a), (b, a)):
        as_a_new_process()
        names = {"a": first, "b": second}
        exec(f"def f(x):\n    return x * (2 if {test} else 3), a, b", names)
        assert_same(names["f"](torch.ones(2)), jitshape.compile(names["f"])(torch.ones(2)))
    assert jitshape.stats()["cache"]["entry"] == {"hit": 1, "miss": 0}
