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

ROUNDS, ROUNDS_OF_DTYPES = 4, 10
DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)
# of operands that eager's callers never give it
NO_MIXTURES = {
    "aten._softmax_backward_data.default": "an argument says the dtype of another",
    "aten._log_softmax_backward_data.default": "an argument says the dtype of another",
    "jitshape.sdpa.default": "the op's callers have compared the dtypes",
}
LAYOUTS = ("plain", "permuted", "offset")
_COPIED = "eager copies the gaps of the memory too; the graph's form is dense"
_RECORDED_AS_WRITES = "a call with gaps is recorded as writes (ir/scatters.py)"
_OTHER_OPERAND = "eager's composite lays the result out as its other operand"
DIFFERENT = {
    "aten._conj.default": "run by the evaluator as a copy",
    "aten._neg_view.default": "run by the evaluator as a copy",
    "aten._native_batch_norm_legit_functional.default": _COPIED,
    "aten.copy.default": _COPIED,
    "aten.diagonal_scatter.default": _RECORDED_AS_WRITES,
    "aten.select_scatter.default": _RECORDED_AS_WRITES,
    "aten.slice_scatter.default": _RECORDED_AS_WRITES,
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


def check_call(name: str, args: Any, kwargs: Any, ways: tuple[bool, ...]) -> None:
    """One call, if eager takes it, with static sizes (False) or with symbolic ones."""
    try:
        real = runner(name)(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return  # eager refuses the layout or the dtypes, or this overload the sample
    for symbolic in ways:
        env = ShapeEnv()
        values = as_values(env, (args, kwargs), symbolic)
        found = OPS[name].type(env, *values[0], **values[1])
        rows = found if isinstance(found, (list, tuple)) else [found]
        reals = real if isinstance(real, (list, tuple)) else [real]
        for row, one in zip(rows, reals, strict=True):
            check_type(env, name, row, one)


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
        check_call(name, args, kwargs, (symbolic,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in NO_MIXTURES])
def test_types_of_operands_of_any_dtypes(name: str) -> None:
    """Each operand of its own dtype, or all of one; indices and masks mostly stay what they are."""
    choose = random.Random(name)
    for args, kwargs in OPS[name].samples() * ROUNDS_OF_DTYPES:
        if len(args) > len(schema_of(name) or args):
            continue
        common = choose.choice(DTYPES) if choose.random() < 0.5 else None
        if "backward" in name:  # of integers there is none, and eager's divides by zero
            common = choose.choice(DTYPES[:4])

        def moved(x: Any, common: torch.dtype | None = common) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if x.is_floating_point() or ("backward" not in name and choose.random() < 0.3):
                x = x.to(common or choose.choice(DTYPES))
            return x if name in DIFFERENT else laid_out(x, choose, LAYOUTS)

        args, kwargs = map_leaves(moved, (tuple(args), dict(kwargs)))
        check_call(name, args, kwargs, (False, True))


def test_what_differs_is_among_the_blocks() -> None:
    assert set(SAMPLED).issuperset(DIFFERENT)
