"""A program in three files, run again and again in processes of its own, each with one change.

    python variations.py FOLDER     prints one line of JSON for each variation

Each process is forked before anything was compiled, and imports the program's files anew.  The
first one fills the cache; of the others each has a copy of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

import torch

import jitshape
import jitshape.backend.jit
import jitshape.compiler  # what every child needs: with it and `start`, it is there when forked

MODEL = """
import enum
import inspect
import torch
import helpers
from helpers import Kind, scaled

BIAS = 0.5

class Base(torch.nn.Module):
    gain = 2.0
    def before(self, x):
        return x + 1

class Model(Base):
    def __init__(self, width=4):
        super().__init__()
        self.linear = torch.nn.Linear(width, 3)
        self.kind = Kind.TWICE
        self.offsets = [1.0, 2.0]

    def forward(self, x):
        h = torch.nn.functional.gelu(self.linear(self.before(x)))
        h = scaled(h) * self.gain + BIAS + self.offsets[0]
        h = helpers.added(h) + closed(h)
        h = h + torch.nn.functional.layer_norm(h, (3,), eps=1.0)
        h = h + torch.nn.functional.softmax(h, -1)
        if isinstance(self, helpers.Marker):
            h = h * 100
        if torch.backends.mha.get_fastpath_enabled():  # of a module of a class of its own
            h = h + len(inspect.signature(scaled).parameters)
        return h * self.kind.value

def make():
    by = 3.0
    def closed(h):
        return h * by
    return closed

closed = make()
"""
HELPERS = """
import collections
import enum

class Kind(enum.Enum):
    TWICE = 2.0

class Marker:
    pass

Pair = collections.namedtuple("Pair", "first second")
PAIR = Pair(0.75, 0.5)
OPTIONS = {"shift": 0.25}

def scaled(h, by=1.5):
    return h * by

def added(h, *, more=0.125):
    def inner(h):
        return h.sin()
    return inner(h) + OPTIONS["shift"] + more + PAIR.second
"""
EDITS = {  # name: (file, old, new)
    "the order of fields": ("helpers", '"first second"', '"second first"'),
    "a comment and moved lines": ("helpers", "import enum", "# nothing\n\nimport enum"),
    "a helper's code": ("helpers", "return h * by", "return h / by"),
    "code inside a helper": ("helpers", "h.sin()", "h.cos()"),
    "a default": ("helpers", "by=1.5", "by=1.25"),
    "a keyword default": ("helpers", "more=0.125", "more=0.5"),
    "a global's item": ("helpers", '"shift": 0.25', '"shift": 0.75'),
    "a member of an enumeration": ("helpers", "TWICE = 2.0", "TWICE = 4.0"),
    "a global": ("model", "BIAS = 0.5", "BIAS = 0.25"),
    "a closure": ("model", "by = 3.0", "by = 4.0"),
    "a class attribute": ("model", "gain = 2.0", "gain = 3.0"),
    "a method of a base": ("model", "return x + 1", "return x + 2"),
    "an override": ("model", "class Model(Base):", "class Model(Base):\n    gain = 5.0\n"),
    "another base": ("model", "class Model(Base):", "class Model(Base, helpers.Marker):"),
    "an attribute": ("model", "[1.0, 2.0]", "[1.5, 2.0]"),
    "the function itself": ("model", "+ BIAS +", "- BIAS +"),
    "a function of torch": ("model", "BIAS = 0.5", """
BIAS = 0.5
torch.nn.functional.gelu = lambda x: x.relu()
"""),
    "a function that torch's own name": ("model", "BIAS = 0.5", """
BIAS = 0.5
torch.layer_norm = lambda h, *rest: h.cos()
"""),
    "a method that torch's own name": ("model", "BIAS = 0.5", """
BIAS = 0.5
torch.Tensor.softmax = torch.Tensor.log_softmax
"""),
    "a helper that is disabled": (
        "helpers", "def added(", "import jitshape\n@jitshape.disable\ndef added("
    ),
}  # fmt: skip


def run(rows: int, prepare: str) -> dict:
    """In a child: the program, compiled and eager."""
    module = importlib.import_module("model")
    torch.manual_seed(0)
    width = 5 if prepare == "other weights" else 4
    model = module.Model(width)
    if prepare == "a hook":
        model.linear.register_forward_hook(lambda m, args, out: out * 2)
    if prepare == "double":
        torch.set_default_dtype(torch.float64)
    x = torch.linspace(-1, 1, rows * width, dtype=torch.float32).reshape(rows, width)
    with torch.set_grad_enabled(prepare != "no_grad"):
        compiled = jitshape.compile(model, dynamic=True)
        got, want = compiled(x), model(x)
        if prepare != "no_grad":
            got.sum().backward()
            mine = model.linear.weight.grad.clone()
            model.zero_grad()
            want.sum().backward()
            torch.testing.assert_close(mine, model.linear.weight.grad)
    torch.testing.assert_close(got, want)
    stats = jitshape.stats()
    return {
        "served": stats["cache"].get("entry", {}).get("hit", 0),
        "traced": "capture" in stats["seconds"],
        "details": stats["details"],
    }


def in_child(folder: Path, name: str, rows: int = 3, prepare: str = "") -> None:
    texts = {"model": MODEL, "helpers": HELPERS}
    if name in EDITS:
        file, old, new = EDITS[name]
        assert old in texts[file]
        texts[file] = texts[file].replace(old, new)
    own = folder / name.replace(" ", "_")
    own.mkdir()
    if name != "first":
        shutil.copytree(folder / "cache", own / "cache")
        os.environ["JITSHAPE_CACHE_DIR"] = str(own / "cache")
    for file, text in texts.items():
        (own / f"{file}.py").write_text(text)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        sys.path.insert(0, str(own))
        told = run(rows, prepare)
    except BaseException:
        told = {"error": traceback.format_exc()}
    print(json.dumps({"name": name, **told}), flush=True)
    os._exit(0)


def main() -> None:
    folder = Path(sys.argv[1])
    jitshape.compiler.start()
    torch.testing.assert_close(torch.ones(2), torch.ones(2))
    in_child(folder, "first")
    in_child(folder, "the same")
    in_child(folder, "other sizes", rows=7)
    for name in EDITS:
        in_child(folder, name)
    for name in ("a hook", "double", "no_grad", "other weights"):
        in_child(folder, name, prepare=name)


if __name__ == "__main__":
    main()
