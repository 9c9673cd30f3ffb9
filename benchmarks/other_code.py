"""What compiled calls cost the Python code that runs after them: nothing, or the hook stayed.

    python benchmarks/other_code.py [--rounds 31] [--out benchmarks/results/other_code]

Two processes run the same workloads in turn: in one compiled functions were called before (with
breaks, recompiles, a raised exception, a suspended coroutine and a function compiled anew), in the
other the same functions plainly.  Times are CPU time of the process; a ratio is that of the
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# ---- what runs afterwards: plain Python


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def moved(self, by: int) -> Point:
        return Point(self.x + by, self.y - by)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def methods() -> int:
    point = Point(0, 0)
    for i in range(12_000):
        point = point.moved(i)
    return point.x


def generators() -> int:
    def numbers(n: int) -> Any:
        for i in range(n):
            yield i + 1

    return sum(x for x in numbers(40_000))


def callbacks() -> list[int]:
    return sorted(map(lambda x: x * 7919 % 10_007, range(20_000)), key=lambda x: -x)


def handlers() -> int:
    caught = 0
    for i in range(15_000):
        try:
            fibonacci("" if i % 2 else 1)  # type: ignore[arg-type]
        except TypeError:
            caught += 1
    return caught


WORKLOADS: dict[str, Callable[[], Any]] = {
    "recursion": lambda: fibonacci(20),
    "methods and instances": methods,
    "generators": generators,
    "callbacks from C": callbacks,
    "exceptions": handlers,
}


# ---- what was called before


def call_before(compile_: Callable[[Any], Any]) -> list[Any]:
    """Returns what has to stay alive."""
    import torch

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x.sin() * n
        os.getpid()  # a break
        return y.cos()

    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(float(x.sum()))

    async def waiting(x: torch.Tensor) -> torch.Tensor:
        return x + await Pause()

    called = compile_(program)
    for n in range(2, 8):
        called(torch.ones(n, 3), n)
    try:
        compile_(failing)(torch.ones(2))
    except ValueError:
        pass
    suspended = compile_(waiting)(torch.ones(2))
    suspended.send(None)
    return [called, suspended]


class Pause:
    def __await__(self) -> Any:
        return (yield None)


def serve(compiled: bool) -> None:
    """Answers each name of a workload with the seconds that it took."""
    if compiled:
        import jitshape

        kept = call_before(jitshape.compile)
    else:
        kept = call_before(lambda function: function)
    for line in sys.stdin:
        run = WORKLOADS[line.strip()]
        start = time.process_time()
        run()
        print(time.process_time() - start, flush=True)
    del kept


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """(plain, after compiled calls) in milliseconds, by workload."""
    me = [sys.executable, os.path.abspath(__file__), "--serve"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    servers = [subprocess.Popen([*me, kind], **pipes) for kind in ("plain", "compiled")]

    def ask(server: subprocess.Popen, name: str) -> float:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(f"{name}\n")
        server.stdin.flush()
        return float(server.stdout.readline())

    rows = {}
    for name in WORKLOADS:
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 2):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds = ask(servers[which], name)
                if turn >= 2:  # the first ones warm up
                    times[which].append(seconds)
        rows[name] = tuple(statistics.median(t) * 1e3 for t in times)
    for server in servers:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=("plain", "compiled"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve == "compiled")
        return
    rows = measure(options.rounds)
    load = os.getloadavg()[0]
    lines = ["# Other Python code after compiled calls", ""]
    lines += [f"CPython {sys.version.split()[0]}, load {load:.1f}, milliseconds of CPU time.", ""]
    lines += ["| workload | plain | after compiled calls | ratio |", "|---|---|---|---|"]
    for name, (plain, after) in rows.items():
        lines.append(f"| {name} | {plain:.2f} | {after:.2f} | {after / plain:.3f} |")
    print("\n".join(lines))
    if options.out:
        options.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
        options.out.with_suffix(".json").write_text(json.dumps({"load": load, "rows": rows}))


if __name__ == "__main__":
    main()
