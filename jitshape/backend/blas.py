"""Matrix products by the BLAS that torch calls, without tensors in between.

In: a product node (mm, or addmm with a row as bias).  Out: a `Product`, from which the program
calls `_launch.Gemm` on the memory of the tensors behind the operands' views; or None, and the
program calls ATen.  Invariant: the function and its arguments are those that ATen ends in, for
contiguous f32 and f64 on the CPU; a library without it, or that fails the self-test, is not used.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from jitshape.backend._launch import Gemm
from jitshape.backend.lower import root
from jitshape.backend.runtime import read_tensors_directly
from jitshape.ir.graph import Node, Value, tensor_type
from jitshape.ir.symint import Algebra, Size, sym_max
from jitshape.ir.types import TensorType, contiguous_strides

FUNCTIONS = {torch.float32: "sgemm_64_", torch.float64: "dgemm_64_"}  # sizes of 64 bits


@dataclass(frozen=True)
class Operand:
    """A matrix as BLAS reads it: memory of `base` from `shift` on, rows (of the transposed
    matrix, if `transposed`) `leading` elements apart."""

    base: Value
    transposed: bool
    leading: Size
    shift: Size


@dataclass(frozen=True)
class Product:
    """out = a b + bias"""

    dtype: torch.dtype
    a: Operand
    b: Operand
    bias: Value | None
    sizes: tuple[Size, Size, Size]  # rows, columns, inner


def product(node: Node, algebra: Algebra) -> Product | None:
    """How BLAS computes `node`, if it can for every size."""
    if node.op not in ("aten.mm.default", "aten.addmm.default") or node.kwargs:
        return None
    *biases, a, b = node.args
    out = tensor_type(node.outs[0])
    if out.device.type != "cpu" or out.strides != contiguous_strides(out.shape):
        return None
    x, y = operand(a, algebra), operand(b, algebra)
    if x is None or y is None or not all(map(is_row_of(out), biases)):
        return None
    if not function_address(out.dtype):
        return None
    bias = biases[0] if biases else None
    rows, columns = out.shape
    return Product(out.dtype, x, y, bias, (rows, columns, a.type.shape[1]))


def gemm(dtype: torch.dtype, transpose_a: bool, transpose_b: bool, bias: bool) -> Gemm | None:
    """The call of BLAS for operands that lie so; None where it is not to be used."""
    address = function_address(dtype)
    return Gemm(address, dtype.itemsize, transpose_a, transpose_b, bias) if address else None


def is_row_of(out: TensorType) -> Callable[[Value], bool]:
    """A predicate: the value is a vector that is added to each row of a matrix like `out`."""

    def holds(value: Value) -> bool:
        return value.type.shape == out.shape[1:] and value.type.strides == (1,)

    return holds


def operand(value: Value, algebra: Algebra) -> Operand | None:
    """The matrix `value`; None if neither its rows nor its columns lie densely."""
    type_, base = value.type, root(value)
    if tensor_type(base).dtype is not type_.dtype:
        return None
    shift = type_.offset - tensor_type(base).offset
    for transposed in (False, True):
        (outer, inner), (distance, step) = type_.shape, type_.strides
        if transposed:
            outer, inner, distance, step = inner, outer, step, distance
        if step == 1 and reaches(algebra, distance, inner):
            return Operand(base, transposed, distance, shift)
    return None


def reaches(algebra: Algebra, distance: Size, length: Size) -> bool:
    """Whether rows `distance` apart do not overlap."""
    if type(distance) is int and type(length) is int:
        return distance >= length
    if distance == sym_max(length, 1):
        return True
    return algebra.static("le", length, distance) is True


@functools.cache
def function_address(dtype: torch.dtype) -> int:
    """Where the product of this dtype lies in torch's library; 0 if it is not to be used."""
    path = os.path.join(os.path.dirname(str(torch.__file__)), "lib", "libtorch_cpu.so")
    try:
        function = getattr(ctypes.CDLL(path), FUNCTIONS[dtype])
    except (OSError, KeyError, AttributeError):
        return 0
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    read_tensors_directly()
    return address if computes_products(address, dtype) else 0


def computes_products(address: int, dtype: torch.dtype) -> bool:
    """Whether the function gives torch's results, in all layouts."""
    m, n, k = 5, 7, 3
    with torch.inference_mode(False), torch.no_grad():
        a = torch.arange(m * k, dtype=dtype, device="cpu").reshape(m, k)
        b = torch.arange(k * n, dtype=dtype, device="cpu").reshape(k, n).flip(0).contiguous()
        bias = torch.arange(n, dtype=dtype, device="cpu")
        for ta, tb, with_bias in itertools.product((False, True), repeat=3):
            out = torch.full((m, n), torch.nan, dtype=dtype, device="cpu")
            x, y = (t.t().contiguous() if flip else t for t, flip in ((a, ta), (b, tb)))
            gemm = Gemm(address, dtype.itemsize, ta, tb, with_bias)
            biases = (bias,) if with_bias else ()
            gemm(out, x, y, *biases, m, n, k, x.shape[1], y.shape[1], 0, 0)
            if not torch.equal(out, a @ b + (bias if with_bias else 0)):
                return False
    return True
