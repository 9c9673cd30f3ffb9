"""Functional graphs give eager's results, writes and aliases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Alias, OutputAlias, Value
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes.cse import cse
from jitshape.ir.passes.dce import dce
from jitshape.ir.passes.functionalize import functionalize
from jitshape.ir.passes.simplify import simplify
from jitshape.ir.printer import print_graph
from jitshape.ir.verify import verify
from tests.ir.passes.programs import trace


def functional(f, inputs, shared=()):
    graph = trace(f, [x.clone() if not shared else x for x in inputs], shared)
    functionalize(graph)
    verify(graph)
    return graph


def check(f, inputs, more=(), clean=False):
    """`f` through a functional graph, at the sizes traced and at others, leaves what eager
    leaves: outputs, inputs, and which of them share memory."""
    graph = functional(f, inputs)
    if clean:
        for step in (simplify, cse, dce):
            step(graph)
            verify(graph)
    for real in (inputs, *more):
        ours, theirs = ([x.clone() for x in real] for _ in range(2))
        found = evaluate(graph, ours, check=True)[: graph.returned]
        expected = f(*theirs)
        expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
        torch.testing.assert_close([*ours, *found], [*theirs, *expected])
        everything = ([*ours, *found], [*theirs, *expected])
        assert sharing(everything[0]) == sharing(everything[1])
        assert [x.stride() for x in found] == [x.stride() for x in expected]
    return graph


def sharing(tensors):
    """Which tensors share a storage."""
    first = {}
    return [first.setdefault(t.untyped_storage().data_ptr(), i) for i, t in enumerate(tensors)]


X = torch.arange(24.0).view(4, 6)
LARGER = torch.arange(40.0).view(5, 8)


def test_write_through_a_view_prints(golden):
    def f(x):
        y = x * 2
        y[1].add_(1)
        y.t()[0].mul_(3)
        x.mul_(y)
        return y, x[0]

    graph = check(f, [X], [[LARGER]])
    golden("functionalize_views", print_graph(graph))


def test_inputs_are_written_once_at_the_end():
    def f(x):
        x.add_(1)
        x[0] = 7
        x.t().mul_(2)
        return x.sum()

    graph = check(f, [X], [[LARGER]])
    assert [m.input for m in graph.mutations] == [0]


def test_a_view_made_before_the_write_sees_it():
    def f(x):
        a, b = x[:2], x.t()
        x.add_(1)
        b.mul_(2)
        return a + 1, b + 1

    check(f, [X], [[LARGER]])


def test_kinds_of_outputs():
    def f(x):
        t = x * 2
        return x.t(), x, t, t[1], t.t(), t

    graph = check(f, [X], [[LARGER]])
    alias, same, base, row, turned, again = graph.outputs
    assert isinstance(alias, Alias) and same is graph.inputs[0]
    assert isinstance(base, Value) and again is base
    assert isinstance(row, OutputAlias) and row.output == turned.output == 2


def test_views_of_one_hidden_tensor_share_memory():
    def f(x):
        t = x * 2
        t[0].add_(1)
        return t[:2], t[1:]

    graph = check(f, [X], [[LARGER]])
    assert len(graph.outputs) == 3 and graph.returned == 2


def test_unwritten_views_stay_as_they_are():
    graph = functional(lambda x: x.t().unsqueeze(0) + 1, [X])
    assert [n.op for n in graph.nodes] == [
        "aten.t.default",
        "aten.unsqueeze.default",
        "aten.add.Tensor",
    ]


def test_general_windows_use_a_flat_base():
    def f(x):
        t = x * 1.5
        window = t.as_strided([2, 3], [4, 1], 1)
        window.add_(10)
        return t, window

    check(f, [X], [[LARGER]])


def test_dtype_is_the_targets():
    def f(x):
        x.add_(x.new_ones(x.shape, dtype=torch.float64))
        y = x.to(torch.bfloat16)
        y.mul_(x)
        return y

    check(f, [X])


@pytest.mark.parametrize("write", ["x", "y"])
def test_inputs_that_overlap(write):
    def f(x, y):
        (x if write == "x" else y).mul_(2)
        return x + 1, y.sum()

    base = torch.arange(6.0)
    graph = functional(f, [base[:4], base[2:]], shared=[(0, 1)])
    ours, theirs = torch.arange(6.0), torch.arange(6.0)
    found = evaluate(graph, [ours[:4], ours[2:]])
    expected = f(theirs[:4], theirs[2:])
    torch.testing.assert_close([ours, *found[:2]], [theirs, *expected])


def test_dead_writes_to_fresh_memory_go():
    def f(x):
        t = torch.zeros_like(x)
        t[0] = x[0]
        return x + 1

    graph = functional(f, [X])
    dce(graph)
    assert [n.op for n in graph.nodes] == ["aten.add.Tensor"]


# ---- random programs

VIEWS = {
    "row": lambda t: t[0],
    "last": lambda t: t[-1],
    "head": lambda t: t[: t.shape[0] - 1],
    "odd": lambda t: t[1::2],
    "turned": lambda t: t.transpose(0, -1),
    "wide": lambda t: t.unsqueeze(0),
    "flat": lambda t: t.reshape(-1),
    "diagonal": lambda t: t.diagonal() if t.dim() > 1 else t,
    "same": lambda t: t.view(t.shape) if t.is_contiguous() else t,
    "detached": lambda t: t.detach(),
}
WRITES = {
    "add": lambda t: t.add_(1),
    "mul": lambda t: t.mul_(2),
    "neg": lambda t: t.neg_(),
    "fill": lambda t: t.fill_(3),
    "zero": lambda t: t.zero_(),
    "square": lambda t: t.mul_(t),
    "copy": lambda t: t.copy_(t * 2 + 1),
}
PURE = {"exp": lambda t: t * 0.5, "twice": lambda t: t + t, "clone": lambda t: t.clone()}
STEPS = st.one_of(
    st.tuples(st.just(VIEWS), st.sampled_from(sorted(VIEWS)), st.integers(0, 7)),
    st.tuples(st.just(WRITES), st.sampled_from(sorted(WRITES)), st.integers(0, 7)),
    st.tuples(st.just(PURE), st.sampled_from(sorted(PURE)), st.integers(0, 7)),
)


def program(steps, results):
    """A function that runs each step on one of the tensors made so far."""

    def run(x, y):
        made = [x, y]
        for table, name, which in steps:
            source = made[which % len(made)]
            if source.dim() == 0 and table is VIEWS:
                continue
            made.append(table[name](source))
        return [made[which % len(made)] for which in results]

    return run


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    steps=st.lists(STEPS, min_size=2, max_size=9),
    results=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    clean=st.booleans(),
)
def test_random_programs(steps, results, clean):
    small, large = torch.randn(4, 3), torch.randn(6, 5)
    other, bigger = torch.randn(3, 4), torch.randn(5, 6)
    f = program(steps, results)
    graph = check(f, [small, other], [[large, bigger]], clean)
    assert all(not OPS[node.op].mutates for node in graph.nodes)
