"""Imports go one way: frontend -> ir <- backend; pipeline joins them; parts without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BANNED = {"ir": ("frontend", "backend"), "backend": ("frontend",), "frontend": ("backend",)}
WITHOUT_TORCH = ("machine", "frame", "instructions", "protocols", "effects", "sources", "emit")


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_imports_go_one_way():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for package, banned in BANNED.items()
        for path in sorted((ROOT / "jitshape" / package).rglob("*.py"))
        for name in sorted(imports(path))
        for other in banned
        if name.startswith(f"jitshape.{other}")
    ]
    assert wrong == []


def test_the_machine_imports_without_torch():
    modules = ", ".join(f"jitshape.frontend.{name}" for name in WITHOUT_TORCH)
    code = f"import sys; sys.modules['torch'] = None; import {modules}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
