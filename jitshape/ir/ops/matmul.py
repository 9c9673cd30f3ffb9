"""Contractions: calls of ATen's matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.ops.families import fresh
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import CHANNELS_LAST_ORDER, broadcast, dense, suggested_format
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType


def extern(*names: str, **attributes: Any) -> Any:
    return op(*names, family="extern", **attributes)


def _inner(env: Any, name: str, a: Any, b: Any, x: Size, y: Size) -> None:
    """The contracted dimension must agree."""
    if not (x is y or env.agree(x, y)):
        raise RuntimeError(
            f"{name}: mat1 and mat2 shapes cannot be multiplied "
            f"({'x'.join(map(str, a.type.shape))} and {'x'.join(map(str, b.type.shape))})"
        )
    if a.type.dtype is not b.type.dtype:
        raise RuntimeError(
            f"{name}: expected both matrices to have the same dtype, but got {a.type.dtype} "
            f"and {b.type.dtype}"
        )


def _rank(name: str, x: Any, rank: int) -> None:
    if x.type.ndim != rank:
        raise RuntimeError(f"{name}: expected a {rank}D tensor, but got {x.type.ndim}D")


@extern("aten.mm.default")
class Mm:
    def type(env, a, b):
        _rank("mm", a, 2)
        _rank("mm", b, 2)
        _inner(env, "mm", a, b, a.type.shape[1], b.type.shape[0])
        return fresh((a.type.shape[0], b.type.shape[1]), a.type.dtype, a.type.device)

    def samples():
        return [((torch.randn(3, 4), torch.randn(5, 4).t()), {})]


def _added(env: Any, bias: Any, result: TensorType) -> TensorType:
    """`result`, to which `bias` is broadcast."""
    if bias.type.dtype is not result.dtype:
        raise RuntimeError(
            f"expected self and mat2 to have the same dtype, but got {bias.type.dtype} and "
            f"{result.dtype}"
        )
    shape = broadcast(env, result.shape, bias.type.shape)
    if len(shape) > result.ndim or not all(map(env.equal, shape, result.shape)):
        raise RuntimeError(
            f"The expanded size of the tensor must match {list(result.shape)}, "
            f"got {list(bias.type.shape)}"
        )
    return result


@extern("aten.addmm.default")
class Addmm:
    def type(env, bias, a, b, beta=1, alpha=1):
        _rank("addmm", a, 2)
        _rank("addmm", b, 2)
        _inner(env, "addmm", a, b, a.type.shape[1], b.type.shape[0])
        result = fresh((a.type.shape[0], b.type.shape[1]), a.type.dtype, a.type.device)
        return _added(env, bias, result)

    def samples():
        return [((torch.randn(5), torch.randn(3, 4), torch.randn(5, 4).t()), {})]


def _batched(env: Any, name: str, a: Any, b: Any) -> TensorType:
    _rank(name, a, 3)
    _rank(name, b, 3)
    if not (a.type.shape[0] is b.type.shape[0] or env.agree(a.type.shape[0], b.type.shape[0])):
        raise RuntimeError(f"{name}: batch1 and batch2 must have the same number of batches")
    _inner(env, name, a, b, a.type.shape[2], b.type.shape[1])
    shape = (a.type.shape[0], a.type.shape[1], b.type.shape[2])
    return fresh(shape, a.type.dtype, a.type.device)


@extern("aten.bmm.default")
class Bmm:
    def type(env, a, b):
        return _batched(env, "bmm", a, b)

    def samples():
        return [((torch.randn(2, 3, 4), torch.randn(2, 5, 4).transpose(1, 2)), {})]


@extern("aten.baddbmm.default")
class Baddbmm:
    def type(env, bias, a, b, beta=1, alpha=1):
        return _added(env, bias, _batched(env, "baddbmm", a, b))

    def samples():
        return [((torch.randn(2, 3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)), {})]


@extern("aten.dot.default", "aten.vdot.default")
class Dot:
    def type(env, a, b):
        _rank("dot", a, 1)
        _rank("dot", b, 1)
        _inner(env, "dot", a, b, a.type.shape[0], b.type.shape[0])
        return fresh((), a.type.dtype, a.type.device)

    def samples():
        return [((torch.randn(4), torch.randn(4)), {})]


@extern("aten.mv.default")
class Mv:
    def type(env, a, b):
        _rank("mv", a, 2)
        _rank("mv", b, 1)
        _inner(env, "mv", a, b, a.type.shape[1], b.type.shape[0])
        return fresh((a.type.shape[0],), a.type.dtype, a.type.device)

    def samples():
        return [((torch.randn(3, 4), torch.randn(4)), {})]


@extern("aten.addmv.default")
class Addmv:
    def type(env, bias, a, b, beta=1, alpha=1):
        return _added(env, bias, Mv.type(env, a, b))

    def samples():
        return [((torch.randn(3), torch.randn(3, 4), torch.randn(4)), {})]


# ---- convolutions


def _convolved(env: Any, x: Size, k: Size, stride: Any, pad: Any, dilation: Any) -> Size:
    return env.floordiv(x + 2 * pad - dilation * (k - 1) - 1, stride) + 1


@extern("aten.convolution.default", layout_varies=True)
class Convolution:
    """Channels-last where the input or the weight is; some of ATen's back ends differ."""

    def type(env, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
        spatial = x.type.ndim - 2
        w = weight.type.shape
        wide = lambda v: list(v) * spatial if len(v) == 1 else list(v)  # noqa: E731
        stride, padding, dilation = wide(stride), wide(padding), wide(dilation)
        extra = wide(output_padding)
        channels = w[1] * groups if transposed else w[0]
        expected = w[0] if transposed else w[1] * groups
        if not env.agree(x.type.shape[1], expected):
            raise RuntimeError(
                f"Given groups={groups}, weight of size {list(w)}, expected input"
                f"{list(x.type.shape)} to have {expected} channels, but got {x.type.shape[1]} "
                "channels instead"
            )
        shape: list[Size] = [x.type.shape[0], channels]
        for d in range(spatial):
            size, k = x.type.shape[2 + d], w[2 + d]
            if transposed:
                reach = dilation[d] * (k - 1) + extra[d] + 1
                shape.append((size - 1) * stride[d] - 2 * padding[d] + reach)
            else:
                shape.append(_convolved(env, size, k, stride[d], padding[d], dilation[d]))
        last = torch.contiguous_format
        for operand in (x, weight):
            if suggested_format(operand.type.shape, operand.type.strides) != last:
                order = CHANNELS_LAST_ORDER[len(shape)]
                strides = dense(tuple(shape), order)
                return TensorType(tuple(shape), strides, x.type.dtype, x.type.device)
        return fresh(shape, x.type.dtype, x.type.device)

    def samples():
        x, w = torch.randn(2, 3, 8, 9), torch.randn(4, 3, 3, 3)
        row = (x, w, torch.randn(4), [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
        return [(row, {})]


@extern("aten.convolution_backward.default", layout_varies=True)
class ConvolutionBackward:
    def type(
        env, grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
        groups, output_mask,
    ):  # fmt: skip
        rows = (x.type.shape, weight.type.shape, tuple(bias_sizes or ()))
        last = any(
            suggested_format(t.type.shape, t.type.strides) != torch.contiguous_format
            for t in (x, weight)
        )
        types: list[Any] = []
        for wanted, shape in zip(output_mask, rows):
            type_ = fresh(shape, x.type.dtype, x.type.device)
            if last and len(shape) in CHANNELS_LAST_ORDER:
                strides = dense(shape, CHANNELS_LAST_ORDER[len(shape)])
                type_ = TensorType(shape, strides, x.type.dtype, x.type.device)
            types.append(type_ if wanted else None)
        return types

    def samples():
        x, w, grad = torch.randn(2, 3, 8, 9), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 4, 5)
        row = (grad, x, w, [4], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
        return [(row, {})]
