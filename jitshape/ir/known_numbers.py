"""Integers that went through tensors: `torch.div(x.size(1), 8, rounding_mode="floor")`.

In: a value of the graph.  Out: the Size that its one element is, where it was made of numbers that
the host knows, by ops on whole numbers.
Invariant: nothing else shares the memory of the values on the way, so that none was written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Graph, Node, Value
from jitshape.ir.symint import IntExpr, Size


def known_number(graph: Graph, env: Any, value: Value) -> Size | None:
    """The number in a 0-dimensional int64 tensor, or None where only the graph knows it."""
    node, type_ = value.node, value.type
    if node is None or type_.dtype is not torch.int64 or type_.shape:  # type: ignore[union-attr]
        return None
    rule = _RULES.get(node.op)
    if rule is None or _is_shared(graph, value):
        return None

    def number(x: Any) -> Size | None:
        if type(x) is Value:
            return known_number(graph, env, x)
        return x if type(x) in (int, IntExpr) else None

    return rule(env, node, number)


def _is_shared(graph: Graph, value: Value) -> bool:
    return any(
        out is not value and out.storage is value.storage
        for node in graph.nodes
        for out in node.outs
    )


def _arithmetic(compute: Callable[[Size, Size], Size]) -> Callable[..., Size | None]:
    def rule(env: Any, node: Node, number: Callable[[Any], Size | None]) -> Size | None:
        a, b, *more = (*map(number, node.args), *map(number, node.kwargs.values()))
        if a is None or b is None or more not in ([], [1]):  # alpha
            return None
        return compute(a, b)

    return rule


def _quotient(env: Any, node: Node, number: Callable[[Any], Size | None]) -> Size | None:
    """Whole quotients; towards zero is the same as down for what is not negative."""
    a, b = map(number, node.args[:2])
    rounding = node.kwargs.get("rounding_mode", "floor")
    if a is None or b is None or rounding is None or not env.static(compare("gt", b, 0)):
        return None
    if rounding == "trunc" and not env.static(compare("ge", a, 0)):
        return None
    return a // b


def _same(env: Any, node: Node, number: Callable[[Any], Size | None]) -> Size | None:
    return number(node.args[0])


_RULES: dict[str, Callable[..., Size | None]] = {
    "aten.scalar_tensor.default": _same,
    "aten.clone.default": _same,
    "aten.neg.default": lambda env, node, number: (
        None if (a := number(node.args[0])) is None else -a
    ),
    "aten.add.Tensor": _arithmetic(lambda a, b: a + b),
    "aten.sub.Tensor": _arithmetic(lambda a, b: a - b),
    "aten.mul.Tensor": _arithmetic(lambda a, b: a * b),
    "aten.div.Tensor_mode": _quotient,
    "aten.floor_divide.default": _quotient,
}
