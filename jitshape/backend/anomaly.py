"""Anomaly mode of autograd: which line of forward has a gradient that is not a number.

In: a backward graph and what a call gives it.  Out: nothing, or the error.  Compiled kernels
hold many ops each, so the graph is run op by op, with ATen, to find the first one.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any

import torch

from jitshape.errors import GradientIsNan
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Graph, Node, Value


def check_gradients(backward: Graph, tangents: int, inputs: Sequence[Any]) -> None:
    """Raise if a value computed from the tangents, which are the last inputs, holds a nan."""
    late: set[Value] = set(backward.inputs[len(backward.inputs) - tangents :])

    def observe(node: Node, results: Sequence[Any]) -> None:
        if not any(value in late for value in node.inputs()):
            return
        late.update(node.outs)
        for result in results:
            if isinstance(result, torch.Tensor) and _has_nan(result):
                raise _error(node)

    with torch.no_grad():
        evaluate(backward, inputs, observe=observe)


def _has_nan(tensor: torch.Tensor) -> bool:
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return inexact and bool(tensor.isnan().any())


def _error(node: Node) -> GradientIsNan:
    where = node.location
    line = linecache.getline(where.file, where.line).strip() if where is not None else ""
    return GradientIsNan(
        f"the backward of this line returned nan values, in {node.title}",
        where=f"{where}   {line}" if where is not None else "",
        because="anomaly detection is on and looks at every gradient",
    )
