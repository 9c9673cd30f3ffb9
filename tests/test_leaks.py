"""What calls and compiled functions hold: nothing beyond what eager holds, counted exactly."""

from __future__ import annotations

import gc
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import jitshape
from jitshape.frontend.breaks import Continuations


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """References alone must free everything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def made_by_function(grad: bool, called: bool = True) -> list[weakref.ref]:
    model, scale = nn.Linear(3, 3), torch.ones(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return model(x) * scale

    compiled = jitshape.compile(f)
    for n in (2, 4) if called else ():
        result = compiled(torch.ones(n, 3, requires_grad=grad))
        if grad:
            result.sum().backward()
    return [weakref.ref(each) for each in (model, scale, f, compiled)]


def made_by_break() -> list[weakref.ref]:
    model = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = model(x)
        print(end="")
        return y * 2

    compiled = jitshape.compile(f)
    compiled(torch.ones(2, 3))
    return [weakref.ref(model), weakref.ref(f), weakref.ref(compiled)]


def raises(kind: type[BaseException], call: Callable[[], object]) -> bool:
    """As pytest.raises, which keeps the frames of the error until a collection."""
    try:
        call()
    except kind:
        return True
    return False


def made_by_error() -> list[weakref.ref]:
    table: dict = {}
    held = nn.Linear(1, 1)

    def f(x: torch.Tensor) -> torch.Tensor:
        return held(x) * table["no such key"]

    compiled = jitshape.compile(f)
    for _ in range(2):
        assert raises(KeyError, lambda: compiled(torch.ones(2, 1)))
    return [weakref.ref(held), weakref.ref(f), weakref.ref(compiled)]


def made_by_module() -> list[weakref.ref]:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = jitshape.compile(model)
    compiled(torch.ones(2, 3))
    return [weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(compiled)]


DROPPED: dict[str, Callable[[], list[weakref.ref]]] = {
    "never called": lambda: made_by_function(grad=False, called=False),
    "called": lambda: made_by_function(grad=False),
    "called with gradients": lambda: made_by_function(grad=True),
    "with a graph break": made_by_break,
    "that raises": made_by_error,
    "a module": made_by_module,
}


@pytest.mark.parametrize("kind", DROPPED)
def test_a_dropped_function_frees_what_it_held(kind: str) -> None:
    assert [ref() is None for ref in DROPPED[kind]()].count(False) == 0


class Factor:
    value = 2.0

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value


def an_error(factor: Factor) -> Exception:
    error = ValueError(2.0)
    error.factor = factor  # type: ignore[attr-defined]
    return error


def a_module(factor: Factor) -> nn.Module:
    module = nn.Linear(3, 3)
    module.factor = factor
    return module


GIVEN: dict[str, tuple[Callable[[Factor], Any], Callable[[torch.Tensor, Any], torch.Tensor]]] = {
    "an object": (lambda factor: factor, lambda x, given: x * given.value),
    "a method": (lambda factor: factor.times, lambda x, given: given(x)),
    "a partial": (lambda factor: partial(Factor.times, factor), lambda x, given: given(x)),
    "a function": (lambda factor: lambda x: x + factor.value, lambda x, given: given(x)),
    "a module": (a_module, lambda x, given: given(x)),
    "an exception": (an_error, lambda x, given: x * given.args[0]),
    "a list": (lambda factor: [factor], lambda x, given: x * given[0].value),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_arguments_are_freed_while_their_entries_live(kind: str) -> None:
    """Also those of a second compile, which asks for entries that others made."""
    make, use = GIVEN[kind]
    compiled = jitshape.compile(use)
    for _ in range(2):
        factor = Factor()
        freed = weakref.ref(factor)
        given = make(factor)
        torch.testing.assert_close(compiled(torch.ones(3), given), use(torch.ones(3), given))
        del factor, given
        assert freed() is None


def test_machine_code_is_freed_with_the_program() -> None:
    """Which the cache of graphs keeps for a while: without it nothing is left."""
    from jitshape.backend.jit import Engine

    def count() -> int:
        return sum(type(each) is Engine for each in gc.get_objects())

    jitshape.reset()
    before = count()
    compiled = jitshape.compile(lambda x: x * 3 + 5)
    compiled(torch.ones(3))
    assert count() == before + 1
    del compiled
    jitshape.reset()
    assert count() == before


def blocks_after(call: Callable[[], object], times: int, collect: bool = False) -> int:
    """Memory blocks that `times` calls leave behind, after some to warm up; with `collect` those
    that are no cycles."""
    for _ in range(40):
        call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        call()
    if collect:
        gc.collect()
    return sys.getallocatedblocks() - before


def scaled(x: torch.Tensor, table: dict, *more: float) -> dict:
    return {"y": x * table["k"] + sum(more), "x": x}


def test_a_loop_with_a_break_is_freed() -> None:
    """Its piece breaks where it goes on itself."""

    def f(n: int) -> int:
        for _ in range(n):
            print(end="")
        return n

    before = count_continuations()
    compiled = jitshape.compile(f)
    assert compiled(3) == 3
    assert count_continuations() == before + 1
    del compiled
    assert count_continuations() == before


def count_continuations() -> int:
    gc.collect()
    return sum(type(each) is Continuations for each in gc.get_objects())


def test_calls_with_fresh_inputs_leave_nothing() -> None:
    compiled = jitshape.compile(scaled, dynamic=True)
    sizes = iter(range(10**6))

    def call() -> None:
        compiled(torch.ones(2 + next(sizes) % 7), {"k": 2.0, "other": object()}, 1.0, 2.0)

    assert blocks_after(call, 1000) < 20


def test_calls_with_gradients_leave_nothing() -> None:
    """But for cycles, which torch makes for eager, too."""
    compiled = jitshape.compile(lambda x, w: (x @ w).tanh())

    def call() -> None:
        x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4, requires_grad=True)
        compiled(x, w).sum().backward()

    # what torch keeps for reuse comes and goes
    assert min(blocks_after(call, 400, collect=True) for _ in range(3)) < 200


def test_calls_that_take_turns_leave_nothing() -> None:
    """Snapshots are made again and again where what they compare changes."""
    table = {"k": 1}
    compiled = jitshape.compile(lambda x: x + table["k"], dynamic=False)
    x, calls = torch.ones(2), iter(range(10**6))

    def call() -> None:
        table["k"] = next(calls) // 3 % 4
        compiled(x)

    assert blocks_after(call, 600) < 20
    assert len(compiled.entries) == 4


def test_calls_that_raise_leave_nothing() -> None:
    def f(x: torch.Tensor, index: int) -> torch.Tensor:
        return x[[1, 2][index] :] + 1

    compiled = jitshape.compile(f)

    def call() -> None:
        compiled(torch.ones(5), 0)
        assert raises(IndexError, lambda: compiled(torch.ones(5), 7))
        assert raises(TypeError, lambda: compiled(torch.ones(5)))

    assert blocks_after(call, 200) < 20


def test_functions_compiled_and_dropped_leave_little() -> None:
    def call() -> None:
        jitshape.compile(lambda x: x * 2 + 1)(torch.ones(3))

    for _ in range(5):
        call()
    gc.collect()
    kinds = ("Compiler", "Dispatcher", "Table", "Program", "Entry", "GuardProgram")

    def count() -> int:
        return sum(type(o).__name__ in kinds for o in gc.get_objects())

    before = count()
    for _ in range(5):
        call()
    assert count() == before


def test_the_lines_of_programs_are_freed_with_them() -> None:
    def count() -> int:
        return sum(file.startswith("<jitshape program") for file in linecache.cache)

    def call() -> None:
        jitshape.compile(lambda x: x.sin() * 2 + 7)(torch.ones(3))

    jitshape.reset()
    before = count()
    call()
    assert count() == before + 1
    jitshape.reset()
    assert count() == before
