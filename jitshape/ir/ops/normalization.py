"""Layer, batch and group normalization and their gradients.

Variances are computed in two passes (mean first), half types in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jitshape.ir.graph import Node, Value
from jitshape.ir.ops.composing import (
    add,
    average,
    call,
    cast,
    count,
    div,
    finish,
    mul,
    sub,
    total,
    view,
    widen,
)
from jitshape.ir.ops.families import fresh, is_tensor, require_elements, require_shape
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import format_strides, is_contiguous, suggested_format
from jitshape.ir.symint import Size, sym_max
from jitshape.ir.types import TensorType, numel


def moments(g: Any, x: Value, dims: Sequence[int]) -> tuple[Value, Value, Value]:
    """(x - mean, mean, biased variance) along `dims`, which are kept."""
    mean = average(g, x, dims, True)
    centered = sub(g, x, mean)
    return centered, mean, average(g, mul(g, centered, centered), dims, True)


def statistics_dtype(x: Value, *parameters: Any) -> torch.dtype:
    """Of mean and rstd: the parameters' where these are wider than half-type inputs."""
    for parameter in parameters:
        if is_tensor(parameter):
            return parameter.type.dtype
    return x.type.dtype


def gradients(g: Any, node: Node, makers: Sequence[Any]) -> tuple[Value | None, ...]:
    """Results by the node's mask, its last argument; None for an unwanted one."""
    mask = node.args[-1] if isinstance(node.args[-1], list) else node.kwargs["output_mask"]
    return tuple(
        finish(g, node, make(), i) if wanted else None
        for i, (make, wanted) in enumerate(zip(makers, mask))
    )


# ---- layer norm


@op("aten.native_layer_norm.default", family="composite")
class LayerNorm:
    """(normalized, mean, 1/std); the statistics keep the normalized dimensions as 1."""

    @staticmethod
    def type(env, x, normalized_shape, weight, bias, eps):
        outer = x.type.ndim - len(normalized_shape)
        reduced = x.type.shape[:outer] + (1,) * len(normalized_shape)
        stat = fresh(reduced, statistics_dtype(x, weight, bias), x.type.device)
        return [fresh(x.type.shape, x.type.dtype, x.type.device), stat, stat]

    @staticmethod
    def check(env, x, normalized_shape, weight, bias, eps):
        rank = len(normalized_shape)
        own = x.type.shape[-rank:] if rank else ()
        wanted = list(normalized_shape)
        require_shape(
            env, own, wanted,
            f"Given normalized_shape={wanted}, expected input with shape {wanted} at its end",
        )  # fmt: skip
        for name, row in (("weight", weight), ("bias", bias)):
            if row is not None:
                text = f"Expected {name} to be of same shape as normalized_shape"
                require_shape(env, row.type.shape, wanted, text)

    @staticmethod
    def decompose(g, node, x, normalized_shape, weight, bias, eps):
        dims = range(x.type.ndim - len(normalized_shape), x.type.ndim)
        centered, mean, variance = moments(g, widen(g, x), dims)
        rstd = call(g, "rsqrt", add(g, variance, eps))
        y = mul(g, centered, rstd)
        if weight is not None:
            y = mul(g, y, widen(g, weight))
        if bias is not None:
            y = add(g, y, widen(g, bias))
        return tuple(finish(g, node, value, i) for i, value in enumerate((y, mean, rstd)))

    @staticmethod
    def samples():
        x, w, b = torch.randn(3, 4, 5), torch.randn(5), torch.randn(5)
        far = x * 0.1 + 4
        rows = [(x, [5], w, b, 1e-5), (x, [4, 5], None, None, 1e-5), (far, [5], w, None, 1e-5)]
        rows += [(x.bfloat16(), [5], w.bfloat16(), b.bfloat16(), 1e-5)]
        rows += [(x.permute(2, 0, 1), [4], None, None, 1e-3), (x.bfloat16(), [5], w, b, 1e-5)]
        return [(row, {}) for row in rows]


def _masked_types(mask: Sequence[bool], *types: TensorType) -> list[TensorType | None]:
    return [type_ if wanted else None for type_, wanted in zip(types, mask)]


@op("aten.native_layer_norm_backward.default", family="composite")
class LayerNormBackward:
    @staticmethod
    def type(env, grad, x, normalized_shape, mean, rstd, weight, bias, output_mask):
        dtype = weight.type.dtype if weight is not None else x.type.dtype
        parameter = fresh(tuple(normalized_shape), dtype, x.type.device)
        input_ = fresh(x.type.shape, x.type.dtype, x.type.device)
        return _masked_types(output_mask, input_, parameter, parameter)

    @staticmethod
    def decompose(g, node, grad, x, normalized_shape, mean, rstd, weight, bias, output_mask):
        outer = x.type.ndim - len(normalized_shape)
        inner = range(outer, x.type.ndim)
        grad, rstd = widen(g, grad), widen(g, rstd)
        hat = mul(g, sub(g, widen(g, x), widen(g, mean)), rstd)

        def input_gradient():
            scaled = grad if weight is None else mul(g, grad, widen(g, weight))
            along = average(g, mul(g, scaled, hat), inner, True)
            rest = sub(g, sub(g, scaled, average(g, scaled, inner, True)), mul(g, hat, along))
            return mul(g, rest, rstd)

        return gradients(
            g,
            node,
            (
                input_gradient,
                lambda: _outer_sum(g, mul(g, grad, hat), outer),
                lambda: _outer_sum(g, grad, outer),
            ),
        )

    @staticmethod
    def samples():
        grad, x, w = torch.randn(3, 4, 5), torch.randn(3, 4, 5), torch.randn(5)
        rows = []
        for mask in ([True, True, True], [True, False, False], [False, True, True]):
            _, mean, rstd = torch.native_layer_norm(x, [5], w, w, 1e-5)
            rows.append((grad, x, [5], mean, rstd, w, w, mask))
        _, mean, rstd = torch.native_layer_norm(x, [4, 5], None, None, 1e-5)
        rows.append((grad, x, [4, 5], mean, rstd, None, None, [True, False, False]))
        return [(row, {}) for row in rows]


def _outer_sum(g: Any, x: Value, outer: int) -> Value:
    return total(g, x, range(outer)) if outer else x


# ---- batch norm


def _channels(g: Any, x: Value, ndim: int) -> Value:
    """A vector over channels, to be broadcast over a batch."""
    return view(g, x, [x.type.shape[0]] + [1] * (ndim - 2)) if ndim > 2 else x


def _batch_norm_types(env, x, parameters, training):
    """On the CPU the statistics are of the parameters' dtype, on GPUs f32 or wider."""
    layout = suggested_format(x.type.shape, x.type.strides)
    strides = format_strides(env, x.type.shape, x.type.strides, layout)
    out = TensorType(x.type.shape, strides, x.type.dtype, x.type.device)
    dtype = statistics_dtype(x, *parameters)
    if x.type.device.type != "cpu" and dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    stat = fresh((x.type.shape[1],) if training else (0,), dtype, x.type.device)
    return [out, stat, stat]


@op("aten._native_batch_norm_legit_functional.default", family="composite")
class BatchNormFunctional:
    """(normalized, mean, 1/std, running mean, running variance): the pure form."""

    @staticmethod
    def type(env, x, weight, bias, running_mean, running_var, training, momentum, eps):
        running = [running_mean and running_mean.type, running_var and running_var.type]
        parameters = (weight, bias, running_mean, running_var)
        return _batch_norm_types(env, x, parameters, training) + running

    @staticmethod
    def decompose(g, node, x, weight, bias, running_mean, running_var, training, momentum, eps):
        dims = [d for d in range(x.type.ndim) if d != 1]
        wide = widen(g, x)
        running = [running_mean, running_var]
        if training:
            centered, mean, variance = moments(g, wide, dims)
            rstd = call(g, "rsqrt", add(g, variance, eps))
            channels = [x.type.shape[1]]
            flat_mean, flat_var, flat_rstd = (view(g, v, channels) for v in (mean, variance, rstd))
            n = count(x, dims)
            unbiased = div(g, mul(g, flat_var, n), sym_max(n - 1, 1))
            for i, new in enumerate((flat_mean, unbiased)):
                old = running[i]
                if old is not None:
                    mixed = add(g, mul(g, widen(g, old), 1 - momentum), mul(g, new, momentum))
                    running[i] = cast(g, mixed, old.type.dtype)
            saved = [finish(g, node, v, i) for i, v in ((1, flat_mean), (2, flat_rstd))]
        else:
            centered = sub(g, wide, _channels(g, widen(g, running_mean), x.type.ndim))
            flat_rstd = call(g, "rsqrt", add(g, widen(g, running_var), eps))
            rstd = _channels(g, flat_rstd, x.type.ndim)
            empty = node.outs[1].type
            nothing = g.call("aten.full.default", [0], 0, dtype=empty.dtype)
            saved = [nothing, nothing]
        y = mul(g, centered, rstd)
        if weight is not None:
            y = mul(g, y, _channels(g, widen(g, weight), x.type.ndim))
        if bias is not None:
            y = add(g, y, _channels(g, widen(g, bias), x.type.ndim))
        return (finish(g, node, y), *saved, *running)

    @staticmethod
    def samples():
        x, c = torch.randn(4, 3, 5, 2), torch.rand(3) + 0.5
        rows: list[tuple] = [(x, c, c, c.clone(), c.clone(), True, 0.1, 1e-5)]
        rows.append((x[:, :, 0, 0], None, None, c, c, True, 0.3, 1e-5))
        rows.append((x, None, None, c, c, False, 0.1, 1e-5))
        rows.append((x.contiguous(memory_format=torch.channels_last), c, c, c, c, True, 0.1, 1e-5))
        return [(row, {}) for row in rows]


@op(
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit.default",
    family="composite",
    functional="aten._native_batch_norm_legit_functional.default",
)
class BatchNorm:
    """Training writes the running statistics."""

    @staticmethod
    def type(env, x, weight, bias, running_mean, running_var, training, momentum, eps):
        return _batch_norm_types(env, x, (weight, bias, running_mean, running_var), training)

    @staticmethod
    def writes(args):
        return {3: 3, 4: 4} if args[5] else {}

    @staticmethod
    def decompose(g, node, *args):
        return BatchNormFunctional.decompose(g, node, *args)[:3]


@op("aten._native_batch_norm_legit.no_stats", family="composite")
class BatchNormWithoutStatistics:
    @staticmethod
    def check(env, x, *args):
        require_elements(env, x.type.shape, "input tensor must have at least one element")

    @staticmethod
    def type(env, x, weight, bias, training, momentum, eps):
        return _batch_norm_types(env, x, (weight, bias), training)

    @staticmethod
    def decompose(g, node, x, weight, bias, training, momentum, eps):
        args = (x, weight, bias, None, None, training, momentum, eps)
        return BatchNormFunctional.decompose(g, node, *args)[:3]

    @staticmethod
    def samples():
        return [((torch.randn(4, 3, 5), None, None, True, 0.1, 1e-5), {})]


@op("aten._native_batch_norm_legit_no_training.default", family="composite")
class BatchNormNoTraining:
    @staticmethod
    def type(env, x, weight, bias, running_mean, running_var, momentum, eps):
        return _batch_norm_types(env, x, (weight, bias, running_mean, running_var), False)

    @staticmethod
    def decompose(g, node, x, weight, bias, mean, var, momentum, eps):
        args = (x, weight, bias, mean, var, False, momentum, eps)
        return BatchNormFunctional.decompose(g, node, *args)[:3]

    @staticmethod
    def samples():
        c = torch.rand(3) + 0.5
        return [((torch.randn(4, 3, 5), c, c, c, c, 0.1, 1e-5), {})]


@op("aten.native_batch_norm_backward.default", family="composite")
class BatchNormBackward:
    @staticmethod
    def type(
        env, grad, x, weight, running_mean, running_var, mean, invstd, train, eps, output_mask
    ):
        input_ = _batch_norm_types(env, x, (), True)[0]
        dtype = weight.type.dtype if weight is not None else x.type.dtype
        parameter = fresh((x.type.shape[1],), dtype, x.type.device)
        return _masked_types(output_mask, input_, parameter, parameter)

    @staticmethod
    def decompose(
        g, node, grad, x, weight, running_mean, running_var, mean, invstd, train, eps, output_mask
    ):
        ndim = x.type.ndim
        dims = [d for d in range(ndim) if d != 1]
        if not train:
            mean = running_mean
            invstd = call(g, "rsqrt", add(g, widen(g, running_var), eps))
        grad = widen(g, grad)
        rstd = _channels(g, widen(g, invstd), ndim)
        hat = mul(g, sub(g, widen(g, x), _channels(g, widen(g, mean), ndim)), rstd)

        def input_gradient():
            scale = rstd
            if weight is not None:
                scale = mul(g, scale, _channels(g, widen(g, weight), ndim))
            if not train:
                return mul(g, grad, scale)
            along = average(g, mul(g, grad, hat), dims, True)
            rest = sub(g, sub(g, grad, average(g, grad, dims, True)), mul(g, hat, along))
            return mul(g, rest, scale)

        return gradients(
            g,
            node,
            (
                input_gradient,
                lambda: total(g, mul(g, grad, hat), dims),
                lambda: total(g, grad, dims),
            ),
        )

    @staticmethod
    def samples():
        grad, x, c = torch.randn(4, 3, 5, 2), torch.randn(4, 3, 5, 2), torch.rand(3) + 0.5
        rows = []
        for train in (True, False):
            _, mean, invstd = torch.native_batch_norm(
                x, c, c, c.clone(), c.clone(), train, 0.1, 1e-5
            )
            rows.append((grad, x, c, c, c, mean, invstd, train, 1e-5, [True, True, True]))
            rows.append((grad, x, c, c, c, mean, invstd, train, 1e-5, [True, False, False]))
        return [(row, {}) for row in rows]


# ---- group norm


@op("aten.native_group_norm.default", family="composite")
class GroupNorm:
    @staticmethod
    def type(env, x, weight, bias, n, c, hw, group, eps):
        layout = suggested_format(x.type.shape, x.type.strides)
        strides = format_strides(env, x.type.shape, x.type.strides, layout)
        stat = fresh((n, group), statistics_dtype(x, weight, bias), x.type.device)
        out = TensorType(x.type.shape, strides, x.type.dtype, x.type.device)
        return [out, stat, stat]

    @staticmethod
    def check(env, x, weight, bias, n, c, hw, group, eps):
        require_shape(env, [numel(x.type.shape)], [n * c * hw], "Expected X.numel() == N * C * HxW")
        for name, row in (("weight", weight), ("bias", bias)):
            if row is not None:
                text = f"Expected {name} to be a vector of size equal to the number of channels"
                require_shape(env, row.type.shape, [c], text)

    @staticmethod
    def decompose(g, node, x, weight, bias, n, c, hw, group, eps):
        parts = _grouped(g, widen(g, x), n, c, hw, group)
        centered, mean, variance = moments(g, parts, [2, 3])
        rstd = call(g, "rsqrt", add(g, variance, eps))
        y = mul(g, centered, rstd)
        if weight is not None:
            y = mul(g, y, view(g, widen(g, weight), [1, group, c // group, 1]))
        if bias is not None:
            y = add(g, y, view(g, widen(g, bias), [1, group, c // group, 1]))
        y = view(g, y, x.type.shape)
        mean, rstd = (view(g, v, [n, group]) for v in (mean, rstd))
        return tuple(finish(g, node, value, i) for i, value in enumerate((y, mean, rstd)))

    @staticmethod
    def samples():
        x, w = torch.randn(2, 6, 4, 3), torch.randn(6)
        last = x.contiguous(memory_format=torch.channels_last)
        rows = [(x, w, w, 2, 6, 12, 3, 1e-5), (last, None, None, 2, 6, 12, 2, 1e-5)]
        return [(row, {}) for row in rows]


def _grouped(g: Any, x: Value, n: Size, c: Size, hw: Size, group: int) -> Value:
    """(n, c, ...) as (n, group, c / group, hw)."""
    if not is_contiguous(x.type.shape, x.type.strides):
        x = call(g, "clone", x, memory_format=torch.contiguous_format)
    return view(g, x, [n, group, c // group, hw])


@op("aten.native_group_norm_backward.default", family="composite")
class GroupNormBackward:
    @staticmethod
    def type(env, grad, x, mean, rstd, weight, n, c, hw, group, output_mask):
        dtype = weight.type.dtype if weight is not None else x.type.dtype
        parameter = fresh((c,), dtype, x.type.device)
        layout = suggested_format(x.type.shape, x.type.strides)
        strides = format_strides(env, x.type.shape, x.type.strides, layout)
        input_ = TensorType(x.type.shape, strides, x.type.dtype, x.type.device)
        return _masked_types(output_mask, input_, parameter, parameter)

    @staticmethod
    def decompose(g, node, grad, x, mean, rstd, weight, n, c, hw, group, output_mask):
        grad = _grouped(g, widen(g, grad), n, c, hw, group)
        mean, rstd = (view(g, widen(g, v), [n, group, 1, 1]) for v in (mean, rstd))
        hat = mul(g, sub(g, _grouped(g, widen(g, x), n, c, hw, group), mean), rstd)

        def input_gradient():
            scaled = grad
            if weight is not None:
                scaled = mul(g, grad, view(g, widen(g, weight), [1, group, c // group, 1]))
            along = average(g, mul(g, scaled, hat), [2, 3], True)
            rest = sub(g, sub(g, scaled, average(g, scaled, [2, 3], True)), mul(g, hat, along))
            return view(g, mul(g, rest, rstd), x.type.shape)

        return gradients(
            g,
            node,
            (
                input_gradient,
                lambda: view(g, total(g, mul(g, grad, hat), [0, 3]), [c]),
                lambda: view(g, total(g, grad, [0, 3]), [c]),
            ),
        )

    @staticmethod
    def samples():
        grad, x, w = torch.randn(2, 6, 4, 3), torch.randn(2, 6, 4, 3), torch.randn(6)
        _, mean, rstd = torch.native_group_norm(x, w, w, 2, 6, 12, 3, 1e-5)
        return [((grad, x, mean, rstd, w, 2, 6, 12, 3, [True, True, True]), {})]
