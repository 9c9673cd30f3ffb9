"""Programs in processes of their own that share a cache folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAST = """
import json as _json
print(_json.dumps({"result": told, "stats": jitshape.stats()}))
"""


def run(folder: Path, program: str, **variables: str) -> Any:
    """(what the program left in `told`, its stats), in a new process that runs it from a file of
    `folder`, where its cache is too.  A warning is an error."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program) + LAST)
    names = {"JITSHAPE_CACHE": "1", "JITSHAPE_CACHE_DIR": str(folder / "cache")}
    paths = f"{ROOT}{os.pathsep}{folder}"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(path)],
        env={**os.environ, "PYTHONPATH": paths, **names, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return found["result"], found["stats"]
