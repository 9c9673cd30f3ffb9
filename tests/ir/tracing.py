"""Tracing helpers for the tests: symbolic inputs, joint graphs, replay at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import jitshape.ir.divisions  # noqa: F401  registers split and unbind
from jitshape.ir.composites import REPLACED
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Graph
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.strides import dense
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.symint import Size, sym_max
from jitshape.ir.trace import Trace
from jitshape.ir.verify import verify


def symbolic_input(
    trace: Trace, tensor: torch.Tensor, name: str, dims: dict[int, Size] | None = None
) -> SymbolicTensor:
    """An input whose dimensions in `dims` have the given sizes; dense layouts follow them."""
    dims = dims or {}
    sizes = tuple(dims.get(d, s) for d, s in enumerate(tensor.shape))
    order = sorted(range(tensor.ndim), key=lambda d: (tensor.stride(d), tensor.shape[d]))
    strides: Sequence[Size] = tensor.stride()
    if tuple(strides) == dense(tuple(tensor.shape), order):
        strides = dense(sizes, order)
    elif dims:
        strides = gapped(tensor, sizes, order)
    return trace.input(tensor, name, sizes, strides)


def gapped(tensor: torch.Tensor, sizes: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """Strides of a layout with gaps or repeats: each a constant multiple of what lies inside."""
    strides: list[Size] = [0] * tensor.ndim
    inside, symbolic = 1, 1  # type: int, Size
    for dim in order:
        stride = tensor.stride(dim)
        if stride == 0:
            continue
        assert stride % inside == 0
        strides[dim] = symbolic * (stride // inside)
        inside, symbolic = stride * tensor.shape[dim], strides[dim] * sym_max(sizes[dim], 1)
    return tuple(strides)


class Module:
    """Runs a module's forward with symbolic parameters in place of the real ones."""

    def __init__(self, module: torch.nn.Module, trace: Trace) -> None:
        self.module = module
        named = [*module.named_parameters(), *module.named_buffers()]
        self.real = {name: tensor.detach() for name, tensor in named}
        self.symbolic = {
            name: symbolic_input(trace, t, name.replace(".", "_")) for name, t in named
        }

    def __call__(self, *args: Any) -> Any:
        return torch.func.functional_call(self.module, self.symbolic, args)


class Replacing(torch.overrides.TorchFunctionMode):
    """Calls what ir.composites has for a torch function, as the frontend does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


def trace_joint(
    make: Callable[[Trace], Callable], *specs: tuple[torch.Tensor, dict[int, str]], **sizes: int
) -> tuple[Trace, Any]:
    """Trace `make(trace)` on inputs whose dimensions are named after `sizes`; backward too if an
    output requires grad.  The graph's outputs are the function's, then the gradients."""
    env = ShapeEnv()
    trace = Trace(env)
    symbols = {name: env.size_symbol(hint, name=name) for name, hint in sizes.items()}
    function = make(trace)
    inputs = [
        symbolic_input(trace, t, f"x{i}", {d: symbols[name] for d, name in dims.items()})
        for i, (t, dims) in enumerate(specs)
    ]
    with trace, Replacing():
        result = function(*inputs)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    differentiable = [o for o in outputs if o.requires_grad]
    grads = trace.backward(differentiable) if differentiable else []
    trace.graph.outputs = [o.value for o in outputs]
    trace.graph.outputs += [None if g is None else g.value for g in grads]
    verify(trace.graph)
    return trace, function


def replay(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The outputs at other sizes; every node's shape, strides and dtype are compared."""
    with torch.no_grad():
        return evaluate(graph, list(inputs), check=True)
