"""Things that happen to a cache folder: `damage(number, store)` does one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread
from unittest import mock

from jitshape.cache import eviction, files
from jitshape.cache.store import Store

ROOT = Path(__file__).resolve().parents[2]
Fault = Callable[[Random, Store, list[Path]], None]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """`function(random, store, entries)` harms the store, which has the files `entries`."""
    FAULTS[function.__name__] = function
    return function


def entries(store: Store) -> list[Path]:
    return sorted(kept.path for kept in eviction.kept(store.root))


def damage(number: int, store: Store) -> str:
    """Do one thing; its name.  The numbers go round all kinds, each time in another way."""
    name = list(FAULTS)[number % len(FAULTS)]
    FAULTS[name](Random(number), store, entries(store))
    return name


# ---- contents


@fault
def truncate(random: Random, store: Store, entries: list[Path]) -> None:
    for path in random.sample(entries, random.randint(1, len(entries))):
        os.truncate(path, random.randrange(path.stat().st_size))


@fault
def flip_bits(random: Random, store: Store, entries: list[Path]) -> None:
    for path in random.sample(entries, random.randint(1, len(entries))):
        content = bytearray(path.read_bytes())
        header = random.random() < 0.5
        for _ in range(random.choice((1, 1, 2, 50))):
            content[random.randrange(140 if header else len(content))] ^= 1 << random.randrange(8)
        path.write_bytes(content)


@fault
def swap(random: Random, store: Store, entries: list[Path]) -> None:
    one, other = random.sample(entries, 2)
    aside = store.root / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@fault
def fill_with_noise(random: Random, store: Store, entries: list[Path]) -> None:
    for path in entries:
        start = path.read_bytes()[: random.choice((0, 8, 24, 88))]
        path.write_bytes(start + random.randbytes(random.randrange(3000)))


@fault
def stretch(random: Random, store: Store, entries: list[Path]) -> None:
    os.truncate(random.choice(entries), random.choice((10**5, 2**40)))


# ---- what a name stands for


@fault
def replace_by_something_else(random: Random, store: Store, entries: list[Path]) -> None:
    for path in entries:
        path.unlink()
        make = random.choice((os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)))
        make(path)


@fault
def block_a_folder(random: Random, store: Store, entries: list[Path]) -> None:
    folder = random.choice((store.unfinished, entries[0].parent))
    shutil.rmtree(folder)
    random.choice((os.mkfifo, Path.touch, lambda p: os.symlink("nowhere", p)))(folder)


@fault
def spoil_what_is_no_entry(random: Random, store: Store, entries: list[Path]) -> None:
    name = random.choice((eviction.TALLY, f"{eviction.TALLY}.lock", "sources"))
    (store.root / name).unlink(missing_ok=True)
    random.choice((os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)))(store.root / name)


@fault
def delete(random: Random, store: Store, entries: list[Path]) -> None:
    for path in random.sample(entries, random.randint(1, len(entries))):
        random.choice((os.unlink, lambda p: shutil.rmtree(p.parent, ignore_errors=True)))(path)


@fault
def delete_everything(random: Random, store: Store, entries: list[Path]) -> None:
    shutil.rmtree(random.choice((store.root, store.root.parent, store.unfinished)))


@fault
def open_to_others(random: Random, store: Store, entries: list[Path]) -> None:
    random.choice((store.root.parent, store.root, *entries)).chmod(random.choice((0o777, 0o770)))


@fault
def change_the_clock(random: Random, store: Store, entries: list[Path]) -> None:
    for path in entries:
        moment = random.choice((0, 1e9, time.time() + 1e8))
        os.utime(path, (moment, moment))
    os.truncate(store.root / eviction.TALLY, 2**31)  # the next write sweeps


# ---- other processes

WRITER = """
import sys
from pathlib import Path
from jitshape.cache.store import Store

store = Store(Path(sys.argv[1]), sys.argv[2])
print("ready", flush=True)
while True:
    for size in (10, 10_000, 10_000_000):
        store.put("kernel", f"{size}", bytes(size))
"""


@fault
def kill_a_writer(random: Random, store: Store, entries: list[Path]) -> None:
    command = [sys.executable, "-c", WRITER, str(store.root), store.environment]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(random.random() / 50)
        writer.send_signal(signal.SIGKILL)


@fault
def share_with_other_versions(random: Random, store: Store, entries: list[Path]) -> None:
    """Another version writes the same keys; sometimes its files even have our names."""
    other = Store(store.root, random.randbytes(32).hex())
    for path in entries:
        entry = files.parse(path.read_bytes())
        other.put(entry.level, entry.key, b"of another environment")
        with mock.patch.object(files, "FORMAT_VERSION", 2):
            store.put(entry.level, entry.key, b"of another format")
            if random.random() < 0.5:
                store.path(entry.level, entry.key).rename(path)


# ---- meanwhile


@contextmanager
def meanwhile(action: Callable[[], None]) -> Iterator[None]:
    """`action` over and over while the block runs."""
    done = Event()

    def repeat() -> None:
        while not done.is_set():
            action()
            time.sleep(0.001)

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def delete_something(random: Random, store: Store) -> None:
    """An entry, a folder, or all of it, while others use it."""
    doomed = random.choice((store.root.parent, store.root, store.unfinished, *entries(store)))
    shutil.rmtree(doomed, ignore_errors=True) if doomed.is_dir() else doomed.unlink(missing_ok=True)
