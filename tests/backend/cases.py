"""Inputs and eager results for the kernels of `kernels.py`: shared by interpreter and back ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from jitshape.backend.loops import Kernel
from tests.backend import kernels

Case = tuple[Kernel, list[torch.Tensor], list[int], list[float], dict[int, torch.Tensor]]


def softmax(m: int, n: int) -> Case:
    x = torch.randn(m, n)
    buffers = [x, torch.empty(m, n)]
    return kernels.softmax(), buffers, [m, n], [], {1: torch.softmax(x, 1)}


def layernorm(m: int, n: int) -> Case:
    x, w, b = torch.randn(m, n), torch.randn(n), torch.randn(n)
    buffers = [x, w, b, torch.empty(m, n), torch.empty(m)]
    expected = {4: x.mean(1)}
    if n:
        expected[3] = torch.nn.functional.layer_norm(x, (n,), w, b, 1e-5)
    return kernels.layernorm(), buffers, [m, n], [1e-5], expected


def column_sum(m: int, n: int) -> Case:
    x = torch.randn(m, n)
    kernel = kernels.column_reduction("sum", torch.float32, torch.float32)
    return kernel, [x, torch.empty(n)], [m, n], [], {1: x.sum(0)}


def row_sum(m: int, n: int) -> Case:
    x = torch.randn(m, n)
    kernel = kernels.row_reduction("sum", torch.float32, torch.float32)
    return kernel, [x, torch.empty(m)], [m, n], [], {1: x.sum(1)}


def transpose_add(m: int, n: int) -> Case:
    x, y = torch.randn(n, m), torch.randn(m, n)
    return kernels.transpose_add(), [x, y, torch.empty(m, n)], [m, n], [], {2: x.t() + y}


def embedding(m: int, n: int) -> Case:
    table, index = torch.randn(7, n), torch.randint(0, 7, (m,))
    buffers = [table, index, torch.empty(m, n)]
    return kernels.embedding(), buffers, [m, n], [], {2: table[index]}


def gather_last(m: int, n: int) -> Case:
    x, index = torch.randn(m, n), torch.randint(0, max(n, 1), (m, n))
    return kernels.gather_last(), [x, index, torch.empty(m, n)], [m, n], [], {2: x.gather(1, index)}


def concatenate(m: int, n: int) -> Case:
    x, y = torch.randn(m), torch.randn(n)
    return kernels.concatenate(), [x, y, torch.empty(m + n)], [m, n], [], {2: torch.cat([x, y])}


def scatter_add(m: int, n: int) -> Case:
    x, index, out = torch.randn(m), torch.randint(0, max(n, 1), (m,)), torch.ones(max(n, 1))
    expected = out.clone().index_add_(0, index, x)
    return kernels.scatter_add(), [x, index, out], [m], [], {2: expected}


def prefix_sum(m: int, n: int) -> Case:
    x = torch.randn(m, n)
    return kernels.prefix_sum(), [x, torch.empty(m, n)], [m, n], [], {1: x.cumsum(1)}


def running_sum(m: int, n: int) -> Case:
    x = torch.randn(m, n)
    kernel = kernels.running("sum", torch.float32, torch.float64)
    return kernel, [x, torch.empty(m, n)], [m, n], [], {1: x.cumsum(1)}


def through_scratch(m: int, n: int) -> Case:
    x = torch.randn(m, n)
    return kernels.through_scratch(), [x, torch.empty(m, n)], [m, n], [], {1: (2 * x).flip(1)}


CASES: list[Callable[[int, int], Any]] = [
    softmax,
    layernorm,
    column_sum,
    row_sum,
    transpose_add,
    embedding,
    gather_last,
    concatenate,
    scatter_add,
    prefix_sum,
    running_sum,
    through_scratch,
]
SHAPES = [(3, 5), (0, 4), (4, 0), (1, 1), (2, 67), (5, 16), (33, 3)]
