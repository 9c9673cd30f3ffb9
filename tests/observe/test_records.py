"""How much of the past a process keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitshape.observe import records
from jitshape.observe.records import BreakRecord, FallbackRecord, detailed, record


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    records.clear()
    monkeypatch.setattr(records, "KEPT", 10)
    yield
    records.clear()


def fall_back(count: int) -> None:
    for number in range(count):
        record(FallbackRecord("f", "model.py:1", str(number)))


def kept() -> list[str]:
    return [r.reason for r in records.records() if isinstance(r, FallbackRecord)]


def test_the_latest_of_each_kind_are_kept() -> None:
    breaking = BreakRecord("g", "model.py:9", "builtin", "print is called", "", "")
    record(breaking)
    fall_back(1000)
    first, *others = records.records()
    assert isinstance(first, BreakRecord) and 10 <= len(others) <= 20
    assert kept() == [str(number) for number in range(1000 - len(others), 1000)]


def test_an_explanation_loses_nothing() -> None:
    with detailed():
        fall_back(100)
    assert len(kept()) == 100
    fall_back(1)
    assert kept() == [*map(str, range(91, 100)), "0"]
