"""Composite ops become core ops, until none is left."""

from __future__ import annotations

from jitshape.ir.graph import Graph
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes import CORE, FUNCTIONAL, graph_pass
from jitshape.ir.rewrite import rewriting

_LIMIT = 16  # decompositions of decompositions


@graph_pass(requires={FUNCTIONAL}, provides={CORE})
def decompose(graph: Graph) -> None:
    """t0 = _softmax(x, 1, False)
    -->
    t1 = amax(x, [1], True); t2 = sub(x, t1); t3 = exp(t2); t4 = sum(t3, [1], True)
    t5 = reciprocal(t4); t6 = mul(t3, t5)"""
    for _ in range(_LIMIT):
        if not any(_composite(node.op) for node in graph.nodes):
            return
        with rewriting(graph) as g:
            for node in g.walk():
                if _composite(node.op):
                    results = OPS[node.op].decompose(g, node, *node.args, **node.kwargs)
                    g.replace(node, results)
                else:
                    g.keep(node)
    raise RecursionError(f"decompositions still left after {_LIMIT} rounds")


def _composite(op: str) -> bool:
    definition = OPS.get(op)
    return definition is not None and definition.family == "composite"
