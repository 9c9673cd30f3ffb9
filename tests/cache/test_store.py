"""The store: what it gives back, and what it does with folders and files that are not right."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import jitshape
from jitshape.cache import environment as environments
from jitshape.cache import store as stores
from jitshape.cache.environment import environment_facts, environment_key
from jitshape.cache.store import Store, open_store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    jitshape.reset()
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "_opened", None)
    return tmp_path / "cache"


@pytest.fixture
def store() -> Store:
    opened = open_store()
    assert opened is not None
    return opened


def warnings(capsys: pytest.CaptureFixture) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_gives_back_what_was_put(store: Store) -> None:
    assert store.get("kernel", "k") is None
    for data in (b"", b"one", bytes(100_000)):
        store.put("kernel", "k", data)
        assert store.get("kernel", "k") == data
    assert store.get("program", "k") is None and store.get("kernel", "k2") is None
    stats = jitshape.stats()
    assert stats["cache"] == {"kernel": {"hit": 3, "miss": 2}, "program": {"hit": 0, "miss": 1}}
    assert stats["details"]["cache_misses"] == {"kernel: not there": 2, "program: not there": 1}


def test_files_are_the_users_alone(store: Store, cache_dir: Path) -> None:
    old = os.umask(0)
    try:
        store.put("kernel", "k", b"x")
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in [cache_dir, *cache_dir.rglob("*")]}
    assert modes == {0o700, 0o600}


def test_keys_are_any_text(store: Store) -> None:
    for key in ("", "../../x", "a\0b", "a\udcffb", "k" * 10_000):
        store.put("kernel", key, key.encode("utf-8", "replace"))
        assert store.get("kernel", key) == key.encode("utf-8", "replace")


def test_environments_share_a_folder_without_meeting(store: Store) -> None:
    other = Store(store.root, "ab" * 32)
    store.put("kernel", "k", b"mine")
    assert other.get("kernel", "k") is None
    other.put("kernel", "k", b"other")
    assert (store.get("kernel", "k"), other.get("kernel", "k")) == (b"mine", b"other")


def test_switched_off(monkeypatch: pytest.MonkeyPatch, cache_dir: Path) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE", "0")
    assert open_store() is None and not cache_dir.exists()


# ---- the key of the environment


def test_the_environment_is_the_same_in_every_process() -> None:
    code = "from jitshape.cache.environment import environment_key; print(environment_key())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == environment_key() and len(environment_key()) == 64


def test_settings_are_part_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before, first = environment_key(), open_store()
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert environment_key() != before
    second = open_store()
    assert first is not None and second is not None and second.environment != first.environment
    assert environment_facts()["TRITON_DEFAULT_FP_FUSION"] == "0"


def test_every_source_file_is_part_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_root", lambda: str(tmp_path))
    digests = {environments.sources_digest()}
    (tmp_path / "part").mkdir()
    for name in ("a.py", "part/b.py", "part/c.so", "d.h"):
        for content in ("1", "2"):
            (tmp_path / name).write_text(content)
            digests.add(environments.sources_digest())
    (tmp_path / "part/b.py").rename(tmp_path / "b.py")
    assert len({*digests, environments.sources_digest()}) == 10


def test_the_digest_of_sources_is_remembered_until_one_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, kept = tmp_path / "sources", tmp_path / "store"
    sources.mkdir()
    kept.mkdir()
    (sources / "a.py").write_text("1")
    monkeypatch.setattr(environments, "_root", lambda: str(sources))
    first = environments.sources_digest(kept)
    assert list(kept.iterdir()) == []  # it may change yet in the same moment
    monkeypatch.setattr(environments, "RACE", -1.0)
    assert environments.sources_digest(kept) == first
    with monkeypatch.context() as patch:
        patch.setattr(environments, "_digest", None)  # fails where files are read
        assert environments.sources_digest(kept) == first
        (kept / "sources").write_bytes(b"damaged")
        with pytest.raises(TypeError):
            environments.sources_digest(kept)
    assert environments.sources_digest(kept) == first
    times = (sources / "a.py").stat()
    (sources / "a.py").write_text("2")
    os.utime(sources / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    second = environments.sources_digest(kept)
    assert second != first and environments.sources_digest() == second
    (sources / "a.py").write_text("1")
    assert environments.sources_digest(kept) == first


def test_the_process_that_makes_the_folder_remembers_the_digest(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "RACE", -1.0)
    first = open_store()
    assert first is not None and not cache_dir.exists()
    first.put("kernel", "k", b"x")
    monkeypatch.setattr(environments, "_digest", None)
    stores._opened = None
    second = open_store()
    assert second is not None and second.get("kernel", "k") == b"x"


def test_sources_that_changed_while_the_process_runs_switch_it_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(jitshape, "IMPORTED_AT", 0.0)
    assert open_store() is None and open_store() is None
    (line,) = warnings(capsys)
    assert "changed after this process loaded jitshape" in line


# ---- folders


def test_folders_that_others_can_write_are_refused(
    cache_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    for mode in (0o777, 0o770, 0o1777):
        cache_dir.mkdir(exist_ok=True)
        cache_dir.chmod(mode)
        stores._opened = None
        assert open_store() is None and open_store() is None
        (line,) = warnings(capsys)
        assert "others than its owner may write" in line and "JITSHAPE_CACHE_DIR" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_folders_and_files_of_others_are_refused(
    cache_dir: Path, store: Store, capsys: pytest.CaptureFixture
) -> None:
    store.put("kernel", "k", b"x")
    os.chown(store.path("kernel", "k"), 65534, 65534)
    assert store.get("kernel", "k") is None
    os.chown(cache_dir, 65534, 65534)
    stores._opened = None
    assert open_store() is None
    assert ["belongs to user 65534" in line for line in warnings(capsys)] == [True, True]


def test_a_file_where_the_folder_should_be(cache_dir: Path, capsys: pytest.CaptureFixture) -> None:
    cache_dir.write_text("")
    assert open_store() is None
    (line,) = warnings(capsys)
    assert "it is not a folder" in line


def test_a_folder_that_others_opened_meanwhile(
    store: Store, cache_dir: Path, capsys: pytest.CaptureFixture
) -> None:
    cache_dir.mkdir()
    cache_dir.chmod(0o777)
    for key in "ab":
        store.put("kernel", key, b"x")
    assert store.get("kernel", "a") is None
    (line,) = warnings(capsys)
    assert "others than its owner may write" in line


def test_what_cannot_be_written_is_told_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    tried = []

    def full(path: Path, *_: object) -> None:
        tried.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores.folder, "write_whole", full)
    for key in "abc":
        store.put("kernel", key, b"x")
        assert store.get("kernel", key) is None
    (line,) = warnings(capsys)
    assert "No space left on device" in line and len(tried) == 1


# ---- files


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    path.write_bytes(b"\x80\x04." * 100)


def swap(path: Path) -> None:
    other = open_store()
    assert other is not None
    other.put("kernel", "other", b"other")
    os.replace(other.path("kernel", "other"), path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def open_to_all(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize(
    "damage", [cut, empty, lengthen, flip, foreign, swap, pipe, link, open_to_all]
)
def test_a_damaged_file_is_a_miss_and_is_replaced(
    store: Store, damage: Callable[[Path], None], capsys: pytest.CaptureFixture
) -> None:
    for _ in range(2):
        store.put("kernel", "k", b"data")
        damage(store.path("kernel", "k"))
        assert store.get("kernel", "k") is None
    assert len(warnings(capsys)) == 1
    store.put("kernel", "k", b"data")
    assert store.get("kernel", "k") == b"data"


def test_a_folder_in_the_place_of_a_file(store: Store, capsys: pytest.CaptureFixture) -> None:
    store.path("kernel", "k").mkdir(parents=True)
    assert store.get("kernel", "k") is None
    assert len(warnings(capsys)) == 1


def test_lengths_that_lie_are_found_before_they_are_used(store: Store) -> None:
    store.put("kernel", "k", b"data")
    content = bytearray(store.path("kernel", "k").read_bytes())
    for place in range(8, 24):
        for value in (0, 255):
            changed = bytes(content[:place]) + bytes([value]) + bytes(content[place + 1 :])
            store.path("kernel", "k").write_bytes(changed)
            same = changed == content
            assert store.get("kernel", "k") == (b"data" if same else None)
            store.put("kernel", "k", b"data")


def test_a_cleared_folder_is_made_again(store: Store, cache_dir: Path) -> None:
    import shutil

    store.put("kernel", "k", b"1")
    shutil.rmtree(cache_dir)
    assert store.get("kernel", "k") is None
    store.put("kernel", "k", b"2")
    assert store.get("kernel", "k") == b"2"
