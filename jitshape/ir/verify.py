"""Checks that a graph is well formed.

In: a graph.  Out: nothing, or an InternalError that shows the nodes round the fault.  Checked:
every value is defined once and before its uses; producer links are right; ops are known; a
functional graph has no mutating op; outputs, mutations and aliases refer to things that exist.
"""

from __future__ import annotations

from typing import Any

import torch

from jitshape.errors import InternalError
from jitshape.ir.graph import Alias, Graph, Node, OutputAlias, Value, values_in
from jitshape.ir.ops.registry import OPS
from jitshape.ir.printer import excerpt
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr
from jitshape.ir.types import TensorType


class Malformed(Exception):
    """A graph breaks one of its invariants."""


def verify(graph: Graph, stage: str = "verify") -> None:
    """Raise an InternalError naming `stage` if `graph` is malformed."""
    defined: set[Value] = set()
    for index, value in enumerate(graph.inputs):
        _require(graph, None, stage, value.node is None, f"input {value} has a producer")
        _require(graph, None, stage, value.index == index, f"input {value} has a wrong index")
        _require(graph, None, stage, value not in defined, f"input {value} appears twice")
        defined.add(value)
    for node in graph.nodes:
        _check_node(graph, node, stage, defined)
        defined.update(node.outs)
    _check_outputs(graph, stage, defined)


def _require(graph: Graph, node: Node | None, stage: str, holds: bool, message: str) -> None:
    if not holds:
        raise InternalError(stage, Malformed(message), excerpt(graph, node))


def _check_node(graph: Graph, node: Node, stage: str, defined: set[Value]) -> None:
    for value in node.inputs():
        _require(graph, node, stage, value in defined, f"{value} is used before it is defined")
    for index, out in enumerate(node.outs):
        linked = out.node is node and out.index == index
        _require(graph, node, stage, linked, f"{out} does not point to its producer")
        _require(graph, node, stage, out not in defined, f"{out} is defined twice")
        if isinstance(out.type, TensorType):
            ranks = len(out.type.shape) == len(out.type.strides)
            _require(graph, node, stage, ranks, f"{out} has shape and strides of different rank")
    known = node.op in OPS or _is_torch_op(node.op)
    _require(graph, node, stage, known, f"{node.op} is neither registered nor an op of torch")
    if graph.functional:
        _require(graph, node, stage, not _mutates(node.op), f"{node.op} mutates its argument")


def _check_outputs(graph: Graph, stage: str, defined: set[Value]) -> None:
    for output in graph.outputs:
        for value in values_in(output):
            _require(graph, None, stage, value in defined, f"output {value} is not defined")
        if isinstance(output, Alias):
            exists = 0 <= output.input < len(graph.inputs)
            _require(graph, None, stage, exists, f"{output} refers to no input")
        elif isinstance(output, OutputAlias):
            exists = 0 <= output.output < len(graph.outputs)
            real = exists and isinstance(graph.outputs[output.output], Value)
            _require(graph, None, stage, real, f"{output} refers to no tensor output")
        else:
            legal = output is None or isinstance(output, (Value, int, float, IntExpr, FloatExpr))
            _require(graph, None, stage, legal, f"{output!r} cannot be an output")
    for mutation in graph.mutations:
        exists = mutation.input < len(graph.inputs) and mutation.output < len(graph.outputs)
        _require(graph, None, stage, exists, f"{mutation} refers to nothing")


def _is_torch_op(op: str) -> bool:
    namespace, packet, overload = op.split(".")
    target: Any = torch.ops
    for part in (namespace, packet, overload):
        target = getattr(target, part, None)
        if target is None:
            return False
    return True


def _mutates(op: str) -> bool:
    if op in OPS:
        return OPS[op].mutates
    namespace, packet, overload = op.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._schema
    return schema.is_mutable
