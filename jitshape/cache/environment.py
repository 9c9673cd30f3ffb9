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
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path

import llvmlite
import torch

import jitshape
from jitshape.backend.host import host, llvm_version
from jitshape.backend.runtime import openmp
from jitshape.cache.files import FORMAT_VERSION

SOURCES = (".py", ".pyc", ".c", ".h", ".so")
# Settings of other projects that change what is compiled or computed.
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_INTERPRET",
)


def environment_key() -> str:
    """64 hexadecimal digits, the same in every process that may share entries with this one."""
    return hashlib.sha256(json.dumps(environment_facts()).encode()).hexdigest()


def environment_facts() -> dict[str, str]:
    """What the key is made of, by name."""
    return {**_lasting(), **dict(zip(VARIABLES, environment_settings()))}


def environment_settings() -> tuple[str, ...]:
    """The facts that may change while the process lives: the values of VARIABLES."""
    return tuple(os.environ.get(name, "") for name in VARIABLES)


@functools.cache
def _lasting() -> dict[str, str]:
    """The facts that stay while the process lives."""
    processor = host()
    return {
        "format": str(FORMAT_VERSION),
        "jitshape": sources_digest(),
        "python": f"{sys.version} {MAGIC_NUMBER.hex()} {sys.byteorder}",
        "torch": f"{torch.__version__} {torch.version.git_version} {torch.version.cuda}",
        "aten": torch.backends.cpu.get_cpu_capability(),
        "triton": _triton(),
        "llvm": f"{llvmlite.__version__} {llvm_version()}",
        "openmp": " ".join(sorted(openmp())),
        "processor": f"{processor.triple} {processor.name} {processor.features}",
    }


def sources_digest() -> str:
    """Of the content of jitshape's own files.  Raises OSError."""
    digest = hashlib.sha256()
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_root())}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def sources_fault() -> str | None:
    """Why the files on disk may not be the code that runs here: they are not to be found, or one
    changed after it was loaded, or its time lies ahead, which looks the same."""
    for path in _sources():
        if path.stat().st_ctime > jitshape.IMPORTED_AT:
            return f"{path} changed after this process loaded jitshape"
    return None if _sources() else f"the sources of jitshape are not in {_root()}"


def _root() -> Path:
    return Path(jitshape.__file__).parent


def _sources() -> list[Path]:
    """What Python loads, and what it was built from."""
    found: list[Path] = []
    for folder, below, names in os.walk(_root()):
        if "__pycache__" in below:
            below.remove("__pycache__")
        found += [Path(folder, name) for name in names if name.endswith(SOURCES)]
    return sorted(found)


def _triton() -> str:
    """Its own words for its version; importing it, or asking for its metadata, takes 50 ms."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
