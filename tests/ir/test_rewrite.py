import torch

from jitshape.ir.evaluate import evaluate
from jitshape.ir.rewrite import rewriting
from jitshape.ir.verify import verify
from tests.ir.graphs import linear_graph


def test_replace_substitutes_later_uses_and_keeps_location():
    graph = linear_graph()
    with rewriting(graph) as g:
        for node in g.walk():
            if node.op == "aten.addmm.default":
                bias, x, w = node.args
                product = g.emit("aten.mm.default", (x, w), {}, node.outs[0].type)
                total = g.emit("aten.add.Tensor", (product, bias), {}, node.outs[0].type)
                g.replace(node, total)
                location = node.location
            else:
                g.keep(node)
    verify(graph)
    assert [n.op.split(".")[1] for n in graph.nodes] == ["t", "mm", "add", "gelu", "view"]
    assert graph.nodes[1].location == location
    inputs = [torch.randn(3, 128), torch.randn(256, 128), torch.randn(256)]
    y, *_ = evaluate(graph, inputs)
    torch.testing.assert_close(y, evaluate(linear_graph(), inputs)[0])
