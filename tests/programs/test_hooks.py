"""Hooks on tensors, nodes and modules: in the graph, guarded, or left to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import check

FACTOR = 2.0
noted: list[Any] = []
handles: list[Any] = []


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def hooked(first: Callable, second: Callable | None = None) -> Callable:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(first)
        if second is not None:
            y.register_hook(second)
        return y.sin() * y

    return f


def removed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    handle = y.register_hook(lambda g: g * 5)
    z = y * 3
    handle.remove()
    return z


def on_node(x: torch.Tensor) -> tuple[torch.Tensor, str]:
    y = x * 2
    y.grad_fn.register_hook(lambda given, found: (given[0] * 3, *given[1:]))
    y.grad_fn.register_prehook(lambda found: (found[0] + 1,))
    return y.exp(), y.grad_fn.name()


IN_GRAPH = {
    "one": hooked(lambda g: g * 5),
    "two, in their order": hooked(lambda g: g * 5, lambda g: g + 1),
    "none returned": hooked(lambda g: None),
    "removed": removed,
    "on a node": on_node,
    "asks whether there is a node": lambda x: x * 2 if (x + 1).grad_fn is not None else x,
}


@pytest.mark.parametrize("name", IN_GRAPH)
def test_is_in_the_graph(name: str) -> None:
    check(IN_GRAPH[name], (leaf(4),), (leaf(6),), compiles=2)


def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    y.register_hook(lambda g: g * 5)
    return y, y * 3


def kept(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    handles.append(y.register_hook(lambda g: g * 5))
    return y * 3


def of_argument(x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda g: g * 5)
    return x * 3


LEFT = {
    "writes outside": hooked(lambda g: noted.append(g.shape)),
    "writes the gradient": hooked(lambda g: g.mul_(2)),
    "branches": hooked(lambda g: g * 2 if g.sum() > 0 else g),
    "on a result": returned,
    "its handle is kept": kept,
    "on an argument": of_argument,
}


@pytest.mark.parametrize("name", LEFT)
def test_is_left_to_eager(name: str) -> None:
    check(LEFT[name], (leaf(4),), breaks=1)


def test_a_hook_that_autograd_refuses_raises_its_error() -> None:
    compiled = jitshape.compile(hooked(lambda g: g[:1]))
    with pytest.raises(RuntimeError, match="has changed the size of value"):
        compiled(leaf(4)).sum().backward()


def linear(**hooks: Callable) -> torch.nn.Module:
    """Two layers; each of `hooks` is registered on the first by the method of that name."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    for kind, hook in hooks.items():
        getattr(model[0], f"register_{kind}")(hook)
    return model


MODULES = {
    "forward_pre_hook": lambda module, given: (given[0] * FACTOR,),
    "forward_hook": lambda module, given, result: result * FACTOR,
    "full_backward_hook": lambda module, given, found: (given[0] * FACTOR,),
    "full_backward_pre_hook": lambda module, found: (found[0] * FACTOR,),
}


@pytest.mark.parametrize("kind", MODULES)
def test_hooks_of_modules_and_what_they_read(kind: str) -> None:
    model = linear(**{kind: MODULES[kind]})
    jitshape.reset()
    compiled = jitshape.compile(model)
    try:
        for factor in (2.0, 7.0):
            globals()["FACTOR"] = factor
            results = []
            for call in (model, compiled):
                x = torch.ones(3, 4, requires_grad=True)
                model.zero_grad()
                result = call(x)
                result.sum().backward()
                results.append([result, x.grad, *(p.grad for p in model.parameters())])
            torch.testing.assert_close(*results)
    finally:
        globals()["FACTOR"] = 2.0
    runs_later = kind.startswith("full_backward")  # eager reads it then
    assert (jitshape.stats()["graph_breaks"] > 0) == runs_later
    assert runs_later or jitshape.stats()["compiles"] == 2


class Layer(torch.nn.Module):
    """Its hook reads an attribute of it."""

    factor = 3.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * self.factor)
        return y.sin()


def test_a_hook_reads_attributes_when_backward_runs() -> None:
    model = Layer()
    compiled = jitshape.compile(model)
    for factor in (3.0, 5.0):
        found = []
        for call in (model, compiled):
            x = torch.ones(3, requires_grad=True)
            result = call(x).sum()
            model.factor = factor
            result.backward()
            model.factor = 3.0
            found.append(x.grad)
        torch.testing.assert_close(*found)


def test_a_hook_on_what_the_call_made_is_in_the_graph() -> None:
    def f(x: torch.Tensor, factor: float) -> torch.Tensor:
        y, factors = x * 2, [factor, 2.0]
        y.register_hook(lambda g: torch.clamp(g * factors[0], max=factors[1]))
        return y.sin()

    check(f, (leaf(4), 3.0), (leaf(6), 3.0), compiles=2)


def test_a_backward_hook_that_notes_gradients_runs_in_eager_s_place() -> None:
    def note(module: Any, given: Any, found: Any) -> None:
        noted.append(found[0].sum().item())

    model = linear(full_backward_hook=note)
    compiled = jitshape.compile(model)
    seen = []
    for call in (model, compiled):
        noted.clear()
        result = call(torch.ones(3, 4, requires_grad=True)).sum()
        assert not noted
        result.backward()
        seen.append(noted[:])
    assert seen[0] == seen[1] and len(seen[0]) == 1
