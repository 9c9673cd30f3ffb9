"""The types of graph values: tensors with symbolic sizes, and symbolic scalars.

Sizes, strides and offsets are `Size` (int or IntExpr) and count elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from jitshape.ir.symint import Size

SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b1",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def contiguous_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Row-major strides: of a dimension the product of the sizes behind it, each at least 1."""
    from jitshape.ir.symint import sym_max

    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * sym_max(size, 1)
    return tuple(reversed(strides))


def numel(shape: tuple[Size, ...]) -> Size:
    total: Size = 1
    for size in shape:
        total = total * size
    return total


@dataclass(frozen=True, slots=True)
class TensorType:
    """A strided tensor: what a reader of the value can observe except its elements."""

    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")
    offset: Size = 0

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        from jitshape.ir.strides import is_contiguous

        sizes = ", ".join(str(s) for s in self.shape)
        where = "" if self.device.type == "cpu" else f" {self.device}"
        laid = "" if is_contiguous(self.shape, self.strides) else f" strides={self.strides}"
        return f"{SHORT.get(self.dtype, self.dtype)}[{sizes}]{laid}{where}"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A Python number computed in the graph (item(), a float argument): dtype i64, f64 or b1.
    `symbol` stands for it in sizes (i64) or float expressions (f64)."""

    dtype: torch.dtype
    symbol: Any = None

    def __str__(self) -> str:
        return SHORT[self.dtype]
