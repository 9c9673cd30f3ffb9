"""Traces a function on symbolic sizes, for the tests of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

import jitshape.ir.divisions  # noqa: F401  registers split and unbind
from jitshape.ir.graph import Graph
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.trace import Trace


def trace(
    f: Callable, inputs: Sequence[torch.Tensor], shared: Sequence[Sequence[int]] = ()
) -> Graph:
    """The graph of `f` with every size above 1 of contiguous inputs a symbol; with gradients if
    an input requires grad.  `shared` groups the inputs that lie in one storage."""
    env = ShapeEnv()
    tracer = Trace(env)
    symbols: dict[int, object] = {}
    tensors = []
    for index, real in enumerate(inputs):
        sizes = [
            symbols.setdefault(n, env.size_symbol(n)) if n > 1 and not shared else n
            for n in real.shape
        ]
        strides = None
        if real.is_contiguous() and not shared:
            strides, step = [], 1
            for size in reversed(sizes):
                strides.insert(0, step)
                step = step * size
        tensors.append(tracer.input(real, f"x{index}", sizes, strides))
    for group in shared:
        for index in group:
            tracer.graph.inputs[index].storage = tracer.graph.inputs[group[0]].storage
    with tracer:
        results = f(*tensors)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
    graph = tracer.graph
    graph.outputs = [tracer.value(r) for r in results]
    graph.returned = len(results)
    for result in results:
        tracer.value(result).requires_grad = result.requires_grad
    owned = {value.storage for value in graph.inputs}
    differentiated = [
        r for r in results if r.requires_grad and tracer.value(r).storage not in owned
    ]
    differentiated += [t for t in tensors if t._version and t.requires_grad and not t.is_leaf]
    if differentiated:
        graph.differentiated = [tracer.value(r) for r in differentiated]
        leaves = [t for t in tensors if t.requires_grad]
        gradients = dict(zip(map(id, leaves), tracer.backward(differentiated, None, leaves)))
        found = [gradients.get(id(t)) for t in tensors]
        graph.outputs += [None if g is None else tracer.value(g) for g in found]
        graph.gradients = len(tensors)
    tracer.close()
    return graph
