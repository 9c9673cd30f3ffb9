"""Small graphs by hand, and the check that a compiled program agrees with `ir.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from jitshape.backend.compile import Program, compile_graph
from jitshape.ir.evaluate import bind_sizes, evaluate
from jitshape.ir.graph import Graph
from jitshape.ir.rewrite import Rewriter, rewriting
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.types import TensorType, contiguous_strides

TARGETS = ("interpret", "cpu")


def new_env() -> ShapeEnv:
    import jitshape.ir.ops  # noqa: F401

    return ShapeEnv()


def tensor(*shape: Any, dtype: torch.dtype = torch.float32, strides: Any = None) -> TensorType:
    return TensorType(shape, strides or contiguous_strides(shape), dtype)


def build(env: ShapeEnv, types: Sequence[TensorType], body: Callable[..., Any]) -> Graph:
    """The graph of `body(g, *inputs)`, which emits nodes by `g.call` and returns the outputs."""
    graph = Graph(env)
    inputs = [graph.add_input(type_, f"x{i}") for i, type_ in enumerate(types)]
    with rewriting(graph) as g:
        outputs = body(g, *inputs)
    graph.outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    graph.functional = True
    return graph


def call(g: Rewriter, op: str, *args: Any, **kwargs: Any) -> Any:
    return g.call(f"aten.{op}", *args, **kwargs)


def check(
    graph: Graph,
    calls: Sequence[Sequence[torch.Tensor]],
    *,
    targets: Sequence[str] = TARGETS,
    memory_plan: bool = True,
    tolerance: float = 1e-5,
) -> Program:
    """Compile and compare with eager on each list of inputs: values, dtypes, strides."""
    programs = [compile_graph(graph, backend=target, memory_plan=memory_plan) for target in targets]
    for inputs in calls:
        expected = evaluate(graph, [x.clone() for x in inputs])
        for program in programs:
            actual = program(*inputs)
            assert len(actual) == len(expected)
            for want, got in zip(expected, actual):
                compare(got, want, tolerance)
            sizes = bind_sizes(graph, inputs)
            assert program.peak_bytes(sizes) <= program.peak_bytes(sizes, plan=False)
    return programs[-1]


def compare(got: Any, want: Any, tolerance: float) -> None:
    if not isinstance(want, torch.Tensor):
        assert got == want and type(got) is type(want)
        return
    assert got.dtype == want.dtype and got.shape == want.shape
    loose = max(tolerance, 2e-2) if want.dtype in (torch.float16, torch.bfloat16) else tolerance
    torch.testing.assert_close(got, want, rtol=loose, atol=loose, equal_nan=True)
    if want.numel():
        long = [d for d, size in enumerate(want.shape) if size > 1]
        assert [got.stride(d) for d in long] == [want.stride(d) for d in long]
