import pytest
import torch

from jitshape.errors import InternalError
from jitshape.ir.evaluate import bind_sizes, evaluate
from jitshape.ir.graph import Alias, Graph, Mutation, OutputAlias
from jitshape.ir.symint import Algebra
from tests.ir.graphs import linear_graph, node, tensor


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_agrees_with_torch_at_several_sizes(batch):
    graph = linear_graph()
    x, w, b = torch.randn(batch, 128), torch.randn(256, 128), torch.randn(256)
    y, size, nothing = evaluate(graph, [x, w, b], check=True)
    expected = torch.nn.functional.gelu(x @ w.T + b, approximate="tanh").view(-1, 128)
    torch.testing.assert_close(y, expected)
    assert (size, nothing) == (batch + 1, None)


def test_sizes_come_from_shapes_strides_and_offsets():
    algebra = Algebra()
    rows, step, start = (algebra.symbol(name) for name in ("rows", "step", "start"))
    graph = Graph()
    type_ = tensor(rows, 3, strides=(step, 1))
    graph.add_input(type(type_)(type_.shape, type_.strides, type_.dtype, offset=start), "x")
    real = torch.randn(6, 8)[2:, :3]
    assert bind_sizes(graph, [real]) == {"rows": 4, "step": 8, "start": 16}


def test_mutation_alias_and_output_alias():
    graph = Graph()
    x = graph.add_input(tensor(4), "x")
    y = node(graph, "aten.add.Tensor", (x, 1), tensor(4))
    graph.outputs = [Alias(0, tensor(2, 2)), OutputAlias(2, tensor(2)), y]
    graph.mutations, graph.returned = [Mutation(0, 2)], 2
    real = torch.arange(4.0)
    view, part, out = evaluate(graph, [real])
    assert real.tolist() == [1, 2, 3, 4]
    assert view.tolist() == [[1, 2], [3, 4]] and view._base is real
    assert part.tolist() == [1, 2] and part.data_ptr() == out.data_ptr()


def test_check_reports_a_wrong_type():
    graph = Graph()
    x = graph.add_input(tensor(4), "x")
    graph.outputs = [node(graph, "aten.add.Tensor", (x, 1), tensor(5))]
    with pytest.raises(InternalError, match=r"should be \(5,\).*gives \(4,\)"):
        evaluate(graph, [torch.randn(4)], check=True)
