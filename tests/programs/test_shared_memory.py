"""Many tensors written at once: one guard says that they share no memory."""

from __future__ import annotations

import pytest
import torch

import jitshape
from jitshape.frontend._evalframe import apart
from tests.programs.compare import assert_same
from tests.programs.memory import check_memory

COUNT = 8


def doubled(written, read):
    for w, r in zip(written, read):
        w.add_(r)
    return [w * 2 for w in written]


def rows(shared: bool = False, overlapping: bool = False) -> tuple[list, list]:
    """Tensors of their own; or rows of one memory; or rows that lie over each other."""
    memory = torch.arange(64.0)
    step = 2 if overlapping else 4
    pieces = [memory[i * step : i * step + 4] for i in range(COUNT)]
    written = pieces if shared or overlapping else [p.clone() for p in pieces]
    return written, [torch.full((4,), float(i)) for i in range(COUNT)]


def test_one_guard_for_all_and_another_entry_for_what_overlaps() -> None:
    jitshape.reset()
    compiled = jitshape.compile(doubled)
    for arguments in ({}, {}, {"overlapping": True}, {"shared": True}, {}):
        expected = (lambda w, r: (doubled(w, r), w))(*rows(**arguments))
        found = (lambda w, r: (compiled(w, r), w))(*rows(**arguments))
        assert_same(expected, found, str(arguments))
    assert jitshape.stats()["guards"] < 40 * COUNT
    assert jitshape.stats()["compiles"] == 2 and jitshape.stats()["fallbacks"] == 0


def test_a_read_tensor_over_a_written_one() -> None:
    jitshape.reset()
    compiled = jitshape.compile(doubled)
    compiled(*rows())
    outcomes = []
    for f in (doubled, compiled):
        written, read = rows()
        read[3], read[6] = written[5], written[2]
        outcomes.append((f(written, read), written, read))
    assert_same(*outcomes)
    assert jitshape.stats()["compiles"] == 2


def test_spans() -> None:
    memory = torch.zeros(16)
    a, b, c = memory[:4], memory[4:8], memory[3:5]
    sizes = bytes([4, 4, 4])
    assert apart(2, sizes, (0, 1, 2), a, b, memory[8:])
    assert not apart(1, sizes, (0, 1, 2), a, b, c)  # c lies over a
    assert not apart(1, sizes, (0, 1, 2), c, a, b)
    assert apart(1, sizes, (0, 1, 0), a, b, c)  # unless they are known to share
    assert apart(0, sizes, (0, 1, 2), a, b, c)  # or neither is written
    assert apart(1, sizes, (0, 1, 2), c[:0], a, b)  # or there is nothing in it
    assert apart(1, bytes([4, 4]), (0, 1), memory[::2], torch.zeros(3))


def expanded() -> list[torch.Tensor]:
    return [torch.arange(4.0).expand(3, 4)]


def windows() -> list[torch.Tensor]:
    return [torch.arange(6.0).as_strided((3, 2), (1, 1))]


def under_a_window() -> list[torch.Tensor]:
    base = torch.arange(6.0)
    return [base, base.as_strided((3, 2), (1, 1))]


def write_row(x: torch.Tensor) -> torch.Tensor:
    x[0] = 5.0
    return x * 1


def write_slice(x: torch.Tensor) -> torch.Tensor:
    x[:1].copy_(torch.ones(x.shape[-1]))
    return x * 1


def read_later(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[1] = 5.0
    return y * 1


@pytest.mark.parametrize(
    "program, make",
    [
        (write_row, expanded),
        (write_slice, expanded),
        (write_row, windows),
        (write_slice, windows),
        (read_later, under_a_window),
    ],
)
def test_a_write_to_an_argument_that_overlaps_itself(program, make) -> None:
    check_memory(program, make, make, breaks=1)
