"""What the disk store saves, in CPU seconds of a first call: cold, with nothing but kernels from
the store (as where a program changed a little), with everything from the store.

    python benchmarks/store.py [--repeat 3] [--out benchmarks/results/store.md]

Each run is a process of its own; medians; imports are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from jitshape.cache import eviction, files
from jitshape.cache.store import ENTRIES

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import json, sys, time
import torch
from torch import nn
import torch.nn.functional as F
import jitshape, jitshape.compiler, jitshape.backend.jit, jitshape.cache.environment


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v)
        return x + self.down(F.gelu(self.up(self.second(x))))


def blocks(count):
    return nn.Sequential(*[Block() for _ in range(count)]), torch.rand(2, 9, 64), False


def mlp(count):
    layers = [part for _ in range(count) for part in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.LayerNorm(64)), torch.rand(9, 64), True


def norm(count):
    parts = [nn.LayerNorm(64), nn.GELU(), nn.Softmax(-1)]
    return nn.Sequential(*parts[:count]), torch.rand(9, 64), False


torch.manual_seed(0)
torch.set_num_threads(1)
model, x, trains = globals()[sys.argv[1]](int(sys.argv[2]))
compiled = jitshape.compile(model, dynamic=True)
start = time.thread_time()
result = compiled(x)
if trains:
    result.sum().backward()
spent = time.thread_time() - start
torch.testing.assert_close(result, model(x))
print(json.dumps([spent, jitshape.stats()["seconds"], jitshape.stats()["cache"]]))
"""
PROGRAMS = (("norm", 3), ("mlp", 4), ("blocks", 1), ("blocks", 6))


def run(cache: Path, name: str, count: int) -> tuple[float, dict, dict]:
    """(CPU seconds, of them by stage, hits and misses by level) of one process."""
    file = cache.parent / "program.py"
    file.write_text(PROGRAM)
    names = {"JITSHAPE_CACHE": "1", "JITSHAPE_CACHE_DIR": str(cache), "JITSHAPE_PROFILE": "0"}
    done = subprocess.run(
        [sys.executable, str(file), name, str(count)],
        env={**os.environ, **names, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(json.loads(done.stdout))


def measure(name: str, count: int) -> tuple[float, float, float, float, float]:
    """Seconds: cold, its generate stage; kernels from the store, its generate stage; all."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        cold, stages, _ = run(cache, name, count)
        for kept in eviction.kept(cache / ENTRIES):
            if files.parse(kept.path.read_bytes()).level != "kernel":
                kept.path.unlink()
        linked, linked_stages, levels = run(cache, name, count)
        assert levels["kernel"]["miss"] == levels["program"]["hit"] == 0, levels
        warm, _, levels = run(cache, name, count)
        assert levels["program"] == {"hit": 1, "miss": 0}, levels
    return cold, stages["generate"], linked, linked_stages["generate"], warm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [
        "| program | cold | of it generate | kernels found | of it generate | all found |",
        "|---|---|---|---|---|---|",
    ]
    for name, count in PROGRAMS:
        runs = [measure(name, count) for _ in range(options.repeat)]
        middle = [statistics.median(column) for column in zip(*runs)]
        rows.append(f"| {name} {count} | " + " | ".join(f"{s:.3f}" for s in middle) + " |")
        print(rows[-1], flush=True)
    text = "CPU seconds of the first call (`python benchmarks/store.py`):\n\n" + "\n".join(rows)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
