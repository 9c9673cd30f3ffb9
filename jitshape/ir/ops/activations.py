"""Activation functions and their derivatives, as pointwise blocks."""

from __future__ import annotations

import math

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Value
from jitshape.ir.ops.composing import call, finish, mul, sub
from jitshape.ir.ops.families import (
    elementwise,
    fresh,
    pointwise,
    pointwise_table,
    require,
    wrap_dim,
)
from jitshape.ir.ops.registry import op
from jitshape.ir.types import TensorType

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
CUBIC = 0.044715  # of the tanh approximation of gelu


def _log1p_exp(b, x):
    return b.add(b.maximum(x, 0), b.log1p(b.exp(b.neg(b.abs(x)))))


def _relu6(b, x):
    return b.minimum(b.maximum(x, 0), 6)


pointwise_table(
    {
        "aten.silu.default": lambda b, x: b.mul(x, b.sigmoid(x)),
        "aten.mish.default": lambda b, x: b.mul(x, b.tanh(_log1p_exp(b, x))),
        "aten.hardsigmoid.default": lambda b, x: b.div(_relu6(b, b.add(x, 3)), 6),
        "aten.hardswish.default": lambda b, x: b.div(b.mul(x, _relu6(b, b.add(x, 3))), 6),
    }
)
pointwise_table(
    {
        "aten.sigmoid_backward.default": lambda b, g, y: b.mul(g, b.mul(b.sub(1.0, y), y)),
        "aten.tanh_backward.default": lambda b, g, y: b.mul(g, b.sub(1.0, b.mul(y, y))),
        "aten.hardsigmoid_backward.default": lambda b, g, x: b.where(
            b.and_(b.gt(x, -3), b.lt(x, 3)), b.div(g, 6), 0.0
        ),
        "aten.threshold_backward.default": lambda b, g, x, t: b.where(b.le(x, t), 0, g),
    },
    operands=2,
)


@pointwise("aten.gelu.default")
class Gelu:
    def lower(b, x, approximate="none"):
        if approximate == "tanh":
            inner = b.mul(SQRT_2_OVER_PI, b.add(x, b.mul(CUBIC, b.mul(x, b.mul(x, x)))))
            return b.mul(x, b.sigmoid(b.add(inner, inner)))
        return b.mul(b.mul(0.5, x), b.add(1.0, b.erf(b.mul(x, SQRT_HALF))))


@pointwise("aten.gelu_backward.default", operands=2)
class GeluBackward:
    def lower(b, g, x, approximate="none"):
        square = b.mul(x, x)
        if approximate == "tanh":
            inner = b.mul(SQRT_2_OVER_PI, b.add(x, b.mul(CUBIC, b.mul(x, square))))
            s = b.sigmoid(b.add(inner, inner))
            slope = b.mul(2 * SQRT_2_OVER_PI, b.add(1.0, b.mul(3 * CUBIC, square)))
            bend = b.mul(b.mul(b.mul(x, s), b.sub(1.0, s)), slope)
            return b.mul(g, b.add(s, bend))
        cdf = b.mul(0.5, b.add(1.0, b.erf(b.mul(x, SQRT_HALF))))
        pdf = b.mul(b.exp(b.mul(square, -0.5)), SQRT_2_OVER_PI / 2)
        return b.mul(g, b.add(cdf, b.mul(x, pdf)))


@pointwise("aten.silu_backward.default", operands=2)
class SiluBackward:
    def lower(b, g, x):
        s = b.sigmoid(x)
        return b.mul(b.mul(g, s), b.add(1.0, b.mul(x, b.sub(1.0, s))))


@pointwise("aten.mish_backward.default", operands=2)
class MishBackward:
    def lower(b, g, x):
        t = b.tanh(_log1p_exp(b, x))
        bend = b.mul(b.mul(x, b.sigmoid(x)), b.sub(1.0, b.mul(t, t)))
        return b.mul(g, b.add(t, bend))


@pointwise("aten.hardswish_backward.default", operands=2)
class HardswishBackward:
    def lower(b, g, x):
        middle = b.mul(g, b.add(b.div(x, 3), 0.5))
        return b.where(b.le(x, -3), 0.0, b.where(b.lt(x, 3), middle, g))


@pointwise("aten.hardtanh.default")
class Hardtanh:
    def lower(b, x, min_val=-1, max_val=1):
        return b.minimum(b.maximum(x, min_val), max_val)


@pointwise("aten.hardtanh_backward.default", operands=2)
class HardtanhBackward:
    def lower(b, g, x, min_val, max_val):
        return b.where(b.or_(b.le(x, min_val), b.ge(x, max_val)), 0.0, g)


@pointwise("aten.leaky_relu.default")
class LeakyRelu:
    def lower(b, x, negative_slope=0.01):
        return b.where(b.gt(x, 0), x, b.mul(x, negative_slope))


@pointwise("aten.leaky_relu_backward.default", operands=2)
class LeakyReluBackward:
    def lower(b, g, x, negative_slope, self_is_result):
        return b.where(b.gt(x, 0), g, b.mul(g, negative_slope))


@pointwise("aten.elu.default")
class Elu:
    def lower(b, x, alpha=1, scale=1, input_scale=1):
        curve = b.mul(b.expm1(b.mul(x, input_scale)), b.mul(alpha, scale))
        return b.where(b.le(x, 0), curve, b.mul(x, scale))


@pointwise("aten.celu.default")
class Celu:
    def lower(b, x, alpha=1.0):
        return b.where(b.le(x, 0), b.mul(b.expm1(b.div(x, alpha)), alpha), x)


@pointwise("aten.elu_backward.default", operands=1)
class EluBackward:
    @classmethod
    def type(cls, env, g, alpha, scale, input_scale, is_result, x):
        return elementwise(env, [g, x], g.type.dtype)

    def lower(b, g, alpha, scale, input_scale, is_result, x):
        x = b.cast(x, g.dtype)
        if is_result:
            curve = b.mul(b.mul(g, input_scale), b.add(x, b.mul(alpha, scale)))
        else:
            rate = b.mul(b.mul(input_scale, alpha), scale)
            curve = b.mul(b.mul(g, rate), b.exp(b.mul(x, input_scale)))
        return b.where(b.le(x, 0), curve, b.mul(g, scale))


@pointwise("aten.softplus.default")
class Softplus:
    def lower(b, x, beta=1, threshold=20):
        scaled = b.mul(x, beta)
        return b.where(b.gt(scaled, threshold), x, b.div(b.log1p(b.exp(scaled)), beta))


@pointwise("aten.softplus_backward.default", operands=2)
class SoftplusBackward:
    def lower(b, g, x, beta, threshold):
        scaled = b.mul(x, beta)
        return b.where(b.gt(scaled, threshold), g, b.mul(g, b.sigmoid(scaled)))


@pointwise("aten.threshold.default")
class Threshold:
    def lower(b, x, threshold, value):
        return b.where(b.le(x, threshold), value, x)


def _shrunk(b, x, limit):
    """Whether x lies within the limits, where shrinking gives 0."""
    return b.and_(b.ge(x, b.neg(b.scalar(limit))), b.le(x, limit))


@pointwise("aten.hardshrink.default")
class Hardshrink:
    rounds_all = True

    def lower(b, x, lambd=0.5):
        return b.where(_shrunk(b, x, lambd), 0.0, x)


@pointwise("aten.softshrink.default")
class Softshrink:
    def lower(b, x, lambd=0.5):
        outside = b.where(b.gt(x, lambd), b.sub(x, lambd), b.where(b.ne(x, x), x, b.add(x, lambd)))
        return b.where(_shrunk(b, x, lambd), b.mul(x, 0.0), outside)


pointwise_table(
    {
        f"aten.{name}_backward.default": lambda b, g, x, limit: b.where(
            _shrunk(b, x, limit), 0.0, g
        )
        for name in ("hardshrink", "softshrink")
    },
    operands=2,
    rounds_all=True,
)


@pointwise("aten.native_dropout_backward.default", operands=2, result="float")
class DropoutBackward:
    def lower(b, grad, mask, scale):
        return b.mul(b.mul(grad, mask), scale)

    def samples():
        return [((torch.randn(3, 4), torch.rand(3, 4) > 0.5, 2.0), {})]


def _halves(g, x, dim):
    """The two halves along a dimension, the second as a gate."""
    half = x.type.shape[dim] // 2
    first = g.call("aten.slice.Tensor", x, dim, 0, half)
    return first, call(g, "sigmoid", g.call("aten.slice.Tensor", x, dim, half, half + half))


@op("aten.glu.default", family="composite")
class Glu:
    def check(env, x, dim=-1):
        size = x.type.shape[wrap_dim(dim, x.type.ndim)] if x.type.ndim else 1
        text = f"Halving dimension must be even, but dimension {dim} is size {size}"
        require(env, compare("eq", env.mod(size, 2), 0), text)

    def type(env, x, dim=-1):
        old, dim = x.type, wrap_dim(dim, x.type.ndim)
        shape = (*old.shape[:dim], env.floordiv(old.shape[dim], 2), *old.shape[dim + 1 :])
        half = Value("half", TensorType(shape, old.strides, old.dtype, old.device), None)
        return elementwise(env, [half], old.dtype)

    def decompose(g, node, x, dim=-1):
        first, gate = _halves(g, x, wrap_dim(dim, x.type.ndim))
        return finish(g, node, mul(g, first, gate))

    def samples():
        x = torch.randn(4, 6, 2)
        return [((x,), {}), ((x, 1), {}), ((x.permute(2, 0, 1), 1), {})]


@op("aten.glu_backward.default", family="composite")
class GluBackward:
    def type(env, grad, x, dim):
        return fresh(x.type.shape, x.type.dtype, x.type.device)

    def decompose(g, node, grad, x, dim):
        dim = wrap_dim(dim, x.type.ndim)
        first, gate = _halves(g, x, dim)
        left = mul(g, grad, gate)
        slope = mul(g, sub(g, call(g, "ones_like", gate), gate), first)
        return finish(g, node, g.call("aten.cat", [left, mul(g, left, slope)], dim))

    def samples():
        return [((torch.randn(4, 3), torch.randn(4, 6), 1), {})]


@op("aten.log_sigmoid_forward.default", family="composite")
class LogSigmoidForward:
    """(result, buffer); the buffer is empty on CUDA and exp(-|x|) on the CPU."""

    def type(env, x):
        type_ = elementwise(env, [x], x.type.dtype)
        return [type_, type_]

    def decompose(g, node, x):
        buffer = g.call("aten.exp", g.call("aten.neg", g.call("aten.abs", x)))
        low = g.call("aten.clamp_max", x, 0)
        return g.call("aten.sub.Tensor", low, g.call("aten.log1p", buffer)), buffer


@pointwise("aten.log_sigmoid_backward.default", operands=2)
class LogSigmoidBackward:
    def lower(b, g, x, buffer):
        return b.mul(g, b.sub(1.0, b.sigmoid(x)))


@pointwise("aten._prelu_kernel.default", operands=2)
class PRelu:
    def lower(b, x, weight):
        return b.where(b.gt(x, 0), x, b.mul(weight, x))
