"""Which part of a kernel is a grid point, a vector, a step."""

import pytest
import torch

from jitshape.backend.codegen.cpu_plan import BLOCK, WAYS, make_plan
from jitshape.backend.jit import compile_kernels
from jitshape.backend.loops import Loop
from tests.backend import kernels

LANES = 8


def names(plan):
    return [str(axis.symbol) for axis in plan.grid]


def test_a_transposed_load_puts_chunks_of_one_vector_outside_its_unit_axis():
    plan = make_plan(kernels.transpose_add(), LANES)
    assert names(plan) == ["i1_chunk", "i0"]
    assert plan.chunk_size == LANES
    (loop,) = plan.body
    assert plan.unroll(loop) == 1


def test_chunks_of_a_flat_loop_are_long():
    plan = make_plan(kernels.pointwise(kernels.gelu, [torch.float32], torch.float32), LANES)
    assert names(plan) == ["i0_chunk"] and plan.chunk_size > LANES


def inner(plan):
    (loop,) = plan.body
    return next(s for s in loop.body if isinstance(s, Loop))


@pytest.mark.parametrize("combine, ways", [("sum", WAYS), ("max", WAYS), ("argmax", 1)])
def test_cheap_column_reductions_run_several_steps_at_once(combine, ways):
    result = torch.int64 if combine == "argmax" else torch.float32
    plan = make_plan(kernels.column_reduction(combine, torch.float32, result), LANES)
    assert plan.ways(inner(plan)) == ways


@pytest.mark.parametrize("dtype, block", [(torch.float32, BLOCK), (torch.int64, 0)])
def test_only_sums_of_floats_go_by_blocks(dtype, block):
    plan = make_plan(kernels.column_reduction("sum", dtype, dtype), LANES)
    assert plan.block(inner(plan), 1) == block


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (16, 16), (33, 7), (64, 129), (0, 5), (5, 0)])
def test_transposed_tiles(shape):
    (launch,) = compile_kernels([kernels.transpose_add()])
    x, y = torch.randn(shape[::-1]), torch.randn(shape)
    out = torch.empty(shape)
    launch(x, y, out, *shape)
    torch.testing.assert_close(out, x.t() + y)
