"""Values, aliases, bases and version counters after writes through all kinds of views."""

from __future__ import annotations

import pytest
import torch

import jitshape
from tests.programs.memory import check_memory

# Programs on a matrix of n rows and 6 columns.
REAL = {
    "row of an expansion": lambda x: (x[0].expand(3, 6)[1].add_(1), x),
    "column of an expansion": lambda x: (x[:, :1].expand(-1, 4)[:, 2].mul_(2), x[0]),
    "read expansion of a written row": lambda x: (x[0].expand(3, 6), x.add_(1)),
    "windows": lambda x: (x.unfold(1, 2, 2)[0].fill_(7), x),
    "overlapping windows, read": lambda x: (x.unfold(1, 3, 1), x.add_(1)),
    "overlapping windows, written": lambda x: (x.unfold(1, 3, 1)[:, 0].add_(1), x),
    "as_strided": lambda x: (x.as_strided((2, 2), (6, 1), 1).mul_(2), x),
    "same width": lambda x: (x.view(torch.int32).add_(1), x),
    "narrower": lambda x: (x.view(torch.int16)[:, 0].fill_(5), x),
    "wider": lambda x: (x.view(torch.float64).mul_(2), x),
    "windows of narrower ones": lambda x: (x.view(torch.int16).unfold(1, 2, 2).add_(1), x),
    "windows of bytes, read": lambda x: (x[1:].view(torch.uint8).unfold(0, 2, 1), x.mul_(2)),
    "a written row of a new tensor": lambda x: (x + x)[1:].add_(1),
    "narrower result": lambda x: ((y := x * 2).view(torch.int16), y),
    "diagonal": lambda x: (x.diagonal(1).neg_(), x.mul_(2)),
    "transposed pieces": lambda x: [row.add_(i) for i, row in enumerate(x.t().split(2))],
    "halves": lambda x: ((halves := x.chunk(2))[0].add_(1), halves[1].mul_(halves[0].sum())),
    "rows in turn": lambda x: [row.add_(i) for i, row in enumerate(x.unbind())][:1],
    "swapped rows": lambda x: x.__setitem__([0, 1], x[[1, 0]]),
    "views of views": lambda x: ((w := (v := x.view(-1)).view(6, -1))[0].add_(1), v, w),
    "siblings of a new tensor": lambda x: ((y := x * 2)[0].add_(1), y[1], y.t()),
    "base and view": lambda x: ((y := x * 2), y[0].add_(1)),
    "one tensor twice": lambda x: ((y := x + 1), y.mul_(2), x, x),
    "out through a view": lambda x: torch.add(x, 1, out=torch.zeros(6, x.shape[0]).t()),
    "out of another dtype": lambda x: torch.add(x, 1, out=torch.empty_like(x, dtype=torch.double)),
    "written twice": lambda x: (x.add_(1), x[0].mul_(2)),
    "new, written three times": lambda x: (x * 2).add_(1).mul_(2).neg_(),
    "detached": lambda x: ((y := x * 2), y.detach().add_(1)),
    ".data": lambda x: (x.data.add_(1), x.data),
    "returned views": lambda x: (x[0], x.t(), x.view(-1), x.detach()),
    "an input and its row": lambda x: (x.add_(1), x[0]),
    "negated": lambda x: (torch._neg_view(x).add_(1), torch._neg_view(x)[0], x),
    "negated twice": lambda x: (torch._neg_view(torch._neg_view(x)).mul_(2), x),
    "negated, of a flat memory": lambda x: (
        torch._neg_view(x.as_strided((4,), (2,), 1)).fill_(3.0),
        x.as_strided((6,), (2,), 0).mul_(2),
    ),
    "windows of negated ones": lambda x: torch._neg_view(x).unfold(1, 2, 2)[0].add_(1),
    "refilled rows": lambda x: (x[0].uniform_(), x[1].normal_(), torch.rand(2) + x[0, :2]),
}
COMPLEX = {
    "windows of the real parts": lambda x: (torch.view_as_real(x[1:]).unfold(1, 2, 2).neg_(), x),
    "real part": lambda x: (x.real.add_(1), x),
    "imaginary part": lambda x: x.imag.mul_(2),
    "row of the real part": lambda x: ((y := x * 2).real[0].fill_(3.0), y),
    "as pairs": lambda x: (torch.view_as_real(x)[..., 1].zero_(), x),
    "pairs as numbers": lambda x: torch.view_as_complex(torch.view_as_real(x).clone()).add_(1j),
    "conjugate": lambda x: (x.conj().mul_(2j), x),
    "conjugate, read later": lambda x: (x.conj(), x.add_(1j)),
    "row of a conjugate": lambda x: x.conj()[0].add_(1j),
    "conjugate twice": lambda x: x.conj().conj().add_(1j),
    "imaginary part of a conjugate": lambda x: (x.conj().imag.add_(1), x),
    "real part of a conjugate": lambda x: x.conj().real[0],
    "adjoint": lambda x: (x.mH.mul_(1j), x),
    "windows of a conjugate": lambda x: ((y := x[0].conj()).unfold(0, 2, 1), y.mul_(2 + 1j)),
    "windows of a conjugate, written": lambda x: x.conj().unfold(1, 2, 2)[0].add_(1j),
    "windows of the imaginary part of a conjugate": lambda x: (
        (y := x.conj().imag).unfold(1, 2, 2).mul_(2),
        y,
    ),
    "a conjugate that is repeated": lambda x: (
        x[0].conj().expand(3, -1)[0].add_(2j),
        x[0].conj().unfold(0, 2, 1)[1:2].mul_(2j),
    ),
    "conjugate of a new tensor": lambda x: ((y := x * 2), y.conj()),
}
SIZES = (4, 5, 7)


@pytest.mark.parametrize("name", REAL)
def test_writes_through_views(name) -> None:
    check_memory(REAL[name], *(lambda n=n: [torch.randn(n, 6)] for n in SIZES))


@pytest.mark.parametrize("name", COMPLEX)
def test_writes_through_parts_of_complex_numbers(name) -> None:
    makes = [lambda n=n: [torch.randn(n, 6, dtype=torch.complex64)] for n in SIZES]
    check_memory(COMPLEX[name], *makes)


SHOWN_OTHERWISE = {
    "transposed": lambda x: x.t_(),
    "transposed and written": lambda x: (x.add_(1), x.t_().mul_(2), x[0]),
    "turned twice": lambda x: (x.t_(), x.transpose_(0, 1), x + 1),
    "a dimension more": lambda x: (x.unsqueeze_(0).unsqueeze_(-1), x.sum()),
    "a dimension less": lambda x: (x.unsqueeze_(1), x.squeeze_(1), x),
    "a window": lambda x: x.as_strided_((2, 3), (6, 1), 1).add_(1),
    "fewer elements": lambda x: x.resize_(2, 3),
    "the same size": lambda x: (x.sum(0).resize_(6), (x + 1).resize_as_(x)),
    "a view beside it": lambda x: (x[0], x.t_(), x),
    "new, transposed": lambda x: (x * 2).t_().add_(1),
    "new, resized": lambda x: torch.empty(0).resize_(x.shape).copy_(x),
    "new, fewer elements": lambda x: (x + 1).resize_(2, 2),
    "new, in other memory": lambda x: (x + 1).set_(x * 2).mul_(2),
    "out of no elements": lambda x: torch.add(x, 1, out=torch.empty(0)),
}


@pytest.mark.parametrize("name", SHOWN_OTHERWISE)
def test_tensors_that_show_their_memory_otherwise(name) -> None:
    check_memory(SHOWN_OTHERWISE[name], *(lambda n=n: [torch.randn(n, 6)] for n in SIZES))


def test_data_of_a_new_tensor_is_replaced() -> None:
    def f(x, y):
        z = x + 1
        z.data = y * 2
        z.mul_(y)
        return z

    check_memory(f, *(lambda n=n: [torch.randn(n, 6), torch.randn(n, 6)] for n in SIZES))


REFUSED = {
    "an expansion": lambda x: x[0].expand(3, 6).add_(1),
    "zeros into an expansion": lambda x: x[:1].expand(3, 6).zero_(),
    "rows from the rows before": lambda x: x[1:].add_(x[:-1]),
    "a copy from the rows before": lambda x: x[1:].copy_(x[:-1]),
    "an expansion of a new tensor": lambda x: (x * 2)[0].expand(2, 6).mul_(3),
}
ALLOWED = {
    "rows from rows apart": lambda x: x[2:4].add_(x[:2]),
    "itself": lambda x: x.mul_(x),
    "its own view": lambda x: x.mul_(x.view(x.shape)),
    "an expansion of one row": lambda x: x[:1].expand(1, 6).add_(1),
    "interleaved columns": lambda x: x[:, ::2].add_(x[:, 1::2]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_writes_that_eager_refuses(name) -> None:
    check_memory(REFUSED[name], *(lambda n=n: [torch.randn(n, 6)] for n in SIZES), breaks=None)


@pytest.mark.parametrize("name", ALLOWED)
def test_overlaps_that_eager_allows(name) -> None:
    check_memory(ALLOWED[name], *(lambda n=n: [torch.randn(n, 6)] for n in SIZES))


def _overlapping(n: int) -> list[torch.Tensor]:
    base = torch.randn(2 * n)
    return [base[:n], base[n - 1 :]]


def test_each_of_two_overlapping_arguments_counts_its_writes() -> None:
    """They are views of one base, whose counter both move."""

    def f(x, y):
        x.add_(1)
        x.mul_(2)
        y.sub_(x.sum())
        return x, y[:2]

    check_memory(f, *(lambda n=n: _overlapping(n) for n in SIZES))


def test_elements_that_are_flipped_when_read() -> None:
    """An argument with eager's bit for negated elements is not taken for a plain one."""
    compiled = jitshape.compile(lambda x: x + 1)
    plain = torch.randn(4, 6)
    negated = torch.complex(plain, plain).conj().imag
    for x in (plain, negated, plain):
        torch.testing.assert_close(compiled(x), x + 1)


def test_the_version_of_an_argument_is_not_the_traces() -> None:
    def f(x):
        x.add_(1)
        return x._version

    x = torch.zeros(3)
    compiled = jitshape.compile(f)
    assert [compiled(x), compiled(x), compiled(x)] == [1, 2, 3]


def test_gradients_through_parts_of_complex_numbers() -> None:
    """Views of an argument in another dtype are those that autograd knows."""
    for f in (torch.view_as_complex, lambda x: torch.view_as_complex(x)[0].real):
        x = torch.randn(5, 2, requires_grad=True)
        gradients = [
            torch.autograd.grad(torch.view_as_real(g(x).to(torch.complex64)).pow(2).sum(), x)
            for g in (f, jitshape.compile(f))
        ]
        torch.testing.assert_close(*gradients)


def test_an_argument_that_only_shows_its_memory_anew_behind_one_that_is_unused() -> None:
    def turn(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        x.conj()  # of reals: the very tensor, so that the graph needs nothing of x
        z.t_()
        return [z, y]

    check_memory(turn, lambda: [torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5)])


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.float64, torch.uint8])
def test_complex_numbers_seen_as_others(dtype: torch.dtype) -> None:
    def of_argument(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.view(dtype), x.view(dtype)[1:]]

    def of_result(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        z = x * 2
        return [z.view(dtype)[..., 1:], z, z[0].view(dtype)]

    def to_complex(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [y.view(torch.complex64), y.view(torch.complex64)[1]]

    def make() -> list[torch.Tensor]:
        return [torch.randn(4, 3, dtype=torch.complex64), torch.arange(24.0).view(4, 6).to(dtype)]

    check_memory(of_argument, make, breaks=None)
    check_memory(of_result, make, breaks=None)
    if dtype is not torch.uint8 and dtype is not torch.int16:
        check_memory(to_complex, make, breaks=None)


def test_a_copy_of_a_piece_has_memory_of_its_own_size() -> None:
    def copied(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = y.clone()
        x.add_(1)
        return z

    def make() -> list[torch.Tensor]:
        base = torch.arange(16.0)
        return [base[:8].view(2, 4), base[4:12]]

    check_memory(copied, make)
    compiled = jitshape.compile(copied)
    assert compiled(*make()).untyped_storage().nbytes() == 32


BY_THE_ORDER = {
    "masked_scatter_ of itself": lambda x, i: x.masked_scatter_(x > 0, x),
    "index_add_ of its rows": lambda x, i: x.index_add_(0, i, x[1:3]),
    "index_copy_ of its rows": lambda x, i: x.index_copy_(0, i, x[:2]),
    "index_put_ of its rows": lambda x, i: x.index_put_((i,), x[:2]),
    "put_ of its elements": lambda x, i: x.put_(i, x[0, :2]),
    "scatter_ of itself": lambda x, i: x.scatter_(0, i.expand(6, 2).t(), x),
}


@pytest.mark.parametrize("name", BY_THE_ORDER)
def test_writes_that_read_what_they_write(name) -> None:
    """ATen refuses them, or its order of reads and writes decides: they are left to it."""
    program = BY_THE_ORDER[name]
    makes = [lambda n=n: [torch.randn(n, 6), torch.tensor([1, 0])] for n in (4, 5)]
    check_memory(lambda x, i: (x, program(x, i)), *makes, breaks=None)
    assert any("reads the tensor" in r for r in jitshape.stats()["details"]["break_reasons"])


def test_a_view_beyond_its_argument() -> None:
    """What lies beside an argument may be another's: it is read and written by eager."""

    def f(x):
        y = x.as_strided((2, 2), (2, 1), 1)
        return y.mul_(y)

    check_memory(f, *(lambda n=n: [torch.arange(3.0 * n)[n:]] for n in SIZES), breaks=None)
    assert jitshape.stats()["graph_breaks"] >= 1
