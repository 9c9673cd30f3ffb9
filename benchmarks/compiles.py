"""How often the workloads compile over their sizes, with `dynamic=None` and `dynamic=True`.

    python benchmarks/compiles.py FOLDER [--only bert,vit] [--out benchmarks/results/compiles]

FOLDER has a module `workloads` (`WORKLOADS[name]()` gives a case with target, inputs, shapes, train
and drive).  Each workload is compiled and called at all its sizes in order, in one process; no time
is taken.  `because`: what the later compiles were made for, of the nearest entry's guards, and the
line that made it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

import jitshape
from jitshape.observe.records import CompileRecord

COLUMNS = ("compiles", "recompiles", "backward_compiles", "graph_breaks", "fallbacks", "symbols")


def measure(make: Any, dynamic: bool | None) -> dict[str, Any]:
    """The counters after one call at each size."""
    jitshape.reset()
    torch.manual_seed(0)
    case = make()
    with torch.set_grad_enabled(case.train):
        compiled = jitshape.compile(case.target, dynamic=dynamic)
        for shape in case.shapes:
            case.drive(compiled, *case.inputs(*shape))
    stats, records = jitshape.stats(), jitshape.history()
    later = [r.failures for r in records if isinstance(r, CompileRecord) and r.failures]
    because = [f"{failures[0]}: `{failures[0].line}`" for failures in later]
    return {"sizes": len(case.shapes), **{k: stats[k] for k in COLUMNS}, "because": because}


def as_text(rows: list[dict[str, Any]]) -> str:
    head = ("workload", "dynamic", "sizes", *(c.replace("_", " ") for c in COLUMNS), "because")
    lines = [
        "Compiles over the sizes of each workload (benchmarks/compiles.py); "
        f"torch {torch.__version__}.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
    ]
    for row in rows:
        cells = [row["workload"], str(row["dynamic"]), *(row[c] for c in ("sizes", *COLUMNS))]
        lines.append(f"| {' | '.join(map(str, cells))} | {'; '.join(row['because'])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", default="benchmarks/results/compiles")
    given = parser.parse_args()
    sys.path.insert(0, str(given.folder))
    workloads = importlib.import_module("workloads").WORKLOADS
    names = [n for n in given.only.split(",") if n] or list(workloads)
    rows = []
    for name in names:
        for dynamic in (None, True):
            row = {"workload": name, "dynamic": dynamic, **measure(workloads[name], dynamic)}
            print({k: v for k, v in row.items() if k != "because"}, flush=True)
            rows.append(row)
            text = json.dumps(rows, indent=1)
            Path(f"{given.out}.json").write_text(f"{text}\n", encoding="utf-8")
            Path(f"{given.out}.md").write_text(as_text(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
