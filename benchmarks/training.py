"""Training steps beside eager and torch.compile: time to the last size, steady state, memory.

    python benchmarks/training.py --out benchmarks/results/training
    python benchmarks/training.py --child cnn_bn jitshape          # one measurement, as JSON

Each (workload, system) runs in a process of its own with an empty cache folder.  Over the sizes
in order the loss and every gradient are compared with eager's; then eager and compiled steps are
timed in turn, size by size, in CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

ROUNDS, SECONDS = 5, 0.7  # of the steady state, at least and about, for each size


# ---------------------------------------------------------------- workloads


@dataclass(frozen=True)
class Workload:
    """`model` gives a loss; `inputs(size)` its arguments."""

    model: nn.Module
    inputs: Callable[[Any], tuple]
    sizes: Sequence[Any]
    tolerance: float = 2e-3


class Trivial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.w).sum()


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 32)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in itertools.pairwise(widths)
            )
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.layers(x).mean((2, 3))), target)


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.02)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Block(nn.Module):
    def __init__(self, width: int, heads: int, lora: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        make = (lambda a, b: LoraLinear(nn.Linear(a, b))) if lora else nn.Linear
        self.qkv, self.out, self.up, self.down = (make(a, b) for a, b in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(
        self, width: int = 128, layers: int = 4, lora: bool = False, checkpointed: bool = False
    ) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(256, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, 4, lora) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.checkpointed = checkpointed
        if lora:
            for part in (self.embed, self.places, self.norm, self.head):
                part.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Amp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.layers(x)
        return (y.float() - x).square().mean()


def _image(size: tuple[int, int]) -> tuple:
    batch, side = size
    return torch.randn(batch, 3, side, side), torch.randint(10, (batch,))


def _tokens(size: tuple[int, int]) -> tuple:
    return (torch.randint(256, size),)


IMAGES = ((4, 16), (8, 28), (6, 24), (10, 32), (3, 20), (12, 24))
TEXTS = ((2, 32), (4, 40), (3, 48), (6, 64), (5, 100), (4, 80))
ROWS = (16, 32, 48, 100, 128, 7)
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "trivial": lambda: Workload(Trivial(), lambda n: (torch.randn(n, 8),), (2, 3, 4, 5)),
    "cnn_bn": lambda: Workload(ConvNet(), _image, IMAGES),
    "gpt_lora": lambda: Workload(Transformer(lora=True), _tokens, TEXTS),
    "checkpointed": lambda: Workload(Transformer(checkpointed=True), _tokens, TEXTS),
    "amp_bf16": lambda: Workload(Amp(), lambda n: (torch.randn(n, 256),), ROWS, 5e-2),
}


# ---------------------------------------------------------------- systems


def compiler(system: str) -> tuple[Callable[[Any], Any], Callable[[], dict[str, Any]]]:
    """How a system compiles, and what it tells of it."""
    if system == "jitshape":
        import jitshape

        return jitshape.compile, jitshape.stats
    if system == "inductor":
        return torch.compile, dict
    return lambda model: model, dict


# ---------------------------------------------------------------- one measurement


def step(model: nn.Module, call: Callable, inputs: tuple) -> list[torch.Tensor]:
    """Loss and gradients of one training step."""
    for p in model.parameters():
        p.grad = None
    loss = call(*inputs)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def error(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    """The largest difference, beside the largest magnitude of its tensor."""
    assert [t.shape for t in expected] == [t.shape for t in found]
    floor = max(float(t.abs().max()) for t in expected[1:]) * 1e-3
    rows = zip(expected, found)
    return max(float((a - b).abs().max() / max(float(a.abs().max()), floor)) for a, b in rows)


def cpu_seconds() -> float:
    """Of this process and its children, running or done."""
    tick, total, parents = os.sysconf("SC_CLK_TCK"), 0.0, {os.getpid()}
    rows = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        rows[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / tick
    while parents:
        total += sum(rows[p][1] for p in parents if p in rows)
        parents = {p for p, (parent, _) in rows.items() if parent in parents}
    return total


def peak_bytes(model: nn.Module, call: Callable, inputs: tuple) -> int:
    """The most that ATen's allocator holds at once in a step, beyond what it held before."""
    held = most = 0
    model.zero_grad()
    with torch.profiler.profile(profile_memory=True) as profile:
        step(model, call, inputs)
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def measure(workload: str, system: str) -> dict[str, Any]:
    torch.manual_seed(0)
    case = WORKLOADS[workload]()
    reference = copy.deepcopy(case.model)
    arguments = [case.inputs(size) for size in case.sizes]
    compile_, stats = compiler(system)
    before, worst = cpu_seconds(), 0.0
    call = compile_(case.model)
    seconds = 0.0
    for inputs in arguments:
        start = cpu_seconds()
        found = step(case.model, call, inputs)
        seconds += cpu_seconds() - start
        worst = max(worst, error(step(reference, reference, inputs), found))
    steady, peaks = [], []
    for inputs in arguments:
        rows: list[tuple[float, float]] = []
        stop = time.perf_counter() + SECONDS
        while len(rows) < ROUNDS or time.perf_counter() < stop:
            a = time.process_time()
            step(reference, reference, inputs)
            b = time.process_time()
            step(case.model, call, inputs)
            rows.append((b - a, time.process_time() - b))
        steady.append([statistics.median(column) * 1e6 for column in zip(*rows)])
        both = ((reference, reference), (case.model, call))
        peaks.append([peak_bytes(model, run, inputs) for model, run in both])
    ratios = [eager / own for eager, own in steady]
    told = stats()
    return {
        "workload": workload,
        "system": system,
        "all_sizes_cpu_s": round(seconds, 2),
        "with_import_cpu_s": round(cpu_seconds() - before, 2),
        "steady_us": [[round(x, 1) for x in row] for row in steady],
        "speedup": round(statistics.geometric_mean(ratios), 3),
        "peak_of_eager": round(max(own / eager for eager, own in peaks if eager), 3),
        "error": worst,
        "right": worst <= case.tolerance,
        **{key: told.get(key) for key in ("compiles", "backward_compiles", "graph_breaks",
                                          "fallbacks", "kernels")},
    }  # fmt: skip


# ---------------------------------------------------------------- the driver


def run_child(workload: str, system: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
            "JITSHAPE_CACHE_DIR": f"{cache}/jitshape",
        }
        command = [sys.executable, __file__, "--child", workload, system]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=1200
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if lines:
        return json.loads(lines[-1].removeprefix("RESULT "))
    return {"workload": workload, "system": system, "failed": done.stderr.strip()[-300:]}


def table(rows: Sequence[dict[str, Any]], load: float) -> str:
    head = ("workload", "system", "all sizes, CPU s", "steady, of eager's speed", "peak, of eager",
            "error", "compiles", "backward compiles", "breaks", "kernels")  # fmt: skip
    keys = ("workload", "system", "all_sizes_cpu_s", "speedup", "peak_of_eager", "error",
            "compiles", "backward_compiles", "graph_breaks", "kernels")  # fmt: skip
    lines = [
        "# Training steps: forward and backward",
        "",
        f"torch {torch.__version__}, one thread, CPU; load of the machine {load:.1f} at the start.",
        "Made by `python benchmarks/training.py`.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['workload']} | {row['system']} | **failed** |")
            continue
        cells = [f"{row[k]:.1e}" if k == "error" else str(row[k]) for k in keys]
        lines.append(f"| {' | '.join('-' if cell == 'None' else cell for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", default="inductor,jitshape")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "SYSTEM"))
    options = parser.parse_args()
    if options.child:
        torch.set_num_threads(1)
        print("RESULT " + json.dumps(measure(*options.child)), flush=True)
        os._exit(0)  # without waiting for workers of a compiler
    load, rows = os.getloadavg()[0], []
    for workload in options.workloads.split(","):
        for system in options.systems.split(","):
            rows.append(run_child(workload, system))
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(table(rows, load))


if __name__ == "__main__":
    main()
