"""Ops that have no rule of their own: in place, with `out`, on lists, random, custom."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same, check

IN_PLACE = {
    "cumsum": lambda x: x.cumsum_(0),
    "digamma": lambda x: x.digamma_(),
    "polygamma": lambda x: x.polygamma_(2),
    "renorm": lambda x: x.renorm_(2, 0, 1.0),
    "nextafter": lambda x: x.nextafter_(x + 1),
    "index_reduce": lambda x: x.index_reduce_(0, torch.tensor([1, 0]), x[:2].clone(), "prod"),
    "put": lambda x: x.put_(torch.tensor([0, 3]), torch.ones(2)),
    "through a view": lambda x: x.t()[1:].lgamma_(),
    "floor_divide": lambda x: x.floor_divide_(2),
    "pow of a number": lambda x: x.pow_(1.5),
    "pow of a tensor": lambda x: x.pow_(x.clone()),
    "square": lambda x: x.square_(),
    "power": lambda x: x.__ipow__(2),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name) -> None:
    def f(x):
        IN_PLACE[name](x)
        return x * 2

    check(f, *[(torch.rand(n, 4) + 1,) for n in (3, 5, 6)], compiles=2)


def test_a_result_of_another_dtype_is_eagers_error() -> None:
    def f(x):
        return x.digamma_()

    for compiled in (f, jitshape.compile(f)):
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
            compiled(torch.arange(3))


def test_out_with_several_results() -> None:
    def f(x):
        values, places = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        torch.sort(x, 0, out=(values, places))
        return values, places

    check(f, *[(torch.randn(n, 4),) for n in (3, 5, 6)], compiles=2)


def test_lists_of_tensors() -> None:
    def f(x, y):
        rows = [x[0], x[1], y[0]]
        torch._foreach_add_(rows, 1.5)
        torch._foreach_mul_(rows, [2.0, 3.0, 4.0])
        torch._foreach_addcmul_(rows, [y[1]] * 3, rows, 0.5)
        torch._foreach_maximum_(rows, 0.25)
        return torch._foreach_sqrt(rows), torch._foreach_norm(rows)

    check(f, *[(torch.rand(n, 4), torch.rand(n, 4)) for n in (3, 5, 6)], compiles=2)


def test_copies_of_views_are_their_own_memory() -> None:
    def f(x):
        a, (b, c) = torch.t_copy(x), torch.split_copy(x, 2, 1)
        a.add_(1)
        return a, b, c, torch.squeeze_copy(x)

    check(f, *[(torch.randn(n, 4),) for n in (3, 5, 6)], compiles=2)


def test_random_fills_draw_in_program_order() -> None:
    def f(x):
        a = torch.poisson(x.abs())
        x[0].geometric_(0.3)
        torch.rand(3)  # not used, and drawn all the same
        b = x[1].random_(0, 100)
        x[2:].log_normal_()
        return a, b.clone(), x.cauchy_()

    x = torch.randn(5, 4)
    compiled = jitshape.compile(f)
    for n in (5, 6, 7):
        x = torch.randn(n, 4)
        torch.manual_seed(n)
        expected = f(x.clone())
        torch.manual_seed(n)
        torch.testing.assert_close(compiled(x), expected, equal_nan=True)
    assert jitshape.stats()["graph_breaks"] == 0


def test_a_custom_op_that_writes_and_returns() -> None:
    @torch.library.custom_op("jitshape_tests::accumulate", mutates_args=("total",))
    def accumulate(total: torch.Tensor, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        total.add_(x, alpha=by)
        return x * by

    def f(total, x):
        y = accumulate(total[0], x, by=2.0)
        return y + total.sum()

    check(f, *[(torch.zeros(2, n), torch.randn(n)) for n in (3, 5, 6)], compiles=2)


@pytest.mark.parametrize("place", [-1, -2, 1])
def test_places_counted_from_the_end(place) -> None:
    def f(x, y, place):
        z = torch.select_scatter(x, y, 0, place) * 2
        w = torch.slice_scatter(x, y.expand(1, -1), 0, place - 1, place)
        return z + x[place], w * x.select(0, place), x[place - 1 :]

    calls = [(torch.randn(n, 3, requires_grad=True), torch.randn(3), place) for n in (4, 5, 6)]
    check(f, *calls, dynamic=True)


def test_layouts_that_depend_on_the_data() -> None:
    """The result of pinv lies otherwise where the matrix has no rank."""

    def f(a):
        y = torch.linalg.pinv(a)
        return y.mT.exp(), y * 2

    check(f, (torch.randn(4, 3),), (torch.zeros(5, 3),), (torch.randn(6, 3),))


def test_gradients_by_formulas_of_several_ops() -> None:
    def f(a, b):
        return torch.linalg.lstsq(a, b)[0] + torch.linalg.qr(a)[1]

    calls = [tuple(torch.randn(n, 3, requires_grad=True) for _ in range(2)) for n in (4, 5, 6)]
    check(f, *calls)


def test_sparse_results_are_made_outside_the_graph() -> None:
    compiled = jitshape.compile(lambda x: (x * 2).to_sparse())
    for n in (3, 4):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x).to_dense(), x * 2)
    assert jitshape.stats()["graph_breaks"]


@pytest.mark.parametrize("shape", [(5, -1), (-1, 2, 5), (10, 5)])
def test_a_size_to_be_found_among_arguments(shape) -> None:
    def f(x, shape):
        return (
            x.view(shape) * 2,
            x.reshape(shape),
            x[:1].expand(-1, shape[1] if shape[1] > 5 else -1),
        )

    check(f, *((torch.randn(n, 5), shape) for n in (10,)), dynamic=True)


@pytest.mark.parametrize("compare", [torch.equal, torch.allclose])
def test_a_bool_of_data_is_a_number_of_run_time(compare) -> None:
    """It is not what the op gives for the trace's dummies."""

    def f(a, b):
        return compare(a + 1, b + 1), a * 2

    jitshape.reset()
    compiled = jitshape.compile(f)
    a = torch.randn(3, 4)
    for b in (a.clone(), a + 1, a.clone()):
        assert compiled(a, b)[0] is compare(a, b)
    assert not jitshape.stats()["graph_breaks"]


EMPTY = {
    "prod": (lambda x: x.prod(), (0,)),
    "prod of rows": (lambda x: x.prod(1), (2, 0)),
    "eigenvalues": (lambda x: torch.linalg.eigh(x)[0], (2, 0, 0)),
    "cumprod": (lambda x: x.cumprod(0), (0, 3)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_gradients_of_nothing(name) -> None:
    program, shape = EMPTY[name]
    check(program, (torch.rand(shape, requires_grad=True),), dynamic=True)


NAMED_TUPLES = {
    "qr": lambda x: torch.linalg.qr(x).R,
    "max": lambda x: x.max(1).indices,
    "sort": lambda x: (x.sort().values, x.topk(2).values),
    "low rank": lambda x: torch.linalg.eigh(x.mT @ x).eigenvalues,
}


@pytest.mark.parametrize("name", NAMED_TUPLES)
def test_results_by_name(name) -> None:
    check(NAMED_TUPLES[name], *((torch.rand(n, 4),) for n in (5, 6, 8)))


def test_functions_of_torch_that_call_the_programs_objects() -> None:
    def distance(a, b):
        return (a - b).abs().sum(-1) * scale[0]

    def f(x, y):
        far = torch.nn.PairwiseDistance(p=1)
        loss = torch.nn.functional.triplet_margin_with_distance_loss
        return loss(x, y, y + 1, distance_function=distance), loss(x, y, y, distance_function=far)

    scale = [1.0]
    compiled = check(f, (torch.rand(3, 4), torch.rand(3, 4)))
    scale[0] = 3.0
    x, y = torch.rand(3, 4), torch.rand(3, 4)
    torch.testing.assert_close(compiled(x, y), f(x, y))


def test_values_that_an_op_checks_when_it_runs() -> None:
    def f(x, lengths):
        return torch.segment_reduce(x, "sum", lengths=lengths) * 2

    rows = [(torch.rand(n), torch.tensor([n - 2, 2])) for n in (4, 5, 7)]
    compiled = check(f, *rows, compiles=2)
    with pytest.raises(RuntimeError, match="sum to"):
        compiled(torch.rand(5), torch.tensor([1, 2]))


def test_a_kernel_never_sees_sizes_that_do_not_agree() -> None:
    """Of a transform, that of the result is a number: a kernel would trust it."""

    def f(x):
        return torch.fft.irfft(x, 12), torch.fft.hfft(x)

    rows = [(torch.randn(n, n + 2, dtype=torch.complex64),) for n in (31, 2, 7)]
    check(f, *rows, dynamic=True)


def test_a_custom_op_whose_shape_comes_from_elsewhere() -> None:
    """No guard sees what it reads: its results are looked at."""
    width = [3]

    @torch.library.custom_op("jitshape_tests::as_wide_as", mutates_args=())
    def as_wide_as(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(x.size(0), width[0])

    @as_wide_as.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.size(0), width[0])

    def f(x):
        return as_wide_as(x).sum(0) + 1

    compiled = jitshape.compile(f)
    for rows, width[0] in ((2, 3), (4, 3), (4, 5), (6, 5), (6, 2)):
        x = torch.ones(rows)
        assert_same(f(x), compiled(x))


def multiplies(name: str, by: int) -> Any:
    """A custom op whose result is like its operand."""

    @torch.library.custom_op(f"jitshape_tests::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * by

    op.register_fake(torch.empty_like)
    return op


def test_a_custom_op_in_a_formula_whose_shape_comes_from_elsewhere() -> None:
    """Backward has no symbols of its own: what its ops give is looked at."""
    width = [2]

    @torch.library.custom_op("jitshape_tests::some_of", mutates_args=())
    def some_of(x: torch.Tensor) -> torch.Tensor:
        return x[: width[0]].clone()

    @some_of.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(width[0], x.size(1))

    thrice = multiplies("thrice", 3)

    def formula(ctx, grad):
        return grad * 3 + some_of(grad).sum()

    thrice.register_autograd(formula)
    for backend in ("auto", "eager"):
        width[0] = 2
        compiled = jitshape.compile(lambda x: thrice(x).sin(), fullgraph=True, backend=backend)
        for rows in (3, 4, 5):
            results = []
            for f in (lambda x: thrice(x).sin(), compiled):
                x = torch.ones(rows, 2, requires_grad=True)
                f(x).sum().backward()
                results.append(x.grad)
            assert_same(*results)
        result = compiled(torch.ones(6, 2, requires_grad=True))
        width[0] = 3
        with pytest.raises(RuntimeError, match=r"some_of.* in backward, not"):
            result.sum().backward()


def test_what_a_custom_op_gives_is_written_in_place() -> None:
    alike = multiplies("alike", 2)

    def f(x, y):
        return alike(x).add_(y).mul_(2)

    check(f, *((torch.ones(n, 4), torch.ones(4)) for n in (2, 3, 5)))
