"""Generated Python as functions.

In: text, and the names that it uses.  Out: what it defines; tracebacks show its lines.
Invariant: both are freed with what was defined: it is no part of a cycle, and the lines go.
"""

from __future__ import annotations

import linecache
import weakref
from typing import Any


def defined(text: str, name: str, names: dict[str, Any], file: str) -> Any:
    """What `text` defines as `name`; `names` become its globals."""
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec"), names)
    made = names.pop(name)
    weakref.finalize(made, linecache.cache.pop, file, None).atexit = False
    return made
