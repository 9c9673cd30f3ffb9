import pytest

from jitshape.errors import InternalError
from jitshape.ir.graph import Node, OutputAlias
from jitshape.ir.verify import verify
from tests.ir.graphs import linear_graph, node, tensor


def test_a_good_graph_passes():
    verify(linear_graph())


def test_use_before_definition():
    graph = linear_graph()
    graph.nodes[1], graph.nodes[2] = graph.nodes[2], graph.nodes[1]
    with pytest.raises(InternalError, match="t1 is used before it is defined") as caught:
        verify(graph, "cse")
    assert "stage 'cse'" in str(caught.value) and "-->" in str(caught.value)


def test_unknown_op_and_mutating_op():
    graph = linear_graph()
    node(graph, "aten.no_such_op.default", (), tensor(2))
    with pytest.raises(InternalError, match="neither registered"):
        verify(graph)
    graph = linear_graph()
    x = graph.inputs[0]
    node(graph, "aten.relu_.default", (x,), x.type, alias=x)
    with pytest.raises(InternalError, match="mutates"):
        verify(graph)


def test_undefined_output_and_bad_alias():
    graph = linear_graph()
    graph.outputs = [graph.new_value(tensor(2))]
    with pytest.raises(InternalError, match="is not defined"):
        verify(graph)
    graph.outputs = [OutputAlias(7, tensor(2))]
    with pytest.raises(InternalError, match="refers to no tensor output"):
        verify(graph)


def test_broken_producer_link():
    graph = linear_graph()
    graph.nodes[0].outs[0].node = Node("aten.t.default", (), {})
    with pytest.raises(InternalError, match="producer"):
        verify(graph)
