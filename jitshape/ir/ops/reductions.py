"""Reductions: one combine op over some dimensions, or composites of such.

Norms, variances and max with indices are composite: they are rewritten into the others.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from jitshape.ir import symfloat
from jitshape.ir.ops.composing import finish
from jitshape.ir.ops.families import (
    INT,
    RESULTS,
    category,
    fresh,
    promote,
    reduced_dims,
    reduced_shape,
    reduction,
    require_elements,
    to_float,
    wrap_dim,
)
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import broadcast
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr
from jitshape.ir.torch_numbers import to_torch_float
from jitshape.ir.types import numel


def _matrix():
    return torch.randn(3, 4, 5)


@reduction("aten.sum.default", "aten.sum.dim_IntList")
class Sum:
    integers_to = torch.int64

    def samples():
        return [((_matrix(),), {})]


@reduction("aten.mean.default", "aten.mean.dim")
class Mean:
    def finish(b, acc, count, *args, **kwargs):
        return b.div(acc, b.cast(b.index(count), acc.dtype))

    def samples():
        return [((_matrix(),), {})]


@op("aten.nansum.default", family="composite")
class NanSum:
    """nan counts as 0."""

    def type(env, x, dim=None, keepdim=False, dtype=None):
        return Sum.type(env, x, dim, keepdim, dtype=dtype)

    def decompose(g, node, x, dim=None, keepdim=False, dtype=None):
        if x.type.dtype.is_floating_point:
            x = g.call("aten.masked_fill.Scalar", x, g.call("aten.isnan", x), 0.0)
        return g.call("aten.sum.dim_IntList", x, dim, keepdim, dtype=dtype)

    def samples():
        x = _matrix().masked_fill(_matrix() > 0, math.nan)
        return [((x,), {}), ((x, [1], True), {}), ((x > 0, [0]), {})]


@op("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList", family="composite")
class CountNonzero:
    def type(env, x, dim=None):
        return Sum.type(env, x, dim, dtype=torch.int64)

    def decompose(g, node, x, dim=None):
        dims = list(reduced_dims(x.type.ndim, dim))
        return g.call("aten.sum.dim_IntList", g.call("aten.ne.Scalar", x, 0), dims)

    def samples():
        return [((_matrix() > 0,), {}), ((_matrix().round(), 1), {})]


@op("aten.trace.default", family="composite")
class Trace:
    def type(env, x):
        if x.type.ndim != 2:
            raise RuntimeError("trace: expected a matrix")
        whole = category(x.type.dtype) <= INT
        return fresh((), torch.int64 if whole else x.type.dtype, x.type.device)

    def decompose(g, node, x):
        return g.call("aten.sum.default", g.call("aten.diagonal", x))

    def samples():
        return [((torch.randn(4, 5),), {}), ((torch.randn(4, 3).t(),), {})]


@reduction("aten.prod.default", "aten.prod.dim_int")
class Prod:
    reduce = "prod"
    integers_to = torch.int64

    def samples():
        return [((_matrix(),), {})]


class _Extreme:
    """Nothing has no extreme: what is reduced must have elements."""

    def check(env, x, dim=None, keepdim=False):
        dims = reduced_dims(x.type.ndim, dim)
        text = f"Expected reduction dims {list(dims)} to have non-zero size."
        require_elements(env, [x.type.shape[d] for d in dims], text)


@reduction("aten.amax.default", "aten.max.default")
class Amax(_Extreme):
    reduce = "max"

    def samples():
        return [((_matrix(),), {})]


@reduction("aten.amin.default", "aten.min.default")
class Amin(_Extreme):
    reduce = "min"

    def samples():
        return [((_matrix(),), {})]


class _Boolean:
    def dtype(x, requested):
        return torch.uint8 if x is torch.uint8 else torch.bool

    def samples():
        return [((_matrix() > 0,), {})]


@reduction("aten.any.default", "aten.any.dim", "aten.any.dims")
class Any_(_Boolean):
    reduce = "any"


@reduction("aten.all.default", "aten.all.dim", "aten.all.dims")
class All(_Boolean):
    reduce = "all"


class _Position(_Extreme):
    """Without `dim` the position counts through the whole tensor, row-major."""

    def dtype(x, requested):
        return torch.int64

    def samples():
        return [((_matrix(),), {}), ((_matrix(), 1), {}), ((_matrix(), -1, True), {})]


@reduction("aten.argmax.default")
class Argmax(_Position):
    reduce = "argmax"


@reduction("aten.argmin.default")
class Argmin(_Position):
    reduce = "argmin"


# ---- composites


class _WithIndices(_Extreme):
    def type(env, x, dim, keepdim=False):
        shape = reduced_shape(x.type.shape, reduced_dims(x.type.ndim, dim), keepdim)
        values = fresh(shape, x.type.dtype, x.type.device)
        return [values, fresh(shape, torch.int64, x.type.device)]

    def samples():
        return [((_matrix(), 1), {}), ((_matrix(), -1, True), {})]


@op("aten.max.dim", family="composite")
class MaxDim(_WithIndices):
    def decompose(g, node, x, dim, keepdim=False):
        return g.call("aten.amax", x, [dim], keepdim), g.call("aten.argmax", x, dim, keepdim)


@op("aten.min.dim", family="composite")
class MinDim(_WithIndices):
    def decompose(g, node, x, dim, keepdim=False):
        return g.call("aten.amin", x, [dim], keepdim), g.call("aten.argmin", x, dim, keepdim)


@op("aten.aminmax.default", family="composite")
class AminMax(_Extreme):
    def type(env, x, dim=None, keepdim=False):
        shape = reduced_shape(x.type.shape, reduced_dims(x.type.ndim, dim), keepdim)
        return [fresh(shape, x.type.dtype, x.type.device)] * 2

    def decompose(g, node, x, dim=None, keepdim=False):
        dims = list(reduced_dims(x.type.ndim, dim))
        return g.call("aten.amin", x, dims, keepdim), g.call("aten.amax", x, dims, keepdim)


def to_real(dtype: torch.dtype) -> torch.dtype:
    """Of the parts of complex numbers."""
    return dtype.to_real() if dtype.is_complex else dtype


def _moments(g, x, dim, correction, keepdim):
    """(variance, mean): the mean first, then the mean square distance from it."""
    dims = list(reduced_dims(x.type.ndim, dim))
    count = numel(tuple(x.type.shape[d] for d in dims))
    wide = x
    if x.type.dtype in (torch.float16, torch.bfloat16):
        wide = g.call("aten._to_copy", x, dtype=torch.float32)
    mean = g.call("aten.mean.dim", wide, dims, True)
    apart = g.call("aten.sub.Tensor", wide, mean)
    if wide.type.dtype.is_complex:
        apart = g.call("aten.abs", apart)
    total = g.call("aten.sum.dim_IntList", g.call("aten.mul.Tensor", apart, apart), dims, keepdim)
    lost = 1 if correction is None else correction
    degrees = g.call("aten.scalar_tensor", count - lost, dtype=apart.type.dtype,
                     device=x.type.device)  # fmt: skip
    variance = g.call("aten.div.Tensor", total, g.call("aten.clamp_min", degrees, 0))
    if not keepdim:
        mean = g.call("aten.view", mean, list(total.type.shape))
    return _narrow(g, variance, to_real(x.type.dtype)), _narrow(g, mean, x.type.dtype)


def _narrow(g, x, dtype):
    return x if x.type.dtype is dtype else g.call("aten._to_copy", x, dtype=dtype)


class _Spread:
    """Real, also that of complex numbers."""

    @staticmethod
    def type(env, x, dim=None, correction=None, keepdim=False):
        shape = reduced_shape(x.type.shape, reduced_dims(x.type.ndim, dim), keepdim)
        return fresh(shape, to_real(x.type.dtype), x.type.device)

    @staticmethod
    def samples():
        complex_rows = torch.randn(3, 4, dtype=torch.complex64)
        rows = [((_matrix(), [1]), {}), ((_matrix(), [0, 2]), {"correction": 0, "keepdim": True})]
        return [*rows, ((complex_rows, [1]), {"keepdim": True})]


@op("aten.var.correction", family="composite")
class Var(_Spread):
    def decompose(g, node, x, dim=None, correction=None, keepdim=False):
        return _moments(g, x, dim, correction, keepdim)[0]


@op("aten.std.correction", family="composite")
class Std(_Spread):
    def decompose(g, node, x, dim=None, correction=None, keepdim=False):
        return g.call("aten.sqrt", _moments(g, x, dim, correction, keepdim)[0])


@op("aten.var_mean.correction", family="composite")
class VarMean:
    def type(env, x, dim=None, correction=None, keepdim=False):
        spread = _Spread.type(env, x, dim, correction, keepdim)
        return [spread, replace(spread, dtype=x.type.dtype)]

    def decompose(g, node, x, dim=None, correction=None, keepdim=False):
        return _moments(g, x, dim, correction, keepdim)

    def samples():
        return _Spread.samples()


@op("aten.std_mean.correction", family="composite")
class StdMean(VarMean):
    def decompose(g, node, x, dim=None, correction=None, keepdim=False):
        variance, mean = _moments(g, x, dim, correction, keepdim)
        return g.call("aten.sqrt", variance), mean

    def samples():
        return _Spread.samples()


def _norm(g, x, p, dim, keepdim, dtype):
    """The p-norm over `dim`: a sum of powers, or an extreme."""
    dims = list(reduced_dims(x.type.ndim, dim))
    dtype = dtype or to_float(x.type.dtype)
    size = g.call("aten.abs", _narrow(g, x, dtype))
    if p == math.inf:
        return g.call("aten.amax", size, dims, keepdim)
    if p == -math.inf:
        return g.call("aten.amin", size, dims, keepdim)
    if p == 0:
        ones = g.call("aten.ne.Scalar", size, 0)
        counted = g.call("aten._to_copy", ones, dtype=to_real(dtype))
        return g.call("aten.sum.dim_IntList", counted, dims, keepdim)
    powers = size if p == 1 else g.call("aten.pow.Tensor_Scalar", size, p)
    total = g.call("aten.sum.dim_IntList", powers, dims, keepdim)
    if p == 1:
        return total
    if p == 2:
        return g.call("aten.sqrt", total)
    return g.call("aten.pow.Tensor_Scalar", total, symfloat.apply("div", 1.0, p))


def order(env, p):
    """The order of a norm: a number where it decides what is computed, else as it is."""
    p = symfloat.apply("float", p) if type(p) is IntExpr else p
    if not isinstance(p, FloatExpr) or env.actual(p) is None:
        return env.specialize_float(p)
    number = to_torch_float(p, env)
    general = number > 0 and number < math.inf and number != 1 and number != 2
    return p if general else env.specialize_float(p)


@op("aten.linalg_vector_norm.default", family="composite")
class VectorNorm:
    def check(env, x, ord=2, dim=None, *args, **kwargs):
        if not isinstance(ord, FloatExpr) and (ord < 0 or ord == math.inf):
            dims = reduced_dims(x.type.ndim, dim)
            text = f"linalg.vector_norm cannot compute the {ord} norm on an empty tensor"
            require_elements(env, [x.type.shape[d] for d in dims], text)

    def canonical(env, x, ord=2, *args, **kwargs):
        return (x, order(env, ord), *args), kwargs

    def type(env, x, ord=2, dim=None, keepdim=False, dtype=None):
        shape = reduced_shape(x.type.shape, reduced_dims(x.type.ndim, dim), keepdim)
        result = dtype or to_float(x.type.dtype)
        return fresh(shape, to_real(result), x.type.device)

    def decompose(g, node, x, ord=2, dim=None, keepdim=False, dtype=None):
        return _norm(g, x, ord, dim, keepdim, dtype)

    def samples():
        return [((_matrix(),), {}), ((_matrix(), 1, [1], True), {}), ((_matrix(), 3.0, [0]), {})]


@op(
    "aten.norm.Scalar",
    "aten.norm.ScalarOpt_dim",
    "aten.norm.ScalarOpt_dim_dtype",
    "aten.norm.ScalarOpt_dtype",
    family="composite",
)
class Norm:
    def canonical(env, x, p=2, *args, **kwargs):
        return (x, order(env, p), *args), kwargs

    def type(env, x, p=2, dim=None, keepdim=False, dtype=None):
        return VectorNorm.type(env, x, p, dim, keepdim, dtype)

    def decompose(g, node, x, p=2, dim=None, keepdim=False, dtype=None):
        return _norm(g, x, 2 if p is None else p, dim, keepdim, dtype)


@op("aten.dist.default", family="composite")
class Dist:
    """The norm of the difference."""

    def canonical(env, x, y, p=2):
        return (x, y, order(env, p)), {}

    def type(env, x, y, p=2):
        broadcast(env, x.type.shape, y.type.shape)
        return fresh((), RESULTS["magnitude"](promote((x, y))), x.type.device)

    def decompose(g, node, x, y, p=2):
        return _norm(g, g.call("aten.sub.Tensor", x, y), p, None, False, None)

    def samples():
        x = _matrix()
        return [((x, torch.randn(4, 1)), {}), ((x, x + 1, 1), {}), ((x, -x, 0), {})]


@op("aten.renorm.default", family="composite")
class Renorm:
    """The parts along a dimension whose norm is too large are scaled down to it."""

    def canonical(env, x, p, dim, maxnorm):
        return (x, order(env, p), dim, maxnorm), {}

    def type(env, x, p, dim, maxnorm):
        wrap_dim(dim, x.type.ndim)
        return fresh(x.type.shape, x.type.dtype, x.type.device)

    def decompose(g, node, x, p, dim, maxnorm):
        own = x.type.dtype
        wide = torch.float32 if own in (torch.float16, torch.bfloat16) else own
        dims = [d for d in range(x.type.ndim) if d != wrap_dim(dim, x.type.ndim)]
        size = _norm(g, x, p, dims, True, wide)
        large = g.call("aten.gt.Scalar", size, maxnorm)
        factor = g.call("aten.reciprocal", g.call("aten.add.Scalar", size, 1e-7))
        factor = g.call("aten.mul.Scalar", factor, maxnorm)
        kept = g.call("aten.masked_fill.Scalar", factor, g.call("aten.logical_not", large), 1.0)
        return finish(g, node, g.call("aten.mul.Tensor", x, kept))

    def samples():
        return [((_matrix(), 2.0, 1, 0.5), {}), ((_matrix().transpose(0, 2), 1.0, 0, 2.0), {})]


@op("aten.logsumexp.default", family="composite")
class LogSumExp:
    def type(env, x, dim, keepdim=False):
        shape = reduced_shape(x.type.shape, reduced_dims(x.type.ndim, dim), keepdim)
        dtype = to_float(x.type.dtype) if category(x.type.dtype) <= INT else x.type.dtype
        return fresh(shape, dtype, x.type.device)

    def decompose(g, node, x, dim, keepdim=False):
        dims = list(reduced_dims(x.type.ndim, dim))
        x = _narrow(g, x, to_float(x.type.dtype))
        size = x
        if x.type.dtype.is_complex:  # the largest of the powers has the largest real part
            size = g.call("aten.select.int", g.call("aten.view_as_real", x), x.type.ndim, 0)
        top = g.call("aten.amax", size, dims, True)
        infinite = g.call("aten.eq.Scalar", g.call("aten.abs", top), math.inf)
        top = g.call("aten.masked_fill.Scalar", top, infinite, 0)
        powers = g.call("aten.exp", g.call("aten.sub.Tensor", x, top))
        total = g.call("aten.log", g.call("aten.sum.dim_IntList", powers, dims, keepdim))
        shift = top if keepdim else g.call("aten.view", top, list(total.type.shape))
        return g.call("aten.add.Tensor", total, shift)

    def samples():
        complex_rows = torch.randn(3, 4, dtype=torch.complex64)
        rows = [((_matrix(), [1]), {}), ((_matrix(), [0, 2], True), {})]
        return [*rows, ((complex_rows, [1]), {})]


# ---- scans


class _Scan:
    def dimension(x, dim, **kwargs):
        return wrap_dim(dim, x.type.ndim)

    def type(env, x, dim, dtype=None):
        reduced_dims(x.type.ndim, dim)
        whole = category(x.type.dtype) <= INT
        return fresh(x.type.shape, dtype or (torch.int64 if whole else x.type.dtype), x.type.device)

    def samples():
        return [((_matrix(), 1), {}), ((_matrix() > 0, 0), {})]


@op("aten.cumsum.default", family="scan", base=_Scan)
class CumSum:
    combine = "add"


@op("aten.cumprod.default", family="scan", base=_Scan)
class CumProd:
    combine = "mul"
