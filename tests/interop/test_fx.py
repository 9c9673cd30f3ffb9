"""`graph.to_fx()`: a module that does what the graph's program does, at every size."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import jitshape
from jitshape.errors import Refuted

from .programs import PROGRAMS, check, check_training


class Backend:
    """Runs the fx module of each graph, and keeps it."""

    def __init__(self):
        self.modules = []

    def __call__(self, graph, example_inputs):
        module = graph.to_fx()
        assert isinstance(module, fx.GraphModule)
        self.modules.append(module)
        return lambda *inputs: module(*inputs)


@pytest.fixture
def backend():
    jitshape.reset()
    return Backend()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [True, False])
def test_runs_as_the_graph(backend, program, dynamic):
    check(program, jitshape.compile(program, backend=backend, dynamic=dynamic, fullgraph=True))
    assert jitshape.stats()["fallbacks"] == 0


def test_training(backend):
    check_training(lambda model: jitshape.compile(model, backend=backend, dynamic=True))
    assert len(backend.modules) == 2 + 2 * (jitshape.stats()["compiles"] - 1)


def test_sizes_are_nodes_and_lines_are_kept(backend):
    def f(x):
        return x.new_ones(x.shape[0] * 3 - 1)

    compiled = jitshape.compile(f, backend=backend, dynamic=True)
    assert compiled(torch.ones(4)).shape == (11,) and compiled(torch.ones(2)).shape == (5,)
    (module,) = backend.modules
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.sym_size.int in targets
    assert any(f'File "{__file__}"' in (n.stack_trace or "") for n in module.graph.nodes)


def test_what_data_decides(backend):
    def f(x):
        picked = x[x > 0]
        torch._check(picked.shape[0] >= 2)
        return picked * picked.shape[0]

    compiled = jitshape.compile(f, backend=backend, fullgraph=True)
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0])):
        assert torch.equal(compiled(x), f(x))
    (module,) = backend.modules
    with pytest.raises(Refuted, match="does not fit"):
        module(torch.tensor([-1.0, -1.0, 2.0]))


def test_effects_survive_dead_code_elimination(backend):
    def f(x):
        x.add_(1).mul_(3)
        return x.sum()

    jitshape.compile(f, backend=backend)(torch.ones(3))
    (module,) = backend.modules
    module.graph.eliminate_dead_code()
    module.recompile()
    x = torch.ones(3)
    module(x)
    assert x.tolist() == [6.0] * 3 and x._version == 2
