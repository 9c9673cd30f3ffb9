"""Whole models with changing sizes: right, in one graph, with at most one recompile."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import jitshape
from tests.programs.compare import assert_same
from tests.programs.models import PROGRAMS, SIZES, Program

EXTERN = (
    "aten.mm.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.baddbmm.default",
    "aten.embedding.default",
    "aten.embedding_dense_backward.default",
    "jitshape.sdpa.default",
    "jitshape.sdpa_backward.default",
)


def run(fn, parameters, args, train):
    """The result and, in training, the gradients of all parameters."""
    for p in parameters:
        p.grad = None
    if not train:
        with torch.no_grad():
            return fn(*args)
    result = fn(*args)
    (result if result.ndim == 0 else result.square().mean()).backward()
    return result.detach(), [p.grad for p in parameters]


def compare(program: Program, sizes, **options):
    """Call with all sizes in order; the statistics of the whole run."""
    torch.manual_seed(0)
    target = program.make()
    parameters = list(target.parameters()) if isinstance(target, nn.Module) else []
    jitshape.reset()
    compiled = jitshape.compile(target, **options)
    for size in sizes:
        args = program.inputs(*size)
        expected = run(target, parameters, args, program.train)
        assert_same(expected, run(compiled, parameters, args, program.train), f"size {size}")
    stats = jitshape.stats()
    assert stats["fallbacks"] == 0 and stats["graph_breaks"] == 0, stats["details"]
    assert stats["graphs"] and stats["kernels"]
    return stats


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_at_every_size(name):
    program = PROGRAMS[name]
    stats = compare(program, SIZES)
    assert stats["compiles"] <= program.compiles
    assert set(stats["extern_ops"]) <= set(EXTERN)


@pytest.mark.parametrize("name", ["pointwise", "norm_gelu", "attention", "classifier", "gpt"])
@pytest.mark.parametrize("shuffle", range(3))
def test_order_of_sizes_does_not_matter(name, shuffle):
    sizes = SIZES[:]
    random.Random(shuffle).shuffle(sizes)
    assert compare(PROGRAMS[name], sizes)["compiles"] <= 2


@pytest.mark.parametrize("name", ["pointwise", "attention", "classifier", "gpt_train", "bert"])
def test_dynamic_from_the_start_compiles_once(name):
    assert compare(PROGRAMS[name], SIZES, dynamic=True)["compiles"] == 1


@pytest.mark.parametrize("name", ["pointwise", "norm_gelu"])
def test_static_compiles_once_per_size(name):
    sizes = [*SIZES, *SIZES]
    assert compare(PROGRAMS[name], sizes, dynamic=False)["compiles"] == len(SIZES)


@pytest.mark.parametrize("name", ["norm_gelu", "gpt"])
def test_eager_backend_runs_the_same_graph(name):
    torch.manual_seed(0)
    program = PROGRAMS[name]
    target = program.make()
    compiled = jitshape.compile(target, backend="eager")
    for size in SIZES:
        args = program.inputs(*size)
        with torch.no_grad():
            assert_same(target(*args), compiled(*args))


def test_callable_backend_gets_graph_and_example_inputs():
    seen = []

    def backend(graph, example_inputs):
        from jitshape.ir.evaluate import evaluate

        seen.append([tuple(t.shape) for t in example_inputs])
        return lambda *inputs: evaluate(graph, inputs)

    compiled = jitshape.compile(PROGRAMS["pointwise"].make(), backend=backend)
    x, y = torch.randn(3, 4), torch.randn(4)
    assert_same(PROGRAMS["pointwise"].make()(x, y), compiled(x, y))
    assert seen == [[(3, 4), (4,)]]


def test_memory_plan_lowers_the_peak():
    torch.manual_seed(0)
    program = PROGRAMS["bert"]
    jitshape.reset()
    compiled = jitshape.compile(program.make(), dynamic=True)
    with torch.no_grad():
        compiled(*program.inputs(4, 12))
    dispatcher = compiled._jitshape.call.__func__
    (made,) = dispatcher.miss.__self__.entries.programs()
    sizes = dict.fromkeys((f"s{n}" for n in range(8)), 12)
    assert 0 < made.peak_bytes(sizes, plan=True) < made.peak_bytes(sizes, plan=False)
