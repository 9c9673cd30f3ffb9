"""Views as steps that can be replayed on new contents, and undone to write through them.

In: a view node.  Out: for each of its outputs a `Step`, and for each op a rule that scatters what
was written to the view back into its source.  Invariant: `scatter(source, replay(source))` has
the elements of `source`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitshape.ir.graph import Node, Value, tensor_type
from jitshape.ir.ops.registry import OPS
from jitshape.ir.rewrite import Rewriter
from jitshape.ir.strides import is_contiguous
from jitshape.ir.types import TensorType, contiguous_strides


@dataclass(frozen=True)
class Step:
    """`op(source, *args, **kwargs)`, a view of type `type`.  op "" is the identity."""

    op: str
    args: tuple
    kwargs: dict[str, Any]
    type: TensorType


Scatter = Callable[[Rewriter, Value, Value, Step], Value]
SCATTER: dict[str, Scatter] = {}


def scatter_rule(*ops: str) -> Callable[[Scatter], Scatter]:
    def register(rule: Scatter) -> Scatter:
        SCATTER.update(dict.fromkeys(ops, rule))
        return rule

    return register


def steps_of(node: Node) -> list[Step] | None:
    """One step for each output of the view `node`; None if it cannot be undone step by step."""
    if node.op in _PIECES:
        return _PIECES[node.op](node)
    if node.op not in SCATTER:
        return None
    out = node.outs[0].type
    assert isinstance(out, TensorType)
    return [Step(node.op, node.args[1:], node.kwargs, out)]


def replay(g: Rewriter, source: Value, step: Step, offset: Any) -> Value:
    """The view of `source`'s present content."""
    if not step.op:
        return source
    return g.emit(step.op, (source, *step.args), step.kwargs, replace(step.type, offset=offset))


def scatter(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    """The content of `source` after `new` was written to its view."""
    return SCATTER[step.op](g, source, new, step)


def geometry_step(type_: TensorType, start: Any) -> Step:
    """`type_` as a window of a flat buffer whose first element lies at `start`."""
    args = (list(type_.shape), list(type_.strides), type_.offset - start)
    return Step("aten.as_strided.default", args, {}, type_)


def viewed_values(value: Value) -> Iterator[Value]:
    """`value`, what it views, what that views, and so on."""
    yield value
    while value.node is not None and (found := OPS.get(value.node.op)) is not None:
        if found.family not in ("view", "inplace"):
            break
        value = found.alias(value.node.args)
        yield value


_IDENTITIES = {
    "aten.detach.default": "detach",
    "aten.alias.default": "data",
    "jitshape.tracked.default": "tracked",
    "jitshape.untracked.default": "untracked",
}


def traits_of(value: Value) -> tuple[str, ...] | None:
    """What a view does to the elements of its memory ("conj", "neg"), and whether it is no view for
    eager ("detach", "data") or one for autograd ("tracked", "untracked"); None where it does
    something else to some elements."""
    chain: list[Node] = []
    while value.node is not None and OPS.get(value.node.op) is not None:
        definition = OPS[value.node.op]
        if definition.family not in ("view", "inplace"):
            break
        chain.append(value.node)
        value = definition.alias(value.node.args)
    bits = dict.fromkeys(("conj", "neg", *_IDENTITIES.values()), False)
    imaginary = False  # parts of conjugated numbers: the second of each pair is negated
    for node in reversed(chain):
        flip = OPS[node.op].attributes.get("flip")
        if flip is not None:
            bits[flip] ^= True
        elif node.op in _IDENTITIES:
            bits[_IDENTITIES[node.op]] = True
        elif node.op == "aten.view_as_real.default" and bits["conj"]:
            bits["conj"], imaginary = False, True
        elif imaginary and node.op == "aten.view_as_complex.default":
            bits["conj"], imaginary = True, False
        elif (
            imaginary
            and node.op == "aten.select.int"
            and node.args[1] == node.args[0].type.ndim - 1
        ):
            bits["neg"] ^= node.args[2] == 1
            imaginary = False
    return None if imaginary else tuple(name for name, on in bits.items() if on)


# ---- rules


@scatter_rule("", *_IDENTITIES, "aten.lift_fresh.default")
def _same(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    return new


def _scatter_op(op: str) -> Scatter:
    def rule(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
        type_ = replace(source.type, offset=0)
        return g.emit(op, (source, new, *step.args), step.kwargs, type_)

    return rule


SCATTER["aten.select.int"] = _scatter_op("aten.select_scatter.default")
SCATTER["aten.slice.Tensor"] = _scatter_op("aten.slice_scatter.default")
SCATTER["aten.diagonal.default"] = _scatter_op("aten.diagonal_scatter.default")
SCATTER["aten.as_strided.default"] = _scatter_op("aten.as_strided_scatter.default")


@scatter_rule(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_alias.default",
    "aten.unsqueeze.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
)
def _reshaped(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    shape = source.type.shape
    type_ = TensorType(shape, contiguous_strides(shape), new.type.dtype, new.type.device)
    if not is_contiguous(new.type.shape, new.type.strides):
        dense = replace(new.type, strides=contiguous_strides(new.type.shape), offset=0)
        layout = {"memory_format": torch.contiguous_format}
        new = g.emit("aten.clone.default", (new,), layout, dense)
    return g.emit("aten.view.default", (new, list(shape)), {}, type_)


def _permuted(g: Rewriter, new: Value, order: list[int]) -> Value:
    type_ = new.type
    shape, strides = (tuple(sizes[d] for d in order) for sizes in (type_.shape, type_.strides))
    permuted = replace(type_, shape=shape, strides=strides)
    return g.emit("aten.permute.default", (new, order), {}, permuted)


@scatter_rule("aten.permute.default")
def _permute(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    dims = [d % source.type.ndim for d in step.args[0]]
    return _permuted(g, new, [dims.index(d) for d in range(len(dims))])


@scatter_rule("aten.transpose.int", "aten.t.default")
def _transpose(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    ndim = source.type.ndim
    if ndim < 2:
        return new
    a, b = step.args or (0, 1)
    order = list(range(ndim))
    order[a], order[b] = order[b], order[a]
    return _permuted(g, new, order)


@scatter_rule("aten.expand.default")
def _expand(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    assert new.type.shape == source.type.shape, "writes through repeats have a flat base"
    return new


@scatter_rule("aten.view.dtype")
def _bitcast(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    type_ = replace(source.type, offset=0)
    return g.emit("aten.view.dtype", (new, source.type.dtype), {}, type_)


@scatter_rule("aten._conj.default", "aten._neg_view.default")
def _flipped(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    return g.emit(step.op, (new,), {}, replace(new.type, offset=0))


@scatter_rule("aten.view_as_real.default")
def _real_to_complex(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    return g.emit("aten.view_as_complex.default", (new,), {}, replace(source.type, offset=0))


@scatter_rule("aten.view_as_complex.default")
def _complex_to_real(g: Rewriter, source: Value, new: Value, step: Step) -> Value:
    return g.emit("aten.view_as_real.default", (new,), {}, replace(source.type, offset=0))


# ---- views with several outputs, as single slices


def _slices(node: Node) -> list[Step]:
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    start: Any = 0
    steps = []
    for out in node.outs:
        assert isinstance(out.type, TensorType)
        end = start + out.type.shape[dim]
        steps.append(Step("aten.slice.Tensor", (dim, start, end), {}, out.type))
        start = end
    return steps


def _selects(node: Node) -> list[Step]:
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return [
        Step("aten.select.int", (dim, index), {}, tensor_type(out))
        for index, out in enumerate(node.outs)
    ]


def _narrow(node: Node) -> list[Step]:
    _, dim, start, length = node.args
    out = tensor_type(node.outs[0])
    return [Step("aten.slice.Tensor", (dim, start, start + length), {}, out)]


_PIECES: dict[str, Callable[[Node], list[Step]]] = {
    **dict.fromkeys(
        ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default"), _slices
    ),
    "aten.unbind.int": _selects,
    "aten.narrow.default": _narrow,
}
