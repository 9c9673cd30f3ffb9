"""The GPU suite: generated kernels beside the limit of the device, eager and inductor.

    python -m benchmarks.gpu.suite [--deadline 540] [--only REGEX] [--out FILE] [--inductor]

On a machine with a GPU: the gates, then each entry at its sizes, twice, as JSON lines and one
table; `fraction` is of a copy (or torch's matrix product) timed in the same run.  Without one:
values of small sizes in Triton's interpreter, and the quality of the code for sm_90.
The kernels are those that jitshape generates for the plain functions of entries.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import jitshape
from benchmarks.gpu.entries import BF16, ENTRIES, Entry, Random
from benchmarks.gpu.gates import GATES, LARGE, poison
from jitshape.backend.compile import watched_kernels

COPY_AT_LEAST, PRODUCT_AT_LEAST = 4.0e12, 700e12  # bytes/s and flop/s, or the device is not well
ROUNDS = 2


class Row(dict):
    """What one line of the result says."""

    def write(self, out: Any) -> None:
        print(json.dumps(self), file=out, flush=True)


def call(function: Callable[..., Any], inputs: Sequence[torch.Tensor], backward: bool) -> Any:
    """The results, or with `backward` the gradients of what can have one."""
    if not backward:
        with torch.no_grad():
            return function(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    result = function(*inputs)
    seed = torch.ones_like(result)
    return torch.autograd.grad(result, wanted, seed)


def made(entry: Entry, device: str, size: Sequence[int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = entry.inputs(Random(device), *size)
    if entry.backward:
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    return inputs


def flat_results(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def check(entry: Entry, function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> None:
    """Against float64, or for large inputs against eager as it is."""
    small = sum(x.numel() for x in inputs) < 2**26
    cast = (lambda x: x.detach().double()) if small else (lambda x: x.detach())
    reference = [cast(x) if x.is_floating_point() else x for x in inputs]
    reference = [r.requires_grad_(x.requires_grad) for r, x in zip(reference, inputs)]
    poison(inputs[0].device.type)
    got = flat_results(call(function, inputs, entry.backward))
    for one, other in zip(got, flat_results(call(entry.run, reference, entry.backward))):
        scale = max(float(other.abs().max()), 1e-6) if other.is_floating_point() else 1.0
        limit = (1e-3 if one.dtype == torch.float32 else 1e-2) * scale
        wrong = (one.double() - other.double()).abs().max()
        assert one.shape == other.shape and wrong <= limit, (entry.name, float(wrong), limit)


def compile_entry(entry: Entry, dynamic: bool, backend: str = "auto") -> Callable[..., Any]:
    return jitshape.compile(entry.run, dynamic=dynamic, backend=backend, name=entry.name)


# ---- without a GPU


def interpreted(only: str, out: Any) -> int:
    """Values and quality; the number of entries that are not as they should be."""
    from jitshape.backend.quality import unique_qualities

    wrong = 0
    for gate in GATES:
        wrong += _reported(Row(gate=gate.__name__), lambda gate=gate: gate("cpu") or {}, out)
    for entry in chosen(only):

        def look(entry: Entry = entry) -> dict[str, Any]:
            jitshape.reset()
            function = compile_entry(entry, True, "triton")
            with watched_kernels() as kernels:
                for size in entry.small:
                    check(entry, function, made(entry, "cpu", size))
            stats = jitshape.stats()
            assert not stats["fallbacks"] and not stats["graph_breaks"], stats
            assert stats["compiles"] <= (entry.most_compiles or 2), stats["compiles"]
            found = unique_qualities(kernels, ("sm_90",))
            assert all(q.spilled == 0 for q in found), found
            widest = max((q.widest for q in found if q.aligned), default=0)
            externs = stats["extern_ops"]
            return {"kernels": len(found), "widest": widest, "externs": externs}

        wrong += _reported(Row(number=entry.number, entry=entry.name), look, out)
    return wrong


def _reported(row: Row, look: Callable[[], dict[str, Any]], out: Any) -> bool:
    try:
        row.update(look())
    except Exception as error:
        row.update(error=f"{type(error).__name__}: {str(error)[:500]}")
    row.write(out)
    return "error" in row


def chosen(only: str) -> Iterator[Entry]:
    return (e for e in ENTRIES if re.search(only, f"{e.number} {e.name}"))


# ---- with a GPU


def timed(function: Callable[[], Any]) -> float:
    """Seconds of one call, the median."""
    from triton.testing import do_bench

    return do_bench(function, warmup=10, rep=40, return_mode="median") / 1e3


def calibrate() -> dict[str, float]:
    """Bytes/s of a copy of 1 GiB, flop/s of a bf16 product of 8192, and of an empty launch the
    seconds."""
    x = torch.randn(2**29, device="cuda", dtype=BF16)
    y = torch.empty_like(x)
    copy = 2 * x.nbytes / timed(lambda: y.copy_(x))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=BF16) for _ in range(2))
    product = 2 * 8192**3 / timed(lambda: a @ b)
    tiny = torch.zeros(1, device="cuda")
    return {"copy": copy, "product": product, "launch": timed(lambda: tiny.add_(1))}


def moved(inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor], twice: bool) -> int:
    """Bytes that must move: inputs read and outputs written, in backward once more with the
    gradient of the output."""
    read = sum(x.nbytes for x in inputs if x.numel())
    return read * (2 if twice else 1) + sum(r.nbytes for r in results)


def measure(entry: Entry, size: Sequence[int], systems: dict[str, Callable], limits: dict) -> Row:
    inputs = made(entry, "cuda", size)
    row = Row(number=entry.number, entry=entry.name, size=list(size), target=entry.target)
    results = flat_results(call(entry.run, inputs, entry.backward))
    work = moved(inputs, results, entry.backward)
    best = work / limits["copy"]
    if entry.flops is not None:
        best = timed(lambda: inputs[0] @ inputs[1])
    del results
    for name, function in systems.items():
        try:
            if name.startswith("jitshape"):
                check(entry, function, inputs)
            seconds = timed(lambda f=function: call(f, inputs, entry.backward))
            row[name] = round(seconds * 1e6, 1)
            row[f"{name}_fraction"] = round(best / seconds, 3)
        except Exception as error:
            row[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return row


def host_path() -> Row:
    """Entry 25: what calls cost, and what sizes do to compiles."""
    jitshape.reset()

    def chain(x: torch.Tensor) -> list[torch.Tensor]:
        return [(x * i).softmax(0) for i in range(50)]

    function = jitshape.compile(chain, dynamic=True)
    x = torch.randn(1000, device="cuda")
    with torch.no_grad():
        function(x)
        torch.cuda.synchronize()
        seconds = []
        for _ in range(20):
            start = time.perf_counter()
            function(x)
            seconds.append(time.perf_counter() - start)
            torch.cuda.synchronize()
        sizes = [0, 1, 15, 16, 17, *range(100, 19600, 100)]
        one = jitshape.compile(lambda x: x * 2 + 1)
        for n in sizes:
            x = torch.randn(n, device="cuda")
            assert torch.equal(one(x), x * 2 + 1)
    kernels = jitshape.stats()["kernels"]
    per_kernel = statistics.median(seconds) / kernels * 1e6
    return Row(number=25, entry="host path", us_a_kernel=round(per_kernel, 2), kernels=kernels)


def systems_for(entry: Entry, inductor: bool) -> dict[str, Callable[..., Any]]:
    found = {"jitshape": compile_entry(entry, True), "eager": entry.run}
    found["jitshape_static"] = compile_entry(entry, False)
    if inductor:
        found["inductor"] = torch.compile(entry.run, dynamic=True)
    return found


def precompile(only: str, workers: int) -> None:
    """Fill Triton's cache by processes of their own."""
    numbers = sorted({entry.number for entry in chosen(only)})
    processes = []
    for place in range(workers):
        mine = "|".join(f"^{n} " for n in numbers[place::workers])
        if mine:
            command = [sys.executable, "-m", "benchmarks.gpu.suite", "--warm", "--only", mine]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    for process in processes:
        process.wait()


def warm(only: str) -> None:
    for entry in chosen(only):
        for size in entry.small:
            call(compile_entry(entry, True), made(entry, "cuda", size), entry.backward)


def on_gpu(args: argparse.Namespace, out: Any) -> int:
    end = time.monotonic() + args.deadline
    wrong = sum(
        _reported(Row(gate=g.__name__), lambda g=g: g("cuda") or {}, out) for g in GATES + LARGE
    )
    torch.cuda.empty_cache()
    limits = calibrate()
    Row(calibration=limits, device=torch.cuda.get_device_name()).write(out)
    if limits["copy"] < COPY_AT_LEAST or limits["product"] < PRODUCT_AT_LEAST:
        print("the device is below its usual speed: nothing is timed", file=sys.stderr)
        return 1
    precompile(args.only, min(os.cpu_count() or 1, 12))
    host_path().write(out)
    for _ in range(ROUNDS):
        for entry in chosen(args.only):
            systems = systems_for(entry, args.inductor)
            for size in entry.sizes:
                if time.monotonic() > end:
                    print("out of time", file=sys.stderr)
                    return wrong
                row = measure(entry, size, systems, limits)
                row.write(out)
                wrong += isinstance(row["jitshape"], str)
                torch.cuda.empty_cache()
    return wrong


def table(path: Path) -> str:
    """The rows of a result as text."""
    lines = []
    for row in map(json.loads, path.read_text().splitlines()):
        if "size" in row:
            size = "x".join(map(str, row["size"]))
            fraction = row.get("jitshape_fraction", row["jitshape"])
            others = [f"{k} {row[k]}" for k in ("eager", "jitshape_static", "inductor") if k in row]
            ok = "" if isinstance(fraction, str) or fraction >= row["target"] else "  below"
            lines.append(
                f"{row['number']:3} {row['entry']:28} {size:16} {row['jitshape']:>9} us  "
                f"{fraction:>6} of {row['target']}{ok}   {', '.join(others)}"
            )
        else:
            lines.append(json.dumps(row))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deadline", type=float, default=540, help="seconds")
    parser.add_argument("--only", default="", help="entries by number and name")
    parser.add_argument("--out", type=Path, help="JSON lines; else they are printed")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.warm:
        warm(args.only)
        return 0
    out = args.out.open("w") if args.out else sys.stdout
    wrong = on_gpu(args, out) if torch.cuda.is_available() else interpreted(args.only, out)
    if args.out:
        out.close()
        print(table(args.out))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
