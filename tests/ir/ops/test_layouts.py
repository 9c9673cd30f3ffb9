"""Every block's type rule against eager where operands are laid out at random in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from jitshape.ir.evaluate import runner
from jitshape.ir.graph import map_leaves
from jitshape.ir.ops.registry import OPS
from jitshape.ir.shape_env import ShapeEnv
from tests.ir.ops.test_blocks import SAMPLED, as_values, check_type, schema_of

ROUNDS = 4
LAYOUTS = ("plain", "permuted", "offset")
_COPIED = "eager copies the gaps of the memory too; the graph's form is dense"
_OTHER_OPERAND = "eager's composite lays the result out as its other operand"
DIFFERENT = {
    "aten._conj.default": "run by the evaluator as a copy",
    "aten._neg_view.default": "run by the evaluator as a copy",
    "aten._native_batch_norm_legit_functional.default": _COPIED,
    "aten.copy.default": _COPIED,
    "aten.diagonal_scatter.default": _COPIED,
    "aten.select_scatter.default": _COPIED,
    "aten.slice_scatter.default": _COPIED,
    "aten.binary_cross_entropy_backward.default": _OTHER_OPERAND,
    "aten.binary_cross_entropy_with_logits.default": _OTHER_OPERAND,
    "aten.as_strided_scatter.default": _COPIED,
}


def laid_out(x: torch.Tensor, choose: random.Random, kinds: tuple[str, ...]) -> torch.Tensor:
    """The same elements in another order of dimensions, with gaps, or behind an offset."""
    order = list(range(x.ndim))
    choose.shuffle(order)
    back = sorted(range(x.ndim), key=order.__getitem__)
    kind = choose.choice(kinds)
    if kind == "permuted":
        return x.permute(order).contiguous().permute(back)
    if kind == "gaps" and x.ndim:
        room = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
        return room[..., ::2].copy_(x)
    if kind == "images" and x.ndim == 4:
        room = x.new_zeros((x.shape[0], *x.shape[2:], 2 * x.shape[1]))
        return room[..., : x.shape[1]].permute(0, 3, 1, 2).copy_(x)
    if kind == "offset":
        room = x.new_zeros(x.numel() + 3)
        return room[3:].view(x.shape).copy_(x)
    return x


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in DIFFERENT])
def test_types_of_operands_laid_out_at_random(name: str, symbolic: bool) -> None:
    definition, choose = OPS[name], random.Random(name)
    kinds = (
        LAYOUTS if symbolic else (*LAYOUTS, "gaps", "images")
    )  # symbolic gaps are numbers in the tests
    for args, kwargs in definition.samples() * ROUNDS:
        if len(args) > len(schema_of(name) or args):
            continue

        def moved(x: Any) -> Any:
            return laid_out(x, choose, kinds) if isinstance(x, torch.Tensor) else x

        args, kwargs = map_leaves(moved, (tuple(args), dict(kwargs)))
        try:
            real = runner(name)(*args, **kwargs)
        except (RuntimeError, TypeError):
            continue  # eager refuses the layout, or this overload the sample
        env = ShapeEnv()
        values = as_values(env, (args, kwargs), symbolic)
        found = definition.type(env, *values[0], **values[1])
        rows = found if isinstance(found, (list, tuple)) else [found]
        reals = real if isinstance(real, (list, tuple)) else [real]
        for row, one in zip(rows, reals, strict=True):
            check_type(env, name, row, one)


def test_what_differs_is_among_the_blocks() -> None:
    assert set(SAMPLED).issuperset(DIFFERENT)
