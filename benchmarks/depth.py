"""What each further layer of a GPT costs to compile: jitshape beside torch.compile.

    python benchmarks/depth.py --out benchmarks/results/depth

A GPT of 2 and one of 12 layers, called at two sizes, in a fresh process each with empty caches.
Cold cost is the CPU time of these calls, that of child processes included, less eager's for the
same calls.  The marginal cost of a layer is the difference of both models over ten layers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, VOCABULARY = 64, 4, 256
SIZES = ((2, 24), (3, 40))  # batch, sequence
DEPTHS = (2, 12)
SYSTEMS = ("jitshape", "inductor")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        rows = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*rows, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(128, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def cpu_seconds() -> float:
    usage = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def measure(system: str, depth: int, train: bool) -> dict[str, float]:
    """In this process: cold CPU seconds of one pair of system and depth."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(depth)

    def calls(function: Callable) -> tuple[float, list[float]]:
        start, losses = cpu_seconds(), []
        for size in SIZES:
            generator = torch.Generator().manual_seed(size[1])
            ids, targets = torch.randint(VOCABULARY, (2, *size), generator=generator)
            with torch.set_grad_enabled(train):
                loss = function(ids, targets)
            if train:
                loss.backward()
                model.zero_grad()
            losses.append(loss.item())
        return cpu_seconds() - start, losses

    calls(model)
    eager, wanted = calls(model)
    if system == "jitshape":
        import jitshape

        compiled = jitshape.compile(model)
    else:
        compiled = torch.compile(model, backend=system)
    spent, losses = calls(compiled)
    torch.testing.assert_close(losses, wanted, rtol=1e-4, atol=1e-4)
    return {"cold": round(spent - eager, 2), "eager": round(eager, 3)}


def in_process(system: str, depth: int, train: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        caches = {"JITSHAPE_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--one", system, str(depth), str(int(train))]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **caches})
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: dict[str, dict[str, float]]) -> str:
    lines = ["| | 2 layers, s | 12 layers, s | one more layer, s |", "|---|---|---|---|"]
    for item in ("infer", "train"):
        each = {}
        for system in SYSTEMS:
            found = [rows.get(f"{system}/{item}/{depth}") for depth in DEPTHS]
            if None in found:
                continue
            few, many = (row["cold"] for row in found if row)
            each[system] = (many - few) / (DEPTHS[1] - DEPTHS[0])
            lines.append(f"| {system}, {item} | {few} | {many} | {each[system]:.3f} |")
        if len(each) == len(SYSTEMS):
            lines.append(f"| ratio, {item} | | | {each['jitshape'] / each['inductor']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "DEPTH", "TRAIN"))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--items", default="infer,train")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one:
        system, depth, train = options.one
        print(json.dumps(measure(system, int(depth), train == "1")))
        return
    kept = options.out and options.out.with_suffix(".json")
    rows = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for item in options.items.split(","):
        for system in options.systems.split(","):
            for depth in DEPTHS:
                name = f"{system}/{item}/{depth}"
                if name not in rows:
                    rows[name] = in_process(system, depth, item == "train")
                    print(name, rows[name], flush=True)
                if kept:
                    kept.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    if options.out:
        command = f"    python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
        options.out.with_suffix(".md").write_text(f"{command}\n\n{table(rows)}\n")


if __name__ == "__main__":
    main()
