"""Archives of a store, and the commands that look at one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jitshape.cache import archive, environment
from jitshape.cache import store as stores
from jitshape.cache.files import Damaged
from jitshape.cache.store import Store, open_store
from jitshape.cli import main


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(folder))
    store = open_store()
    assert store is not None
    return store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(stores, "_opened", None)
    store = opened(tmp_path / "cache", monkeypatch)
    store.put("kernel", "a", b"1")
    store.put("kernel", "b", b"22")
    store.put("program", "../../a", bytes(1000))
    Store(store.root, "ab" * 32).put("kernel", "a", b"other")
    return store


def command(*words: str) -> Result:
    return CliRunner().invoke(main, ["cache", *words])


def test_info(store: Store) -> None:
    shown = command("info").output
    assert f"{store.root}: 1008 bytes of at most {2 * 2**30}" in shown
    assert "kernel: 8 bytes; files of this environment: 2, of others: 1" in shown
    assert "program: 1000 bytes; files of this environment: 1, of others: 0" in shown
    assert "damaged" not in shown
    store.path("kernel", "a").write_bytes(b"x")
    assert "damaged: 1 files" in command("info").output


def test_verify_names_and_deletes_what_is_damaged(store: Store) -> None:
    done = command("verify")
    assert (done.exit_code, done.output) == (0, "4 entries are whole\n")
    store.path("kernel", "a").write_bytes(store.path("kernel", "b").read_bytes())
    store.path("kernel", "b").write_bytes(b"")
    for words in (["verify"], ["verify", "--delete"]):
        done = command(*words)
        assert done.exit_code == 1 and "2 entries are whole\n" in done.output
        assert f"{store.path('kernel', 'a')}: it holds another entry" in done.output
        assert f"{store.path('kernel', 'b')}: it is cut short" in done.output
    assert command("verify").exit_code == 0


def test_clear(store: Store) -> None:
    assert command("clear").output == f"deleted 4 files, {4 * 4096} bytes\n"
    assert store.get("kernel", "a") is None
    assert command("clear").output == "deleted 0 files, 0 bytes\n"


def test_what_was_exported_can_be_imported(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "archive"
    assert command("export", str(file)).output == f"3 entries in {file}\n"
    other = opened(tmp_path / "other", monkeypatch)
    assert other.get("kernel", "a") is None
    assert command("import", str(file)).output == f"3 entries from {file}\n"
    found = [other.get(*names) for names in (("kernel", "b"), ("program", "../../a"))]
    assert found == [b"22", bytes(1000)]
    assert other.get("kernel", "a") == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "cache", "other"]


def test_every_change_of_an_archive_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "archive"
    archive.export(store, file)
    whole = file.read_bytes()
    other = opened(tmp_path / "other", monkeypatch)
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        for content in (whole[:place], bytes(flipped), whole + b"x"):
            file.write_bytes(content)
            with pytest.raises(Damaged):
                archive.load(other, file)
    assert not other.root.exists()
    done = command("import", str(file))
    assert done.exit_code == 1 and "is not imported: its checksum is wrong" in done.output


def sealed(parts: list[bytes]) -> bytes:
    """An archive with a checksum that is right."""
    content = b"".join(parts)
    return content + archive.hashlib.sha256(content).digest()


def test_hostile_archives_with_a_right_checksum(store: Store, tmp_path: Path) -> None:
    facts = json.dumps(environment.environment_facts()).encode()
    start = [archive.MAGIC, len(facts).to_bytes(4, "little"), facts]
    foreign = b"".join(stores.files.assemble(stores.Entry("kernel", "a", "ab" * 32, b"bad")))
    size = len(foreign).to_bytes(8, "little")
    file = tmp_path / "archive"
    for parts in (
        [archive.MAGIC],
        [archive.MAGIC, b"\xff\xff\xff\xff"],
        [archive.MAGIC, b"\1\0\0\0["],
        [*start, b"\xff" * 8],
        [*start, b"\1"],
        [*start, size, foreign[:-1]],
        [*start, size, foreign],
        [*start, (3).to_bytes(8, "little"), b"\0\0\0"],
    ):
        file.write_bytes(sealed(parts))
        with pytest.raises(Damaged):
            archive.load(store, file)
    file.write_bytes(sealed(start))
    assert archive.load(store, file) == 0


def test_an_archive_of_another_environment_says_what_differs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "archive"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    facts = environment.environment_facts()
    monkeypatch.setattr(archive, "environment_facts", lambda: {**facts, "processor": "Z80"})
    archive.export(store, file)
    monkeypatch.undo()
    with pytest.raises(Damaged, match="made with another processor, TRITON_INTERPRET"):
        archive.load(store, file)


def test_without_a_cache_the_commands_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE", "0")
    for words in (["info"], ["verify"], ["export", "x"]):
        done = command(*words)
        assert done.exit_code == 1 and "there is no cache" in done.output
