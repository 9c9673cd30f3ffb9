"""Which nodes eager may refuse when it sees the values of their operands.

In: a node.  Out: whether the program's own call may raise at run time.  Invariant: sizes, dtypes
and devices are no reason: the trace has looked at them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from jitshape.ir.graph import Node, Value, subgraphs_of
from jitshape.ir.ops.elements import DIVISIONS
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes.functionalize import functional_form


def may_fail(node: Node) -> bool:
    """Whether `node`, decomposed, may raise for the values that it finds, and so must run."""
    return _may_raise(node, ("index", "extern"))


def may_raise(node: Node) -> bool:
    """Whether `node`, as recorded, may raise, so that the program would not go on behind it."""
    return _may_raise(node, ("index", "extern", "composite"))


def raising(nodes: Iterable[Node]) -> tuple[bool, bool]:
    """Whether a graph of `nodes` may raise such that the call can be made again without it, and
    whether it has drawn random numbers by then."""
    found = drawn = drew = False
    for node in nodes:
        if not node.outs and not node.op.startswith("aten."):  # it would be done twice
            return False, False
        if may_raise(node):
            found, drew = True, drawn
        drawn = drawn or node.token is not None
    return found, drew


def _may_raise(node: Node, families: tuple[str, ...]) -> bool:
    if node.backward:
        return False
    name, definition = node.op, OPS.get(node.op)
    if definition is not None and definition.family == "inplace":
        name = functional_form(definition)
        definition = OPS.get(name)
    if definition is None or name == "jitshape.in_range.default" or not node.outs:
        return True
    if definition.family in families:
        inner = (n for subgraph in subgraphs_of(node) for n in subgraph.graph.nodes)
        if any(_may_raise(n, families) for n in inner):
            return True
        return "masked_scatter" in name or any(_holds_places(value) for value in node.inputs())
    if not name.startswith(DIVISIONS) or not _holds_places(node.outs[0]):
        return False
    divisor = node.args[1]
    return divisor == 0 if isinstance(divisor, (int, float)) else True


def _holds_places(value: Value) -> bool:
    dtype = value.type.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
