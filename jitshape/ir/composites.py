"""Functions that C++ decides by the numbers in sizes and strides: replaced before it sees them.

In: a torch function or method with a symbolic tensor.  Out: the same result from torch calls that
need no fact about sizes that the program does not state.  `REPLACED` maps the functions for
whoever calls torch on behalf of a program; the methods are those of SymbolicTensor.
Invariant: results, strides and gradients as those of the torch function.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from jitshape.ir.copies import decides, is_contiguous_at_call, note_copy, strides_at_call
from jitshape.ir.ops.registry import OPS
from jitshape.ir.ops.views import infer_shape
from jitshape.ir.strides import Shape, broadcast, is_contiguous, same, view_strides
from jitshape.ir.symbolic_tensor import SymbolicTensor
from jitshape.ir.symfloat import apply
from jitshape.ir.symint import Size
from jitshape.ir.torch_numbers import from_torch, to_torch
from jitshape.ir.types import numel

REPLACED: dict[Any, Callable[..., Any]] = {}


def replaces(*functions: Any, methods: Sequence[str] = ()) -> Callable[[Callable], Callable]:
    """Use the decorated function for `functions`, and for `methods` of symbolic tensors.  It may
    return NotImplemented to leave the call to torch."""

    def register(function: Callable) -> Callable:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            return functions[-1](*args, **kwargs) if result is NotImplemented else result

        replacement.__name__ = function.__name__
        for target in functions:
            REPLACED[target] = replacement
        for name in methods:
            REPLACED[getattr(torch.Tensor, name)] = replacement
            setattr(SymbolicTensor, name, replacement)
        return function

    return register


def _symbolic(*tensors: Any) -> bool:
    return all(type(t) is SymbolicTensor for t in tensors)


def current_trace() -> Any:
    trace = _get_current_dispatch_mode()
    assert trace is not None, "a symbolic tensor is used outside its trace"
    return trace


def current_env() -> Any:
    return current_trace().env


def _torch(env: Any, sizes: Sequence[Size]) -> list[Any]:
    return [to_torch(s, env) for s in sizes]


def _reshaped(x: Any, env: Any, shape: Sequence[Size]) -> Any:
    """A view of `x` where its strides allow one at every size, else a copy."""
    old = x.value.type
    if tuple(shape) == old.shape:
        return x.view(_torch(env, shape))
    if view_strides(env, old.shape, old.strides, tuple(shape)) is not None:
        return x.view(_torch(env, shape))
    exact = decides(current_trace(), x.value)
    strides = strides_at_call(env, old.shape, old.strides, shape) if exact else None
    if strides is not None:
        return torch.ops.aten._reshape_alias(x, _torch(env, shape), _torch(env, strides))
    copy = x.clone(memory_format=torch.contiguous_format)
    if not exact:
        note_copy(current_trace(), x.value, copy.value)
    return torch.ops.aten._unsafe_view(copy, _torch(env, shape))


@replaces(torch.reshape, methods=["reshape"])
def reshape(x: Any, *shape: Any, **kwargs: Any) -> Any:
    if kwargs or not _symbolic(x):
        return NotImplemented
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    env = current_env()
    wanted = infer_shape(env, [from_torch(s) for s in sizes], numel(x.value.type.shape))
    return _reshaped(x, env, wanted)


@replaces(torch.flatten, methods=["flatten"])
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if not _symbolic(x) or not isinstance(start_dim, int):
        return NotImplemented
    shape = x.value.type.shape
    if len(shape) < 2:
        return NotImplemented
    first, last = start_dim % len(shape), end_dim % len(shape)
    if first >= last:
        return NotImplemented
    middle = numel(shape[first : last + 1])
    return _reshaped(x, current_env(), (*shape[:first], middle, *shape[last + 1 :]))


@replaces(torch.Tensor.contiguous, methods=["contiguous"])
def contiguous(x: Any, memory_format: Any = torch.contiguous_format) -> Any:
    if not _symbolic(x) or memory_format is not torch.contiguous_format:
        return NotImplemented
    type_ = x.value.type
    if is_contiguous(type_.shape, type_.strides):
        return x
    exact = decides(current_trace(), x.value)
    if exact and is_contiguous_at_call(current_env(), type_.shape, type_.strides):
        return x
    copy = x.clone(memory_format=torch.contiguous_format)
    if not exact:
        note_copy(current_trace(), x.value, copy.value)
    return copy


@replaces(torch.detach, torch.Tensor.detach, methods=["detach"])
def detach(x: Any) -> Any:
    """Another tensor, which is no view, in the same memory and with the same version counter."""
    if not _symbolic(x):
        return NotImplemented
    seen = torch.Tensor.detach(x)
    seen.value = current_trace().call(OPS["aten.detach.default"], [x.value], {})
    return seen


def data(x: Any) -> Any:
    """`x.data`: its memory, with a version counter of its own."""
    trace = current_trace()
    return trace.wrap(trace.call(OPS["aten.alias.default"], [x.value], {}))


@replaces(torch.functional.broadcast_tensors)
def broadcast_tensors(*tensors: Any) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    if not tensors or not _symbolic(*tensors):
        return NotImplemented
    shape = _torch(current_env(), broadcast(current_env(), *(t.value.type.shape for t in tensors)))
    return tuple(t.expand(shape) for t in tensors)


# ---- matrix products


@replaces(torch.matmul, methods=["matmul", "__matmul__"])
def matmul(a: Any, b: Any) -> Any:
    """One matrix product, batched over the broadcast leading dimensions.  A matrix or vector on
    the right multiplies all rows at once."""
    if not _symbolic(a, b):
        return NotImplemented
    x, y = a.value.type.shape, b.value.type.shape
    if not x or not y or (len(x) <= 2 and len(y) <= 2):
        return NotImplemented
    env = current_env()
    if len(y) <= 2:
        return _rows_times(env, a, b, x, y)
    if len(x) == 1:
        return matmul(a.unsqueeze(0), b).squeeze(-2)
    batch = broadcast(env, x[:-2], y[:-2])
    product = torch.bmm(_batched(env, a, batch, x), _batched(env, b, batch, y))
    return torch.ops.aten._unsafe_view(product, _torch(env, (*batch, x[-2], y[-1])))


def _rows_times(env: Any, a: Any, b: Any, x: Shape, y: Shape) -> Any:
    rows = _reshaped(a, env, (numel(x[:-1]), x[-1]))
    product = torch.mv(rows, b) if len(y) == 1 else torch.mm(rows, b)
    return torch.ops.aten._unsafe_view(product, _torch(env, (*x[:-1], *y[1:])))


def _batched(env: Any, x: Any, batch: Shape, shape: Shape) -> Any:
    """`x` with one batch dimension."""
    if shape[:-2] != batch:
        x = x.expand(_torch(env, (*batch, *shape[-2:])))
    return x if len(batch) == 1 else _reshaped(x, env, (numel(batch), *shape[-2:]))


@replaces(torch.Tensor.__rmatmul__, methods=["__rmatmul__"])
def rmatmul(b: Any, a: Any) -> Any:
    return matmul(a, b)


@replaces(torch.nn.functional.linear)
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """One product of all rows with the transposed weight."""
    if not _symbolic(x, weight) or not (bias is None or _symbolic(bias)):
        return NotImplemented
    shape, wide = x.value.type.shape, weight.value.type.shape
    if len(shape) < 3 or len(wide) != 2:
        return NotImplemented
    env = current_env()
    rows = _reshaped(x, env, (numel(shape[:-1]), shape[-1]))
    product = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
    return product.view(_torch(env, (*shape[:-1], wide[0])))


@replaces(torch.diagonal, methods=["diagonal"])
def diagonal(x: Any, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Where the offset is symbolic: of the part of `x` that it leaves."""
    if not _symbolic(x) or not isinstance(offset, torch.SymInt) or dim1 == dim2:
        return NotImplemented
    dim, start = (dim2, offset) if offset >= 0 else (dim1, -offset)
    length = x.shape[dim] - start
    return x.narrow(dim, start, length).diagonal(0, dim1, dim2) if length > 0 else NotImplemented


@replaces(torch.dropout, torch.nn.functional.dropout)
def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Drawn as eager draws, without asking whether there are elements at all."""
    if not _symbolic(x) or inplace:
        return NotImplemented
    if not training:
        return x if 0 <= p <= 1 else NotImplemented
    if not 0 < p < 1:
        return NotImplemented
    if x.device.type != "cpu":
        return torch.native_dropout(x, p, True)[0]
    with torch.no_grad():
        noise = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
    return x * noise


@replaces(torch.rms_norm, torch.nn.functional.rms_norm)
def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
    """By its definition where `eps` is symbolic: C++ rounds it to the dtype, and so do kernels."""
    wide = (torch.float32, torch.float64)
    if not _symbolic(x) or not isinstance(eps, torch.SymFloat) or x.dtype not in wide:
        return NotImplemented
    dims, shape = list(range(-len(normalized_shape), 0)), list(normalized_shape)
    fits = dims and len(dims) <= x.dim() and all(x.shape[d] == shape[d] for d in dims)
    if not fits or (weight is not None and list(weight.shape) != shape):
        return NotImplemented
    normal = x * torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + eps)
    return normal if weight is None else normal * weight


# ---- losses


def _loss(function: Callable, kernel: Callable, parameter: str | None = None) -> None:
    """Tensors of one shape need no broadcasting, in which C++ asks whether sizes are 1."""

    def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(input, target, *args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        unusual = any(given.get(n) is not None for n in ("size_average", "reduce", "weight"))
        if unusual or not _symbolic(input, target) or input.shape != target.shape:
            return NotImplemented
        if given.get("beta") == 0:  # torch takes l1_loss
            return NotImplemented
        reduction = torch.nn._reduction.get_enum(given["reduction"])
        more = () if parameter is None else (given[parameter],)
        return kernel(input, target, reduction, *more)

    signature = inspect.signature(function)
    loss.__name__ = function.__name__
    replaces(function)(loss)


_loss(torch.nn.functional.mse_loss, torch._C._nn.mse_loss)
_loss(torch.nn.functional.l1_loss, torch._C._nn.l1_loss)
_loss(torch.nn.functional.smooth_l1_loss, torch._C._nn.smooth_l1_loss, "beta")
_loss(torch.nn.functional.huber_loss, torch._C._nn.huber_loss, "delta")


@replaces(torch.nn.functional.cross_entropy)
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """By its definition where the smoothing is symbolic: it mixes two losses, which are known."""
    mixed = isinstance(label_smoothing, torch.SymFloat) and 0 < label_smoothing <= 1
    if not mixed or not _symbolic(input, target) or (size_average, reduce) != (None, None):
        return NotImplemented
    classes, plain = 1 if input.dim() > 1 else 0, torch.nn.functional.cross_entropy
    share = label_smoothing / input.size(classes)
    if target.is_floating_point():
        smooth = target * (1 - label_smoothing) + share
        return plain(input, smooth, weight, reduction=reduction)
    sharp = plain(input, target, weight, ignore_index=ignore_index, reduction=reduction)
    kept, logs = target != ignore_index, input.log_softmax(classes)
    if weight is not None:
        logs = logs * weight.view([-1] + [1] * (logs.dim() - classes - 1))
    losses = -logs.sum(classes) * kept
    if reduction == "mean":
        weights = kept if weight is None else weight[target * kept] * kept
        losses = losses.sum() / weights.sum()
    elif reduction == "sum":
        losses = losses.sum()
    return sharp * (1 - label_smoothing) + losses * share


# ---- resampling


@replaces(torch.nn.functional.interpolate)
def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """The ATen op itself, since C++ takes sizes for numbers on the way to it."""
    if not _symbolic(input) or (size is None) == (scale_factor is None):
        return NotImplemented
    if recompute_scale_factor and size is not None:
        return NotImplemented
    wide = input.value.type.shape[2:]
    op = _RESAMPLE.get((mode + "-antialias" * antialias, len(wide)))
    if op is None:
        return NotImplemented
    listed = isinstance(scale_factor, (list, tuple))
    scales = scale_factor if listed else [scale_factor] * len(wide)
    if size is None:
        scales = [s if isinstance(s, torch.SymFloat) else float(s) for s in scales]
        size = [_scaled(current_env(), n, scale) for n, scale in zip(wide, scales)]
        scales = [None] * len(wide) if recompute_scale_factor else scales
    size = list(size) if isinstance(size, (list, tuple)) else [size] * len(wide)
    corners = [] if mode.startswith("nearest") else [bool(align_corners)]
    return op(input, _torch(current_env(), size), *corners, *map(_lent, scales))


_RESAMPLE = {
    ("nearest", 1): torch.ops.aten.upsample_nearest1d.default,
    ("nearest", 2): torch.ops.aten.upsample_nearest2d.default,
    ("nearest", 3): torch.ops.aten.upsample_nearest3d.default,
    ("nearest-exact", 1): torch.ops.aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 2): torch.ops.aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 3): torch.ops.aten._upsample_nearest_exact3d.default,
    ("linear", 1): torch.ops.aten.upsample_linear1d.default,
    ("bilinear", 2): torch.ops.aten.upsample_bilinear2d.default,
    ("trilinear", 3): torch.ops.aten.upsample_trilinear3d.default,
    ("bicubic", 2): torch.ops.aten.upsample_bicubic2d.default,
    ("bilinear-antialias", 2): torch.ops.aten._upsample_bilinear2d_aa.default,
    ("bicubic-antialias", 2): torch.ops.aten._upsample_bicubic2d_aa.default,
}


def _lent(scale: Any) -> Any:
    """A symbolic float as C++ takes it for the op."""
    if not isinstance(scale, torch.SymFloat):
        return scale
    found = current_env().lend(from_torch(scale))
    return scale if found is None else found


def _scaled(env: Any, size: Size, scale: Any) -> Size:
    """floor(size * scale)"""
    if isinstance(scale, torch.SymFloat):
        return env.round_float("floor", apply("mul", size, from_torch(scale)))
    numerator, denominator = scale.as_integer_ratio()
    if denominator > 1 << 20:
        return env.round_float("floor", apply("mul", size, scale))
    return env.floordiv(size * numerator, denominator)


# ---- attention


class _Attention(torch.autograd.Function):
    """jitshape.sdpa with its own backward, whose kernel is chosen when the graph runs."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: Any) -> Any:
        trace = current_trace()
        values = [trace.unwrap(x) for x in (q, k, v, mask, causal, scale)]
        out, lse = map(trace.wrap, trace.call(OPS["jitshape.sdpa.default"], values, {}))
        ctx.save_for_backward(q, k, v, out, lse, mask)
        ctx.rest = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        trace = current_trace()
        values = [trace.unwrap(x) for x in (grad, *ctx.saved_tensors, *ctx.rest)]
        grads = trace.call(OPS["jitshape.sdpa_backward.default"], values, {})
        return (*map(trace.wrap, grads), None, None, None)


@replaces(torch.nn.functional.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """One op for batches of heads of equal number without dropout, else its definition."""
    if not _symbolic(query, key, value) or not (attn_mask is None or _symbolic(attn_mask)):
        return NotImplemented
    fits = attn_mask is None or not (
        is_causal or attn_mask.requires_grad or not _mask_fits(attn_mask, query, key)
    )
    if fits and not dropout_p and _heads_match(*(t.value.type for t in (query, key, value))):
        mask = _additive(attn_mask, query)
        return _Attention.apply(query, key, value, mask, is_causal, scale)
    if enable_gqa:
        ours, theirs = query.value.type.shape[-3], key.value.type.shape[-3]
        repeat = current_env().specialize(ours // theirs, "heads that share keys")
        key, value = (t.repeat_interleave(repeat, -3) for t in (key, value))
    return _attention_by_definition(query, key, value, attn_mask, dropout_p, is_causal, scale)


def _attention_by_definition(
    q: Any, k: Any, v: Any, mask: Any, dropout_p: float, causal: bool, scale: float | None
) -> Any:
    """softmax(q k^T scale + mask) v; a row that is masked whole gives zeros.  Half of the scale
    goes to each factor, as in ATen: where the softmax saturates, gradients show the difference."""
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        q, k, v = (t.float() for t in (q, k, v))
    root = q.size(-1) ** -0.25 if scale is None else abs(scale) ** 0.5
    left = -root if scale is not None and scale < 0 else root
    scores = matmul(q * left, k.transpose(-2, -1) * root)
    if causal:
        mask = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1)
    if mask is not None:
        empty = (scores == float("-inf")).all(-1, keepdim=True)
        weights = weights.masked_fill(empty, 0.0)
    return matmul(dropout_always(weights, dropout_p), v).to(dtype)


def dropout_always(x: Any, p: float) -> Any:
    """Dropout as in training; nothing for p = 0."""
    return torch.nn.functional.dropout(x, p) if not 0 < p < 1 else dropout(x, p)


def _additive(mask: Any, query: Any) -> Any:
    """A boolean mask as 0 and -inf: what the kernels take, made once for all layers."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask.logical_not(), -math.inf)


def _heads_match(q: Any, k: Any, v: Any) -> bool:
    if any(t.ndim != 4 or t.dtype is not q.dtype for t in (q, k, v)):
        return False
    pairs = [(a, b) for t in (k, v) for a, b in zip(q.shape[:2], t.shape[:2])]
    pairs += [(q.shape[3], k.shape[3]), (k.shape[2], v.shape[2])]
    return all(_equal(a, b) for a, b in pairs)


def _equal(a: Size, b: Size) -> bool:
    """Whether two sizes agree at this call; if so it becomes a fact."""
    env = current_env()
    return same(a, b) or (env.actual(a) == env.actual(b) and env.equal(a, b, "attention"))


def _mask_fits(mask: Any, query: Any, key: Any) -> bool:
    """A mask of rank 2 or 4 that broadcasts to the scores."""
    type_, q = mask.value.type, query.value.type
    scores = (*q.shape[:3], key.value.type.shape[2])
    if type_.ndim not in (2, 4) or type_.dtype not in (torch.bool, q.dtype):
        return False
    wanted = scores[4 - type_.ndim :]
    return all(s == 1 or _equal(s, w) for s, w in zip(type_.shape, wanted))
