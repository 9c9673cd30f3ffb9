"""Where the CPU time of a first call goes, and what a second process saves; 24 layers beside 6.

    python benchmarks/warm.py [--runs 3] [--bench FOLDER] [--out benchmarks/results/warm]

FOLDER has a workloads.py, whose workloads are measured instead.

Each measurement is a process of its own, with one thread: `cold` with an empty cache folder, `warm`
with the folder that a cold one left, `traced` with that folder less the entries, so that the
function is traced and finds its program.  Figures are CPU seconds of the first call (with
backward, where the workload trains), the median over runs, after an eager call, with jitshape's
modules loaded and the heap frozen, so that neither imports nor a collection of what they left
count.  Columns behind `call` are stages of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

STAGES = (
    "warm",
    "capture",
    "joint",
    "load",
    "optimize",
    "partition",
    "generate",
    "publish",
    "keep",
)
KINDS = ("cold", "traced", "warm")
DEPTHS = (6, 24)


class Norm(nn.Module):
    """Layer norm, gelu, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.norm(x + y))


def bert() -> tuple[nn.Module, tuple]:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(intermediate_size=128, vocab_size=512, **sizes)
    return BertModel(config).eval(), (torch.randint(1, 512, (2, 32)),)


def gpt2() -> tuple[nn.Module, tuple]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=512, use_cache=False)
    return GPT2Model(config).eval(), (torch.randint(1, 512, (2, 32)),)


def mlp_train() -> tuple[nn.Module, tuple]:
    layers = nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    return nn.Sequential(*layers), (torch.rand(32, 64),)


def norm() -> tuple[nn.Module, tuple]:
    return Norm(), (torch.rand(2, 32, 64), torch.rand(2, 32, 64))


def encoder(layers: int) -> Callable[[], tuple[nn.Module, tuple]]:
    def make() -> tuple[nn.Module, tuple]:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, layers).train(), (torch.rand(2, 32, 64),)

    return make


WORKLOADS = {"bert": bert, "gpt2": gpt2, "mlp_train": mlp_train, "norm": norm} | {
    f"encoder of {layers}": encoder(layers) for layers in DEPTHS
}


def of_bench(name: str, folder: Path) -> tuple[Any, tuple, Callable[..., Any], bool]:
    """Target, arguments of its first call, what calls it, whether it trains."""
    sys.path.insert(0, str(folder))
    import workloads  # type: ignore[import-not-found]

    case = workloads.WORKLOADS[name]()
    return case.target, case.inputs(*case.shapes[0]), case.drive, case.train


def own(name: str) -> tuple[Any, tuple, Callable[..., Any], bool]:
    def drive(f: Callable[..., Any], *inputs: Any) -> None:
        result = f(*inputs)
        if name == "mlp_train":
            result.sum().backward()

    return *WORKLOADS[name](), drive, name == "mlp_train"


def measure(name: str, bench: Path | None) -> dict[str, Any]:
    """One first call in this process."""
    import jitshape
    import jitshape.backend.jit
    import jitshape.compiler

    torch.manual_seed(0)
    model, inputs, drive, train = own(name) if bench is None else of_bench(name, bench)
    jitshape.compiler.start()
    compiled = jitshape.compile(model)

    def call(f: Callable[..., Any]) -> None:
        drive(f, *inputs)

    with torch.set_grad_enabled(train):
        call(model)
        gc.collect()
        gc.freeze()
        start = time.process_time()
        call(compiled)
        seconds = time.process_time() - start
    stats = jitshape.stats()
    found = {stage: stats["seconds"].get(stage, 0.0) for stage in STAGES}
    return {"call": seconds, **found, "traced": "capture" in stats["seconds"], "why": _why(stats)}


def _why(stats: dict[str, Any]) -> str:
    """Why no entry served, or is kept for later processes."""
    reasons = {**stats["details"].get("entry_misses", {}), **stats["details"].get("not_kept", {})}
    return "; ".join(reasons)


def in_process(name: str, bench: Path | None, folder: Path, entries: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name]
    if bench is not None:
        command += ["--bench", str(bench)]
    variables = {"JITSHAPE_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    if not entries:  # another policy of sizes that changes nothing: entries of it are not there
        variables["JITSHAPE_STATIC_SOURCES"] = "no source has this name"
    environment = {**os.environ, **variables}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(output.stdout.splitlines()[-1])


def run(name: str, bench: Path | None) -> dict[str, dict[str, Any]]:
    """Of one empty folder: the cold process, and those that find what it left."""
    with tempfile.TemporaryDirectory() as folder:
        return {
            "cold": in_process(name, bench, Path(folder), True),
            "warm": in_process(name, bench, Path(folder), True),
            "traced": in_process(name, bench, Path(folder), False),
        }


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    figures = {k: statistics.median(row[k] for row in rows) for k in ("call", *STAGES)}
    return {**figures, "traced": rows[0]["traced"], "why": rows[0]["why"]}


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [f"| | | call | {' | '.join(STAGES)} | of cold |", "|---" * (len(STAGES) + 4) + "|"]
    for name, kinds in found.items():
        for kind in KINDS:
            row = kinds[kind]
            cells = " | ".join(f"{row[s] * 1000:.0f}" if row[s] else "" for s in STAGES)
            share = "" if kind == "cold" else f"{row['call'] / kinds['cold']['call']:.2f}"
            shown = f"{kind}, traced" if kind == "warm" and row["traced"] else kind
            lines.append(f"| {name} | {shown} | {row['call'] * 1000:.0f} | {cells} | {share} |")
    depths = [found.get(f"encoder of {layers}") for layers in DEPTHS]
    if all(depths):
        small, large = (kinds["cold"]["call"] for kinds in depths)  # type: ignore[index]
        lines.append(f"\n{DEPTHS[1]} layers take {large / small:.2f} times as long as {DEPTHS[0]}.")
    reasons = {
        f"{name}: {kinds['cold']['why']}" for name, kinds in found.items() if kinds["cold"]["why"]
    }
    return "\n".join([*lines, *(f"\nNot kept: {reason}" for reason in sorted(reasons))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(measure(options.child, options.bench)))
        return
    found = {}
    for name in options.only.split(","):
        runs = [run(name, options.bench) for _ in range(options.runs)]
        found[name] = {kind: median([one[kind] for one in runs]) for kind in KINDS}
    text = table(found)
    print(text)
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        head = "CPU milliseconds of a first call: `python benchmarks/warm.py`\n\n"
        options.out.with_suffix(".md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
