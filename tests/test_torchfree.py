"""Programs without tensors are compiled where torch is not installed, as they are where it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROGRAMS = """
import re, sys
sys.modules["torch"] = None

import jitshape

LOG = []

class Counter:
    step = 2
    def __init__(self):
        self.total = 0
    def add(self, n):
        self.total += n * self.step
        return self

def loops(n):
    counter = Counter()
    for i in range(n):
        counter.add(i)
        LOG.append(re.sub("[0-9]", lambda match: match[0] * 2, str(i)))
    return counter.total, [x for x in LOG if len(x) > 1]

def handlers(n):
    try:
        try:
            return (1, 2)[n]
        finally:
            print(end="")
    except IndexError as error:
        return str(error), sys.exc_info()[0] is IndexError

def generators(n):
    def numbers():
        received = yield n
        yield received
    made = numbers()
    return next(made), made.send(len(LOG)), list(made), numbers()

def marked(n):
    return outside(n) + 1

@jitshape.disable
def outside(n):
    return n * 3
"""

CHECKS = {
    "loops": """
for n in (3, 12, 3):
    LOG.clear(); expected = loops(n), list(LOG)
    LOG.clear(); assert (compiled(n), LOG) == expected
Counter.step = 5
LOG.clear(); expected = loops(3)
LOG.clear(); assert compiled(3) == expected
""",
    "handlers": "assert [compiled(n) for n in (0, 3, 1, 3)] == [handlers(n) for n in (0, 3, 1, 3)]",
    "generators": """
first, second = compiled(4), generators(4)
assert first[:3] == second[:3] and list(first[3]) == list(second[3]) == [4, None]
""",
    "marked": "assert compiled(2) == marked(2) == 7 and jitshape.stats()['graph_breaks'] == 1",
}


@pytest.mark.parametrize("forced", ["0", "1"])
@pytest.mark.parametrize("name", CHECKS)
def test_without_torch(name: str, forced: str) -> None:
    code = f"""{PROGRAMS}
compiled = jitshape.compile({name})
{CHECKS[name]}
stats = jitshape.stats()
assert stats["compiles"] and stats["frames"]["handled"] and "recompiles" not in str(stats["frames"])
assert not stats["fallbacks"], stats
"""
    environment = {**os.environ, "JITSHAPE_FORCE": forced, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
