"""Warm start: what serves without a trace in a later process, and that nothing stale does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import jitshape
from tests.cache import variations
from tests.cache.process import ROOT

SERVED = ("the same", "other sizes", "a comment and moved lines")
OTHERS = ("a hook", "double", "no_grad", "other weights")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """By the name of the variation."""
    folder = tmp_path_factory.mktemp("variations")
    names = {"JITSHAPE_CACHE": "1", "JITSHAPE_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, variations.__file__, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **names},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, done.stdout.splitlines())
    return {row["name"]: row for row in rows}


def test_the_first_process_traces_and_keeps(outcomes: dict[str, dict]) -> None:
    first = outcomes["first"]
    assert "error" not in first, first["error"]
    assert first["served"] == 0 and first["traced"] and "not_kept" not in first["details"]


@pytest.mark.parametrize("name", SERVED)
def test_served_without_a_trace(outcomes: dict[str, dict], name: str) -> None:
    outcome = outcomes[name]
    assert "error" not in outcome, outcome["error"]
    assert outcome["served"] == 1 and not outcome["traced"], outcome["details"]


@pytest.mark.parametrize("name", [*(n for n in variations.EDITS if n not in SERVED), *OTHERS])
def test_what_changed_is_traced(outcomes: dict[str, dict], name: str) -> None:
    outcome = outcomes[name]
    assert "error" not in outcome, outcome["error"]
    assert outcome["served"] == 0 and outcome["traced"], outcome["details"]


def test_a_size_that_changes_after_a_served_call_becomes_dynamic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path / "cache"))

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum(0)

    for sizes, entry, compiles in (((3,), (0, 1), 1), ((3, 5, 7), (1, 1), 1)):
        jitshape.reset()
        compiled = jitshape.compile(f)
        for n in sizes:
            assert torch.equal(compiled(torch.ones(n, 2)), f(torch.ones(n, 2)))
        stats = jitshape.stats()
        assert (stats["cache"]["entry"]["hit"], stats["cache"]["entry"]["miss"]) == entry
        assert stats["compiles"] == compiles
