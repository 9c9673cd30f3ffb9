"""Running sums and products: kernels against eager."""

from __future__ import annotations

import pytest
import torch

from tests.backend.graphs import build, call, check, new_env, tensor


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool]
)
def test_cumsum(dim, dtype):
    env = new_env()
    sizes = [env.size_symbol(n) for n in (4, 5, 3)]
    graph = build(env, [tensor(*sizes, dtype=dtype)], lambda g, x: call(g, "cumsum", x, dim))
    make = lambda *s: torch.randn(*s).mul(3).to(dtype)  # noqa: E731
    program = check(graph, [[make(4, 5, 3)], [make(2, 33, 18)], [make(1, 1, 1)], [make(3, 0, 2)]])
    assert not program.externs


def test_cumprod_of_what_is_computed_and_read_further():
    env = new_env()
    m, n = env.size_symbol(4), env.size_symbol(5)

    def body(g, x):
        product = call(g, "cumprod", call(g, "add.Scalar", x, 1), 1)
        return call(g, "mul.Tensor", product, x), call(g, "sum.dim_IntList", product, [0])

    program = check(build(env, [tensor(m, n)], body), [[torch.rand(4, 5)], [torch.rand(7, 20)]])
    assert not program.externs and len(program.kernels) >= 2


def test_scan_of_a_transposed_tensor_and_of_a_number():
    env = new_env()
    m, n = env.size_symbol(4), env.size_symbol(5)

    def body(g, x, y):
        turned = call(g, "permute", x, [1, 0])
        return call(g, "cumsum", turned, 1), call(g, "cumsum", y, 0, dtype=torch.float64)

    check(build(env, [tensor(m, n), tensor()], body), [[torch.randn(4, 5), torch.randn(())]])


def test_totals_of_floats_are_kept_wide():
    env = new_env()
    n = env.size_symbol(4)
    graph = build(env, [tensor(n)], lambda g, x: call(g, "cumsum", x, 0))
    check(graph, [[torch.full((100_000,), 0.1)]], targets=("cpu",), tolerance=1e-6)
