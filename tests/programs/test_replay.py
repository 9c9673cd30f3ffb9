"""The graph captured at one size, run at another, is eager's, and needs no further compile.

`--workloads FILE` replays the workloads of a file too: its WORKLOADS give cases with `target`,
`inputs(*shape)`, `shapes`, `drive(target, *inputs)` and `train`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import jitshape
from tests.programs.compare import assert_same
from tests.programs.models import PROGRAMS, Program


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    path = metafunc.config.getoption("--workloads")
    cases: dict[str, Callable[[], Any]] = {}
    if path:
        spec = importlib.util.spec_from_file_location("workloads", path)
        assert spec is not None and spec.loader is not None
        module = sys.modules["workloads"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cases = module.WORKLOADS
    cases = {**{name: lambda p=p: of_program(p) for name, p in PROGRAMS.items()}, **cases}
    metafunc.parametrize("make", cases.values(), ids=cases.keys())


def of_program(program: Program) -> Any:
    """One of tests/programs/models.py in the form of a workload."""
    target = program.make()
    parameters = list(target.parameters()) if isinstance(target, nn.Module) else []

    def drive(fn: Callable, *args: Any) -> Any:
        for p in parameters:
            p.grad = None
        result = fn(*args)
        if not program.train:
            return result
        (result if result.ndim == 0 else result.square().mean()).backward()
        return result.detach(), [p.grad for p in parameters]

    shapes = [(2, 8), (3, 10)]
    return SimpleNamespace(
        target=target, inputs=program.inputs, shapes=shapes, drive=drive, train=program.train
    )


def test_a_second_size_is_served_by_the_graph_of_the_first(make: Callable[[], Any]) -> None:
    cases = []
    for _ in range(2):
        torch.manual_seed(0)
        cases.append(make())
    plain, case = cases
    jitshape.reset()
    compiled = jitshape.compile(case.target, dynamic=True, backend="eager")
    counts = []
    for shape in case.shapes[:2]:
        args = case.inputs(*shape)
        with torch.set_grad_enabled(case.train):
            expected = plain.drive(plain.target, *args)
            assert_same(expected, case.drive(compiled, *args), f"size {shape}")
        counts.append(jitshape.stats()["compiles"])
    assert counts[0] == counts[1] >= 1, jitshape.stats()["details"]
    assert jitshape.stats()["fallbacks"] == 0
