"""Kernels of the user's in compiled functions: ops of the graph, with what they write declared.
They run in Triton's interpreter here."""

import pytest
import torch

import jitshape
from tests.programs.compare import check

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
written = pytest.importorskip("jitshape.frontend.torchside.triton_kernels").written


def scaled(x, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    place = out + i
    tl.store(place, value * scale + n, mask=i < n)


def doubled(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    places = x + i
    for _ in range(2):
        tl.store(places, tl.load(places, mask=i < n) * 2, mask=i < n)


def counted(x, counts, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(counts + i, tl.load(x + i, mask=i < n), mask=i < n)


def helper(x, out, n, BLOCK: tl.constexpr):
    tl.store(out, tl.load(x))


def through_a_helper(x, out, n, BLOCK: tl.constexpr):
    helper(x, out, n, BLOCK)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for function in (scaled, doubled, counted):
        monkeypatch.setitem(KERNELS, function.__name__, triton.jit(function))


KERNELS: dict = {}


def launch(x, scale, block=64):
    out, n = torch.empty_like(x), x.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
    KERNELS["scaled"][grid](x.sin(), out, n, scale, BLOCK=block)
    return out


def result(x):
    return launch(x, 2.0) * 3


def two_launches(x):
    return launch(launch(x, 2.0) + 1, 0.5, block=128) + launch(x, scale=3)


def writes_an_argument(x):
    KERNELS["doubled"][(1,)](x, x.numel(), BLOCK=256)
    return x + 1


def writes_a_view(x):
    y = x * 1
    KERNELS["doubled"][(1,)](y[1:], y.numel() - 1, BLOCK=256)
    return y, y[1:].sum()


def in_a_loop(x):
    counts = torch.zeros_like(x)
    for i in range(3):
        KERNELS["counted"][(1,)](x + i, counts, n=x.numel(), BLOCK=256)
    return counts


def of_a_mask(x):
    y = x[x > 0.5]
    return launch(y, 1.0)


PROGRAMS = [result, two_launches, writes_an_argument, writes_a_view, in_a_loop, of_a_mask]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_launches_are_captured(program):
    torch.manual_seed(0)
    calls = [(torch.rand(n),) for n in (70, 5, 130)]
    check(program, *calls, compiles=1, fullgraph=True, dynamic=True)


def test_only_what_may_be_written_is_declared():
    assert written(scaled) == {"out", "BLOCK"}
    assert written(doubled) == {"x", "BLOCK"} and written(counted) == {"counts", "BLOCK"}
    assert written(through_a_helper) == {"x", "out", "n", "BLOCK"}


def test_autograd_does_not_see_a_launch():
    x = torch.rand(6, requires_grad=True)
    want, got = launch(x, 2.0), jitshape.compile(launch)(x, 2.0)
    assert not want.requires_grad and not got.requires_grad
    torch.testing.assert_close(got, want)


def test_an_argument_that_is_missing_is_eagers_error():
    def f(x):
        KERNELS["scaled"][(1,)](x, x, BLOCK=16)
        return x

    for call in (f, jitshape.compile(f)):
        with pytest.raises(Exception, match="argument"):
            call(torch.ones(3))
