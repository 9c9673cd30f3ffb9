"""Values put together from parts: one kernel a part, nothing asked at an element."""

from __future__ import annotations

import torch

from tests.backend.graphs import build, call, check, new_env, tensor


def sizes(env):
    return env.size_symbol(4), env.size_symbol(5), env.size_symbol(6)


def test_cat_of_computed_and_given_parts():
    env = new_env()
    m, n, k = sizes(env)

    def body(g, x, y):
        turned = call(g, "permute", call(g, "exp", x), [1, 0])
        return call(g, "cat", [y, turned, y], 1), call(g, "cat", [x, x], 0)

    graph = build(env, [tensor(m, n), tensor(n, k)], body)
    inputs = lambda a, b, c: [torch.randn(a, b), torch.randn(b, c)]  # noqa: E731
    program = check(graph, [inputs(4, 5, 6), inputs(33, 18, 2), inputs(3, 0, 2), inputs(0, 4, 1)])
    assert not program.externs and len(program.kernels) >= 5
    assert not any("where" in kernel.text for kernel in program.kernels)


def test_stack_and_promotion():
    env = new_env()
    m, n, _ = sizes(env)

    def body(g, x, y):
        return call(g, "stack", [x, x], 1), call(g, "cat", [x, y], -1)

    graph = build(env, [tensor(m, n), tensor(m, n, dtype=torch.int64)], body)
    check(graph, [[torch.randn(4, 5), torch.randint(9, (4, 5))]])


def test_a_joined_value_that_is_only_read_needs_no_memory():
    env = new_env()
    m, n, _ = sizes(env)
    graph = build(
        env, [tensor(m, n)], lambda g, x: call(g, "sum.dim_IntList", call(g, "cat", [x, x], 1), [1])
    )
    program = check(graph, [[torch.randn(4, 5)], [torch.randn(7, 40)]])
    assert len(program.kernels) == 1


def test_readers_of_a_joined_output_read_its_memory():
    env = new_env()
    m, n, _ = sizes(env)

    def body(g, x):
        joined = call(g, "cat", [x, x], 1)
        return joined, call(g, "sin", joined)

    check(build(env, [tensor(m, n)], body), [[torch.randn(4, 5)], [torch.randn(7, 40)]])
