"""Warm start: what serves without a trace in a later process, and that nothing stale does."""

from __future__ import annotations

import abc
import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jitshape
from jitshape import compiler
from jitshape.errors import BadSpec
from jitshape.warm import WarmStart
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


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path))
    jitshape.reset()
    yield
    jitshape.reset()


def test_integers_beyond_64_bits_are_not_kept(kept: None) -> None:
    compiled = jitshape.compile(lambda x, a: (x + 1, a * 2**70, a < 1e300), dynamic=True)
    x = torch.ones(3)
    result = compiled(x, 7)
    assert result[1:] == (7 * 2**70, True) and torch.equal(result[0], x + 1)
    assert "an integer beyond 64 bits" in str(jitshape.stats()["details"]["not_kept"])


def test_what_is_registered_is_the_process_own(kept: None) -> None:
    shape = abc.ABCMeta("shape", (), {})

    class Square:
        pass

    square = Square()
    compiled = jitshape.compile(lambda x: x + 1 if isinstance(square, shape) else x + 2)
    assert compiled(torch.ones(1)).tolist() == [3.0]
    shape.register(Square)
    assert compiled(torch.ones(1)).tolist() == [2.0]
    assert jitshape.stats()["details"]["not_kept"] == {
        "entry: ambient state: abc_registrations": 1,
        "entry: which classes are registered with abstract ones was read": 1,
    }


@pytest.mark.parametrize("method, text", [("_record", "kept"), ("_serve", "read")])
def test_a_fault_of_the_records_fails_no_call(
    kept: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    text: str,
) -> None:
    def broken(self: WarmStart, *args: object) -> None:
        raise KeyError("no such place")

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    if method == "_serve":
        jitshape.compile(f)(torch.ones(2))
        jitshape.reset()
    monkeypatch.setattr(WarmStart, method, broken)
    assert jitshape.compile(f)(torch.ones(2)).tolist() == [3.0, 3.0]
    assert f"cannot be {text} (KeyError: 'no such place')" in caplog.text
    assert jitshape.stats()["fallbacks"] == 0


def test_a_served_call_whose_graph_raises_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path / "cache"))

    def f(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(2)
        try:
            return x[places] + noise
        except IndexError:
            return noise + torch.rand(2)

    x, hits = torch.arange(3.0), 0
    for places in (torch.tensor([0, 1]), torch.tensor([0, 9])):
        jitshape.reset()
        results = []
        for function in (f, jitshape.compile(f)):
            torch.manual_seed(1)
            results.append(function(x, places))
        assert torch.equal(*results)
        hits += jitshape.stats()["cache"]["entry"]["hit"]
    assert hits == 1


def test_what_was_refuted_is_not_assumed_again(kept: None) -> None:
    """The first negative number is met by the entry that assumes none; what serves them from then
    on is kept too, and found once the first call of a later process refuted the same."""

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[: i.item()] * 2

    x = torch.arange(5.0)
    for compiles in (2, 0):
        jitshape.reset()
        compiled = jitshape.compile(f)
        for i in (2, -1, 3, -2, 0, 1):
            number = torch.tensor(i)
            assert torch.equal(compiled(x, number), f(x, number))
        stats = jitshape.stats()
        assert (stats["fallbacks"], stats["compiles"]) == (1, compiles)
    assert stats["cache"]["entry"] == {"hit": 2, "miss": 0}


def test_what_is_said_of_sizes_is_part_of_the_key(kept: None) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) + y

    x, y = torch.ones(4, 2), torch.ones(6, 2)
    batch, other = jitshape.Dim("batch", max=8), jitshape.Dim("batch", max=9)
    specs: list[dict] = [
        {"x": {0: batch}},
        {"x": {0: other}},
        {"x": {0: "auto"}},
        {"x": {0: batch + 2}},
        {"x": {0: None}},
    ]
    for hits in (0, 1):
        for spec in specs:
            jitshape.reset()
            compiled = jitshape.compile(f, dynamic_shapes=spec)
            assert torch.equal(compiled(x, y[0]), f(x, y[0]))
            assert jitshape.stats()["cache"]["entry"] == {"hit": hits, "miss": 1 - hits}, spec
    jitshape.reset()
    with pytest.raises(BadSpec, match="excludes this call"):
        jitshape.compile(f, dynamic_shapes=specs[0])(torch.ones(9, 2), y[0])
    jitshape.reset()
    compiled = jitshape.compile(f, dynamic_shapes=specs[0])
    for rows in (4, 7, 2):
        compiled(torch.ones(rows, 2), y[0])
    assert jitshape.stats()["compiles"] == 0


def test_an_entry_lets_go_of_the_call_that_it_was_found_for(kept: None) -> None:
    def f(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        return layer(x) * 2

    for hits in (0, 1):
        jitshape.reset()
        compiled = jitshape.compile(f)
        x, layer = torch.ones(3), torch.nn.Linear(3, 3)
        gone = [weakref.ref(x), weakref.ref(layer), weakref.ref(layer.weight)]
        compiled(x, layer)
        del x, layer
        gc.collect()
        assert [ref() for ref in gone] == [None] * 3
        assert jitshape.stats()["cache"]["entry"]["hit"] == hits
    (known,) = (known for _, known in compiled_entries(compiled))
    assert "layer" in str(known.guards)  # which are read only now


def compiled_entries(compiled: Any) -> list:
    """Those of a compiled function, with what is known of each."""
    (found,) = (c for c in compiler._compilers if c.dispatcher is compiled)
    return found.entries.known()
