"""jitshape: a bytecode-level JIT compiler for PyTorch programs whose shapes change.

    @jitshape.compile
    def f(x, y): ...

`import jitshape` loads no torch; the first use does.
"""

from __future__ import annotations

import time

from jitshape.api import (
    allow_in_graph,
    compile,
    disable,
    explain,
    history,
    is_compiling,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
    reset,
    set_logs,
    set_stance,
    stats,
)
from jitshape.dims import Dim

__version__ = "0.1.0"
IMPORTED_AT = time.time()  # files of jitshape that change later are not the code that runs
__all__ = [
    "Dim",
    "allow_in_graph",
    "compile",
    "disable",
    "explain",
    "history",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "reset",
    "set_logs",
    "set_stance",
    "stats",
]
