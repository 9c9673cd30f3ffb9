"""Losses and their gradients: an elementwise part, then the reduction (0 none, 1 mean, 2 sum)."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.graph import Node, Value
from jitshape.ir.ops.composing import (
    MEAN,
    NONE,
    add,
    call,
    cast,
    count,
    div,
    finish,
    mul,
    sub,
    total,
    view,
    where,
    widen,
)
from jitshape.ir.ops.families import elementwise, fresh, is_tensor, promote, require_shape
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import broadcast
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType


def reduce_loss(g: Any, node: Node, loss: Value, reduction: int) -> Value:
    """The loss as the node's output."""
    if reduction != NONE:
        dims = list(range(loss.type.ndim))
        elements = count(loss, dims)
        loss = total(g, loss, dims) if dims else loss
        loss = div(g, loss, elements) if reduction == MEAN else loss
    return finish(g, node, loss)


def spread(g: Any, grad: Value, x: Value, reduction: int) -> Value:
    """The gradient of each element of the loss."""
    grad = widen(g, grad)
    return div(g, grad, count(x, range(x.type.ndim))) if reduction == MEAN else grad


# ---- negative log likelihood


def _class_dim(x: Value) -> int:
    return 0 if x.type.ndim == 1 else 1


def _checked_target(g: Any, target: Value, ignore_index: int, classes: Size) -> tuple[Value, Value]:
    """(whether the row counts, its class: 0 where it does not)."""
    counted = g.call("aten.ne.Scalar", target, ignore_index)
    safe = where(g, counted, target, 0)
    return counted, g.call("jitshape.in_range", safe, 0, classes - 1, "target")


def _row_weights(g: Any, counted: Value, safe: Value, weight: Value | None, dtype: Any) -> Value:
    if weight is None:
        return cast(g, counted, dtype)
    rows = g.call("aten.index.Tensor", weight, [safe])
    return where(g, counted, widen(g, rows), 0)


class NLLLoss:
    """(loss, total weight): log probabilities along dimension 1, classes in `target`."""

    @staticmethod
    def check(env, x, target, weight, reduction, ignore_index):
        shape = x.type.shape
        rows = (*shape[: _class_dim(x)], *shape[_class_dim(x) + 1 :])
        mismatch = f"size mismatch (got input: {list(shape)}, target: {list(target.type.shape)})"
        require_shape(env, target.type.shape, rows, mismatch)
        if weight is not None:
            text = f"weight tensor should be defined either for all {shape[_class_dim(x)]} classes"
            require_shape(env, weight.type.shape, [shape[_class_dim(x)]], text)

    @staticmethod
    def type(env, x, target, weight, reduction, ignore_index):
        scalar = fresh((), x.type.dtype, x.type.device)
        if reduction != NONE:
            return [scalar, scalar]
        return [fresh(target.type.shape, x.type.dtype, x.type.device), scalar]

    @staticmethod
    def decompose(g, node, x, target, weight, reduction, ignore_index):
        dim = _class_dim(x)
        counted, safe = _checked_target(g, target, ignore_index, x.type.shape[dim])
        picked = g.call("aten.gather.default", x, dim, call(g, "unsqueeze", safe, dim))
        picked = widen(g, g.call("aten.squeeze.dim", picked, dim))
        weights = _row_weights(g, counted, safe, weight, picked.type.dtype)
        loss = where(g, counted, call(g, "neg", mul(g, picked, weights)), 0)
        scalar = node.outs[1].type
        if reduction == NONE:
            zero = g.call("aten.full.default", [], 0, dtype=scalar.dtype, device=scalar.device)
            return finish(g, node, loss), zero
        dims = list(range(loss.type.ndim))
        loss, weights = (total(g, v, dims) if dims else v for v in (loss, weights))
        if reduction == MEAN:
            loss = div(g, loss, weights)
        return finish(g, node, loss), finish(g, node, weights, 1)


@op("aten.nll_loss_forward.default", family="composite", base=NLLLoss)
class NLLLossForward:
    @staticmethod
    def samples():
        x, target = torch.randn(5, 7).log_softmax(1), torch.tensor([1, -100, 0, 6, 2])
        weight = torch.rand(7)
        rows = [(x, target, w, r, -100) for w in (None, weight) for r in (0, 1, 2)]
        rows.append((x.t().contiguous().t(), target.abs() % 7, None, 1, 2))
        rows.append((x[0], torch.tensor(3), None, 1, -100))
        rows.append((x.bfloat16(), target, None, 1, -100))
        return [(row, {}) for row in rows]


@op("aten.nll_loss2d_forward.default", family="composite", base=NLLLoss)
class NLLLoss2dForward:
    @staticmethod
    def samples():
        x, target = torch.randn(2, 3, 4, 5).log_softmax(1), torch.randint(0, 3, (2, 4, 5))
        return [((x, target, w, r, 1), {}) for w in (None, torch.rand(3)) for r in (0, 1, 2)]


class NLLLossGradient:
    """-weight at the class of each row, 0 elsewhere: a comparison with the class number."""

    @staticmethod
    def type(env, grad, x, target, weight, reduction, ignore_index, total_weight):
        return fresh(x.type.shape, x.type.dtype, x.type.device)

    @staticmethod
    def decompose(g, node, grad, x, target, weight, reduction, ignore_index, total_weight):
        dim = _class_dim(x)
        counted = g.call("aten.ne.Scalar", target, ignore_index)
        safe = where(g, counted, target, 0)
        grad = widen(g, grad)
        weights = _row_weights(g, counted, safe, weight, grad.type.dtype)
        row = mul(g, call(g, "neg", weights), grad)
        if reduction == MEAN:
            row = where(g, counted, div(g, row, widen(g, total_weight)), 0)
        classes = call(g, "arange", x.type.shape[dim], device=x.type.device)
        column = [x.type.shape[dim]] + [1] * (x.type.ndim - dim - 1)
        here = g.call("aten.eq.Tensor", call(g, "unsqueeze", safe, dim), view(g, classes, column))
        return finish(g, node, where(g, here, call(g, "unsqueeze", row, dim), 0))


@op("aten.nll_loss_backward.default", family="composite", base=NLLLossGradient)
class NLLLossBackward:
    @staticmethod
    def samples():
        x, target = torch.randn(5, 7), torch.tensor([1, -100, 0, 6, 2])
        one, many, w, rows = torch.tensor(1.5), torch.randn(5), torch.rand(7), []
        for weight in (None, w):
            for reduction in (0, 1, 2):
                args = (x, target, weight, reduction, -100)
                _, total_weight = torch.ops.aten.nll_loss_forward(*args)
                rows.append((one if reduction else many, *args, total_weight))
        return [(row, {}) for row in rows]


@op("aten.nll_loss2d_backward.default", family="composite", base=NLLLossGradient)
class NLLLoss2dBackward:
    @staticmethod
    def samples():
        x, target = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
        args = (x, target, None, 1, 1)
        _, total_weight = torch.ops.aten.nll_loss2d_forward(*args)
        return [((torch.tensor(2.0), *args, total_weight), {})]


# ---- losses of one element each


class ElementLoss:
    """`element(g, x, y, ...)` is the loss of one element, `slope` its derivative by x."""

    @classmethod
    def check(cls, env: Any, *args: Any) -> None:
        broadcast(env, *(x.type.shape for x in args if is_tensor(x)))

    @classmethod
    def type(cls, env: Any, x: Value, y: Value, *args: Any) -> TensorType:
        dtype = cls.dtype(x, y)
        if cls.reduction(args) != NONE:
            return fresh((), dtype, x.type.device)
        return elementwise(env, cls.laid_out_as(x, y), dtype)

    @staticmethod
    def laid_out_as(x: Value, y: Value) -> list[Value]:
        """The operands whose strides decide those of a loss that is not reduced."""
        return [x, y]

    @staticmethod
    def dtype(x: Value, y: Value) -> torch.dtype:
        return promote((x, y))

    @staticmethod
    def reduction(args: tuple) -> int:
        return args[0] if args else MEAN

    @classmethod
    def decompose(cls, g: Any, node: Node, x: Value, y: Value, *args: Any) -> Value:
        loss = cls.element(g, widen(g, x), widen(g, y), *args[1:])
        return reduce_loss(g, node, loss, cls.reduction(args))

    @staticmethod
    def element(g: Any, x: Value, y: Value, *args: Any) -> Value:
        raise NotImplementedError

    @classmethod
    def samples(cls) -> list:
        x, y = torch.randn(3, 4) * 2, torch.randn(3, 4)
        return [((x, y, r), {}) for r in (0, 1, 2)] + [((x.t(), y.t(), 0), {})]


class ElementLossGradient:
    @staticmethod
    def type(env: Any, grad: Value, x: Value, y: Value, *args: Any) -> TensorType:
        shape = elementwise(env, [x, y], x.type.dtype).shape
        return fresh(shape, x.type.dtype, x.type.device)

    @classmethod
    def decompose(
        cls, g: Any, node: Node, grad: Value, x: Value, y: Value, reduction: int, *args: Any
    ) -> Value:
        slope = cls.slope(g, widen(g, x), widen(g, y), *args)
        return finish(g, node, mul(g, slope, spread(g, grad, x, reduction)))

    @staticmethod
    def slope(g: Any, x: Value, y: Value, *args: Any) -> Value:
        raise NotImplementedError

    @classmethod
    def samples(cls) -> list:
        x, y, many, one = torch.randn(3, 4) * 2, torch.randn(3, 4), torch.randn(3, 4), 1.5
        extra = cls.parameters
        return [((many if r == 0 else torch.tensor(one), x, y, r, *extra), {}) for r in (0, 1, 2)]

    parameters: tuple = ()


@op("aten.mse_loss.default", family="composite", base=ElementLoss)
class MSELoss:
    @staticmethod
    def element(g, x, y):
        difference = sub(g, x, y)
        return mul(g, difference, difference)


@op("aten.mse_loss_backward.default", family="composite", base=ElementLossGradient)
class MSELossBackward:
    @staticmethod
    def slope(g, x, y):
        return mul(g, sub(g, x, y), 2)


@op("aten.smooth_l1_loss.default", family="composite", base=ElementLoss)
class SmoothL1Loss:
    @staticmethod
    def element(g, x, y, beta=1.0):
        far = call(g, "abs", sub(g, x, y))
        if beta == 0:
            return far
        near = div(g, mul(g, mul(g, far, far), 0.5), beta)
        return where(g, g.call("aten.lt.Scalar", far, beta), near, sub(g, far, 0.5 * beta))


@op("aten.smooth_l1_loss_backward.default", family="composite", base=ElementLossGradient)
class SmoothL1LossBackward:
    parameters = (0.7,)

    @staticmethod
    def slope(g, x, y, beta):
        difference = sub(g, x, y)
        sign = call(g, "sign", difference)
        if beta == 0:
            return sign
        near = g.call("aten.lt.Scalar", call(g, "abs", difference), beta)
        return where(g, near, div(g, difference, beta), sign)


@op("aten.huber_loss.default", family="composite", base=ElementLoss)
class HuberLoss:
    @staticmethod
    def dtype(x, y):
        return x.type.dtype

    @staticmethod
    def element(g, x, y, delta=1.0):
        far = call(g, "abs", sub(g, x, y))
        near = mul(g, mul(g, far, far), 0.5)
        linear = mul(g, sub(g, far, 0.5 * delta), delta)
        return where(g, g.call("aten.le.Scalar", far, delta), near, linear)


@op("aten.huber_loss_backward.default", family="composite", base=ElementLossGradient)
class HuberLossBackward:
    parameters = (0.7,)

    @staticmethod
    def slope(g, x, y, delta):
        difference = sub(g, x, y)
        near = g.call("aten.lt.Scalar", call(g, "abs", difference), delta)
        return where(g, near, difference, mul(g, call(g, "sign", difference), delta))


class Probability(ElementLoss):
    """A weight comes before the reduction."""

    @staticmethod
    def reduction(args: tuple) -> int:
        return args[-1]

    @classmethod
    def samples(cls) -> list:
        x, y, w = torch.rand(3, 4), torch.rand(3, 4), torch.rand(4)
        x[0, 0], x[0, 1], y[0, 0] = 0.0, 1.0, 1.0
        return [((x, y, weight, r), {}) for weight in (None, w) for r in (0, 1, 2)]


@op("aten.binary_cross_entropy.default", family="composite", base=Probability)
class BinaryCrossEntropy:
    """Logarithms are cut off at -100, as in ATen."""

    @staticmethod
    def reduction(args):
        return args[1] if len(args) > 1 else MEAN

    @staticmethod
    def decompose(g, node, x, y, weight=None, reduction=MEAN):
        x, y = g.call("jitshape.in_range", widen(g, x), 0, 1, "probability"), widen(g, y)
        yes = call(g, "clamp_min", call(g, "log", x), -100)
        no = call(g, "clamp_min", call(g, "log1p", call(g, "neg", x)), -100)
        loss = sub(g, mul(g, sub(g, y, 1), no), mul(g, y, yes))
        loss = loss if weight is None else mul(g, loss, widen(g, weight))
        return reduce_loss(g, node, loss, reduction)


@op("aten.binary_cross_entropy_backward.default", family="composite")
class BinaryCrossEntropyBackward:
    @staticmethod
    def type(env, grad, x, y, weight=None, reduction=MEAN):
        return elementwise(env, [x], x.type.dtype)

    @staticmethod
    def decompose(g, node, grad, x, y, weight=None, reduction=MEAN):
        wide, y = widen(g, x), widen(g, y)
        one_minus = g.call("aten.rsub.Scalar", wide, 1)
        scale = call(g, "clamp_min", mul(g, one_minus, wide), 1e-12)
        slope = div(g, mul(g, sub(g, wide, y), spread(g, grad, x, reduction)), scale)
        slope = slope if weight is None else mul(g, slope, widen(g, weight))
        return finish(g, node, slope)

    @staticmethod
    def samples():
        grad, x, y, w = torch.randn(3, 4), torch.rand(3, 4), torch.rand(3, 4), torch.rand(4)
        one = torch.tensor(2.0)
        return [((grad, x, y, None, 0), {}), ((one, x, y, w, 1), {}), ((one, x, y, w, 2), {})]


@op("aten.binary_cross_entropy_with_logits.default", family="composite", base=Probability)
class BinaryCrossEntropyWithLogits:
    """(1 - y) x + (1 + (p - 1) y) log(1 + exp(-x)), p the weight of positives; in place of
    1 - y."""

    @staticmethod
    def dtype(x, y):
        return y.type.dtype

    @staticmethod
    def laid_out_as(x, y):
        return [y]

    @staticmethod
    def reduction(args):
        return args[2] if len(args) > 2 else MEAN

    @staticmethod
    def decompose(g, node, x, y, weight=None, pos_weight=None, reduction=MEAN):
        x, y = widen(g, x), widen(g, y)
        tail = call(g, "log1p", call(g, "exp", call(g, "neg", call(g, "abs", x))))
        softplus = add(g, tail, call(g, "clamp_min", call(g, "neg", x), 0))
        if pos_weight is not None:
            softplus = mul(g, softplus, add(g, mul(g, sub(g, pos_weight, 1), y), 1))
        loss = add(g, mul(g, g.call("aten.rsub.Scalar", y, 1), x), softplus)
        loss = loss if weight is None else mul(g, loss, widen(g, weight))
        return reduce_loss(g, node, loss, reduction)

    @staticmethod
    def samples():
        x, y, w = torch.randn(3, 4) * 20, torch.rand(3, 4), torch.rand(4)
        return [((x, y, a, b, r), {}) for a, b, r in ((None, None, 0), (w, w, 1), (None, w, 2))]
