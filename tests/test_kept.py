"""Which kept entries are tried for a call: instances of a class share theirs, and those of other
sizes stand in nobody's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import jitshape
from jitshape import kept
from jitshape.cache import eviction, files
from jitshape.cache.store import ENTRIES


class Layer(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(torch.relu(self.linear(x)))


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path))
    jitshape.reset()
    yield tmp_path
    jitshape.reset()


def on_disk(folder: Path) -> list[str]:
    """The levels of all files."""
    found = eviction.kept(folder / ENTRIES) if (folder / ENTRIES).exists() else []
    return sorted(files.parse(each.path.read_bytes()).level for each in found)


def call_each(layers: list[Layer], rows: int, backend: str = "auto") -> dict:
    """What calls of every layer, each compiled on its own, count."""
    jitshape.reset()
    run([jitshape.compile(layer, backend=backend) for layer in layers], layers, rows)
    return jitshape.stats()


def run(compiled: list, layers: list[Layer], rows: int) -> None:
    for mine, layer in zip(compiled, layers, strict=True):
        x = torch.rand(rows, layer.linear.in_features)
        with torch.no_grad():
            torch.testing.assert_close(mine(x), layer(x))


def test_a_hundred_instances_at_changing_sizes_are_two_traces(folder: Path) -> None:
    layers = [Layer() for _ in range(100)]
    compiled = [jitshape.compile(layer) for layer in layers]
    for rows, traces in ((3, 1), (4, 2), (5, 2)):
        run(compiled, layers, rows)
        stats = jitshape.stats()
        assert stats["cache"]["entry"]["miss"] == stats["compiles"] == traces
    stats = call_each(layers, 7)  # ... and of another process, none
    assert stats["cache"]["entry"] == {"hit": 100, "miss": 0} and stats["compiles"] == 0
    assert on_disk(folder).count("frame") == 2


def test_instances_of_many_widths_do_not_push_each_other_out(folder: Path) -> None:
    layers = [Layer(width) for width in range(3, 3 + kept.TRIED * 2)]
    assert call_each(layers, 5)["compiles"] == len(layers)
    stats = call_each(layers, 5)
    assert stats["cache"]["entry"] == {"hit": len(layers), "miss": 0}
    assert "entry_misses" not in stats["details"]  # only what fits is tried


def test_what_an_instance_alone_has_is_guarded(folder: Path) -> None:
    layers = [Layer() for _ in range(4)]
    layers[1].norm.eps = 0.5
    layers[2].linear.bias = None
    layers[3].linear.register_forward_hook(lambda module, args, out: out * 2)
    stats = call_each(layers, 3)
    assert stats["cache"]["entry"] == {"hit": 0, "miss": 4}


def test_equal_entries_are_kept_once(folder: Path) -> None:
    for _ in range(3):
        call_each([Layer()], 3)
        kept.forget()
    assert on_disk(folder).count("frame") == 1


def test_the_oldest_entries_of_a_function_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT", 3)
    layers = [Layer(width) for width in range(3, 8)]
    call_each(layers, 2)
    assert call_each(layers[2:], 2)["cache"]["entry"] == {"hit": 3, "miss": 0}
    assert call_each(layers[:2], 2)["cache"]["entry"] == {"hit": 0, "miss": 2}


def test_entries_whose_program_is_not_kept_serve_in_this_process_only(folder: Path) -> None:
    stats = call_each([Layer() for _ in range(5)], 3, backend="eager")
    assert stats["cache"]["entry"] == {"hit": 4, "miss": 1} and stats["compiles"] == 1
    assert on_disk(folder) == []
    assert call_each([Layer()], 3, backend="eager")["cache"]["entry"] == {"hit": 0, "miss": 1}


def test_memory_holds_the_records_used_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "REMEMBERED", 1)  # byte
    layers = [Layer(width) for width in range(3, 6)]
    compiled = [jitshape.compile(layer, backend="eager") for layer in layers]
    run(compiled, layers, 2)  # nothing of it is on disk
    again = [jitshape.compile(layer, backend="eager") for layer in layers]
    run(again[::-1], layers[::-1], 2)
    assert jitshape.stats()["cache"]["entry"] == {"hit": 1, "miss": 5}
