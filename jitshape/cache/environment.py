"""What every entry of the store depends on, whatever it holds.

In: this process.  Out: `environment_key()`, equal where what one process compiled serves another.
Invariant: two processes with equal keys run the same jitshape, torch, Triton, LLVM and Python on
processors that are the same to a compiler, under the same settings that change numbers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

import torch

import jitshape
from jitshape.backend.host import llvm_facts
from jitshape.backend.runtime import openmp
from jitshape.cache import files, folder
from jitshape.cache.files import FORMAT_VERSION

RACE = 10.0  # seconds
SOURCES = (".py", ".pyc", ".c", ".h", ".so")
# Settings of other projects that change what is compiled or computed.
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_INTERPRET",
)


Sources = list[tuple[str, os.stat_result]]


def environment_key(store: Path | None = None, found: Sources | None = None) -> str:
    """64 hexadecimal digits, the same in every process that may share entries with this one.
    `store`, a folder that can be trusted, saves reading all sources, and `found`, `sources()`,
    looking for them.  Raises OSError."""
    return hashlib.sha256(json.dumps(environment_facts(store, found)).encode()).hexdigest()


def environment_facts(store: Path | None = None, found: Sources | None = None) -> dict[str, str]:
    """What the key is made of, by name.  Raises OSError."""
    changing = dict(zip(VARIABLES, environment_settings()))
    return {"jitshape": sources_digest(store, found), **_lasting(), **changing}


def environment_settings() -> tuple[str, ...]:
    """The facts that may change while the process lives: the values of VARIABLES."""
    return tuple(os.environ.get(name, "") for name in VARIABLES)


@functools.cache
def _lasting() -> dict[str, str]:
    """The facts that stay while the process lives."""
    llvm, processor = llvm_facts()
    return {
        "format": str(FORMAT_VERSION),
        "python": f"{sys.version} {MAGIC_NUMBER.hex()} {sys.byteorder}",
        "torch": f"{torch.__version__} {torch.version.git_version} {torch.version.cuda}",
        "aten": torch.backends.cpu.get_cpu_capability(),
        "triton": _triton(),
        "llvm": llvm,
        "openmp": " ".join(sorted(openmp())),
        "processor": processor,
    }


# ---- jitshape's own files


def sources_digest(store: Path | None = None, found: Sources | None = None) -> str:
    """Of their content; `found`: `sources()`.  `store` remembers it for files that have the same
    times, sizes and inodes; a change within RACE seconds, which a coarse clock may hide, is not
    remembered.  Raises OSError."""
    looked = sources() if found is None else found
    state = [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in looked]
    known = None if store is None else _Remembered(store, repr(state))
    digest = None if known is None else known.read()
    if digest is None:
        digest = _digest([name for name, _ in looked])
        newest = max((s.st_ctime for _, s in looked), default=0.0)
        if known is not None and newest < time.time() - RACE:
            known.write(digest)
    return digest


def _digest(names: list[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        with open(os.path.join(_root(), name), "rb", buffering=0) as file:
            content = file.readall()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


class _Remembered:
    """The digest of files in this state, in the store's folder."""

    def __init__(self, store: Path, state: str) -> None:
        self.folder, self.state = store, hashlib.sha256(state.encode()).hexdigest()
        self.path = store / "sources"

    def read(self) -> str | None:
        try:
            entry = files.parse(files.read(self.path)[0])
        except (OSError, files.Damaged):
            return None
        same = entry.level == "sources" and entry.key == self.state
        return entry.data.decode() if same else None

    def write(self, digest: str) -> None:
        entry = files.Entry("sources", self.state, digest, digest.encode())
        with suppress(OSError):  # as where the store is not made yet
            folder.write_whole(self.path, files.assemble(entry), self.folder)


def sources_fault(found: Sources) -> str | None:
    """Why the files on disk may not be the code that runs here: they are not to be found, or one
    changed after it was loaded, or its time lies ahead, which looks the same."""
    for name, state in found:
        if state.st_ctime > jitshape.IMPORTED_AT:
            return f"{name} changed after this process loaded jitshape"
    return None if found else f"the sources of jitshape are not in {_root()}"


def _root() -> str:
    return os.path.dirname(jitshape.__file__)


def sources() -> Sources:
    """What Python loads, and what it was built from, by their names below `_root()`.  Raises
    OSError."""
    found: Sources = []
    folders = [""]
    while folders:
        below = folders.pop()
        with os.scandir(os.path.join(_root(), below)) as entries:
            for entry in entries:
                name = f"{below}{entry.name}"
                if entry.name.endswith(SOURCES):
                    found.append((name, entry.stat()))
                elif entry.name != "__pycache__" and entry.is_dir():
                    folders.append(f"{name}/")
    return sorted(found, key=lambda each: each[0])


def _triton() -> str:
    """Its own words for its version; importing it, or asking for its metadata, takes 50 ms."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
