"""The size of a store: what goes, what stays, who counts."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from jitshape.cache import eviction
from jitshape.cache.eviction import BLOCK, clear, kept, sweep
from jitshape.cache.store import LIMIT, Store, size_limit

ENVIRONMENT = "ab" * 32


def size(root: Path) -> int:
    return sum(file.size for file in kept(root))


def tally(root: Path) -> int:
    return (root / "tally").stat().st_size


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", ENVIRONMENT, limit=32 * BLOCK)


def fill(store: Store, names: range, ages: bool = True) -> None:
    """Entries of a block each, `i` used i seconds after a time long ago."""
    for i in names:
        store.put("kernel", str(i), bytes(1000))
        if ages:
            os.utime(store.path("kernel", str(i)), (1000.0 + i, 1000.0 + i))


def present(store: Store, names: range) -> list[int]:
    return [i for i in names if store.path("kernel", str(i)).exists()]


def test_what_was_used_least_lately_goes(store: Store) -> None:
    fill(store, range(30))
    assert present(store, range(30)) == list(range(30)) and tally(store.root) == 30
    for i in (0, 3):
        assert store.get("kernel", str(i)) is not None
    fill(store, range(30, 33))
    assert size(store.root) <= 0.8 * store.limit
    assert present(store, range(33)) == [0, 3, *range(10, 33)]
    assert tally(store.root) == 25


def test_a_large_entry_is_not_kept(store: Store) -> None:
    fill(store, range(5))
    store.put("kernel", "large", bytes(9 * BLOCK))
    store.put("kernel", "less", bytes(7 * BLOCK))
    assert store.get("kernel", "large") is None and store.get("kernel", "less") is not None
    assert present(store, range(5)) == list(range(5))


def test_a_lost_tally_is_made_again(store: Store) -> None:
    fill(store, range(20))
    (store.root / "tally").unlink()
    store.put("kernel", "20", b"")
    assert tally(store.root) == 21
    os.truncate(store.root / "tally", 2**40)
    store.put("kernel", "21", b"")
    assert tally(store.root) == 22 and present(store, range(22)) == list(range(22))


def test_nobody_waits_for_one_who_sweeps(store: Store) -> None:
    fill(store, range(32))
    with open(store.root / "tally.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fill(store, range(32, 36))
        assert len(present(store, range(36))) == 36
    fill(store, range(36, 37))
    assert size(store.root) <= 0.8 * store.limit


def test_files_that_nobody_finished_go_and_new_ones_stay(store: Store) -> None:
    fill(store, range(1))
    now = time.time()
    for name, age in (("old", 7200), ("new", 10), ("of the future", -7200)):
        path = store.unfinished / name
        path.write_bytes(b"half")
        os.utime(path, (now - age, now - age))
    sweep(store.root, store.limit)
    assert [path.name for path in store.unfinished.iterdir()] == ["new"]


def test_a_clock_that_was_set_back(store: Store) -> None:
    fill(store, range(32))
    future = time.time() + 10**6
    for i in range(4):
        os.utime(store.path("kernel", str(i)), (future, future))
    assert store.get("kernel", "0") is not None
    assert abs(store.path("kernel", "0").stat().st_mtime - time.time()) < 60
    fill(store, range(32, 33))
    times = {i: store.path("kernel", str(i)).stat().st_mtime for i in range(4)}
    assert max(times.values()) <= time.time()


def test_only_its_own_files_are_deleted(store: Store, tmp_path: Path) -> None:
    fill(store, range(3))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ("c" * 62)).write_bytes(bytes(100))
    (store.root / "ff").symlink_to(outside)
    (store.root / "notes").write_text("mine")
    (store.root / "00").mkdir(exist_ok=True)
    (store.root / "00" / "notes").write_text("mine")
    sweep(store.root, 0)
    assert clear(store.root) == (0, 0) and size(store.root) == 0
    assert (outside / ("c" * 62)).exists()
    assert (store.root / "notes").exists() and (store.root / "00" / "notes").exists()


def test_clearing_leaves_a_store_that_works(store: Store) -> None:
    fill(store, range(3))
    assert clear(store.root) == (3, 3 * BLOCK) and tally(store.root) == 0
    store.put("kernel", "k", b"x")
    assert store.get("kernel", "k") == b"x" and tally(store.root) == 1


def test_a_use_is_noted_once_a_minute(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, range(1))
    path = store.path("kernel", "0")
    store.get("kernel", "0")
    first = path.stat().st_mtime
    assert first > 10**6
    store.get("kernel", "0")
    assert path.stat().st_mtime == first
    monkeypatch.setattr(eviction.os, "utime", None)  # a use that is noted would fail
    store.get("kernel", "0")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("", LIMIT),
        ("500", 500),
        ("1k", 1024),
        ("1.5M", 3 * 2**19),
        ("2GiB", 2**31),
        ("3 gb", 3 * 2**30),
        ("0", 0),
    ],
)
def test_sizes(text: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE_SIZE", text)
    assert size_limit() == limit


def test_what_is_no_size_is_told(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE_SIZE", "much")
    assert size_limit() == LIMIT
    assert "JITSHAPE_CACHE_SIZE='much' is no size" in capsys.readouterr().err
