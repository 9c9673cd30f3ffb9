import ast

from jitshape.ir.graph import Alias, Mutation
from jitshape.ir.printer import excerpt, op_name, print_graph
from tests.ir.graphs import linear_graph, tensor


def test_golden(golden):
    graph = linear_graph()
    text = print_graph(graph)
    ast.parse(text)
    golden("printer_linear", text)


def test_mutations_and_aliases_print_as_python():
    graph = linear_graph()
    graph.outputs += [Alias(0, tensor(4, 2)), graph.nodes[1].outs[0]]
    graph.returned = 4
    graph.mutations = [Mutation(2, 4)]
    text = print_graph(graph)
    ast.parse(text)
    assert "b.copy_(t1)" in text
    assert "alias(inputs[0], (4, 2), (2, 1), 0)]" in text


def test_op_names_keep_unusual_overloads():
    assert op_name("aten.add.Tensor") == "add"
    assert op_name("aten.div.Tensor_mode") == "div.Tensor_mode"
    assert op_name("jitshape.sdpa.default") == "jitshape.sdpa"


def test_excerpt_marks_the_node():
    graph = linear_graph()
    lines = excerpt(graph, graph.nodes[2], around=1).splitlines()
    assert lines[0] == "    ... 1 nodes before"
    assert [line.startswith("-->") for line in lines[1:]] == [False, True, False]
