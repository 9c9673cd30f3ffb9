"""Inference mode round the call and inside it, and tensors that were made in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jitshape


def made_in_inference_mode(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape)


def outcome(call: Callable, mode: Callable, size: int) -> list[Any]:
    """What `call(i, x)`, with an inference tensor and a leaf, gives and leaves, or its error."""
    given, x = made_in_inference_mode(size), torch.linspace(0, 1, size).requires_grad_()
    try:
        with mode():
            result = call(given, x)
        results = result if isinstance(result, tuple) else (result,)
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        tracked = [t for t in tensors if t.requires_grad]
        if tracked:
            sum(t.sum() for t in tracked).backward()
    except RuntimeError as error:
        return [type(error), str(error)]
    rows = [(t.is_inference(), t.requires_grad, t.tolist()) for t in tensors]
    others = [r for r in results if not isinstance(r, torch.Tensor)]
    return [rows, others, given.tolist(), None if x.grad is None else x.grad.tolist()]


def agree(f: Callable, mode: Callable = nullcontext, breaks: int = 0) -> None:
    jitshape.reset()
    compiled = jitshape.compile(f)
    for size in (4, 4, 6):
        assert outcome(f, mode, size) == outcome(compiled, mode, size)
    assert jitshape.stats()["graph_breaks"] == breaks, jitshape.stats()["details"]


IN_GRAPH: dict[str, Callable] = {
    "results": lambda i, x: (i * 2, i[1:], i.view(2, -1).t(), x + 1),
    "a sum with a leaf": lambda i, x: i + x,
    "a copy that backward needs": lambda i, x: i.clone() * x,
    "a function that backward needs": lambda i, x: (i * 2) * x,
    "a row of a copy": lambda i, x: i.clone()[1:] * x[1:],
    "joined": lambda i, x: torch.cat([i, x]) * 2,
    "what they are": lambda i, x: (
        i.is_inference(),
        i[1:].is_inference(),
        (i * 2).is_inference(),
        x.is_inference(),
        torch.is_inference_mode_enabled(),
    ),
}
REFUSED: dict[str, Callable] = {
    "saved": lambda i, x: i * x,
    "a view of it saved": lambda i, x: F.linear(x, i.view(1, -1)),
    "written": lambda i, x: i.add_(1),
    "written through a view": lambda i, x: i[1:].mul_(2),
    "an out argument": lambda i, x: torch.mul(x.detach(), 2, out=i),
    "made to require grad": lambda i, x: i.requires_grad_() * 2,
}


@pytest.mark.parametrize("name", IN_GRAPH)
@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_inference_tensors_are_in_the_graph(name: str, mode: Callable) -> None:
    agree(IN_GRAPH[name], mode)


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_of_them_is_refused(name: str) -> None:
    f = REFUSED[name]
    compiled = jitshape.compile(f)
    for _ in range(2):
        expected = outcome(f, nullcontext, 4)
        assert expected[0] is RuntimeError
        assert outcome(compiled, nullcontext, 4) == expected


@pytest.mark.parametrize("name", [n for n in REFUSED if n != "made to require grad"])
def test_inference_mode_allows_it(name: str) -> None:
    agree(REFUSED[name], torch.inference_mode)


@torch.inference_mode()
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x.square() * 2


def nested(i: torch.Tensor, x: torch.Tensor) -> tuple:
    with torch.inference_mode():
        y = x * 2
        inside = torch.is_inference_mode_enabled(), y.is_inference()
    return (y, x * 3, *inside, torch.is_inference_mode_enabled())


def switched_off(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):
        return x * 2


def used_outside(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x * 2
    return y.clone() * x


def refused_outside(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        y = x * 2
    return y * x


INSIDE = {
    "a region": nested,
    "a decorator": lambda i, x: (decorated(x) + 1, x * 3),
    "a region that switches it off": switched_off,
    "a result that is copied": used_outside,
    "a result that is saved": refused_outside,
}


@pytest.mark.parametrize("name", INSIDE)
def test_regions_are_pieces_of_their_own(name: str) -> None:
    f = INSIDE[name]
    jitshape.reset()
    compiled = jitshape.compile(f)
    for size in (4, 4, 6):
        assert outcome(f, nullcontext, size) == outcome(compiled, nullcontext, size)
    reasons = jitshape.stats()["details"]["break_reasons"]
    of_regions = [r for r in reasons if "inference mode are of another kind" in r]
    assert len(of_regions) == 2, reasons  # its start and its end
    assert jitshape.stats()["fallbacks"] == 0
