"""Programs against `ir.evaluate`, through the numpy interpreter."""

from __future__ import annotations

import pytest
import torch

from jitshape.ir.graph import Alias, Mutation
from jitshape.ir.types import TensorType
from tests.backend.graphs import build, call, check, new_env, tensor

pytest.importorskip("jitshape.ir.ops.reductions")

SIZES = ((2, 3), (1, 1), (0, 3), (3, 0), (5, 17), (1, 33))


@pytest.fixture
def env():
    return new_env()


@pytest.fixture
def bs(env):
    return env.size_symbol(2, name="b"), env.size_symbol(32, name="s")


def kernels(program):
    return [kernel.name for kernel in program.kernels]


def softmax(g, x, dim=-1):
    top = call(g, "amax", x, [dim], True)
    e = call(g, "exp", call(g, "sub.Tensor", x, top))
    return call(g, "div.Tensor", e, call(g, "sum.dim_IntList", e, [dim], True))


def layer_norm(g, x, weight, bias):
    mean = call(g, "mean.dim", x, [-1], True)
    apart = call(g, "sub.Tensor", x, mean)
    var = call(g, "mean.dim", call(g, "mul.Tensor", apart, apart), [-1], True)
    rstd = call(g, "rsqrt", call(g, "add.Tensor", var, 1e-5))
    scaled = call(g, "mul.Tensor", call(g, "mul.Tensor", apart, rstd), weight)
    return call(g, "add.Tensor", scaled, bias), mean, rstd


def test_pointwise_chain_with_broadcast_is_one_kernel(env, bs):
    b, s = bs

    def body(g, x, y):
        t = call(g, "tanh", call(g, "add.Tensor", call(g, "mul.Tensor", x, y), 0.5))
        return call(g, "sub.Tensor", t, call(g, "abs", y)), call(g, "exp", t)

    graph = build(env, [tensor(b, s, 64), tensor(s, 64)], body)
    calls = [(torch.randn(n, m, 64), torch.randn(m, 64)) for n, m in SIZES]
    program = check(graph, calls)
    assert len(program.kernels) == 1
    assert "64*s" in program.kernels[0].text  # rows and columns are one axis


def test_softmax_is_one_kernel_and_keeps_its_row(env, bs):
    b, s = bs
    graph = build(env, [tensor(b, 4, s, s)], softmax)
    program = check(graph, [(torch.randn(n, 4, m, m),) for n, m in SIZES if m])
    assert len(program.kernels) == 1
    text = program.kernels[0].text
    assert text.count("exp(") == 1 and "4*b*s" in text


def test_softmax_over_a_strided_dimension_vectorises_along_memory(env, bs):
    b, s = bs
    graph = build(env, [tensor(b, s, 64)], lambda g, x: softmax(g, x, 1))
    program = check(graph, [(torch.randn(n, m, 64),) for n, m in SIZES if m])
    assert len(program.kernels) == 1
    assert "vector i2 < 64" in program.kernels[0].text


def test_layer_norm_is_one_kernel(env, bs):
    b, s = bs
    types = [tensor(b, s, 256), tensor(256), tensor(256)]
    graph = build(env, types, layer_norm)
    calls = [(torch.randn(n, m, 256), torch.randn(256), torch.randn(256)) for n, m in SIZES]
    assert len(check(graph, calls).kernels) == 1


def test_two_norms_with_a_residual_are_one_kernel(env, bs):
    b, s = bs

    def body(g, x, r, w):
        h = call(g, "add.Tensor", r, call(g, "tanh", layer_norm(g, x, w, w)[0]))
        return call(g, "add.Tensor", h, layer_norm(g, h, w, w)[0])

    graph = build(env, [tensor(b, s, 64), tensor(b, s, 64), tensor(64)], body)
    calls = [(torch.randn(n, m, 64), torch.randn(n, m, 64), torch.randn(64)) for n, m in SIZES]
    assert len(check(graph, calls).kernels) == 1


def test_column_sums_share_a_kernel_with_what_they_sum(env, bs):
    b, s = bs

    def body(g, grad, x, w):
        y = call(g, "mul.Tensor", call(g, "view", grad, [b * s, 64]), call(g, "tanh", x))
        bias = call(g, "sum.dim_IntList", y, [0], True)
        weight = call(g, "sum.dim_IntList", call(g, "mul.Tensor", y, x), [0], False)
        z = call(g, "mm", y, call(g, "t", w))
        return bias, weight, call(g, "relu", call(g, "view", z, [b, s, 32]))

    graph = build(env, [tensor(b, s, 64), tensor(b * s, 64), tensor(32, 64)], body)
    calls = [(torch.randn(n, m, 64), torch.randn(n * m, 64), torch.randn(32, 64)) for n, m in SIZES]
    program = check(graph, calls)
    assert len(program.kernels) == 2 and program.externs == {"aten.mm.default": 1}
    assert "as_strided(" not in program.source


@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("keepdim", [True, False])
def test_reductions_over_any_dimensions(env, bs, dims, keepdim):
    b, s = bs

    def body(g, x):
        total = call(g, "sum.dim_IntList", x, dims, keepdim)
        return total, call(g, "mul.Tensor", call(g, "mean.dim", x, dims, keepdim), 2)

    graph = build(env, [tensor(b, s, 8)], body)
    program = check(graph, [(torch.randn(n, m, 8),) for n, m in SIZES])
    assert len(program.kernels) == 1


@pytest.mark.parametrize("op", ["sum", "amax", "argmax", "any", "all", "prod"])
def test_full_and_zero_dim_reductions(env, bs, op):
    b, s = bs
    graph = build(env, [tensor(b, s)], lambda g, x: call(g, op, x))
    check(graph, [(torch.randn(n, m),) for n, m in SIZES if n * m])
    graph = build(env, [tensor()], lambda g, x: call(g, op, x))
    check(graph, [(torch.randn(()),)])


def test_argmax_of_a_strided_input_counts_row_major(env, bs):
    b, s = bs
    graph = build(env, [tensor(s, b)], lambda g, x: call(g, "argmax", call(g, "t", x)))
    check(graph, [(torch.randn(m, n),) for n, m in SIZES if n * m])


def test_inputs_of_any_strides(env, bs):
    b, s = bs
    p, q = env.int_symbol(1, name="p"), env.int_symbol(2, name="q")

    def body(g, x, y):
        total = call(g, "add.Tensor", x, y)
        return total, call(g, "sum.dim_IntList", total, [1], False)

    graph = build(env, [tensor(b, s, strides=(p, q)), tensor(b, s)], body)
    calls = [(torch.randn(m, n).t(), torch.randn(n, m)) for n, m in SIZES]
    calls += [(torch.randn(n, 2 * m)[:, ::2], torch.randn(n, m)) for n, m in SIZES]
    program = check(graph, [])
    from jitshape.ir.evaluate import evaluate

    for inputs in calls:
        for got, want in zip(program(*inputs), evaluate(graph, inputs)):
            torch.testing.assert_close(got, want)


def test_mixed_dtypes(env, bs):
    b, s = bs

    def body(g, x, y, z):
        half = call(g, "mul.Tensor", x, 1.5)
        wide = call(g, "add.Tensor", half, y)
        chosen = call(g, "where.self", z, wide, y)
        return half, chosen, call(g, "sum.dim_IntList", z, [1], False), call(g, "gt.Scalar", x, 0)

    types = [tensor(b, s, dtype=torch.bfloat16), tensor(b, s), tensor(b, s, dtype=torch.bool)]
    graph = build(env, types, body)
    calls = [(torch.randn(n, m).bfloat16(), torch.randn(n, m), torch.randn(n, m) > 0)
             for n, m in SIZES]  # fmt: skip
    check(graph, calls, tolerance=1e-2)  # intermediates stay in f32


def test_data_movement(env, bs):
    b, s = bs

    def body(g, x, y, i):
        joined = call(g, "cat", [call(g, "exp", x), y], 1)
        moved = call(g, "gather", joined, 1, i)
        padded = call(g, "constant_pad_nd", x, [1, 2], 0.5)
        lower = call(g, "tril", y)
        return joined, moved, padded, lower, call(g, "stack", [x, call(g, "neg", x)], 1)

    types = [tensor(b, s), tensor(b, s), tensor(b, 4, dtype=torch.int64)]
    graph = build(env, types, body)
    calls = [
        (torch.randn(n, m), torch.randn(n, m), torch.randint(2 * m, (n, 4))) for n, m in SIZES if m
    ]
    check(graph, calls)


def test_view_outputs_share_memory_with_their_base(env, bs):
    b, s = bs

    def body(g, x):
        y = call(g, "exp", x)
        return y, call(g, "transpose.int", y, 0, 1), call(g, "select.int", y, 1, 1)

    graph = build(env, [tensor(b, s, 4)], body)
    program = check(graph, [(torch.randn(n, m, 4),) for n, m in SIZES if m > 1])
    y, turned, chosen = program(torch.randn(2, 3, 4))
    assert turned.data_ptr() == y.data_ptr() and chosen.storage_offset() == 4


def test_sizes_aliases_and_mutations(env, bs):
    b, s = bs

    def body(g, x, y):
        return call(g, "add.Tensor", x, y), b * s + 1, Alias(0, tensor(s, b, strides=(1, s))), None

    graph = build(env, [tensor(b, s), tensor(b, s)], body)
    graph.mutations = [Mutation(0, 0)]
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    want = x + y
    program = check(graph, [])
    total, size, alias, nothing = program(x, y)
    assert size == 7 and nothing is None
    torch.testing.assert_close(x, want)
    assert torch.equal(total, want) and alias.data_ptr() == x.data_ptr()
    assert torch.equal(alias, x.t())


def test_dead_buffers_are_reused(env, bs):
    s = bs[1]

    def body(g, x, w):
        for _ in range(4):
            x = call(g, "tanh", call(g, "mm", x, w))
        return x

    graph = build(env, [tensor(s, 64), tensor(64, 64)], body)
    calls = [(torch.randn(m, 64), torch.randn(64, 64) / 8) for _, m in SIZES]
    program = check(graph, calls)
    unplanned = check(graph, calls, memory_plan=False)
    assert program.source.count("empty_f32(") == 2 and unplanned.source.count("empty_f32(") == 8
    assert program.peak_bytes({"s": 10}) == 2 * 10 * 64 * 4
    assert program.peak_bytes({"s": 10}, plan=False) == 8 * 10 * 64 * 4


def test_other_back_ends(env):
    from jitshape.backend.compile import compile_graph

    graph = build(env, [tensor(3)], lambda g, x: call(g, "exp", x))
    x = torch.randn(3)
    assert torch.equal(compile_graph(graph, backend="eager")(x)[0], x.exp())
    assert compile_graph(graph, backend=lambda graph: lambda x: (x + 1,))(x)[0].equal(x + 1)


def test_type_of_a_static_graph(env):
    graph = build(env, [TensorType((2, 3), (3, 1), torch.float32)], lambda g, x: softmax(g, x))
    program = check(graph, [(torch.randn(2, 3),)])
    assert "shape" not in program.source


def test_numbers_and_sizes_passed_at_run_time(env, bs):
    from jitshape.backend.compile import compile_graph
    from jitshape.ir.types import ScalarType

    b, s = bs
    k = env.int_symbol(5, name="k")
    types = [tensor(b, s), ScalarType(torch.float64)]
    graph = build(env, types, lambda g, x, a: call(g, "add.Tensor", call(g, "mul.Tensor", x, a), k))
    graph.symbols = [k]
    x = torch.randn(2, 3)
    for target in ("interpret", "cpu"):
        program = compile_graph(graph, backend=target)
        torch.testing.assert_close(program(x, 2.5, 7)[0], x * 2.5 + 7)
