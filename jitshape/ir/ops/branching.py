"""Branches and loops on what the graph computes: torch.cond and torch.while_loop.

A branch or a body is a Subgraph among the arguments.  `operands` are all tensors that some of
them uses, `geometry` says how each must lie in memory, `numbers` are the sizes and numbers that
they need.  Subgraphs run with autograd off and give new tensors, laid out by `strides`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.graph import Subgraph
from jitshape.ir.ops.registry import op
from jitshape.ir.subgraphs import Geometry, owned, placed
from jitshape.ir.types import TensorType


def _types(outputs: Sequence[Any], strides: Sequence[Any]) -> list[TensorType]:
    rows = zip((out.type for out in outputs), strides, strict=True)
    return [TensorType(t.shape, tuple(laid), t.dtype, t.device) for t, laid in rows]


def _operands(tensors: Sequence[Any], geometry: Sequence[Geometry]) -> list[torch.Tensor]:
    return [placed(x, *laid) for x, laid in zip(tensors, geometry, strict=True)]


def _results(found: Sequence[Any], operands: Sequence[Any], strides: Any) -> list[torch.Tensor]:
    return [placed(x, laid, 0) for x, laid in zip(owned(found, operands), strides, strict=True)]


@op("jitshape.cond.default", family="extern")
class Cond:
    """`then(*operands, *numbers)` where `truth`, of one element, is true, else `other(...)`."""

    row = True

    @staticmethod
    def type(env, truth, then, other, operands, geometry, numbers, strides):
        return _types(then.graph.outputs, strides)

    @staticmethod
    def run(
        truth: torch.Tensor,
        then: Subgraph,
        other: Subgraph,
        operands: list[torch.Tensor],
        geometry: list[Geometry],
        numbers: list[Any],
        strides: list[list[int]],
    ) -> list[torch.Tensor]:
        branch = then if truth.item() else other
        given = _operands(operands, geometry)
        with torch.no_grad():
            return _results(branch(*given, *numbers), operands, strides)


@op("jitshape.while_loop.default", family="extern")
class WhileLoop:
    """The first operands are what the loop carries: `body` gives them anew while `condition`, of
    one element, is true."""

    row = True

    @staticmethod
    def type(env, condition, body, operands, geometry, numbers):
        return _types(body.graph.outputs, [laid for laid, _ in geometry[: len(body.graph.outputs)]])

    @staticmethod
    def run(
        condition: Subgraph,
        body: Subgraph,
        operands: list[torch.Tensor],
        geometry: list[Geometry],
        numbers: list[Any],
    ) -> list[torch.Tensor]:
        count = len(body.graph.outputs)
        strides = [laid for laid, _ in geometry[:count]]
        given = _operands(operands, geometry)
        kept = given[count:]
        with torch.no_grad():
            while condition(*given, *numbers)[0].item():
                found = _results(body(*given, *numbers), given, strides)
                given = [*_operands(found, geometry[:count]), *kept]
        return _results(given[:count], operands, strides)
