"""Models of transformers, timm and torch_geometric: what is right, how many graphs, what it costs.

    python benchmarks/models.py --suite ../shared/conformance --out benchmarks/results/models
    python benchmarks/models.py --suite ../shared/conformance --only hf/gpt2 --quick

The suite (models.py there) builds tiny models with random weights and says what is compared: the
outputs in eval mode, and loss and gradients of a training step, at two sizes each.  Each item runs
in a process of its own, forked from one that has imported the libraries.  `--quick` leaves out
steady state and memory; `--gpus sm_80,sm_90,gfx942` adds how many binaries Triton makes of the
kernels for these GPUs, and the names of those that spill registers; `--out` keeps finished items,
so that the same command goes on from there.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import re
import select
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import jitshape
from jitshape.backend.compile import watched_kernels
from jitshape.backend.quality import unique_qualities

ITEMS = ("infer", "train")
LIBRARIES = {"hf": "transformers", "timm": "timm", "pyg": "torch_geometric.nn"}
ROUNDS = 5  # of the steady state, for each size
COUNTS = ("compiles", "graphs", "graph_breaks", "fallbacks", "symbols", "guards", "kernels")


# ---------------------------------------------------------------- one item, in its own process


def measure(
    suite: Any, kind: str, model_name: str, item: str, quick: bool, gpus: Sequence[str]
) -> dict[str, Any]:
    """One model and item: status, counters, and unless `quick` steady state and memory."""
    systems, train = suite.systems, item == "train"
    try:
        model, call, inputs = suite.BUILD[kind](model_name)
    except Exception as error:
        return {"status": "skip", "detail": f"not built: {error}"}
    without_dropout(model)
    state = copy.deepcopy(model.state_dict())
    model.train(train)

    def run(function: Callable[..., Any]) -> list[Any]:
        model.load_state_dict(state)
        return [suite.tensors(suite.step(function, model, inputs(i), train)) for i in (0, 1)]

    try:
        wanted = run(call)
        if systems.differs(run(call), wanted):
            return {"status": "skip", "detail": "eager is random"}
    except Exception as error:
        return {"status": "skip", "detail": f"eager fails: {error}"}
    jitshape.reset()
    compiled = jitshape.compile(lambda model, x: call(model, x))
    start = time.thread_time()
    kernels: list[Any] = []
    try:
        with watched_kernels() as kernels:
            results = run(compiled)
        difference = systems.differs(results, wanted, tol=(1e-3, 1e-4))
        found = {"status": "wrong", "detail": difference} if difference else {"status": "pass"}
    except Exception as error:
        found = {"status": "error", "detail": f"{type(error).__name__}: {error}"}
    found["seconds"] = round(time.thread_time() - start, 2)
    found |= counted(jitshape.stats())
    if found["status"] == "wrong" and as_near(results, wanted, lambda: run(in_double(call, model))):
        found["status"] = "rounding"
    if gpus:
        found |= on_gpus(kernels, gpus)
    if found["status"] == "pass" and not quick:
        steps = [partial(one_step, suite, model, inputs(i), train) for i in (0, 1)]
        found |= steady(steps, call, compiled) | memory(steps, call, compiled)
    return found


def one_step(suite: Any, model: Any, inputs: Any, train: bool, function: Callable) -> Any:
    return suite.step(function, model, inputs, train)


def in_double(call: Callable[..., Any], model: torch.nn.Module) -> Callable[..., Any]:
    """`call` in double precision."""

    def double(item: Any) -> Any:
        is_float = isinstance(item, torch.Tensor) and item.is_floating_point()
        return item.double() if is_float else item

    model.double()
    return lambda model, x: call(model, tree_map(double, x))


def as_near(results: Any, wanted: Any, exact: Callable[[], Any]) -> bool:
    """Whether every result is about as near to double precision as eager's: where a gradient is
    a sum of terms that cancel, none of its digits are right."""

    def pairs(found: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for one, other in zip(tree_leaves(found), reference, strict=True):
            if isinstance(other, torch.Tensor):
                yield one.double(), other.double()

    try:
        reference = tree_leaves(exact())
    except Exception:  # the model insists on single precision
        return False
    errors, eager = ([(a - b).abs().max() for a, b in pairs(f)] for f in (results, wanted))
    return all(bool(a <= 4 * b + 1e-4) for a, b in zip(errors, eager, strict=True))


def without_dropout(model: torch.nn.Module) -> None:
    for module in model.modules():
        if "Dropout" in type(module).__name__ and hasattr(module, "p"):
            module.p = 0.0


def counted(stats: dict[str, Any]) -> dict[str, Any]:
    """What the table shows of `jitshape.stats()`, with reasons."""
    details = stats["details"]
    compiling = sum(s for name, s in stats["seconds"].items() if name != "prover")
    return {
        **{name: stats[name] for name in COUNTS},
        "compile_seconds": round(compiling, 2),
        "externs": sum(stats["extern_ops"].values()),
        "break_reasons": details.get("break_reasons", {}),
        "fallback_reasons": details.get("fallback_reasons", {}),
    }


def on_gpus(kernels: Sequence[Any], gpus: Sequence[str]) -> dict[str, Any]:
    """What Triton makes of the kernels ahead of time."""
    binaries = unique_qualities(kernels, gpus)
    spilling = {f"{b.kernel} {b.target} {b.spilled}" for b in binaries if b.spilled}
    return {"binaries": len(binaries), "spilling": sorted(spilling)}


def steady(steps: list[Callable], call: Any, compiled: Any) -> dict[str, Any]:
    """How many times faster compiled calls are, size by size in turn with eager's; CPU seconds."""
    ratios = []
    for step in steps:
        took: dict[Any, list[float]] = {call: [], compiled: []}
        for _ in range(ROUNDS):
            for function, times in took.items():
                start = time.thread_time()
                step(function)
                times.append(time.thread_time() - start)
        ratios.append(statistics.median(took[call]) / statistics.median(took[compiled]))
    return {"speedup": round(statistics.geometric_mean(ratios), 2)}


def memory(steps: list[Callable], call: Any, compiled: Any) -> dict[str, Any]:
    """Peak of what a step at the second size allocates, in MB; eager's beside it."""
    peaks = [peak_bytes(partial(steps[1], function)) / 1e6 for function in (compiled, call)]
    return {"peak": round(peaks[0], 2), "peak_eager": round(peaks[1], 2)}


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most bytes that `run` held at a time, from the profiler's memory events."""
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    level = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


# ---------------------------------------------------------------- processes


def in_fork(work: Callable[[], dict[str, Any]], timeout: float) -> dict[str, Any]:
    """What `work` returns, run in a forked process; a crash or time-out is a result too."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            with tempfile.TemporaryDirectory() as folder:  # nothing is known from other items
                os.environ["JITSHAPE_CACHE_DIR"] = folder
                result = work()
        except BaseException as error:
            result = {"status": "error", "detail": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(result, default=str).encode())
        os._exit(0)
    os.close(writing)
    text, end = b"", time.monotonic() + timeout
    while select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            break
        text += chunk
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    status = os.waitpid(child, 0)[1]
    if text:
        return json.loads(text)
    late = time.monotonic() >= end
    return {"status": "timeout" if late else "crash", "detail": f"wait status {status}"}


def load_suite(folder: Path) -> Any:
    """The suite's models.py, with what its models import."""
    sys.path.insert(0, str(folder))
    import models as suite  # type: ignore[import-not-found]  # the folder's, not this file

    suite.systems.quiet()
    return suite


def load_library(suite: Any, kind: str) -> None:
    """Import it once for all its models, and none of the others before it is needed: what stands
    in for torchvision where there is none, for timm, would be found by transformers."""
    if kind == "timm":
        suite.timm_shim()
    importlib.import_module(LIBRARIES[kind])


def choose(suite: Any, options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    for kind in options.kinds.split(","):
        load_library(suite, kind)
        for place, name in enumerate(suite.names(kind)):
            if place % options.every == options.first and re.search(options.only, f"{kind}/{name}"):
                yield from ((kind, name, item) for item in options.items.split(","))


# ---------------------------------------------------------------- the table


def table(rows: dict[str, dict[str, Any]]) -> str:
    names = ("status", *COUNTS, "externs", "compile_seconds", "speedup", "peak", "peak_eager")
    lines = [f"| model | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, row in rows.items():
        cells = (str(row.get(column, "")) for column in names)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(rows: dict[str, dict[str, Any]]) -> str:
    """Shares of what eager can run, then failures, breaks and fallbacks by reason."""
    lines = []
    for item in ITEMS:
        known = [r for n, r in rows.items() if n.endswith(item) and r["status"] != "skip"]
        if not known:
            continue
        states = ", ".join(f"{k} {v}" for k, v in Counter(r["status"] for r in known).items())
        whole = sum(
            row["status"] == "pass" and not row["graph_breaks"] and not row["fallbacks"]
            for row in known
        )
        lines.append(f"- {item}: {states}; {whole} of {len(known)} in whole graphs")
        speeds = [r["speedup"] for r in known if "speedup" in r]
        if speeds:
            mean = statistics.geometric_mean(speeds)
            lines.append(f"- {item}: {mean:.2f} times eager's speed, {min(speeds):.2f} at least")
    binaries = sum(row.get("binaries", 0) for row in rows.values())
    if binaries:
        spilling = sum(len(row.get("spilling", ())) for row in rows.values())
        lines.append(f"- binaries for GPUs: {binaries}, of which {spilling} spill registers")
    reasons: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row["status"] not in ("pass", "skip"):
            reasons.setdefault(f"{row['status']}: {row['detail'].splitlines()[0]}", []).append(name)
        for group in ("break_reasons", "fallback_reasons"):
            for reason in row.get(group, {}):
                reasons.setdefault(f"{group.split('_')[0]}: {reason}", []).append(name)
    lines.append("")
    for reason, names in sorted(reasons.items(), key=lambda pair: -len(pair[1])):
        lines.append(f"- {len(names)} × {reason[:300]} ({', '.join(names[:6])})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--suite", type=Path, required=True, help="folder of the model suite")
    parser.add_argument("--kinds", default="hf,timm,pyg")
    parser.add_argument("--items", default=",".join(ITEMS))
    parser.add_argument("--only", default="", help="regular expression on kind/name")
    parser.add_argument("--every", type=int, default=1, help="every nth model of a kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gpus", default="", help="sm_80, sm_90, gfx942, with commas between")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    suite = load_suite(options.suite)
    kept = options.out and options.out.with_suffix(".json")
    rows = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for kind, model, item in choose(suite, options):
        name = f"{kind}/{model}/{item}"
        if name in rows:
            continue
        gpus = [gpu for gpu in options.gpus.split(",") if gpu]
        work = partial(measure, suite, kind, model, item, options.quick, gpus)
        rows[name] = in_fork(work, options.timeout)
        row = rows[name]
        print(name, row["status"], str(row.get("detail", ""))[:150], flush=True)
        if kept:
            kept.write_text(json.dumps(rows, indent=1) + "\n")
    print(summary(rows))
    if options.out:
        command = f"    python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
        text = f"{command}\n\n{summary(rows)}\n\n{table(rows)}\n"
        options.out.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
