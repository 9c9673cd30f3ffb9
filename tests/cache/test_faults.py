"""Whatever happens to the cache folder, results are right, nothing waits, and each kind of trouble
is told once.  `--store-faults N` does N damages; `make test-store` does 200."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch

import jitshape
from jitshape.cache import eviction, folder
from jitshape.cache import store as stores
from jitshape.cache.store import Store, open_store
from tests.cache.faults import ROOT, damage, delete_something, entries, meanwhile


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--store-faults")))


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(x * w, -1) + w.sigmoid()).square().mean()


X, W = torch.rand(5, 8), torch.rand(8, requires_grad=True)
EXPECTED = loss(X, W)
(GRADIENT,) = torch.autograd.grad(EXPECTED, W)


def run_as_a_new_process() -> dict[str, dict[str, int]]:
    """Compile and run `loss` with nothing in memory, check its results; the counts of levels."""
    stores._opened = None
    jitshape.reset()
    got = jitshape.compile(loss, dynamic=False)(X, W)
    (gradient,) = torch.autograd.grad(got, W)
    torch.testing.assert_close(got, EXPECTED)
    torch.testing.assert_close(gradient, GRADIENT)
    stats = jitshape.stats()
    assert stats["fallbacks"] == 0
    return {level: counts for level, counts in stats["cache"].items() if level != "graph"}


def hits(counts: dict[str, dict[str, int]]) -> int:
    return sum(row["hit"] for row in counts.values())


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that has all that `loss` needs."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITSHAPE_CACHE", "1")
        patch.setenv("JITSHAPE_CACHE_DIR", str(folder))
        assert hits(run_as_a_new_process()) == 0
        assert hits(run_as_a_new_process()) > 0
    return folder


@pytest.fixture
def store(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A copy of `filled`, which serves as the cache."""
    shutil.copytree(filled, tmp_path / "cache")
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "_opened", None)
    opened = open_store()
    assert opened is not None
    return opened


def kinds(text: str) -> list[str]:
    """The warnings in `text` without what differs between those of a kind."""
    return [re.split(r"[(:]", re.sub(r"/\S+", "PATH", line))[0] for line in text.splitlines()]


def test_damages(seed: int, store: Store, capsys: pytest.CaptureFixture) -> None:
    done = damage(seed, store)
    capsys.readouterr()
    for _ in range(2):
        run_as_a_new_process()
        told = kinds(capsys.readouterr().err)
        assert len(set(told)) == len(told), (done, told)


def test_deleting_during_use(store: Store, capsys: pytest.CaptureFixture) -> None:
    random = Random(0)
    with meanwhile(lambda: delete_something(random, store)):
        for _ in range(3):
            run_as_a_new_process()
    capsys.readouterr()
    run_as_a_new_process()
    assert hits(run_as_a_new_process()) > 0 and capsys.readouterr().err == ""


# ---- many at once

SEVERAL = """
import hashlib, random, sys, time
from pathlib import Path
from jitshape.cache.store import Store

role, seed, root = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
random.seed(seed)
store, found = Store(root, "ab" * 32, limit=400_000), 0

def data(key):
    return hashlib.sha256(key.encode()).digest() * (1 + int(key) * 50)

sys.stdin.readline()
for _ in range(300):
    key = str(random.randrange(40))
    if role == "write":
        store.put("kernel", key, data(key))
    else:
        got = store.get("kernel", key)
        assert got in (None, data(key)), key
        found += got is not None
print(found)
"""


def test_eight_writers_and_eight_readers(tmp_path: Path) -> None:
    root = tmp_path / "store"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SEVERAL, role, str(seed), str(root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(8)
        for role in ("write", "read")
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    done = [(*process.communicate(timeout=200), process.returncode) for process in running]
    assert [(error, code) for _, error, code in done] == [("", 0)] * 16
    assert sum(int(found) for found, _, _ in done) > 0
    # what others wrote while the last one swept is seen by the next
    Store(root, "ab" * 32, limit=400_000).put("kernel", "one more", b"")
    assert sum(file.size for file in eviction.kept(root)) <= 500_000
    assert list(eviction.unfinished(root)) == []


def test_threads_and_forks(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", "ab" * 32)

    def use(names: range) -> bool:
        for name in names:
            store.put("kernel", str(name), str(name).encode() * 1000)
        return all(store.get("kernel", str(n)) == str(n).encode() * 1000 for n in names)

    with ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(use, range(start, start + 50)) for start in (0, 0, 25, 25, 50, 50)]
        child = os.fork()
        if not child:
            os._exit(0 if use(range(100, 150)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert all(thread.result() for thread in busy)
    assert store.get("kernel", "149") is not None


# ---- folders that cannot be written

LIMITED = """
import resource, sys
from pathlib import Path
from jitshape.cache.store import Store

store = Store(Path(sys.argv[1]), "ab" * 32)
store.put("kernel", "small", bytes(100))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for key in ("large", "larger"):
    store.put("kernel", key, bytes(5000))
    assert store.get("kernel", key) is None
assert store.get("kernel", "small") == bytes(100)
"""


def test_a_file_that_finds_no_room_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "cannot be written: " in line and "File too large" in line
    assert [path.name for path in tmp_path.glob("store/*")].count("unfinished") == 1
    assert list(eviction.unfinished(tmp_path / "store")) == []


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_what_is_there_is_read_where_nothing_can_be_written(
    error: int, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(folder, "open_for_writing", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    present = entries(store)
    assert hits(run_as_a_new_process()) > 0 and capsys.readouterr().err == ""
    for path in present:
        path.write_bytes(b"damaged")
    run_as_a_new_process()
    assert len(capsys.readouterr().err.splitlines()) == 2  # damaged; cannot be written
    assert entries(store) == present


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_without_permission(store: Store, capsys: pytest.CaptureFixture) -> None:
    for mode in (0o500, 0o000):
        store.root.chmod(mode)
        run_as_a_new_process()
    store.root.chmod(0o700)
    assert len(capsys.readouterr().err.splitlines()) <= 2
