"""Scaled dot product attention: one op and its backward, without dropout.

`sdpa(q, k, v, mask, is_causal, scale) -> (out, lse)` with q, k, v of (batch, heads, length, dim)
and lse the row-wise logarithm of the sum of exponentials, which backward on the CPU needs.  `out`
is laid out as q, or contiguous where no fused kernel can be met: the last dimension of an operand
is not dense, or those of q and v differ.  Other results are laid out as (batch, length, heads,
dim).  Which kernel computes is chosen at run time, from the real sizes, and does not show.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from jitshape.ir.graph import Value, tensor_type
from jitshape.ir.ops.families import fresh
from jitshape.ir.ops.registry import op
from jitshape.ir.strides import preserved_strides, same
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType, contiguous_strides

aten = torch.ops.aten
_FLASH = 1  # of torch._fused_sdp_choice
_flash_forward = torch._scaled_dot_product_flash_attention_for_cpu
_flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def _length_outside_heads(type_: TensorType, shape: tuple[Size, ...], dtype: Any) -> TensorType:
    """Shape (b, h, t, ...) in memory as (b, t, h, ...)."""
    b, h, t, *rest = shape
    sb, st, sh, *inner = contiguous_strides((b, t, h, *rest))
    return TensorType(shape, (sb, sh, st, *inner), dtype, type_.device)


def _lay_out(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _lay_out_as(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: Any) -> torch.Tensor:
    """`out` in the layout that its type says."""
    if q.shape[3] != v.shape[3] or any(x.stride(-1) != 1 for x in (q, k, v)):
        return out.contiguous()
    room = torch.empty_like(q)
    return out if out.stride() == room.stride() else room.copy_(out)


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask as 0 and -inf."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, -math.inf)


def _scale(q: torch.Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _flash(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: float | None) -> bool:
    if q.device.type != "cpu" or (mask is not None and mask.requires_grad):
        return False
    return torch._fused_sdp_choice(q, k, v, mask, 0.0, is_causal, scale=scale) == _FLASH


def _left_whole(q: torch.Tensor) -> bool:
    """Whether ATen's own function computes: on GPUs it has several kernels, whose results for
    backward differ in kind, so backward runs the one of its choice again."""
    return q.device.type != "cpu"


def _by_aten(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: float | None) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=is_causal, scale=scale
    )


def _gradients_by_aten(grad: torch.Tensor, tensors: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    with torch.enable_grad():
        tensors = [x.detach().requires_grad_() for x in tensors]
        return torch.autograd.grad(_by_aten(*tensors, *rest), tensors, grad)


def _scores(q: Any, k: Any, mask: Any, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Masked scores in f32 or wider."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(wide) @ k.to(wide).transpose(-1, -2)) * _scale(q, scale)
    if is_causal:
        kept = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~kept, -math.inf)
    return scores if mask is None else scores + mask


@op("jitshape.sdpa.default", family="extern")
class SDPA:
    @staticmethod
    def type(env, q, k, v, mask=None, is_causal=False, scale=None):
        b, h, t, _ = q.type.shape
        wide = torch.float64 if q.type.dtype == torch.float64 else torch.float32
        shape = (b, h, t, v.type.shape[-1])
        dense_rows = all(same(x.type.strides[-1], 1) for x in (q, k, v))
        if dense_rows and env.equal(q.type.shape[3], v.type.shape[3], "attention"):
            shape = q.type.shape
            strides = preserved_strides(env, shape, q.type.strides)
        else:
            strides = contiguous_strides(shape)
        out = TensorType(shape, strides, q.type.dtype, q.type.device)
        return [out, _length_outside_heads(q.type, (b, h, t), wide)]

    @staticmethod
    def run(q, k, v, mask=None, is_causal=False, scale=None):
        mask = _additive(mask, q.dtype)
        if _left_whole(q):
            wide = torch.float64 if q.dtype == torch.float64 else torch.float32
            unused = _lay_out(torch.zeros(q.shape[:3], dtype=wide, device=q.device))
            return _lay_out_as(q, k, v, _by_aten(q, k, v, mask, is_causal, scale)), unused
        if _flash(q, k, v, mask, is_causal, scale):
            out, lse = _flash_forward(q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale)
            return _lay_out_as(q, k, v, out), lse
        scores = _scores(q, k, mask, is_causal, scale)
        out = torch.softmax(scores, -1).to(v.dtype) @ v
        return _lay_out_as(q, k, v, out), _lay_out(torch.logsumexp(scores, -1))

    @staticmethod
    def samples():
        q, k, v = (torch.randn(2, n, 3, 8).transpose(1, 2) for n in (5, 7, 7))
        mask = torch.rand(2, 1, 5, 7) > 0.3
        mask[..., 0] = True
        rows = [(q, k, v), (q, k, v, mask), (k, k, v, None, True), (q, k, v, None, False, 0.3)]
        return [(row, {}) for row in rows]


@op("jitshape.attention.default", family="extern")
class Attention:
    """softmax(q @ k' * scale + mask) @ v, without backward: what the math form of attention
    becomes (passes/attention.py).  The result lies as (batch, length, heads, dim) unless it shall
    be `contiguous`, which costs nothing where q is."""

    @staticmethod
    def type(env, q, k, v, mask, scale, contiguous=False):
        shape = (*q.type.shape[:3], v.type.shape[-1])
        if contiguous:
            return fresh(shape, q.type.dtype, q.type.device)
        return _length_outside_heads(q.type, shape, q.type.dtype)

    @staticmethod
    def run(q, k, v, mask, scale, contiguous=False):
        if _flash(q, k, v, mask, False, scale):
            out, _ = _flash_forward(q, k, v, 0.0, False, attn_mask=mask, scale=scale)
        else:
            out = torch.softmax(_scores(q, k, mask, False, scale), -1).to(v.dtype) @ v
        return out.contiguous() if contiguous else _lay_out(out)

    @staticmethod
    def samples():
        q, k, v = (torch.randn(2, n, 3, 8).transpose(1, 2) for n in (5, 7, 7))
        mask = torch.randn(2, 1, 5, 7)
        wide = torch.randn(2, 3, 7, 4)
        rows = [
            (q, k, v, mask, 0.5),
            (q.contiguous(), k, v, None, 1.0, True),
            (q, k, wide, None, 1.0),
        ]
        return [(row, {}) for row in rows]


@op("jitshape.sdpa_backward.default", family="extern")
class SDPABackward:
    """(dq, dk, dv)"""

    @staticmethod
    def type(env, grad, q, k, v, out, lse, mask=None, is_causal=False, scale=None):
        def like(x: Value) -> TensorType:
            type_ = tensor_type(x)
            return _length_outside_heads(type_, type_.shape, type_.dtype)

        return [like(q), like(k), like(v)]

    @staticmethod
    def run(grad, q, k, v, out, lse, mask=None, is_causal=False, scale=None):
        mask = _additive(mask, q.dtype)
        if _left_whole(q):
            found = _gradients_by_aten(grad, (q, k, v), mask, is_causal, scale)
            return tuple(map(_lay_out, found))
        if _flash(q, k, v, mask, is_causal, scale):
            found = _flash_backward(
                grad, q, k, v, out, lse, 0.0, is_causal, attn_mask=mask, scale=scale
            )
            return tuple(map(_lay_out, found))
        weights = torch.exp(_scores(q, k, mask, is_causal, scale) - lse.unsqueeze(-1))
        wide = weights.dtype
        grad, k_, q_, v_ = (x.to(wide) for x in (grad, k, q, v))
        dv = weights.transpose(-1, -2) @ grad
        dw = grad @ v_.transpose(-1, -2)
        inner = (grad * out.to(wide)).sum(-1, keepdim=True)
        ds = weights * (dw - inner) * _scale(q, scale)
        dq, dk = ds @ k_, ds.transpose(-1, -2) @ q_
        return tuple(_lay_out(d.to(x.dtype)) for d, x in ((dq, q), (dk, k), (dv, v)))

    @staticmethod
    def samples():
        rows = []
        for args, _ in SDPA.samples():
            out, lse = SDPA.run(*args)
            rows.append((torch.randn_like(out), *args[:3], out, lse, *args[3:]))
        return [(row, {}) for row in rows]
