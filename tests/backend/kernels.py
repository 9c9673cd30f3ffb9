"""Kernels of every shape, built by hand, with the same computation in torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from jitshape.backend.loops import (
    Accumulator,
    Apply,
    Axis,
    Buffer,
    Carry,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Loop,
    Prefix,
    Scalar,
    SizeArgument,
    Store,
)
from jitshape.ir.symint import Algebra

F32, I64, B1 = torch.float32, torch.int64, torch.bool


def op(name: str, *args: Scalar, dtype: torch.dtype | None = None) -> Apply:
    return Apply(name, args, dtype or args[-1].dtype)


def lit(value: float, dtype: torch.dtype = F32) -> Literal:
    return Literal(value, dtype)


def pointwise(function: Callable[..., Scalar], dtypes: list, result: torch.dtype) -> Kernel:
    """out[i] = function(in0[i], in1[i], ...) for i < n."""
    a = Algebra()
    n, i = a.symbol("s0"), a.symbol("i0")
    inputs = [Buffer(f"in{k}", dtype) for k, dtype in enumerate(dtypes)]
    out = Buffer("out", result, "out")
    value = function(*(Load(b, i) for b in inputs))
    loop = Loop(Axis(i, n, "vector"), (Store(out, i, value),))
    return Kernel("pointwise", (), (loop,), (*inputs, out), (n.symbol,))


def gelu(x: Scalar) -> Scalar:
    inner = op("erf", op("mul", x, lit(0.7071067811865476)))
    return op("mul", op("mul", x, lit(0.5)), op("add", inner, lit(1.0)))


def softmax(rows: Algebra | None = None) -> Kernel:
    """out[r, :] = softmax(x[r, :]): two reductions and a store."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, out = Buffer("x", F32), Buffer("out", F32, "out")
    axis = Axis(c, n, "vector")
    load = Load(x, r * n + c)
    top = Accumulator("top", "max", load, F32)
    e = op("exp", op("sub", load, Carry(top)))
    total = Accumulator("total", "sum", e, F32)
    body = (
        Loop(axis, (), (top,)),
        Loop(axis, (), (total,)),
        Loop(axis, (Store(out, r * n + c, op("div", e, Carry(total))),)),
    )
    return Kernel("softmax", (Axis(r, m),), body, (x, out), (m.symbol, n.symbol))


def layernorm() -> Kernel:
    """out[r, :] = layer_norm(x[r, :]) * w + b, mean[r] stored too."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, w, b = (Buffer(name, F32) for name in "xwb")
    out, mean_out = Buffer("out", F32, "out"), Buffer("mean", F32, "out")
    axis = Axis(c, n, "vector")
    load, count = Load(x, r * n + c), op("cast", IndexValue(n), dtype=F32)
    total = Accumulator("total", "sum", load, F32)
    mean = op("div", Carry(total), count)
    centred = op("sub", load, mean)
    squares = Accumulator("squares", "sum", op("mul", centred, centred), F32)
    scale = op("rsqrt", op("add", op("div", Carry(squares), count), SizeArgument(0, F32)))
    value = op("fma", op("mul", centred, scale), Load(w, c), Load(b, c))
    body = (
        Loop(axis, (), (total,)),
        Store(mean_out, r, mean),
        Loop(axis, (), (squares,)),
        Loop(axis, (Store(out, r * n + c, value),)),
    )
    sizes = (m.symbol, n.symbol)
    return Kernel("layernorm", (Axis(r, m),), body, (x, w, b, out, mean_out), sizes, (F32,))


def column_reduction(combine: str, dtype: torch.dtype, result: torch.dtype) -> Kernel:
    """out[c] = combine over r of x[r, c]: a serial loop inside a vector loop."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, out = Buffer("x", dtype), Buffer("out", result, "out")
    acc = Accumulator("acc", combine, Load(x, r * n + c), result)
    body = (Loop(Axis(r, m, "serial"), (), (acc,)), Store(out, c, Carry(acc)))
    loop = Loop(Axis(c, n, "vector"), body)
    return Kernel("columns", (), (loop,), (x, out), (m.symbol, n.symbol))


def row_reduction(combine: str, dtype: torch.dtype, result: torch.dtype) -> Kernel:
    """out[r] = combine over c of x[r, c]."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, out = Buffer("x", dtype), Buffer("out", result, "out")
    acc = Accumulator("acc", combine, Load(x, r * n + c), result)
    body = (Loop(Axis(c, n, "vector"), (), (acc,)), Store(out, r, Carry(acc)))
    return Kernel("rows", (Axis(r, m),), body, (x, out), (m.symbol, n.symbol))


def transpose_add() -> Kernel:
    """out[r, c] = x[c, r] + y[r, c], everything in the grid."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, y, out = Buffer("x", F32), Buffer("y", F32), Buffer("out", F32, "out")
    value = op("add", Load(x, c * m + r), Load(y, r * n + c))
    body = (Store(out, r * n + c, value),)
    return Kernel(
        "transpose_add", (Axis(r, m), Axis(c, n)), body, (x, y, out), (m.symbol, n.symbol)
    )


def running(combine: str, dtype: torch.dtype, wide: torch.dtype, across: bool = False) -> Kernel:
    """out[r, c] = the total of x[r, 0..c], or (across) of x[0..r, c]."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, out = Buffer("x", dtype), Buffer("out", dtype, "out")
    value = op("cast", Load(x, r * n + c), dtype=wide)
    total = Accumulator("total", combine, value, wide)
    store = Store(out, r * n + c, op("cast", Prefix(total), dtype=dtype))
    (k, kept), (i, extent) = ((c, n), (r, m)) if across else ((r, m), (c, n))
    loop = Loop(Axis(i, extent, "serial"), (store,), (total,))
    return Kernel("running", (Axis(k, kept),), (loop,), (x, out), (m.symbol, n.symbol))


def embedding() -> Kernel:
    """out[r, :] = table[index[r], :]: one indirect index a row."""
    a = Algebra()
    m, n, r, c, t = (a.symbol(name) for name in ("s0", "s1", "i0", "i1", "t0"))
    table, index, out = Buffer("table", F32), Buffer("index", I64), Buffer("out", F32, "out")
    load = Load(table, t * n + c, ((t.symbol, Load(index, r)),))
    loop = Loop(Axis(c, n, "vector"), (Store(out, r * n + c, load),))
    return Kernel("embedding", (Axis(r, m),), (loop,), (table, index, out), (m.symbol, n.symbol))


def gather_last() -> Kernel:
    """out[r, c] = x[r, index[r, c]]: an indirect index a lane."""
    a = Algebra()
    m, n, r, c, t = (a.symbol(name) for name in ("s0", "s1", "i0", "i1", "t0"))
    x, index, out = Buffer("x", F32), Buffer("index", I64), Buffer("out", F32, "out")
    load = Load(x, r * n + t, ((t.symbol, Load(index, r * n + c)),))
    loop = Loop(Axis(c, n, "vector"), (Store(out, r * n + c, load),))
    return Kernel("gather", (Axis(r, m),), (loop,), (x, index, out), (m.symbol, n.symbol))


def concatenate() -> Kernel:
    """out = cat([x, y]): two masked loads, neither may leave its tensor."""
    a = Algebra()
    m, n, i = (a.symbol(name) for name in ("s0", "s1", "i0"))
    x, y, out = Buffer("x", F32), Buffer("y", F32), Buffer("out", F32, "out")
    first = op("lt", IndexValue(i), IndexValue(m), dtype=B1)
    left = Load(x, i, (), first, lit(0.0))
    right = Load(y, i - m, (), op("not", first), lit(0.0))
    loop = Loop(Axis(i, m + n, "vector"), (Store(out, i, op("where", first, left, right)),))
    return Kernel("concatenate", (), (loop,), (x, y, out), (m.symbol, n.symbol))


def scatter_add(dtype: torch.dtype = F32) -> Kernel:
    """out[index[i]] += x[i]."""
    a = Algebra()
    n, i, t = (a.symbol(name) for name in ("s0", "i0", "t0"))
    x, index, out = Buffer("x", dtype), Buffer("index", I64), Buffer("out", dtype, "inout")
    store = Store(out, t, Load(x, i), ((t.symbol, Load(index, i)),), add=True)
    return Kernel(
        "scatter_add", (), (Loop(Axis(i, n, "vector"), (store,)),), (x, index, out), (n.symbol,)
    )


def prefix_sum() -> Kernel:
    """out[r, c] = out[r, c - 1] + x[r, c]: a serial loop that reads what it stored."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, out = Buffer("x", F32), Buffer("out", F32, "out")
    later = op("gt", IndexValue(c), lit(0, I64), dtype=B1)
    before = Load(out, r * n + c - 1, (), later, lit(0.0))
    store = Store(out, r * n + c, op("add", before, Load(x, r * n + c)))
    loop = Loop(Axis(c, n, "serial"), (store,))
    return Kernel("prefix_sum", (Axis(r, m),), (loop,), (x, out), (m.symbol, n.symbol))


def through_scratch() -> Kernel:
    """t = 2 x (scratch); out[r, c] = t[n - 1 - c]: a row reversed."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    x, out = Buffer("x", F32), Buffer("out", F32, "out")
    temporary = Buffer("t", F32, "scratch", n)
    axis = Axis(c, n, "vector")
    body = (
        Loop(axis, (Store(temporary, c, op("mul", Load(x, r * n + c), lit(2.0))),)),
        Loop(axis, (Store(out, r * n + c, Load(temporary, n - 1 - c)),)),
    )
    buffers = (x, temporary, out)
    return Kernel("through_scratch", (Axis(r, m),), body, buffers, (m.symbol, n.symbol))
