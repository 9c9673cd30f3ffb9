"""Copies: of one tensor in another layout or dtype, of a number, of several tensors joined.

Blocks whose result is the pieces side by side have `pieces(tensors, dim)`: each tensor, and the
index in the result of an element of it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitshape.ir.graph import Value
from jitshape.ir.ops.families import fresh, index_op, pointwise, promote, wrap_dim
from jitshape.ir.strides import (
    CHANNELS_LAST_ORDER,
    broadcast,
    dense,
    format_strides,
    preserved_strides,
    row_major,
    suggested_format,
)
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType

# ---- copies


@pointwise("aten.clone.default")
class Clone:
    def type(env, x, memory_format=None):
        old = x.type
        strides = format_strides(env, old.shape, old.strides, memory_format)
        return TensorType(old.shape, strides, old.dtype, old.device)

    def lower(b, x, memory_format=None):
        return x

    def samples():
        x = torch.randn(3, 4, 5)
        return [
            ((x.transpose(0, 2),), {}),
            ((x.transpose(0, 2),), {"memory_format": torch.contiguous_format}),
            ((x[:, ::2],), {}),
        ]


@pointwise("aten._to_copy.default")
class ToCopy:
    def type(
        env, x, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False,
        memory_format=None,
    ):  # fmt: skip
        old = x.type
        strides = format_strides(env, old.shape, old.strides, memory_format)
        where = old.device if device is None else torch.device(device)
        return TensorType(old.shape, strides, dtype or old.dtype, where)

    def lower(b, x, **kwargs):
        return x

    def samples():
        return [((torch.randn(3, 4).t(),), {"dtype": torch.float64})]


@pointwise("aten.copy.default", operands=2)
class Copy:
    """The second argument with the shape, dtype and layout of the first."""

    @classmethod
    def type(cls, env, x, source, non_blocking=False):
        old = x.type
        if broadcast(env, old.shape, source.type.shape) != old.shape:
            raise RuntimeError(
                f"The size of tensor a {list(old.shape)} must match the size of tensor b "
                f"{list(source.type.shape)}"
            )
        strides = preserved_strides(env, old.shape, old.strides)
        return TensorType(old.shape, strides, old.dtype, old.device)

    @classmethod
    def element(cls, b, node, operand):
        source = node.args[1]
        value = operand(source) if type(source) is Value else source
        return b.cast(b.scalar(value), node.outs[0].type.dtype)

    def samples():
        return [((torch.randn(3, 4).t(), torch.randn(3, dtype=torch.float64)), {})]


@pointwise("aten.fill.Scalar", "aten.fill.Tensor", operands=1)
class Fill:
    stored = (1,)

    def type(env, x, value):
        old = x.type
        return TensorType(
            old.shape, preserved_strides(env, old.shape, old.strides), old.dtype, old.device
        )

    def lower(b, x, value):
        return b.cast(b.scalar(value), x.dtype)

    def samples():
        return [((torch.randn(3, 4).t(), 2), {})]


@pointwise("aten.zero.default", operands=1)
class Zero:
    def type(env, x):
        return Fill.type(env, x, 0)

    def lower(b, x):
        return b.cast(b.scalar(0), x.dtype)


# ---- joining


@index_op("aten.cat.default")
class Cat:
    """Legacy: one-dimensional empty tensors are left out."""

    def type(env, tensors, dim=0):
        kept = [t for t in tensors if not (t.type.ndim == 1 and t.type.shape[0] == 0)] or tensors
        first = kept[0].type
        dim = wrap_dim(dim, first.ndim)
        shape = list(first.shape)
        total = shape[dim]
        for t in kept[1:]:
            if t.type.ndim != first.ndim:
                raise RuntimeError(
                    f"Tensors must have same number of dimensions: got {first.ndim} and "
                    f"{t.type.ndim}"
                )
            for d, size in enumerate(t.type.shape):
                if d == dim:
                    total = total + size
                elif not env.agree(shape[d], size):
                    raise RuntimeError(
                        "Sizes of tensors must match except in dimension "
                        f"{dim}. Expected size {shape[d]} but got size {size}"
                    )
        shape[dim] = total
        formats = {suggested_format(t.type.shape, t.type.strides) for t in tensors}
        strides = row_major(tuple(shape))
        if len(formats) == 1 and formats != {torch.contiguous_format}:
            strides = dense(tuple(shape), CHANNELS_LAST_ORDER[len(shape)])
        return TensorType(tuple(shape), strides, promote(tensors), first.device)

    @staticmethod
    def pieces(tensors, dim=0):
        rank = max(t.type.ndim for t in tensors)
        kept = [t for t in tensors if rank == 1 or t.type.shape != (0,)]
        dim = wrap_dim(dim, rank)
        start: Size = 0
        for part in kept:
            yield part, _shifted(dim, start)
            start = start + part.type.shape[dim]

    def samples():
        x = torch.randn(2, 3)
        return [(([x, torch.randn(2, 5)], 1), {}), (([x, x.double()],), {})]


@index_op("aten.stack.default")
class Stack:
    def type(env, tensors, dim=0):
        first = tensors[0].type
        for t in tensors[1:]:
            if any(not env.agree(a, b) for a, b in zip(first.shape, t.type.shape)):
                raise RuntimeError("stack expects each tensor to be equal size")
        dim = wrap_dim(dim, first.ndim + 1)
        shape = (*first.shape[:dim], len(tensors), *first.shape[dim:])
        return fresh(shape, promote(tensors), first.device)

    @staticmethod
    def pieces(tensors, dim=0):
        dim = wrap_dim(dim, tensors[0].type.ndim + 1)
        for number, part in enumerate(tensors):
            yield part, _inserted(dim, number)

    def samples():
        x = torch.randn(2, 3)
        return [(([x, x], 1), {}), (([x, x, x], -1), {})]


def _shifted(dim: int, start: Size) -> Callable[[tuple], tuple]:
    return lambda index: (*index[:dim], index[dim] + start, *index[dim + 1 :])


def _inserted(dim: int, number: int) -> Callable[[tuple], tuple]:
    return lambda index: (*index[:dim], number, *index[dim:])
