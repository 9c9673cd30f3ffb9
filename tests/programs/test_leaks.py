"""What a compiled training step held is freed with it: after use, after an aborted backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import jitshape


def alive(references: list[weakref.ref]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


def trained(backward: Callable[[torch.Tensor], None]) -> list[weakref.ref]:
    """References to the model, its parameters, a result and what forward saved."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    loss = jitshape.compile(model)(torch.randn(3, 4)).exp().sum()
    backward(loss)
    return [weakref.ref(x) for x in (model, *model.parameters(), loss)]


class Aborted(Exception):
    pass


def aborted_by_a_hook(loss: torch.Tensor) -> None:
    def stop(gradient: torch.Tensor) -> None:
        raise Aborted

    loss.grad_fn.register_prehook(lambda gradients: stop(gradients[0]))
    with pytest.raises(Aborted):
        loss.backward()


PROGRAMS = [torch.Tensor.backward, lambda loss: None, aborted_by_a_hook]


@pytest.mark.parametrize("backward", PROGRAMS, ids=["done", "never", "aborted"])
def test_a_model_is_freed(backward: Callable) -> None:
    jitshape.reset()
    references = trained(backward)
    assert alive(references) == 0


def test_a_whole_step_holds_nothing_but_what_the_program_holds() -> None:
    jitshape.reset()
    x = torch.ones(3, requires_grad=True)
    compiled = jitshape.compile(lambda x: (x * 2).sin().sum().backward())
    compiled(x)
    gradient = weakref.ref(x.grad)
    x.grad = None
    assert alive([gradient]) == 0
