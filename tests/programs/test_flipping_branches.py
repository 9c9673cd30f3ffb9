"""Branches on numbers of run time that go another way call by call: each way is compiled once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import jitshape

COUNTS = (5, 2, 6, 1, 0, 8, 3, 4, 2, 7)
_done: list[object] = []


def ones(k: int) -> tuple[torch.Tensor, ...]:
    return (torch.cat([torch.ones(k), torch.zeros(8 - k)]),)


def places(x: torch.Tensor) -> torch.Tensor:
    n = x.nonzero()
    _done.append("before")
    y = x * 2 if n.shape[0] > 3 else x + 1
    _done.append(len(y))
    return y.sum() + n.sum()


def whole_number_of_a_float(x: torch.Tensor) -> torch.Tensor:
    k = int(x.sum())
    _done.append("before")
    if k > 3:
        return x * k
    return x - k


def different_values(x: torch.Tensor) -> torch.Tensor:
    found = torch.unique(x)
    _done.append("before")
    if found.numel() == 1:
        return x * 3
    return x[found.long()].sum()


def parts(x: torch.Tensor) -> torch.Tensor:
    chosen = x[x > 0]
    if chosen.shape[0] > 2:
        _done.append("many")
        return torch.cat([chosen * 2, x[x <= 0]])
    return chosen.sum() + x


def counted(x: torch.Tensor) -> list[torch.Tensor]:
    pieces = x.split([int(x.sum()), 8 - int(x.sum())])
    _done.append("split")
    return [p + 1 for p in pieces] if pieces[0].shape[0] > 2 else [p * 2 for p in pieces]


PROGRAMS: tuple[Callable, ...] = (
    places, whole_number_of_a_float, different_values, parts, counted,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_way_is_compiled_once(program: Callable) -> None:
    jitshape.reset()
    compiled = jitshape.compile(program)
    seen = []
    for k in COUNTS:
        _done.clear()
        expected, effects = program(*ones(k)), list(_done)
        _done.clear()
        found = compiled(*ones(k))
        torch.testing.assert_close(found, expected)
        assert _done == effects
        seen.append(jitshape.stats()["compiles"])
    assert seen[-1] <= 4 and len(set(seen[-4:])) == 1
    assert jitshape.stats()["recompiles"] == 0


COUNTING: dict[str, Callable] = {
    "unique": torch.unique,
    "length": lambda x: torch.unique(x).numel(),
    "with_places": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "consecutive": torch.unique_consecutive,
    "rows": lambda x: torch.unique(x[:, None], dim=0),
    "bins": lambda x: torch.bincount(x.long()),
    "repeated": lambda x: torch.repeat_interleave(x.long()),
    "read_at": lambda x: x[torch.unique(x).long() - 1].sum(),
}


@pytest.mark.parametrize("name", COUNTING)
def test_how_many_results_there_are_is_in_the_data(name: str) -> None:
    jitshape.reset()
    program = COUNTING[name]
    compiled = jitshape.compile(program)
    for values in ([1, 1, 2, 2, 2], [1], [1, 2, 1, 3], [3, 3, 3, 3, 3, 1], [1, 1, 1, 1, 1], [2, 2]):
        x = torch.tensor(values, dtype=torch.float32)
        if name == "read_at" and max(values) > len(values):
            continue
        torch.testing.assert_close(compiled(x), program(x))
    assert jitshape.stats()["compiles"] == 2 and not jitshape.stats()["graph_breaks"]
