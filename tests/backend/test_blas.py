import pytest
import torch

import jitshape
from jitshape import programs
from jitshape.backend import blas


def compiled(function, *calls, dynamic=True, backend="cpu"):
    """Check every call against eager; the sources of the programs."""
    sources = []
    original = programs.compile_graph

    def spy(*args, **kwargs):
        program = original(*args, **kwargs)
        sources.append(program.source)
        return program

    programs.compile_graph = spy
    try:
        fast = jitshape.compile(function, dynamic=dynamic, fullgraph=True, backend=backend)
        for args in calls:
            expected, got = function(*args), fast(*args)
            assert got.stride() == expected.stride() or got.numel() == 0
            torch.testing.assert_close(got, expected)
    finally:
        programs.compile_graph = original
    return "\n".join(sources)


def test_the_self_test_passes_here_and_only_for_floats():
    assert blas.function_address(torch.float32) and blas.function_address(torch.float64)
    assert blas.function_address(torch.bfloat16) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_layouts_and_sizes(dtype, a_transposed, b_transposed):
    def product(a, b):
        return torch.mm(a.t() if a_transposed else a, b.t() if b_transposed else b)

    def inputs(m, n, k):
        a = torch.randn((k, m) if a_transposed else (m, k), dtype=dtype)
        b = torch.randn((n, k) if b_transposed else (k, n), dtype=dtype)
        return a, b

    letters = "nt"[a_transposed] + "nt"[b_transposed]
    sizes = [(5, 7, 3), (2, 9, 6), (1, 4, 5), (4, 1, 5), (4, 5, 1), (33, 17, 65)]
    assert f" mm_{letters}(" in compiled(product, *(inputs(*s) for s in sizes))
    weight = torch.nn.Parameter(inputs(1, 7, 3)[1], requires_grad=False)
    bias = torch.nn.Parameter(torch.randn(7, dtype=dtype), requires_grad=False)

    def biased(a):
        y = weight.t() if b_transposed else weight
        return torch.addmm(bias, a.t() if a_transposed else a, y)

    calls = [(inputs(m, 7, 3)[0],) for m in (5, 6, 1)]
    assert f" addmm_{letters}(" in compiled(biased, *calls)


def test_pieces_of_a_matrix_are_read_where_they_lie():
    def pieces(x, w):
        left, right = x.split(4, 1)
        return left.relu() @ w[2:6] + torch.mm(right, w[4:8]) + torch.mm(x[:, 2:6], w[:4])

    source = compiled(
        pieces, *((torch.randn(m, 8), torch.randn(9, n)) for m, n in [(3, 5), (1, 2)])
    )
    assert "mm_nn(" in source and "as_strided" not in source


def test_empty_sides():
    def product(a, b, bias):
        return torch.addmm(bias, a, b)

    for m, n, k in [(0, 3, 4), (3, 0, 4), (3, 4, 0)]:
        calls = [(torch.randn(m, k), torch.randn(k, n), torch.randn(n))]
        assert "addmm_nn(" in compiled(product, *calls, dynamic=False)


def test_rows_that_overlap_go_to_torch():
    def windows(x, w):
        return torch.mm(x.unfold(0, 4, 1), w)

    def repeated(x, w):
        return torch.mm(x.expand(6, 4), w)

    calls = [(torch.randn(n), torch.randn(4, 3)) for n in (9, 12)]
    assert "mm_n" not in compiled(windows, *calls)
    assert "mm_n" not in compiled(repeated, (torch.randn(1, 4), torch.randn(4, 3)), dynamic=False)


def test_a_bias_that_is_no_row_goes_to_torch():
    def product(bias, a, b):
        return torch.addmm(bias, a, b)

    a, b = torch.randn(3, 4), torch.randn(4, 5)
    for bias in (torch.randn(3, 5), torch.randn(1), torch.randn(3, 1)):
        assert "addmm_n" not in compiled(product, (bias, a, b), dynamic=False)


def test_gradients_of_products():
    weight = torch.randn(6, 4, requires_grad=True)
    bias = torch.randn(6, requires_grad=True)

    def loss(x):
        return torch.nn.functional.linear(x, weight, bias).relu().sum()

    fast = jitshape.compile(loss, dynamic=True)
    for rows in (3, 1, 5):
        x = torch.randn(rows, 4)
        expected = torch.autograd.grad(loss(x), (weight, bias))
        got = torch.autograd.grad(fast(x), (weight, bias))
        torch.testing.assert_close(got, expected)
