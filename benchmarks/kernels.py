"""Generated CPU kernels beside eager and torch.compile (inductor), kernel by kernel.

    python benchmarks/kernels.py [--threads 1] [--only REGEX] [--out benchmarks/results/kernels]

Each kernel is one function of tensors, compiled once with symbolic sizes and timed at four sizes:
small (about 4k elements), cached (256k), large (16M) and odd.  A process a system.  Times are CPU
time (all threads) of the process, the least of several batches, in microseconds; GB/s are the
bytes that must move (inputs read once, outputs written once) over that time.  `copy` is the
machine's own `out.copy_(x)`, whose bandwidth is the limit of the memory-bound ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

SYSTEMS = ("eager", "inductor", "jitshape")
SIZES = {"small": (64, 64), "cached": (512, 512), "large": (4096, 4096), "odd": (257, 1003)}
Kernel = Callable[..., Any]


def _mat(*dtypes: torch.dtype) -> Callable[[int, int], list[torch.Tensor]]:
    """One matrix for each dtype."""
    return lambda m, n: [torch.randn(m, n).to(d) for d in dtypes]


def _with_row(m: int, n: int) -> list[torch.Tensor]:
    return [torch.randn(m, n), torch.randn(n), torch.randn(m, n)]


def _norm(m: int, n: int) -> list[torch.Tensor]:
    return [torch.randn(m, n), torch.randn(m, n), torch.randn(n), torch.randn(n)]


def _labels(m: int, n: int) -> list[torch.Tensor]:
    return [torch.randn(m, n), torch.randint(0, n, (m,))]


def _masked(m: int, n: int) -> list[torch.Tensor]:
    return [torch.randn(m, n), torch.rand(m, n) > 0.3]


def _table(m: int, n: int) -> list[torch.Tensor]:
    return [torch.randn(1000, n), torch.randint(0, 1000, (m,))]


def _images(m: int, n: int) -> list[torch.Tensor]:
    channels = 16
    return [torch.randn(max(m // 64, 1), channels, 64 * n // (channels * 8) or 1, 8)] + [
        torch.rand(channels) + 0.5 for _ in range(4)
    ]


f32, f64, bf16, i64 = torch.float32, torch.float64, torch.bfloat16, torch.int64

# name: (function, inputs for a size)
KERNELS: dict[str, tuple[Kernel, Callable[[int, int], list[torch.Tensor]]]] = {
    "bias_gelu_mul": (lambda x, b, y: F.gelu(x + b) * y, _with_row),
    "add_layernorm": (lambda x, y, w, b: F.layer_norm(x + y, w.shape, w, b), _norm),
    "gelu": (lambda x: F.gelu(x), _mat(f32)),
    "gelu_bf16": (lambda x: F.gelu(x), _mat(bf16)),
    "softmax": (lambda x: torch.softmax(x, -1), _mat(f32)),
    "layernorm": (lambda x, y, w, b: F.layer_norm(x, w.shape, w, b), _norm),
    "transpose_add": (lambda x, y: x.t().contiguous().t() * 2 + y, _mat(f32, f32)),
    "column_sum": (lambda x: x.sum(0), _mat(f32)),
    "row_sum": (lambda x: x.sum(1), _mat(f32)),
    "full_sum": (lambda x: x.sum(), _mat(f32)),
    "full_mean_square": (lambda x: (x * x).mean(), _mat(f32)),
    "column_max": (lambda x: x.amax(0), _mat(f32)),
    "row_argmax": (lambda x: x.argmax(1), _mat(f32)),
    "variance": (lambda x: x.var(1), _mat(f32)),
    "rms_norm": (lambda x, y, w, b: F.rms_norm(x, w.shape, w) + y, _norm),
    "log_softmax_nll": (lambda x, t: F.cross_entropy(x, t), _labels),
    "masked_softmax": (lambda x, k: x.masked_fill(k, -1e9).softmax(-1), _masked),
    "silu_mul": (lambda x, y: F.silu(x) * y, _mat(f32, f32)),
    "tanh_sigmoid": (lambda x, y: torch.tanh(x) * torch.sigmoid(y), _mat(f32, f32)),
    "sin_cos": (lambda x: torch.sin(x) + torch.cos(x), _mat(f32)),
    "exp_log": (lambda x: torch.log1p(torch.exp(x)), _mat(f32)),
    "pow_sqrt": (lambda x: (x * x + 1).sqrt() * x.abs().pow(1.5), _mat(f32)),
    "polynomial_f64": (lambda x: ((x * 2 + 1) * x - 3) * x, _mat(f64)),
    "gelu_tanh_backward": (
        lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
        _mat(f32, f32),
    ),
    "integer_mix": (
        lambda x, y: (x * 3 + y) % 17 // 2,
        lambda m, n: [torch.randint(0, 1000, (m, n)) for _ in range(2)],
    ),
    "where_clamp": (lambda x, y: torch.where(x > y, x, y.clamp(-1, 1)), _mat(f32, f32)),
    "cast_bf16": (lambda x: (x.float() * 2 + 1).bfloat16(), _mat(bf16)),
    "transpose": (lambda x: x.t().contiguous(), _mat(f32)),
    "cat_slices": (lambda x, y: torch.cat([x[:, ::2], y[:, 1::2] * 2], 1), _mat(f32, f32)),
    "embedding_add": (lambda w, i: F.embedding(i, w) + 1, _table),
    "cumulative_sum": (lambda x: x.cumsum(1), _mat(f32)),
    "batch_norm_relu": (
        lambda x, mean, var, w, b: F.relu(F.batch_norm(x, mean, var, w, b)),
        _images,
    ),
    "swiglu_bf16": (lambda x, y: F.silu(x) * y, _mat(bf16, bf16)),
    "rms_norm_bf16": (
        lambda x, y, w, b: F.rms_norm(x, w.shape, w) + y,
        lambda m, n: [t.bfloat16() for t in _norm(m, n)],
    ),
    "relu_chain_bf16": (lambda x, y: (x + y).relu() * x - y.abs(), _mat(bf16, bf16)),
    "rotate_half_f16": (
        lambda x, c: x * c + torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) * c,
        _mat(torch.float16, torch.float16),
    ),
    "two_outputs": (lambda x, y: ((x + y).relu(), (x - y).abs().sum(1)), _mat(f32, f32)),
    "rotate_half": (
        lambda x, c: x * c + torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) * c,
        _mat(f32, f32),
    ),
}


def compiled(system: str, function: Kernel) -> Kernel:
    if system == "eager":
        return function
    if system == "inductor":
        torch._dynamo.reset()
        return torch.compile(function, dynamic=True)
    import jitshape

    jitshape.reset()
    return jitshape.compile(function, dynamic=True)


def least(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of CPU time of one call: the least of several batches."""
    for _ in range(3):
        call()
    count, best = 1, math.inf
    stop = time.process_time() + seconds
    while time.process_time() < stop:
        start = time.process_time()
        for _ in range(count):
            call()
        taken = time.process_time() - start
        if taken < 0.005:
            count *= 2
        best = min(best, taken / count)
    return best * 1e6


def _bytes(tensors: Any) -> int:
    found = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return sum(t.numel() * t.element_size() for t in found)


def agrees(result: Any, expected: Any) -> bool:
    loose = {"rtol": 2e-2, "atol": 2e-2}
    try:
        torch.testing.assert_close(result, expected, **loose)
    except AssertionError:
        return False
    return True


def measure(system: str, names: list[str], seconds: float) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        function, inputs = KERNELS[name]
        call = compiled(system, function)
        for size, (m, n) in SIZES.items():
            torch.manual_seed(0)
            tensors = inputs(m, n)
            expected = function(*tensors)
            right = agrees(call(*tensors), expected)
            taken = least(partial(call, *tensors), seconds)
            moved = _bytes(tensors) + _bytes(expected)
            rows.append({"kernel": name, "size": size, "us": taken, "bytes": moved, "right": right})
            print(f"{system:9} {name:20} {size:7} {taken:10.1f} us {right}", file=sys.stderr)
        rows[-1]["stats"] = _stats(system)
    return rows


def _stats(system: str) -> dict[str, Any]:
    if system != "jitshape":
        return {}
    import jitshape

    stats = jitshape.stats()
    return {k: stats[k] for k in ("compiles", "fallbacks", "graph_breaks", "kernels", "extern_ops")}


def copy_rates(seconds: float) -> dict[str, float]:
    """GB/s of a copy at each size."""
    rates = {}
    for size, (m, n) in SIZES.items():
        x, out = torch.randn(m, n), torch.empty(m, n)
        rates[size] = 2 * _bytes(x) / least(partial(out.copy_, x), seconds) / 1e3
    return rates


def _mean(ratios: Collection[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(results: dict[str, Any]) -> str:
    """One line a kernel and size, then what the figures come to."""
    rows = {s: {(r["kernel"], r["size"]): r for r in results["rows"][s]} for s in results["rows"]}
    lines = [
        "| kernel | size | eager us | inductor us | jitshape us | of eager | of inductor | GB/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, dict[tuple, float]] = {"eager": {}, "inductor": {}}
    for key, ours in rows["jitshape"].items():
        cells = []
        for system in ("eager", "inductor"):
            other = rows.get(system, {}).get(key)
            ratio = other["us"] / ours["us"] if other else math.nan
            if other:
                ratios[system][key] = ratio
            cells.append((f"{other['us']:.1f}" if other else "-", f"{ratio:.2f}"))
        rate = ours["bytes"] / ours["us"] / 1e3
        wrong = "" if ours["right"] else " WRONG"
        lines.append(
            f"| {key[0]}{wrong} | {key[1]} | {cells[0][0]} | {cells[1][0]} | {ours['us']:.1f} "
            f"| {cells[0][1]} | {cells[1][1]} | {rate:.1f} |"
        )
    for system, found in ratios.items():
        if found:
            slower = sum(ratio < 1 for ratio in found.values())
            sizes = {size: [r for key, r in found.items() if key[1] == size] for size in SIZES}
            means = ", ".join(f"{size} {_mean(part):.2f}" for size, part in sizes.items() if part)
            lines.append(
                f"\nof {system}: geometric mean {_mean(found.values()):.2f} ({means}), "
                f"slower in {slower}/{len(found)}"
            )
    rates = ", ".join(f"{size} {rate:.1f}" for size, rate in results["copy"].items())
    return "\n".join([*lines, f"\ncopy GB/s: {rates}; load {results['load']:.1f}"])


def in_process(system: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rows of a system, from a process of its own."""
    command = [sys.executable, __file__, "--system", system, "--threads", str(arguments.threads)]
    command += ["--only", arguments.only, "--seconds", str(arguments.seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="regular expression on kernel names")
    parser.add_argument("--seconds", type=float, default=0.2, help="CPU seconds a timing")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--system", help="measure one system and print its rows as JSON")
    parser.add_argument("--out", help="write OUT.json and OUT.md")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    names = [name for name in KERNELS if re.search(arguments.only, name)]
    if arguments.system:
        rows = measure(arguments.system, names, arguments.seconds)
        copy = copy_rates(arguments.seconds)
        print(json.dumps({"rows": rows, "copy": copy}))
        return
    found = {system: in_process(system, arguments) for system in arguments.systems.split(",")}
    results = {
        "torch": torch.__version__,
        "threads": arguments.threads,
        "load": os.getloadavg()[0],
        "copy": found["jitshape"]["copy"],
        "rows": {system: one["rows"] for system, one in found.items()},
    }
    text = table(results)
    print(text)
    if arguments.out:
        Path(f"{arguments.out}.json").write_text(json.dumps(results, indent=1) + "\n")
        heading = f"    python benchmarks/kernels.py --threads {arguments.threads}\n\n"
        Path(f"{arguments.out}.md").write_text(heading + text + "\n")


if __name__ == "__main__":
    main()
