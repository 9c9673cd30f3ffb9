"""Every change of what a trace may have read is seen, or changes nothing."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import jitshape
from jitshape.compiler import live_dispatchers
from tests.programs import fuzz as fuzzing
from tests.programs.examples import EXAMPLES
from tests.programs.fuzz import Fuzzer, fuzz, others_beside
from tests.programs.models import PROGRAMS

FEW = 120  # changes of each program; --all-mutations makes them all
SHOWN = Path(__file__).resolve().parents[2] / "examples"
FUZZED = ("pointwise", "norm_gelu", "attention", "classifier", "gpt", "gpt_train", "bert")


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> int | None:
    return None if request.config.getoption("--all-mutations") else FEW


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, limit: int | None) -> None:
    function, args = EXAMPLES[name]
    jitshape.reset()
    report = fuzz(jitshape.compile(function), function, args, limit)
    assert jitshape.stats()["graph_breaks"] == jitshape.stats()["fallbacks"] == 0
    assert not report.wrong, "\n".join(report.wrong)
    assert 5 <= report.misses < report.changes


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_beside_other_entries(name: str, limit: int | None) -> None:
    """The call is served by one of several entries, whose guards are judged together."""
    function, args = EXAMPLES[name]
    jitshape.reset()
    compiled = jitshape.compile(function)
    others_beside(compiled, args)
    assert jitshape.stats()["compiles"] > 1
    report = fuzz(compiled, function, args, limit and limit // 2)
    assert not report.wrong, "\n".join(report.wrong)
    assert 2 <= report.misses < report.changes


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_compiled_after_a_change(name: str, limit: int | None) -> None:
    """A miss compiles what eager computes after the change, and leaves the entry for before."""
    function, args = EXAMPLES[name]
    jitshape.reset()
    report = fuzz(jitshape.compile(function), function, args, limit and limit // 10, through=True)
    assert not report.wrong, "\n".join(report.wrong)
    assert report.changes


@pytest.mark.parametrize("name", FUZZED)
def test_programs(name: str, limit: int | None) -> None:
    program = PROGRAMS[name]
    function = program.make()
    with torch.set_grad_enabled(program.train):
        report = fuzz(jitshape.compile(function), function, program.inputs(2, 8), limit)
    assert not report.wrong, "\n".join(report.wrong)
    assert 5 <= report.misses < report.changes


def shown_to_users(name: str) -> tuple[Callable, tuple]:
    """A program of examples/ with a call of it."""
    names = runpy.run_path(str(SHOWN / f"{name.partition(' ')[0]}.py"))
    if name.startswith("sizes"):
        return names["pad_to_pairs"], (torch.randn(2, 4), torch.randn(4, 4))
    causal = name.endswith("gpt")
    return names["Model"](causal, 16, 2, 1).eval(), names["inputs"](causal, 2, 4)


@pytest.mark.parametrize("name", ["sizes", "quickstart gpt", "quickstart bert"])
def test_programs_shown_to_users(name: str, limit: int | None) -> None:
    function, args = shown_to_users(name)
    for through in (False, True):
        jitshape.reset()
        most = limit and limit // (10 if through else 1)
        report = fuzz(jitshape.compile(function), function, args, most, through)
        assert not report.wrong, "\n".join(report.wrong)
        assert report.changes


def test_a_hole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer's own proof: without the guards on one number its changes are told as wrong."""
    table = {"factor": 2.0, "other": 3.0}

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * table["factor"] + table["other"]

    from jitshape import pipeline

    assemble = pipeline.assemble

    def leaky(guards, extract, **options):
        kept = [g for g in guards if "factor" not in str(g.source)]
        return assemble(kept, extract, **options)

    monkeypatch.setattr(pipeline, "assemble", leaky)
    report = fuzz(jitshape.compile(scaled), scaled, (torch.ones(2),))
    assert report.wrong and all("factor" in text for text in report.wrong)


def test_all_is_as_before() -> None:
    function, args = EXAMPLES["net"]
    compiled = jitshape.compile(function)
    for _ in range(3):
        compiled(*args)
    before = {name: tensor.clone() for name, tensor in function.state_dict().items()}
    Fuzzer(compiled, function, args, writes=False).run(40)
    after = function.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert fuzzing.missed not in [d.miss for d in live_dispatchers()]
