"""The entries of the GPU suite: plain torch functions, their sizes, and how near the limit they
should come.

`target` is a part of the bandwidth of a copy made in the same run (of the speed of torch's own
matrix product, for products).  `sizes` are for a GPU, `small` for Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Entry:
    number: int
    name: str
    run: Callable[..., Any]
    inputs: Callable[..., Tensors]  # of (random, *size)
    sizes: tuple[tuple[int, ...], ...]
    small: tuple[tuple[int, ...], ...]
    target: float
    backward: bool = False  # forward and backward are run and timed together
    flops: Callable[..., float] | None = None  # of a size: the entry is bound by arithmetic
    most_compiles: int | None = None


class Random:
    """Makes tensors of random values on one device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, device=self.device)


def flat(count: int, dtype: torch.dtype = BF16) -> Callable[..., Tensors]:
    return lambda random, n: [random(n, dtype=dtype) for _ in range(count)]


def rms(r: Random, rows: int, width: int) -> Tensors:
    return [r(rows, width), r(width)]


def layer(r: Random, rows: int, width: int) -> Tensors:
    return [r(rows, width, dtype=F32), r(width, dtype=F32), r(width, dtype=F32)]


def logits(r: Random, rows: int, classes: int) -> Tensors:
    return [r(rows, classes), r.integers(classes, rows)]


def heads(r: Random, tokens: int) -> Tensors:
    return [r(tokens, 32, 128), r(tokens, 8, 128), r(tokens, 128), r(tokens, 128)]


def rotate(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin


def masked_softmax(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, x.float(), float("-inf")).softmax(-1).to(x.dtype)


def masked(r: Random, rows: int, width: int) -> Tensors:
    keep = r.integers(4, rows, width) > 0
    keep[:, 0] = True
    return [r(rows, width), keep]


def grid(*axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    rows: list[tuple[int, ...]] = [()]
    for axis in axes:
        rows = [(*row, item) for row in rows for item in axis]
    return tuple(rows)


def product_flops(m: int, n: int) -> float:
    return 2.0 * m * n * n


M = (1, 7, 16, 17, 1000, 8191, 8192)


def entries() -> Iterator[Entry]:
    yield Entry(2, "add", lambda x, y: x + y, flat(2), ((2**28,),), ((4096,), (17,)), 0.97)
    yield Entry(2, "add, odd", lambda x, y: x + y, flat(2), ((2**28 - 1,),), ((4095,),), 0.93)
    yield Entry(
        3, "relu mul gelu", lambda x, y: F.gelu(F.relu(x) * y), flat(2), ((2**27 + 13,),),
        ((1013,),), 0.90,
    )  # fmt: skip
    yield Entry(
        4, "bias and row scale", lambda x, b, s: (x + b) * s[:, None],
        lambda r, m, n: [r(m, n), r(n), r(m)], ((32749, 4099),), ((13, 35),), 0.80,
    )  # fmt: skip
    yield Entry(
        5, "SwiGLU", lambda a, b: F.silu(a) * b, lambda r, t, n: [r(t, n), r(t, n)],
        grid((1, 17, 1000, 4096, 16384), (14336,)), ((1, 64), (17, 48)), 0.95,
    )  # fmt: skip
    norm = lambda x, w: F.rms_norm(x, w.shape, w, 1e-6)  # noqa: E731
    yield Entry(
        6, "RMSNorm", norm, rms, grid((1, 7, 128, 2048, 16384), (4096, 5120, 8192)),
        ((7, 64), (2, 80)), 0.92,
    )  # fmt: skip
    yield Entry(7, "RMSNorm, long rows", norm, rms, ((8192, 32768),), ((3, 200),), 0.90)
    yield Entry(
        8, "residual and RMSNorm", lambda x, r, w: (x + r, norm(x + r, w)),
        lambda r, t, n: [r(t, n), r(t, n), r(n)], ((16384, 8192),), ((5, 64),), 0.92,
    )  # fmt: skip
    yield Entry(9, "RMSNorm, backward", norm, rms, ((16384, 8192),), ((5, 64),), 0.80, True)
    layered = lambda x, w, b: F.layer_norm(x, w.shape, w, b)  # noqa: E731
    yield Entry(10, "LayerNorm fp32", layered, layer, ((4096, 16384),), ((5, 48),), 0.92)
    yield Entry(
        11, "LayerNorm fp32, backward", layered, layer, ((4096, 16384),), ((5, 48),), 0.75, True
    )
    soft = lambda x: x.softmax(-1)  # noqa: E731
    one = lambda r, m, n: [r(m, n)]  # noqa: E731
    yield Entry(
        12, "softmax", soft, one, grid((16384,), (256, 1000, 4096, 32768)), ((5, 64), (3, 100)),
        0.90,
    )  # fmt: skip
    yield Entry(13, "softmax, very long rows", soft, one, ((16384, 131072),), ((2, 300),), 0.62)
    yield Entry(14, "masked softmax", masked_softmax, masked, ((32749, 4099),), ((7, 41),), 0.75)
    loss = lambda x, t: F.cross_entropy(x.float(), t)  # noqa: E731
    yield Entry(15, "cross entropy", loss, logits, ((16384, 128256),), ((9, 64),), 0.88)
    yield Entry(15, "cross entropy, odd", loss, logits, ((16384, 50257),), ((9, 57),), 0.70)
    yield Entry(
        16, "cross entropy, backward", loss, logits, ((8192, 128256),), ((9, 64),), 0.80, True
    )
    yield Entry(
        17, "column sum", lambda x: x.float().sum(0), one, ((65536, 8192),), ((40, 48),), 0.85
    )
    total = lambda x: x.float().sum()  # noqa: E731
    yield Entry(18, "full sum", total, flat(1), ((2**30,), (2**27,)), ((5000,),), 0.92)
    yield Entry(19, "argmax", lambda x: x.argmax(-1), one, ((2048, 128256),), ((3, 70),), 0.80)
    yield Entry(
        20, "RoPE", rope, heads, ((65536,), *((n,) for n in range(1009, 50000, 1000))),
        ((6,), (11,)), 0.88, most_compiles=2,
    )  # fmt: skip
    yield Entry(
        21, "transpose", lambda x: x.t().contiguous(), one, ((16384, 16384),), ((40, 36),), 0.80
    )
    yield Entry(
        22, "cat and add", lambda x, y, z: torch.cat([x, y], 1) + z,
        lambda r, m, n: [r(m, n), r(m, n + 3), r(2 * n + 3)], ((32768, 1021), (32768, 2048)),
        ((9, 13), (7, 16)), 0.80,
    )  # fmt: skip
    yield Entry(
        23, "embedding", lambda w, i: F.embedding(i, w),
        lambda r, ids, n: [r(128256 if r.device == "cuda" else 50, n),
                           r.integers(128256 if r.device == "cuda" else 50, ids)],
        ((65536, 4096),), ((9, 32),), 0.85,
    )  # fmt: skip
    square = lambda r, m, n: [r(m, n), r(n, n)]  # noqa: E731
    biased = lambda r, m, n: [r(m, n), r(n, n), r(n)]  # noqa: E731
    yield Entry(
        24, "matmul", lambda x, w: x @ w, square, grid(M, (8192,)), ((7, 16),), 0.80,
        flops=product_flops,
    )  # fmt: skip
    yield Entry(
        24, "matmul, bias, gelu", lambda x, w, b: F.gelu(x @ w + b), biased, grid(M, (8192,)),
        ((7, 16),), 0.80, flops=product_flops,
    )  # fmt: skip


ENTRIES = tuple(entries())
