"""jitshape as a back end of torch.compile."""

from __future__ import annotations

import pytest
import torch

import jitshape
from jitshape.interop.torch_compile import jitshape_backend

from .programs import PROGRAMS, check, check_training


@pytest.fixture(autouse=True)
def fresh():
    jitshape.reset()
    torch.compiler.reset()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_values(program):
    compiled = torch.compile(program, backend=jitshape_backend)
    check(program, compiled, sizes=(4, 5, 9))
    stats = jitshape.stats()
    assert stats["fallbacks"] == stats["graph_breaks"] == 0


def test_training():
    check_training(lambda model: torch.compile(model, backend=jitshape_backend))
    assert jitshape.stats()["fallbacks"] == 0


def test_as_many_compiles_as_torch_compile_has_graphs():
    made = []

    def backend(module, inputs):
        made.append(module)
        return jitshape_backend(module, inputs)

    compiled = torch.compile(lambda x, n: x * n + x.shape[0], backend=backend)
    for n in (3, 5, 8, 1):
        assert compiled(torch.ones(n), n + 1).tolist() == [2 * n + 1.0] * n
    assert jitshape.stats()["compiles"] == len(made)


def test_options_are_those_of_jitshape_compile():
    seen = []

    def look(graph, inputs):
        seen.append(graph)
        return graph.to_fx()

    compiled = torch.compile(lambda x: x + 1, backend=jitshape_backend, options={"backend": look})
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0] and len(seen) == 1
