"""Runs a graph with eager torch: the oracle of all tests, and `backend="eager"`.

In: a graph and real inputs.  Out: the graph's outputs, all of them (the user's are the first
`graph.returned`); mutated inputs are written.  Invariant: sizes are bound from the inputs only
(each symbol is a plain size, stride or offset of some input, or is passed in), so a graph runs at
every size it is valid for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from jitshape.errors import InternalError, Refuted
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.facts import Fact, assumption
from jitshape.ir.graph import Alias, Graph, Node, OutputAlias, Value, map_leaves
from jitshape.ir.ops.externs import check_shape, is_checked
from jitshape.ir.ops.registry import OPS
from jitshape.ir.printer import excerpt
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import ScalarType, TensorType
from jitshape.ir.versions import add_versions, owner, reshape, set_version


def evaluate(
    graph: Graph,
    inputs: Sequence[Any],
    symbols: Mapping[str, int] | None = None,
    check: bool = False,
    observe: Callable[[Node, Sequence[Any]], None] | None = None,
) -> list[Any]:
    """The outputs of `graph` on `inputs`, behind which stand the ints for `graph.symbols`.  With
    `check`, every node's result is compared with its type: shape, strides (of dimensions longer
    than 1) and dtype.  `observe` is told every node with its results."""
    count = len(graph.inputs)
    sizes = bind_sizes(graph, inputs[:count]) | dict(symbols or {})
    sizes |= {str(s): number for s, number in zip(graph.symbols, inputs[count:])}
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs))

    def concrete(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return values[leaf]
        if type(leaf) is FloatExpr:
            return leaf.evaluate(lambda x: sizes[x.symbol.name] if x.symbol else concrete(x))
        return leaf.algebra.evaluate(leaf, sizes) if type(leaf) is IntExpr else leaf

    for node in graph.nodes:
        args, kwargs = map_leaves(concrete, (node.args, node.kwargs))
        try:
            result = runner(node.op)(*args, **kwargs)
        except Exception as error:
            error.add_note(excerpt(graph, node))
            raise
        told = _bind(node, result, values, sizes)
        if told and graph.env is not None:
            _assert(graph.env.asserts, told, sizes, concrete)
        if is_checked(node):
            for out in node.outs:
                if isinstance(out.type, TensorType):
                    check_shape(node.op, values[out], tuple(map(concrete, out.type.shape)))
        if observe is not None:
            observe(node, [values[out] for out in node.outs])
        if check:
            for out in node.outs:
                _check(graph, node, out, values[out], sizes)
    plain = [None if isinstance(o, (Alias, OutputAlias)) else concrete(o) for o in graph.outputs]
    return finish_outputs(graph, inputs, plain, concrete)


def bind_sizes(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The value of every symbol that is a plain size, stride or offset of an input."""
    bound: dict[str, int] = {}

    def bind(size: Size, number: int) -> None:
        if type(size) is IntExpr and size.symbol is not None:
            bound.setdefault(size.symbol.name, number)

    for value, real in zip(graph.inputs, inputs, strict=True):
        if isinstance(value.type, TensorType):
            for size, number in zip(value.type.shape, real.shape):
                bind(size, number)
            for size, number in zip(value.type.strides, real.stride()):
                bind(size, number)
            bind(value.type.offset, real.storage_offset())
    return bound


def runner(op: str) -> Callable[..., Any]:
    """What computes `op` eagerly: its block's `run`, or the ATen op."""
    definition = OPS.get(op)
    if definition is not None and definition.has("run"):
        return definition.run
    namespace, packet, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def rebuild_alias(
    base: torch.Tensor,
    shape: Any,
    strides: Any,
    offset: int,
    dtype: torch.dtype,
    traits: Sequence[str] = (),
) -> torch.Tensor:
    """A view of `base`'s memory with the given geometry."""
    return with_traits(lambda: _seen(base, shape, strides, offset, dtype), traits)


def with_traits(see: Callable[[], torch.Tensor], traits: Sequence[str]) -> torch.Tensor:
    """The view that `see` makes, seen by autograd or not, with eager's bits for conjugated and
    negated elements, or detached."""
    with torch.enable_grad() if "tracked" in traits else nullcontext():
        view = see()
    for trait in traits:
        if trait != "tracked":  # the memory was seen so
            view = _TRAITS[trait](view)
    return view


_TRAITS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conj": torch.conj,
    "neg": torch._neg_view,
    "detach": torch.Tensor.detach,
    "data": torch.Tensor.data.__get__,  # type: ignore[attr-defined]
    "untracked": torch.no_grad()(torch.ops.aten.alias.default),
}


def _seen(base: torch.Tensor, shape: Any, strides: Any, offset: int, dtype: Any) -> torch.Tensor:
    if base.dtype == dtype:
        return torch.as_strided(base, shape, strides, offset)
    if base.is_complex() and dtype is base.dtype.to_real():  # the views that autograd knows
        return torch.as_strided(torch.view_as_real(base), shape, strides, offset)
    if dtype.is_complex and base.dtype is dtype.to_real():
        pairs = torch.as_strided(base, (*shape, 2), (*(2 * s for s in strides), 1), 2 * offset)
        return torch.view_as_complex(pairs)
    finer = base.ndim > 0 and base.stride(-1) == 1 and dtype.itemsize < base.dtype.itemsize
    if finer or dtype.itemsize == base.dtype.itemsize:  # as the program saw it: without a base
        seen = base.view(dtype)
        if (seen.shape, seen.stride(), seen.storage_offset()) == (shape, strides, offset):
            return seen
    return torch.as_strided(_all_memory(base).view(dtype), shape, strides, offset)


def _all_memory(base: torch.Tensor) -> torch.Tensor:
    """The storage of `base` from its start, as far as it holds whole elements of any dtype."""
    bytes_ = base.untyped_storage().nbytes()
    widest = 16 if bytes_ % 16 == 0 else base.element_size()
    return torch.as_strided(base, (bytes_ // widest * widest // base.element_size(),), (1,), 0)


def _bind(node: Node, result: Any, values: dict[Value, Any], sizes: dict[str, Any]) -> set[str]:
    """Keep the node's results; the names of the numbers that only they tell."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    told: set[str] = set()
    for out, real in zip(node.outs, results):
        values[out] = real
        if isinstance(out.type, ScalarType):
            sizes[str(out.type.symbol)] = real
            told.add(str(out.type.symbol))
        elif isinstance(real, torch.Tensor):
            for size, number in zip(out.type.shape, real.shape):
                if type(size) is IntExpr and size.symbol is not None:
                    if size.symbol.name not in sizes:
                        sizes[size.symbol.name] = number
                        told.add(size.symbol.name)
    return told


def _assert(asserts: Sequence[Fact], told: set[str], sizes: dict[str, Any], number: Any) -> None:
    """What the program relied on about numbers that are known from here on."""
    for fact in asserts:
        assert isinstance(fact.condition, BoolExpr)
        names = {atom.name for atom in fact.condition.symbols()}
        if names & told and names <= sizes.keys() and fact.condition.evaluate(number) is not True:
            what = assumption(fact)
            raise Refuted(f"a value does not fit what follows: {what}", what)


def finish_outputs(
    graph: Graph, inputs: Sequence[Any], plain: list[Any], concrete: Callable[[Any], Any]
) -> list[Any]:
    """`plain`, what the nodes gave for each output and None for views, with the views in their
    places and the inputs written.  `concrete` gives the value of a size."""
    with torch.no_grad():
        for mutation in graph.mutations:
            inputs[mutation.input].copy_(plain[mutation.output])
            add_versions(inputs[mutation.input], mutation.versions - 1)
    for place in graph.owned:
        plain[place] = owner(plain[place])
    for place, output in enumerate(graph.outputs):
        if isinstance(output, (Alias, OutputAlias)):
            of_input = isinstance(output, Alias)
            base = inputs[output.input] if of_input else plain[output.output]
            type_ = output.type
            shape, strides, offset = map_leaves(
                concrete, (type_.shape, type_.strides, type_.offset)
            )
            if base.requires_grad and not output.requires_grad:
                base = base.detach()
            plain[place] = rebuild_alias(base, shape, strides, offset, type_.dtype, output.traits)
    for change in graph.reshaped:
        view = None if change.output is None else plain[change.output]
        reshape(inputs[change.input], view, change.times)
    for place, number in graph.versions:
        set_version(plain[place], number)
    return plain


def _check(graph: Graph, node: Node, out: Value, real: Any, sizes: dict[str, int]) -> None:
    def number(size: Size) -> int | None:
        return size if type(size) is int else size.algebra.evaluate(size, sizes)  # type: ignore

    if isinstance(out.type, ScalarType) or not isinstance(real, torch.Tensor):
        return
    shape = tuple(map(number, out.type.shape))
    strides = tuple(map(number, out.type.strides))
    long = [d for d, size in enumerate(shape) if size is not None and size > 1]
    same = shape == tuple(real.shape) and out.type.dtype == real.dtype
    if 0 not in shape:
        same = same and all(strides[d] == real.stride(d) for d in long)
    if not same:
        found = f"{tuple(real.shape)} strides {real.stride()} {real.dtype}"
        expected = f"{shape} strides {strides} {out.type.dtype}"
        cause = ValueError(f"{out} should be {expected}, eager gives {found}")
        raise InternalError("evaluate", cause, excerpt(graph, node))
