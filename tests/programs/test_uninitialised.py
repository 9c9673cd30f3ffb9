"""Memory that nobody has written is filled where torch is to be deterministic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils import deterministic

import jitshape
from tests.programs.compare import assert_same


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    deterministic.fill_uninitialized_memory = True


def made(x: torch.Tensor) -> list[torch.Tensor]:
    n = x.shape[0]
    wide = torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last)
    some = [torch.empty(n, dtype=d) for d in (torch.int16, torch.bool, torch.complex64)]
    return [
        *some,
        torch.empty_like(x),
        torch.empty_like(wide),
        x.new_empty(2, n),
        torch.empty_strided((2, n), (1, 2)),
        torch.empty(0).resize_(n),
    ]


def test_filled_as_in_eager() -> None:
    torch.use_deterministic_algorithms(True)
    jitshape.reset()
    compiled = jitshape.compile(made)
    for n in (3, 5):
        assert_same(made(torch.ones(n)), compiled(torch.ones(n)))
    assert jitshape.stats()["graph_breaks"] == 0


def test_each_setting_is_guarded() -> None:
    """An entry whose graph makes such memory is for one setting; one without is for all."""
    jitshape.reset()
    empty, other = jitshape.compile(lambda x: x.new_empty(3)), jitshape.compile(lambda x: x + 1)
    x = torch.ones(2)
    for on, fill in ((False, True), (True, True), (True, False), (True, True), (False, True)):
        torch.use_deterministic_algorithms(on)
        deterministic.fill_uninitialized_memory = fill
        assert empty(x).isnan().all() or not (on and fill)
        assert torch.equal(other(x), x + 1)
    assert jitshape.stats()["compiles"] + jitshape.stats()["graph_hits"] == 3 + 1
