"""What a call of compiled code costs before its own work begins, in microseconds.

    python benchmarks/guards.py [--layers 32] [--out benchmarks/results/guards]

Two tables: calls of functions that do next to nothing, beside eager; and the guards alone of a
GPT-2 of many layers with eight entries.  Times are CPU time of the process, the median of many
batches, so that a busy machine does not stretch them; `load` says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import jitshape

ENTRIES = 8


def microseconds(call: Callable[[], Any], calls: int = 1, seconds: float = 0.3) -> float:
    """The median over batches of `call`, which makes `calls` calls."""
    for _ in range(10):
        call()
    count, batches = 1, []
    stop = time.process_time() + seconds
    while len(batches) < 9 or time.process_time() < stop:
        start = time.process_time()
        for _ in range(count):
            call()
        taken = time.process_time() - start
        if taken < 0.002 and not batches:
            count *= 2
        else:
            batches.append(taken / count)
    return statistics.median(batches) * 1e6 / calls


class Parameters(nn.Module):
    """Reads the size of each of many parameters, and the values of none."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.items = nn.ParameterList(nn.Parameter(torch.zeros(1), False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + sum(p.shape[0] for p in self.items)


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def scalars() -> tuple[Callable[..., Any], list[Any]]:
    """A function of fifty ints, floats and strings beside a tensor."""
    names = ", ".join(f"a{i}" for i in range(50))
    scope: dict[str, Any] = {}
    exec(f"def f(x, {names}):\n    return x + (a0 + a3) if a2 == 's2' else x * a1", scope)
    return scope["f"], [(i, i + 0.5, f"s{i}")[i % 3] for i in range(50)]


def in_rotation(function: Callable, tensors: list[torch.Tensor]) -> float:
    def rotate() -> None:
        for tensor in tensors:
            function(tensor)

    return microseconds(rotate, len(tensors))


def overhead() -> dict[str, tuple[float, float]]:
    """(eager, compiled) of each kind of call."""
    x, grown = torch.zeros(1), torch.zeros(1, requires_grad=True)
    many, numbers = scalars()
    module = Parameters(1000)
    sizes = [torch.zeros(n + 2) for n in range(ENTRIES)]
    rows: dict[str, tuple[float, float]] = {}

    def row(name: str, function: Callable, *args: Any) -> None:
        compiled = jitshape.compile(function)
        rows[name] = tuple(microseconds(lambda f=f: f(*args)) for f in (function, compiled))

    row("x+1, grad mode on, x without grad", add_one, x)
    row("x+1, x requires grad, forward", add_one, grown)
    with torch.no_grad():
        row("x+1, without grad", add_one, x)
        row("50 int, float and str arguments", many, x, *numbers)
        row("module, sizes of 1,000 parameters", module, x)
        static = jitshape.compile(add_one, dynamic=False)
        rows[f"{ENTRIES} entries in rotation"] = (
            in_rotation(add_one, sizes),
            in_rotation(static, sizes),
        )
    return rows


def transformer(layers: int) -> dict[str, float]:
    """The guards alone of a GPT-2 whose sizes are static, so that each size has its entry."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=100, use_cache=False)
    model = GPT2Model(config).eval()
    compiled = jitshape.compile(model, dynamic=False)
    inputs = [torch.zeros(2, 4 + n, dtype=torch.int64) for n in range(ENTRIES)]
    with torch.no_grad():
        for tokens in inputs:
            compiled(tokens)
        dispatcher = compiled._jitshape.call.__func__
        (table,) = dispatcher.tables
        calls = [(model, (tokens,), {}) for tokens in inputs]
        assert [table.run(slots)[0] for slots in calls] == list(range(ENTRIES))
        turns = microseconds(lambda: [table.run(slots) for slots in calls], ENTRIES)
        last = microseconds(lambda: table.run(calls[-1]))
    return {
        "steps of all guards": table.steps,
        "in rotation": turns,
        "one of them again and again": last,
    }


def text(result: dict[str, Any]) -> str:
    rows = [f"torch {result['torch']}, load {result['load']:.1f}, microseconds a call.", ""]
    rows += ["| call | eager | jitshape | above eager |", "|---|---|---|---|"]
    rows += [
        f"| {name} | {eager:.2f} | {ours:.2f} | {ours - eager:+.2f} |"
        for name, (eager, ours) in result["overhead"].items()
    ]
    rows += ["", f"Guards of a GPT-2 of {result['layers']} layers with {ENTRIES} entries:", ""]
    rows += ["| | |", "|---|---|"]
    rows += [f"| {name} | {value:.1f} |" for name, value in result["transformer"].items()]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--out", help="write OUT.json and OUT.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
        "layers": options.layers,
        "overhead": overhead(),
        "transformer": transformer(options.layers),
    }
    print(text(result))
    if options.out:
        Path(f"{options.out}.json").write_text(json.dumps(result, indent=1) + "\n")
        Path(f"{options.out}.md").write_text("# Guards\n\n" + text(result))


if __name__ == "__main__":
    main()
