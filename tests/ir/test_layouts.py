"""Strides of results at sizes of 0 and 1: eager's, whatever layouts a compiled function has met."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import jitshape
from jitshape.ir.layouts import Layouts, layouts_of
from jitshape.ir.records.graphs import read_graph
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.trace import Trace
from tests.ir.tracing import symbolic_input


def scaled(x):
    return x * 2


def copied(x):
    return x.clone()


def with_itself(x):
    return x.relu() + x.exp()


def turned(x):
    return (x + 1).transpose(0, -1)


def flat(x):
    return (x * 2).flatten()


def joined(x):
    return torch.cat([x, x])


def like(x):
    return torch.zeros_like(x)


def stretched(x):
    return x.sigmoid() * x.sum(-1)[..., None]


def compared(x):
    return x.permute(*reversed(range(x.ndim))) > x.amax()


PROGRAMS = (scaled, copied, with_itself, turned, flat, joined, like, stretched, compared)


@st.composite
def calls(draw):
    """Tensors of one rank, in any order of dimensions, sizes of 0 and 1 among them."""
    rank = draw(st.integers(2, 4))
    sizes = st.lists(st.sampled_from([1, 1, 2, 3, 5]), min_size=rank, max_size=rank)
    found = []
    for _ in range(draw(st.integers(4, 10))):
        shape, order = draw(sizes), draw(st.permutations(range(rank)))
        if draw(st.integers(0, 5)) == 0:
            shape[draw(st.integers(0, rank - 1))] = 0
        found.append(torch.randn(shape).permute(order))
    return found


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(PROGRAMS), calls())
def test_results_have_eagers_strides(program, tensors):
    jitshape.reset()
    compiled = jitshape.compile(program)
    for x in tensors:
        try:
            expected = program(x)
        except (RuntimeError, IndexError):  # nothing to find the largest of
            continue
        found = compiled(x)
        assert found.stride() == expected.stride(), (x.shape, x.stride())
        torch.testing.assert_close(found, expected)


def fresh(program):
    jitshape.reset()
    return jitshape.compile(program)


def test_layouts_that_sizes_of_1_leave_open_need_no_entry():
    compiled = fresh(scaled)
    small = [(1, 6), (6, 1), (0, 6), (6, 0), (1, 1)]
    first = [torch.randn(5, 6), torch.randn(6, 7).t()]
    for x in [*first, *map(torch.randn, small), *(torch.randn(s).t() for s in small)]:
        assert compiled(x).stride() == (x * 2).stride()
        assert compiled(x).relu().stride() == (x * 2).relu().stride()
    assert jitshape.stats()["compiles"] == 2


def test_the_stride_of_a_single_row_is_passed_on():
    compiled = fresh(lambda x: x.clone())
    for stride in (30, 77, 1):
        x = torch.empty_strided((6, 1, 5), (1, stride, 6)).fill_(1)
        assert compiled(x).stride() == x.clone().stride() == (1, stride, 6)
    assert jitshape.stats()["compiles"] == 1


def test_two_inputs_decide_together():
    def program(x, y):
        return x + y

    compiled = fresh(program)
    shapes = [(4, 5), (6, 7), (1, 5), (5, 1), (0, 3), (1, 1), (3, 0)]
    for m, n in shapes:
        for x in (torch.randn(m, n), torch.randn(n, m).t()):
            for y in (torch.randn(m, n), torch.randn(n, m).t()):
                assert compiled(x, y).stride() == (x + y).stride()
    assert jitshape.stats()["compiles"] <= 8  # four pairs of layouts, static and dynamic


def test_images_of_one_channel_or_one_pixel():
    def program(x):
        return torch.cat([x.relu(), x.relu()])

    compiled = fresh(program)
    for shape in [
        (2, 3, 4, 5),
        (3, 4, 5, 6),
        (2, 1, 4, 5),
        (3, 4, 1, 1),
        (1, 1, 1, 1),
        (1, 3, 1, 4),
    ]:
        for format in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(shape).to(memory_format=format)
            assert compiled(x).stride() == program(x).stride(), (shape, format)
    assert jitshape.stats()["compiles"] <= 4  # two formats, static and dynamic


def test_results_that_require_grad():
    compiled = fresh(lambda x: x.t() * 2)
    for m, n in [(4, 5), (6, 7), (1, 5), (5, 1), (0, 4)]:
        x = torch.randn(m, n, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = compiled(x), y.t() * 2
        assert out.stride() == expected.stride()
        assert out._version == 0 and not out._is_view()
        out.sum().backward()
        expected.sum().backward()
        assert torch.equal(x.grad, y.grad)


# ---- which results need it


def traced(program, *tensors):
    env = ShapeEnv()
    trace = Trace(env)
    inputs = [
        symbolic_input(trace, x, f"x{i}", {d: env.size_symbol(n) for d, n in enumerate(x.shape)})
        for i, x in enumerate(tensors)
    ]
    with trace:
        trace.graph.outputs = [program(*inputs).value]
    return trace.graph


def test_results_that_are_contiguous_at_every_size_need_nothing():
    x, w = torch.randn(4, 5), torch.randn(5, 3)
    assert layouts_of(traced(lambda x: x.relu() + x, x)) is None
    assert layouts_of(traced(lambda x, w: (x @ w).relu() * 2, x, w)) is None
    assert layouts_of(traced(lambda x: x.softmax(-1) * 0.5, x)) is None
    assert layouts_of(traced(lambda x: x.relu(), x.t())).places == [0]


def test_layouts_are_found_once_for_all_sizes_above_1():
    graph = traced(lambda x: x.transpose(1, 2).relu(), torch.randn(4, 5, 6))
    layouts = layouts_of(graph)
    again = Layouts(read_graph(layouts.data), layouts.copies)
    for length in range(2, 8):
        x = torch.randn(1, length, 6)
        wanted = x.transpose(1, 2).relu().stride()
        numbers = [1, length, 6][: len(layouts.symbols)]
        for known in (layouts, again):
            (row,) = known.exact([x.stride()], numbers)
            assert row is None or row == wanted
    assert len(layouts._patterns) == 1 and None not in layouts._patterns.values()
