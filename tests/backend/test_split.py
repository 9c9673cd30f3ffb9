"""Kernels split into stages: the stages in order give what the kernel gives."""

from __future__ import annotations

import pytest
import torch

from jitshape.backend.interpret import interpret
from jitshape.backend.split import CHUNK, Stages, split
from tests.backend import kernels
from tests.backend.cases import layernorm, softmax
from tests.backend.codegen.test_cpu import REDUCTIONS

WITHOUT_POSITIONS = [r for r in REDUCTIONS if not r[0].startswith("arg")]


def number(size, kernel, sizes):
    values = {atom.name: value for atom, value in zip(kernel.sizes, sizes)}
    return size if type(size) is int else size.algebra.evaluate(size, values)


def run_split(kernel, buffers, sizes, scalars, parts):
    stages = split(kernel)
    assert isinstance(stages, Stages)
    points = number(stages.points, kernel, sizes)
    made = [torch.empty(parts * points, dtype=dtype) for dtype in stages.partials]
    lengths = [-(-number(e, kernel, sizes) // (CHUNK * parts)) for e in stages.extents]
    tensors = [*buffers, *made]
    for stage, places in zip(stages.kernels, stages.tensors):
        known = len(stage.sizes) - len(kernel.sizes) - 1
        given = [tensors[place] for place in places]
        interpret(stage, given, [*sizes, parts, *lengths[:known]], scalars)
    return stages


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("build, dim", [(kernels.row_reduction, 1), (kernels.column_reduction, 0)])
@pytest.mark.parametrize("combine, dtype, result, function", WITHOUT_POSITIONS)
def test_reductions(build, dim, combine, dtype, result, function, parts):
    torch.manual_seed(0)
    for long in (1, 1023, 1025, 5000):
        m, n = (2, long) if dim == 1 else (long, 3)
        x = torch.randint(1, 250, (m, n)).to(dtype)
        x = x / 125 if combine == "prod" else x
        out = torch.empty((m, n)[1 - dim], dtype=result)
        stages = run_split(build(combine, dtype, result), [x, out], [m, n], [], parts)
        assert len(stages.kernels) == 2
        torch.testing.assert_close(out, function(x, dim))


@pytest.mark.parametrize("case, count", [(softmax, 3), (layernorm, 4)])
def test_loops_that_need_each_other_and_loops_that_store(case, count):
    for m, n in ((2, 3000), (1, 1), (3, 1024)):
        torch.manual_seed(0)
        kernel, buffers, sizes, scalars, expected = case(m, n)
        for buffer in expected:
            buffers[buffer].fill_(float("nan"))
        stages = run_split(kernel, buffers, sizes, scalars, 3)
        assert len(stages.kernels) == count
        for position, value in expected.items():
            torch.testing.assert_close(buffers[position], value, rtol=1e-4, atol=1e-5)


def test_an_empty_row_gives_the_neutral_element():
    x, out = torch.empty(2, 0), torch.empty(2)
    kernel = kernels.row_reduction("max", torch.float32, torch.float32)
    run_split(kernel, [x, out], [2, 0], [], 2)
    assert out.tolist() == [float("-inf")] * 2


@pytest.mark.parametrize(
    "build, reason",
    [
        (kernels.transpose_add, "nothing is reduced"),
        (kernels.prefix_sum, "nothing is reduced"),
        (lambda: kernels.running("sum", torch.float32, torch.float32), "along a row"),
        (lambda: kernels.row_reduction("argmax", torch.float32, torch.int64), "positions"),
    ],
)
def test_reasons(build, reason):
    assert reason in split(build())
