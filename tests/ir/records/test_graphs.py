"""Graphs read back from records print, run and compile as the ones that were written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from jitshape.backend.compile import compile_graph
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Graph
from jitshape.ir.passes import run_passes
from jitshape.ir.passes.order import OPTIMIZE
from jitshape.ir.passes.partition import partition
from jitshape.ir.passes.tangents import with_defined_tangents
from jitshape.ir.printer import print_graph
from jitshape.ir.records.graphs import read_graph, write_graph
from jitshape.ir.records.plain import Reader, Unreadable, Unrecordable, tree
from jitshape.ir.shape_env import ShapeEnv
from tests.ir.passes.programs import trace


def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w).softmax(-1).reshape(-1)


def halves(x: torch.Tensor, w: torch.Tensor) -> tuple:
    half = x.shape[0] // 2
    return x[:half].sum(0), torch.cat([x, x * w.shape[0] ** -0.5])


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 1.0
    y[1:].mul_(2.5)
    return y.t() + float("inf")


PROGRAMS = (mlp, halves, written)


def optimized(f: Callable, requires_grad: bool = False) -> tuple[Graph, list[torch.Tensor]]:
    inputs = [torch.rand(6, 4), torch.rand(4, 4)]
    graph = trace(f, [x.requires_grad_(requires_grad) for x in inputs])
    run_passes(graph, OPTIMIZE)
    return graph, [x.detach() for x in inputs]


@pytest.mark.parametrize("f", PROGRAMS)
def test_a_graph_survives(f: Callable) -> None:
    graph, inputs = optimized(f)
    data = write_graph(graph)
    read = read_graph(data)
    assert write_graph(read) == data
    assert print_graph(read) == print_graph(graph)
    for want, got in zip(evaluate(graph, inputs), evaluate(read, inputs), strict=True):
        assert torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got


@pytest.mark.parametrize("f", PROGRAMS)
def test_it_compiles_to_the_same_program(f: Callable) -> None:
    graph, _ = optimized(f)
    read = read_graph(write_graph(graph))
    mine, other = (compile_graph(g, backend="interpret") for g in (graph, read))
    assert mine.source == other.source
    assert [k.text for k in mine.kernels] == [k.text for k in other.kernels]


def test_a_backward_graph_compiles_for_fewer_tangents() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple:
        return (x @ w).relu(), x.exp()

    graph, _ = optimized(f, requires_grad=True)
    backward = partition(graph).backward
    read = read_graph(write_graph(backward))
    for defined in ((True, True), (False, True)):
        graphs = [with_defined_tangents(g, defined) for g in (backward, read)]
        assert print_graph(graphs[0]) == print_graph(graphs[1])
        sources = [compile_graph(g, backend="interpret").source for g in graphs]
        assert sources[0] == sources[1]


def test_plain_values_keep_type_and_bits() -> None:
    values = [
        *(None, True, 1, 1.0, -0.0, math.inf, 1 << 80, -(1 << 63), 2 + 0.5j, "s", b"b", ()),
        *((1, [2.0, {"a": (3,)}]), torch.float16, torch.strided, torch.channels_last),
        torch.device("cuda", 1),
    ]
    for value in values:
        read = Reader().read(tree(value))
        assert type(read) is type(value) and repr(read) == repr(value)
    assert math.isnan(Reader().read(tree(math.nan)))


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(Unrecordable, match=r"builtins\.object"):
        tree([object()])
    for damaged in (["torch", "load"], ["no such tag"], [[1]], []):
        with pytest.raises(Unreadable):
            Reader().read(damaged)
    graph, _ = optimized(mlp)
    data = write_graph(graph)
    for damaged in (data[:-7], b"", data[: len(data) // 2] + data[len(data) // 2 + 1 :]):
        with pytest.raises(Unreadable):
            read_graph(damaged)


def test_integers_beyond_64_bits_are_not_recorded():
    env = ShapeEnv()
    env.unbacked(0, 1 << 70)
    with pytest.raises(Unrecordable):
        write_graph(Graph(env))
