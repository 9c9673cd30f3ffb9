"""Softmax, log-softmax and their gradients: the maximum is subtracted before the exponential."""

from __future__ import annotations

import math
from typing import Any

import torch

from jitshape.ir.graph import Value
from jitshape.ir.ops.composing import call, cast, finish, mul, sub, total, where, widen
from jitshape.ir.ops.families import fresh
from jitshape.ir.ops.registry import op
from jitshape.ir.types import TensorType


class Softmax:
    """The result is contiguous; with `half_to_float` it is f32."""

    @staticmethod
    def type(env: Any, x: Value, dim: int, half_to_float: bool) -> TensorType:
        dtype = torch.float32 if half_to_float else x.type.dtype
        return fresh(x.type.shape, dtype, x.type.device)

    @staticmethod
    def samples() -> list:
        x = torch.randn(3, 4, 5)
        masked = x.masked_fill(x < 0, -float("inf"))
        rows = [(x, -1, False), (x.permute(2, 0, 1), 0, False), (masked, 1, False)]
        rows.append((x.bfloat16() * 30, 2, False))
        return [(row, {}) for row in rows]


def _shifted(g: Any, x: Value, dim: int) -> Value:
    x = widen(g, x)
    return sub(g, x, call(g, "amax", x, [dim], True)) if x.type.ndim else sub(g, x, x)


def _along(x: Value, dim: int) -> list[int]:
    return [dim] if x.type.ndim else []


def _shares(g: Any, e: Value, dims: list[int]) -> Value:
    """e / sum(e), by one division a row: the sum is at least 1, for the greatest of e is."""
    return mul(g, e, call(g, "reciprocal", total(g, e, dims, True)))


@op("aten._softmax.default", family="composite", base=Softmax)
class SoftmaxForward:
    @staticmethod
    def decompose(g, node, x, dim, half_to_float):
        e = call(g, "exp", _shifted(g, x, dim))
        return finish(g, node, _shares(g, e, _along(x, dim)))


@op("aten._safe_softmax.default", family="composite")
class SafeSoftmax:
    """Rows of -inf alone, which attention masks whole, give 0."""

    @staticmethod
    def type(env, x, dim, dtype=None):
        return fresh(x.type.shape, dtype or x.type.dtype, x.type.device)

    @staticmethod
    def decompose(g, node, x, dim, dtype=None):
        x = widen(g, x if dtype is None else cast(g, x, dtype))
        top = call(g, "amax", x, _along(x, dim), True)
        e = call(g, "exp", sub(g, x, top))
        rows = _shares(g, e, _along(x, dim))
        nothing = g.call("aten.eq.Scalar", top, -math.inf)
        return finish(g, node, where(g, nothing, 0.0, rows))

    @staticmethod
    def samples():
        x = torch.randn(3, 4, 5)
        x[1] = -math.inf
        x[0, 2, :3] = -math.inf
        rows = [(x, -1), (x.permute(2, 0, 1), 0), (x.bfloat16(), 2)]
        return [(row, {}) for row in rows] + [((x.half(), 2), {"dtype": torch.float32})]


@op("aten._log_softmax.default", family="composite", base=Softmax)
class LogSoftmaxForward:
    @staticmethod
    def decompose(g, node, x, dim, half_to_float):
        shifted = _shifted(g, x, dim)
        sums = total(g, call(g, "exp", shifted), _along(x, dim), True)
        return finish(g, node, sub(g, shifted, call(g, "log", sums)))


class SoftmaxBackward:
    @staticmethod
    def type(env, grad, output, dim, input_dtype):
        return fresh(grad.type.shape, input_dtype, grad.type.device)

    @staticmethod
    def samples():
        grad, x = torch.randn(3, 4, 5), torch.randn(3, 4, 5).log_softmax(1)
        f32 = torch.float32
        return [((grad, x, 1, f32), {}), ((grad.permute(2, 0, 1), x.permute(2, 0, 1), 2, f32), {})]


@op("aten._softmax_backward_data.default", family="composite", base=SoftmaxBackward)
class SoftmaxBackwardData:
    @staticmethod
    def decompose(g, node, grad, output, dim, input_dtype):
        grad, output = widen(g, grad), widen(g, output)
        sums = total(g, mul(g, grad, output), _along(output, dim), True)
        return finish(g, node, mul(g, sub(g, grad, sums), output))


@op("aten._log_softmax_backward_data.default", family="composite", base=SoftmaxBackward)
class LogSoftmaxBackwardData:
    @staticmethod
    def decompose(g, node, grad, output, dim, input_dtype):
        grad, output = widen(g, grad), widen(g, output)
        sums = total(g, grad, _along(output, dim), True)
        return finish(g, node, sub(g, grad, mul(g, call(g, "exp", output), sums)))
