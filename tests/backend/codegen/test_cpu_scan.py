"""Running totals: along the lanes, across them, and element by element."""

from dataclasses import replace

import pytest
import torch

from jitshape.backend import jit
from jitshape.backend.codegen.cpu_plan import make_plan
from jitshape.backend.interpret import interpret
from jitshape.backend.loops import Loop
from jitshape.backend.text import kernel_text
from tests.backend.kernels import running

LENGTHS = [0, 1, 7, 8, 15, 16, 17, 33, 100]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=[4, 8, 16])
def lanes(request, monkeypatch):
    host = jit.host()
    monkeypatch.setattr(jit, "host", lambda: replace(host, lanes=request.param))
    return request.param


def plan_of(kernel):
    plan = make_plan(kernel, 8)
    (loop,) = plan.body
    inner = [s.axis.kind for s in loop.body if isinstance(s, Loop)]
    return [loop.axis.kind, *inner]


CASES = {
    "f32": ("sum", torch.float32, torch.float64, ["vector"]),
    "f64": ("sum", torch.float64, torch.float64, ["vector"]),
    "bf16": ("sum", torch.bfloat16, torch.float64, ["vector"]),
    "i64": ("sum", torch.int64, torch.int64, ["vector"]),
    "i32 product": ("prod", torch.int32, torch.int32, ["vector"]),
    "f32 product": ("prod", torch.float32, torch.float64, ["serial"]),
}


@pytest.mark.parametrize("case", CASES)
def test_rows(case, lanes):
    combine, dtype, wide, kinds = CASES[case]
    kernel = running(combine, dtype, wide)
    assert plan_of(kernel) == kinds
    (launch,) = jit.compile_kernels([kernel])
    for n in LENGTHS:
        x = (torch.rand(3, n) * 3 - 1).to(dtype)
        found, other = torch.empty_like(x), torch.empty_like(x)
        launch(x, found, 3, n)
        interpret(kernel, [x, other], [3, n])
        expected = getattr(torch, f"cum{combine}")(x, 1).to(dtype)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(other, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("combine", ["sum", "prod"])
def test_columns_keep_a_total_a_lane(combine, lanes):
    kernel = running(combine, torch.float32, torch.float64, across=True)
    assert plan_of(kernel) == ["vector", "serial"]
    (launch,) = jit.compile_kernels([kernel])
    for m, n in ((1, 1), (5, 40), (0, 3), (9, 0)):
        x = torch.rand(m, n) * 2
        found = torch.empty_like(x)
        launch(x, found, m, n)
        torch.testing.assert_close(found, getattr(torch, f"cum{combine}")(x, 0))


def test_infinities_and_nan_stay_from_where_they_are(lanes):
    x = torch.ones(1, 40)
    x[0, 5], x[0, 20], x[0, 30] = INF, -INF, NAN
    (launch,) = jit.compile_kernels([running("sum", torch.float32, torch.float64)])
    found = torch.empty_like(x)
    launch(x, found, 1, 40)
    assert torch.equal(found.isnan(), x.cumsum(1).isnan())
    assert torch.equal(found.nan_to_num(), x.cumsum(1).nan_to_num())


def test_the_text_shows_the_total_before_it_is_stored():
    lines = kernel_text(running("sum", torch.float32, torch.float64)).splitlines()
    assert [line.strip() for line in lines[-2:]] == [
        "total sum= f64(x[s1*i0 + i1])",
        "out[s1*i0 + i1] = f32(total)",
    ]
