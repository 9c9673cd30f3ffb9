"""What a first trace costs: a small transformer, forward and backward, each time in a new process.

    python benchmarks/tracing.py [--runs 5] [--out benchmarks/results/tracing]

BERT of 4 layers (hidden size 64), traced with static and with symbolic sizes.  Times are CPU
seconds of the tracing thread, the median over fresh processes: `capture` is the machine with the
recording of forward, `joint` the recording of backward, `prover` the part of both that questions
about sizes take, `whole` all stages of the compile but code generation (backend="eager").
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

STAGES = ("capture", "joint", "prover", "whole")
MODES = {"static sizes": False, "symbolic sizes": True}


def measure(mode: bool) -> dict[str, Any]:
    """One compile in this process."""
    from transformers import BertConfig, BertModel

    import jitshape

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=100,
        max_position_embeddings=64,
    )
    model = jitshape.compile(BertModel(config).eval(), dynamic=mode, backend="eager")
    model(torch.randint(0, 100, (2, 17))).last_hidden_state.sum().backward()
    stats = jitshape.stats()
    seconds = stats["seconds"]
    whole = sum(value for stage, value in seconds.items() if stage != "prover")
    found = {stage: seconds.get(stage, 0.0) for stage in STAGES} | {"whole": whole}
    return found | {name: stats[name] for name in ("symbols", "guards", "compiles")}


def in_fresh_process(mode: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(int(mode))]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def table(rows: dict[str, dict[str, Any]]) -> str:
    columns = [*STAGES, "symbols", "guards"]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = [f"{row[c]:.3f}" if c in STAGES else str(row[c]) for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    first, second = (row["capture"] + row["joint"] for row in rows.values())
    lines.append(f"\nTracing with symbolic sizes takes {second / first:.2f} times as long.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(measure(bool(options.child))))
        return
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in MODES}
    for _ in range(options.runs):  # in turn, so that a busy machine slows all alike
        for name, mode in MODES.items():
            runs[name].append(in_fresh_process(mode))
    rows = {
        name: {key: statistics.median(run[key] for run in found) for key in found[0]}
        for name, found in runs.items()
    }
    text = table(rows)
    print(text)
    if options.out:
        about = {"torch": torch.__version__, "load": os.getloadavg()[0], "runs": options.runs}
        record = json.dumps({"about": about, "rows": rows}, indent=1)
        options.out.with_suffix(".json").write_text(record + "\n")
        options.out.with_suffix(".md").write_text(
            f"CPU seconds, median of {options.runs} fresh processes; torch {torch.__version__}.\n\n"
            f"{text}\n"
        )


if __name__ == "__main__":
    main()
