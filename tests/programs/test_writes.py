"""Writes to tensors: in place, through views and indices, to inputs and intermediates."""

from __future__ import annotations

import pytest
import torch

import jitshape
from tests.programs.compare import check


def column(x):
    x[:, 0] = 1.0
    return x.sum()


def row_from_other(x):
    x[1] = x[0] * 2
    return x + 1


def masked(x):
    x[x > 0] = 0.0
    return x * 2


def through_view(x):
    v = x.view(-1)
    v[1:3].add_(5)
    return x.sum(), v


def intermediate(x):
    y = x * 2
    y[0].mul_(3)
    z = y.t()
    z[0] = 7.0
    return y, z


def after_reading(x):
    y = x + 1
    x.mul_(2)
    return y + x


def swapped(x):
    a = x[0].clone()
    x[0] = x[1]
    x[1] = a
    return x.mean()


def filled(x):
    x.zero_()
    x.fill_(3.0)
    x[..., -1] += 2
    return x


def copied(x):
    y = torch.empty_like(x)
    y.copy_(x)
    y.clamp_(min=0)
    return y


def scattered(x):
    index = torch.arange(x.shape[0])
    y = torch.zeros(x.shape[0], 4)
    y[index, 1] = x[:, 0]
    return y


def added_out(x):
    out = torch.empty_like(x)
    torch.add(x, 1, out=out)
    return out


def stepped(x):
    x[::2].neg_()
    return x.abs()


def diagonal(x):
    x.diagonal().fill_(9.0)
    return x


def detached(x):
    y = x.detach()
    y.add_(1)
    return x * 2


def log_twice(x):
    y = torch.log(x.abs())
    x.log_()
    return y


def source_written_later(x):
    y = torch.zeros_like(x)
    y[0:, :] = x[0:, :]
    x.add_(1)
    return y


PROGRAMS = [
    column, row_from_other, masked, through_view, intermediate, after_reading, swapped, filled,
    copied, scattered, added_out, stepped, diagonal, detached, log_twice, source_written_later,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_writes(program) -> None:
    check(program, *[(torch.randn(n, 4),) for n in (3, 5, 6)], compiles=2)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_writes_to_strided_inputs(program) -> None:
    if program is through_view:
        pytest.skip("the view does not exist")
    check(program, (torch.randn(4, 6).t(),), (torch.randn(8, 8)[1:5, 2:6],))


TRAINED = [p for p in PROGRAMS if p not in (detached, added_out, log_twice)]


@pytest.mark.parametrize("program", TRAINED, ids=lambda f: f.__name__)
def test_writes_with_gradients(program) -> None:
    def f(x):
        y = x * 1.5
        return program(y)

    check(f, *[(torch.randn(n, 4, requires_grad=True),) for n in (3, 5, 6)], compiles=2)


def test_an_overwritten_tensor_that_backward_needs_is_eagers_error() -> None:
    compiled = jitshape.compile(lambda x: log_twice(x * 1.5))
    y = compiled(torch.rand(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_out_argument_from_outside() -> None:
    def f(x, out):
        torch.mul(x, 2, out=out)
        return out.sum()

    check(f, *[(torch.randn(n), torch.zeros(n)) for n in (3, 4, 5)], compiles=2)


def test_write_to_a_view_argument_shows_in_its_base() -> None:
    base = torch.zeros(3, 4)
    compiled = check(lambda x: x.add_(1), (torch.zeros(4),))
    compiled(base[1])
    assert base[1].tolist() == [1.0] * 4 and not base[0].any() and not base[2].any()


def test_version_counters_move_once_written() -> None:
    compiled = check(lambda x, y: x.add_(y), (torch.zeros(4), torch.zeros(4)))
    x, y = torch.zeros(4), torch.zeros(4)
    compiled(x, y)
    assert x._version > 0 and y._version == 0


def test_memory_that_overlaps_itself_is_written_as_in_eager():
    def function(x):
        return x.mul_(2) + 1

    compiled = jitshape.compile(function)
    for rows, step in ((2, 3), (2, 1), (3, 3), (3, 2), (1, 1)):
        memory = torch.arange(20.0)
        other = memory.clone()
        layout = (rows, 3), (step, 1)
        expected = function(memory.as_strided(*layout))
        torch.testing.assert_close(compiled(other.as_strided(*layout)), expected)
        assert torch.equal(memory, other)
