"""Every block's type rule against eager, operands of sizes, layouts and dtypes drawn by chance.

TYPE_EXAMPLES sets how many calls are drawn for each op.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jitshape.ir.evaluate import runner
from jitshape.ir.graph import map_leaves
from jitshape.ir.ops.registry import OPS
from jitshape.ir.shape_env import ShapeEnv
from tests.ir.ops.test_blocks import SAMPLED, as_values, check_type, schema_of

DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.bool),
    *(torch.int64, torch.int32, torch.int8, torch.uint8),
)
# of operands that eager's callers never give it
NO_MIXTURES = {
    "aten._softmax_backward_data.default": "an argument says the dtype of another",
    "aten._log_softmax_backward_data.default": "an argument says the dtype of another",
    "jitshape.sdpa.default": "the op's callers have compared the dtypes",
    "jitshape.attention.default": "the op's callers have compared the dtypes",
}
LAYOUTS = ("plain", "permuted", "offset", "gaps", "images")
# Whole programs with these have eager's strides: tests/programs/test_layouts.py.
_WRITTEN = "eager's functional op copies the gaps of the memory; in a graph it is a write"
DIFFERENT = {
    "aten._conj.default": "run by the evaluator as a copy",
    "aten._neg_view.default": "run by the evaluator as a copy",
    "aten._native_batch_norm_legit_functional.default": _WRITTEN,
    "aten.copy.default": _WRITTEN,
    "aten.diagonal_scatter.default": _WRITTEN,
    "aten.select_scatter.default": _WRITTEN,
    "aten.slice_scatter.default": _WRITTEN,
    "aten.as_strided_scatter.default": _WRITTEN,
}
# Eager divides by a size, or reads what is not there, where one is 0 or does not fit.
FIXED_SIZES = (
    *("backward", "batch_norm", "rnn", "pool", "upsample", "interpolate", "im2col", "sdpa"),
    "pixel_unshuffle",  # of nothing, eager gives its input's shape
)


drawn_calls = settings(
    max_examples=int(os.environ.get("TYPE_EXAMPLES", "10")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def laid_out(x: torch.Tensor, kind: str, order: list[int]) -> torch.Tensor:
    """The same elements in another order of dimensions, with gaps, or behind an offset.  What of
    images has size 1 stays outside, as in images: eager reads its stride, too."""
    if x.ndim > 3:
        order = sorted(order, key=lambda dim: x.shape[dim] != 1)
    back = sorted(range(x.ndim), key=order.__getitem__)
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


def resized(x: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Its elements, repeated or left out, in dimensions of other sizes."""
    for dim, size in enumerate(x.shape):
        places = torch.arange(sizes.get(size, size)) % max(size, 1)
        x = x.index_select(dim, places) if size else x
    return x


def check_call(name: str, args: Any, kwargs: Any, symbolic: bool) -> None:
    """One call, if eager takes it, with static sizes or with symbolic ones."""
    try:
        real = runner(name)(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return  # eager refuses the sizes, layout or dtypes, or this overload the sample
    env = ShapeEnv()
    values = as_values(env, (args, kwargs), symbolic)
    found = OPS[name].type(env, *values[0], **values[1])
    rows = found if isinstance(found, (list, tuple)) else [found]
    reals = real if isinstance(real, (list, tuple)) else [real]
    for row, one in zip(rows, reals, strict=True):
        check_type(env, name, row, one)


def sample_of(data: st.DataObject, name: str) -> tuple[tuple, dict]:
    """One of the block's samples that this overload takes."""
    known = [
        (tuple(args), dict(kwargs))
        for args, kwargs in OPS[name].samples()
        if len(args) <= len(schema_of(name) or args)
    ]
    return data.draw(st.sampled_from(known), "sample") if known else ((), {})


def moved_by(data: st.DataObject, sizes: bool, kinds: tuple[str, ...]) -> Callable[[Any], Any]:
    """What a tensor becomes: in another layout, and of sizes in which equal ones stay equal."""
    chosen: dict[int, int] = {}

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if sizes:
            for size in x.shape:
                if size > 1 and size not in chosen:
                    chosen[size] = data.draw(st.sampled_from((size, 0, 1, 2, 3, 5, 8)), f"{size}")
            x = resized(x, chosen)
        kind = data.draw(st.sampled_from(kinds), "layout")
        return laid_out(x, kind, data.draw(st.permutations(range(x.ndim)), "order"))

    return move


@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in DIFFERENT])
@given(data=st.data())
@drawn_calls
def test_types_of_operands_laid_out_at_random(name: str, data: st.DataObject) -> None:
    symbolic = data.draw(st.booleans(), "symbolic")
    kinds = LAYOUTS[:3] if symbolic else LAYOUTS  # symbolic gaps are numbers in the tests
    sizes = not any(part in name for part in FIXED_SIZES)
    move = moved_by(data, sizes, kinds)
    args, kwargs = map_leaves(move, sample_of(data, name))
    check_call(name, args, kwargs, symbolic)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in NO_MIXTURES])
@given(data=st.data())
@drawn_calls
def test_types_of_operands_of_any_dtypes(name: str, data: st.DataObject) -> None:
    """Each operand of its own dtype, or all of one; indices and masks mostly stay what they are."""
    backward = "backward" in name  # of integers there is none, and eager's divides by zero
    dtypes = st.sampled_from(DTYPES[:4] if backward else DTYPES)
    common = data.draw(dtypes, "dtype") if backward or data.draw(st.booleans(), "common") else None
    move = moved_by(data, False, ("plain",) if name in DIFFERENT else LAYOUTS[:3])

    def recast(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if x.is_floating_point() or (not backward and data.draw(st.integers(0, 3), "cast") == 0):
            x = x.to(common or data.draw(dtypes, "its dtype"))
        return move(x)

    args, kwargs = map_leaves(recast, sample_of(data, name))
    check_call(name, args, kwargs, data.draw(st.booleans(), "symbolic"))


def test_what_differs_is_among_the_blocks() -> None:
    assert set(SAMPLED).issuperset(DIFFERENT)
