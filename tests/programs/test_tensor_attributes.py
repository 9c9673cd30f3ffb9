"""Python attributes of tensors: what a program found, or did not find, is guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jitshape

X = torch.ones(3)


def catches(t: torch.Tensor) -> int:
    try:
        return t.mark  # type: ignore[attr-defined]
    except AttributeError:
        return 2


READS: dict[str, Callable[[Any], Any]] = {
    "getattr": lambda t: getattr(t, "mark", 2),
    "hasattr": lambda t: 3 if hasattr(t, "mark") else 2,
    "except": catches,
    "len": lambda t: len(t.__dict__),
    "vars": lambda t: 3 if "mark" in vars(t) else 2,
    "a method": lambda t: t.sum(),
    "other attributes": lambda t: t.mark if len(t.__dict__) > 1 else t.mean(),
}


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("name", READS)
def test_attributes_that_come_and_go(name: str, held: bool) -> None:
    read, tensor = READS[name], torch.ones(3)
    compiled = jitshape.compile(
        (lambda x, t: x * read(tensor)) if held else lambda x, t: x * read(t)
    )

    def same() -> None:
        assert torch.equal(compiled(X, tensor), X * read(tensor))

    same()
    for value in (5, 6):
        tensor.mark = value  # type: ignore[attr-defined]
        tensor.other = tensor.sum = lambda: torch.tensor(7.0)  # type: ignore[attr-defined, assignment]
        same()
        del tensor.mark, tensor.other, tensor.sum  # type: ignore[attr-defined]
        same()
    assert jitshape.stats()["fallbacks"] == 0


def test_parameters() -> None:
    model = torch.nn.Linear(3, 3)
    compiled = jitshape.compile(lambda x: model(x) * getattr(model.weight, "scale", 1))
    assert torch.equal(compiled(X), model(X))
    model.weight.scale = 4  # type: ignore[assignment]
    assert torch.equal(compiled(X), model(X) * 4)


def test_an_attribute_that_nobody_reads_makes_one_more_compile_at_most() -> None:
    jitshape.reset()
    compiled = jitshape.compile(lambda x: x.sum())
    for name in ("a", "b", "c"):
        x = torch.ones(3)
        compiled(x)
        for other in ("a", "b", "c"):
            setattr(x, name + other, 1)
            compiled(x)
    assert jitshape.stats()["details"].get("fallbacks") in (None, {})
    assert len(jitshape.history()) == 2
