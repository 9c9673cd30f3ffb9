"""Algebraic identities and views that change nothing, as tables.

A rule never changes a value: not of nan, of infinities or of the sign of a zero.  It applies only
where the operand has exactly the type of the result (so no promotion, broadcast or change of
layout hides in it), not where the two are different tensors for the user, and not where the
operand is an input that is written later: backward may want to save the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.ir.graph import Graph, Node, Value, tensor_type, values_in
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes import FUNCTIONAL, graph_pass
from jitshape.ir.rewrite import Rewriter, rewriting
from jitshape.ir.strides import is_contiguous, same, same_layout
from jitshape.ir.symint import Size
from jitshape.ir.types import ScalarType, TensorType, numel

Rule = Callable[[Rewriter, Node], Value | None]
RULES: dict[str, list[Rule]] = {}
_END = 2**63 - 1  # of a slice without one


@graph_pass(requires={FUNCTIONAL})
def simplify(graph: Graph) -> None:
    """t0 = mul(x, 1); t1 = permute(t0, [1, 0]); t2 = permute(t1, [1, 0]); t3 = exp(t2)
    -->
    t3 = exp(x)"""
    published = {value.storage for value in values_in(graph.outputs)}
    apart = published | {value.storage for value in graph.inputs}
    mutated = {graph.inputs[mutation.input].storage for mutation in graph.mutations}
    with rewriting(graph) as g:
        for node in g.walk():
            result = _simplified(g, node)
            if result is None:
                g.keep(node)
                continue
            own = node.outs[0].storage
            hidden = own not in published
            kept = not hidden and (result.storage in apart or not _is_whole(node.outs[0], result))
            if kept or (result.storage in mutated and own is not result.storage):
                g.keep(node)
                continue
            if not hidden:
                published.add(result.storage)
                apart.add(result.storage)
            g.replace(node, result)


def _is_whole(made: Value, result: Value) -> bool:
    """Whether `result` serves for what the program made and returns: it lies no deeper in its
    memory, and that is no larger."""
    if isinstance(result.type, ScalarType) or made.storage is result.storage:
        return True
    root = result
    while root.node is not None and (found := OPS.get(root.node.op)) is not None:
        if found.family != "view":
            break
        root = found.alias(root.node.args)
    whole = same(numel(tensor_type(root).shape), numel(result.type.shape))
    return whole and result.type.offset == tensor_type(made).offset


def _simplified(g: Rewriter, node: Node) -> Value | None:
    for rule in RULES.get(node.op, ()):
        result = rule(g, node)
        if result is not None and _same_type(result, node.outs[0]):
            return result
    return None


def _same_type(a: Value, b: Value) -> bool:
    if isinstance(a.type, ScalarType) or isinstance(b.type, ScalarType):
        return a.type == b.type
    return same_layout(a.type, b.type)


def rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op in ops:
            RULES.setdefault(op, []).append(function)
        return function

    return register


# ---- neutral elements: op, which argument is neutral, its value, for floats too


_NEUTRAL = (
    ("aten.mul.Tensor", 1, 1, True),
    ("aten.mul.Tensor", 0, 1, True),
    ("aten.mul.Scalar", 1, 1, True),
    ("aten.div.Tensor", 1, 1, True),
    ("aten.div.Scalar", 1, 1, True),
    ("aten.sub.Tensor", 1, 0, True),
    ("aten.sub.Scalar", 1, 0, True),
    ("aten.pow.Tensor_Scalar", 1, 1, True),
    ("aten.add.Tensor", 1, 0, False),  # -0.0 + 0 is 0.0
    ("aten.add.Tensor", 0, 0, False),
    ("aten.add.Scalar", 1, 0, False),
    ("aten.bitwise_or.Scalar", 1, 0, False),
    ("aten.bitwise_xor.Scalar", 1, 0, False),
    ("aten.bitwise_and.Scalar", 1, -1, False),
)


def _neutral(position: int, neutral: int, floats: bool) -> Rule:
    def drop(g: Rewriter, node: Node) -> Value | None:
        other = node.args[1 - position]
        if not isinstance(other, Value) or constant(node.args[position]) != neutral:
            return None
        integral = not (other.type.dtype.is_floating_point or other.type.dtype.is_complex)
        return other if floats or integral else None

    return drop


for _op, _position, _value, _floats in _NEUTRAL:
    RULES.setdefault(_op, []).append(_neutral(_position, _value, _floats))


def constant(x: Any) -> Any:
    """The number that `x` is, or that every element of `x` is; None if unknown."""
    if isinstance(x, (int, float)):
        return x
    if not isinstance(x, Value) or x.node is None:
        return None
    maker = _CONSTANTS.get(x.node.op)
    found = maker(x.node) if maker else None
    return found if isinstance(found, (int, float)) else None


_CONSTANTS: dict[str, Callable[[Node], Any]] = {
    "aten.full.default": lambda node: node.args[1],
    "aten.full_like.default": lambda node: node.args[1],
    "aten.scalar_tensor.default": lambda node: node.args[0],
    "aten.zeros.default": lambda node: 0,
    "aten.zeros_like.default": lambda node: 0,
    "aten.ones.default": lambda node: 1,
    "aten.ones_like.default": lambda node: 1,
    "aten.expand.default": lambda node: constant(node.args[0]),
    "aten.view.default": lambda node: constant(node.args[0]),
}


# ---- copies and casts


@rule("aten._to_copy.default", "aten.clone.default", "aten.detach.default", "aten.alias.default")
def _no_copy(g: Rewriter, node: Node) -> Value | None:
    """A copy with the same dtype and layout."""
    return node.args[0]


@rule("aten.copy.default")
def _whole_copy(g: Rewriter, node: Node) -> Value | None:
    """copy(x, y) --> y where y has the type of x."""
    return node.args[1]


@rule("aten._to_copy.default")
def _double_cast(g: Rewriter, node: Node) -> Value | None:
    """_to_copy(_to_copy(x, dtype=a), dtype=b) --> _to_copy(x, dtype=b) where a holds all of x."""
    inner = node.args[0].node
    if inner is None or inner.op != node.op or set(inner.kwargs) | set(node.kwargs) != {"dtype"}:
        return None
    source = inner.args[0]
    if not _holds(inner.kwargs["dtype"], source.type.dtype):
        return None
    if source.type.dtype == node.kwargs["dtype"]:
        return source
    return g.call(node.op, source, dtype=node.kwargs["dtype"])


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    if wide.is_floating_point and narrow.is_floating_point:
        a, b = torch.finfo(wide), torch.finfo(narrow)
        return a.eps <= b.eps and a.max >= b.max and a.tiny <= b.tiny
    integers = (torch.int8, torch.int16, torch.int32, torch.int64)
    if wide in integers and narrow in integers:
        return wide.itemsize >= narrow.itemsize
    return wide == narrow


# ---- selection


@rule("aten.where.self")
def _where(g: Rewriter, node: Node) -> Value | None:
    condition, yes, no = node.args
    known = constant(condition)
    if known is not None:
        chosen = yes if known else no
        return chosen if isinstance(chosen, Value) else None
    return yes if yes is no and isinstance(yes, Value) else None


# ---- views


@rule(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.expand.default",
    "aten.permute.default",
    "aten.as_strided.default",
)
def _no_view(g: Rewriter, node: Node) -> Value | None:
    """A view with the type of its source (and, as it is the same memory, its place)."""
    source: Value = node.args[0]
    order = node.args[1] if node.op == "aten.permute.default" else None
    if order is not None and [d % len(order) for d in order] != list(range(len(order))):
        return None  # the types may agree by chance: a square
    return source if source.type.offset == node.outs[0].type.offset else None


@rule("aten.slice.Tensor")
def _whole_slice(g: Rewriter, node: Node) -> Value | None:
    source, *given = node.args
    dim, start, end, step = (*given, *(0, None, None, 1)[len(given) :])
    size: Size = source.type.shape[dim]
    starts = start is None or (type(start) is int and start == 0)
    ends = end is None or end is size or (type(end) is int and end in (size, _END))
    return source if starts and ends and step == 1 else None


@rule("aten.permute.default")
def _double_permute(g: Rewriter, node: Node) -> Value | None:
    """permute(permute(x, a), b) --> permute(x, a[b])"""
    inner = node.args[0].node
    if inner is None or inner.op != node.op:
        return None
    source, order = inner.args
    composed = [order[d] % len(order) for d in node.args[1]]
    if composed == list(range(len(order))):
        return source
    return g.emit(node.op, (source, composed), {}, node.outs[0].type)


@rule("aten.t.default", "aten.transpose.int")
def _double_transpose(g: Rewriter, node: Node) -> Value | None:
    """transpose(transpose(x, a, b), a, b) --> x;   t(t(x)) --> x"""
    inner = node.args[0].node
    if inner is None or inner.op != node.op:
        return None
    ndim = tensor_type(node.outs[0]).ndim
    swaps = [{d % max(ndim, 1) for d in call.args[1:]} for call in (inner, node)]
    return inner.args[0] if swaps[0] == swaps[1] else None


@rule("aten.view.default", "aten._unsafe_view.default")
def _double_view(g: Rewriter, node: Node) -> Value | None:
    """view(view(x, a), b) --> view(x, b), x contiguous"""
    inner = node.args[0].node
    if inner is None or inner.op not in ("aten.view.default", "aten._unsafe_view.default"):
        return None
    source: Value = inner.args[0]
    type_ = source.type
    assert isinstance(type_, TensorType)
    if not is_contiguous(type_.shape, type_.strides):
        return None
    if type_.shape == tensor_type(node.outs[0]).shape:
        return source
    return g.emit("aten.view.default", (source, node.args[1]), {}, node.outs[0].type)
