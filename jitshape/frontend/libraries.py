"""Which source files are Python's own or torch's, and not the user's.

In: a file name, as code objects have it.  Imports no torch.
"""

from __future__ import annotations

import functools
import importlib.util
import os

PYTHON = f"{os.path.dirname(os.__file__)}{os.sep}"


@functools.cache
def is_library(file: str) -> bool:
    """Whether a source file belongs to torch or to Python's own library."""
    if file.startswith("<frozen") or file.startswith(_torch()):
        return True
    return file.startswith(PYTHON) and "site-packages" not in file


@functools.cache
def _torch() -> str:
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return f"{folders[0]}{os.sep}" if folders else "<no torch>"
