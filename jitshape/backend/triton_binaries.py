"""What Triton compiled, kept for later processes.

In: a source as Triton takes it, with its text.  Out: Triton's CompiledKernel, made by its compiler
or from the files that an earlier process got from it, which takes neither the compiler nor the
hash of the whole of Triton that its own cache needs.
Invariant: the key has all that Triton's own key has: text, signature, constants, divisibility,
target, options, the variables that Triton heeds; its version is part of the environment.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from jitshape.cache.store import Store

LEVEL = "kernel"  # of the store
METADATA = "json"


def compiled(
    source: Any, text: str, target: Any, options: Mapping[str, Any], store: Store | None
) -> Any:
    """`source` compiled for `target`; `text` is all of the program that it names."""
    import triton

    if store is None or _compiles_in_another_way():
        return triton.compile(source, target=target, options=dict(options))
    key = _key(source, text, target, options)
    found = store.get(LEVEL, key)
    if found is not None:
        kernel = _read(found, source, key)
        if kernel is not None:
            return kernel
    kernel = triton.compile(source, target=target, options=dict(options))
    store.put(LEVEL, key, _written(kernel))
    return kernel


def _compiles_in_another_way() -> bool:
    """Whether somebody looks at what Triton does, or changes it."""
    from triton import knobs

    ways = knobs.compilation
    changed = ways.override or ways.dump_ir or ways.always_compile or ways.use_ir_loc
    watched = ways.listener or knobs.runtime.add_stages_inspection_hook
    return bool(changed or watched)


def _key(source: Any, text: str, target: Any, options: Mapping[str, Any]) -> str:
    from triton._C.libtriton import get_cache_invalidating_env_vars

    code = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    constants = sorted((place, str(value)) for place, value in source.constants.items())
    variables = sorted(get_cache_invalidating_env_vars().items())
    facts = (code, list(source.signature.items()), constants, sorted(source.attrs.items()))
    return hashlib.sha256(
        repr((facts, str(target), sorted(options.items()), variables)).encode()
    ).hexdigest()


def _written(kernel: Any) -> bytes:
    """The files that Triton made of a kernel, by the ends of their names."""
    files = {Path(name).suffix[1:]: path for name, path in kernel.metadata_group.items()}
    return msgspec.msgpack.encode({end: Path(path).read_bytes() for end, path in files.items()})


def _read(data: bytes, source: Any, key: str) -> Any:
    """The kernel of these files, which Triton reads from a folder; None where that fails."""
    from triton.compiler import CompiledKernel

    try:
        files = msgspec.msgpack.decode(data, type=dict[str, bytes])
        with tempfile.TemporaryDirectory(prefix="jitshape-") as folder:
            group = {}
            for end, content in files.items():
                path = Path(folder, f"kernel.{end if end.isalnum() else 'other'}")
                path.write_bytes(content)
                group[path.name] = str(path)
            return CompiledKernel(source, group, key)
    except (msgspec.DecodeError, OSError):
        return None
