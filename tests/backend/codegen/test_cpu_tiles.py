"""Stores that are strided along the lanes go out by tiles, turned in registers."""

from dataclasses import replace

import pytest
import torch

import jitshape
from jitshape.backend import jit
from jitshape.backend.codegen.cpu_plan import make_plan
from jitshape.backend.interpret import interpret
from jitshape.backend.loops import Axis, Buffer, Kernel, Load, Loop, Store
from jitshape.ir.symint import Algebra
from tests.backend.kernels import lit, op

SHAPES = [(1, 1), (7, 33), (16, 16), (33, 7), (64, 129), (0, 5), (5, 0), (48, 32)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(params=[4, 8, 16])
def lanes(request, monkeypatch):
    host = jit.host()
    monkeypatch.setattr(jit, "host", lambda: replace(host, lanes=request.param))
    return request.param


def turned(dtype, masked=False, in_place=False):
    """out[c, r] = where(x == y[c, r], y[c, r], x[r, c]) and plain[r, c] = x[r, c]; x is `plain`
    itself, or the stores are masked, in the last two kinds."""
    a = Algebra()
    m, n, r, c = (a.symbol(name) for name in ("s0", "s1", "i0", "i1"))
    plain = Buffer("plain", dtype, "inout" if in_place else "out")
    x = plain if in_place else Buffer("x", dtype)
    y, out = Buffer("y", dtype), Buffer("out", dtype, "out")
    value, other = Load(x, n * r + c), Load(y, m * c + r)
    keep = op("eq", value, other, dtype=torch.bool)
    both = op("where", keep, other, value)
    mask = op("ge", value, lit(0, dtype), dtype=torch.bool) if masked else None
    body = (Store(out, m * c + r, both, mask=mask), Store(plain, n * r + c, value))
    buffers = (y, out, plain) if in_place else (x, y, out, plain)
    loop = Loop(Axis(c, n, "vector"), body)
    return Kernel("turn", (Axis(r, m),), (loop,), buffers, (m.symbol, n.symbol))


def sample(dtype, *shape):
    return torch.randint(0, 3, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_stores_and_loads_are_turned(dtype, lanes):
    kernel = turned(dtype)
    plan = make_plan(kernel, lanes)
    assert plan.tile and [one.buffer.name for one in plan.tile.turned] == ["y", "out"]
    (launch,) = jit.compile_kernels([kernel])
    for m, n in SHAPES:
        x, y = sample(dtype, m, n), sample(dtype, n, m)
        found, expected = ([torch.empty_like(y), torch.empty_like(x)] for _ in range(2))
        launch(x, y, *found, m, n)
        interpret(kernel, [x, y, *expected], [m, n])
        assert torch.equal(found[0], x.t()) and torch.equal(found[1], x)
        assert torch.equal(expected[0], found[0])


def test_masked_stores_are_not_turned(lanes):
    kernel = turned(torch.float32, masked=True)
    assert make_plan(kernel, lanes).tile is None
    (launch,) = jit.compile_kernels([kernel])
    x, y, out = torch.randn(20, 35), torch.randn(35, 20), torch.ones(35, 20)
    plain = torch.empty_like(x)
    launch(x, y, out, plain, 20, 35)
    assert torch.equal(out, torch.where(x >= 0, x, 1.0).t())


def test_what_is_stored_is_not_read_through_a_tile(lanes):
    kernel = turned(torch.float32, in_place=True)
    assert [one.buffer.name for one in make_plan(kernel, lanes).tile.turned] == ["y", "out"]
    (launch,) = jit.compile_kernels([kernel])
    x, y, out = torch.randn(40, 33), torch.randn(33, 40), torch.empty(33, 40)
    before = x.clone()
    launch(y, out, x, 40, 33)
    assert torch.equal(out, before.t()) and torch.equal(x, before)


@pytest.mark.parametrize(
    "function, shapes",
    [
        (lambda x, y: x.t().contiguous().t() * 2 + y, [(40, 33), (5, 100)]),
        (lambda x, y: (x + y).transpose(0, 1).contiguous(), [(3, 40, 33), (17, 2, 16)]),
        (lambda x, y: (x * y).permute(0, 2, 3, 1).contiguous(), [(2, 3, 20, 17), (2, 32, 4, 5)]),
    ],
)
def test_programs_that_transpose(function, shapes):
    fast = jitshape.compile(function, dynamic=True)
    for shape in shapes:
        x, y = torch.randn(shape), torch.randn(shape)
        found, expected = fast(x, y), function(x, y)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
