"""`backend=` with the names of torch's own back ends."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import jitshape
from jitshape.errors import UnknownOption
from jitshape.interop import torch_backends
from jitshape.interop.torch_backends import TorchBackend

from .programs import PROGRAMS, check, check_training


@pytest.fixture(autouse=True)
def fresh():
    jitshape.reset()


def compiles() -> int:
    return jitshape.stats()["details"].get("backend_compiles", {}).get("aot_eager", 0)


# It gives aten.scalar_tensor a proxy, which that takes for no number.
FAULT = "torch 2.11: AOTAutograd cannot make tensors of numbers computed from sizes"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_values(program, request):
    if program.__name__ == "numbers" and torch.__version__.startswith("2.11."):
        request.applymarker(pytest.mark.xfail(reason=FAULT, raises=RuntimeError, strict=True))
    check(program, jitshape.compile(program, backend="aot_eager", fullgraph=True))
    assert jitshape.stats()["fallbacks"] == 0 and compiles() > 0


def test_training():
    check_training(lambda model: jitshape.compile(model, backend="aot_eager"))
    assert jitshape.stats()["fallbacks"] == 0


def test_one_compile_serves_all_sizes():
    compiled = jitshape.compile(lambda x: x * x.shape[0], backend="aot_eager", dynamic=True)
    for n in (4, 7, 30):
        assert compiled(torch.ones(n)).tolist() == [n] * n
    assert compiles() == 1


def test_a_call_that_its_facts_do_not_hold_for_is_compiled_again():
    """torch's back ends specialise a size of 1, which the graph does not."""
    compiled = jitshape.compile(lambda x: x + 1, backend="aot_eager", dynamic=True)
    for n in (1, 6, 8, 1):
        assert torch.equal(compiled(torch.zeros(n)), torch.ones(n))
    assert jitshape.stats()["compiles"] == 1 and compiles() == 2


def test_equal_sizes_that_part_are_seen():
    compiled = jitshape.compile(lambda x, y: (x + 1, y + 2), backend="aot_eager", dynamic=True)
    for n, m in ((4, 4), (4, 5), (6, 7), (3, 3)):
        a, b = compiled(torch.zeros(n), torch.zeros(m))
        assert (a.tolist(), b.tolist()) == ([1.0] * n, [2.0] * m)


def test_too_many_variants_end_in_a_counted_fallback(monkeypatch):
    monkeypatch.setattr(torch_backends, "MOST_VARIANTS", 1)
    compiled = jitshape.compile(lambda x: x + 1, backend="aot_eager", dynamic=True)
    for n in (5, 1):
        assert torch.equal(compiled(torch.zeros(n)), torch.ones(n))
    assert jitshape.stats()["fallbacks"] == 1


def test_sizes_that_depend_on_data_end_in_a_counted_fallback():
    compiled = jitshape.compile(lambda x: x[x > 0] * 2, backend="aot_eager")
    assert compiled(torch.tensor([1.0, -1.0])).tolist() == [2.0]
    (reason,) = jitshape.stats()["details"]["fallback_reasons"]
    assert "depends on data" in reason and jitshape.stats()["fallbacks"] == 1


def test_unknown_names_are_refused_without_loading_torch_compile():
    with pytest.raises(UnknownOption, match="inductor"):
        jitshape.compile(lambda x: x, backend="inductorr")
    code = (
        "import sys, jitshape\n"
        "jitshape.compile(lambda x: x, backend='inductor')\n"
        "try: jitshape.compile(lambda x: x, backend='cpuu')\n"
        "except ValueError: print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_back_end_is_a_value():
    assert TorchBackend("inductor") == TorchBackend("inductor")
    assert TorchBackend("inductor").__name__ == "inductor"
