"""Entries past the limit: still right, at most so many, those used least lately go first."""

from __future__ import annotations

import gc
import weakref

import torch

import jitshape
from jitshape.entries import LIMITS_KEPT
from tests.programs.compare import assert_same


def steps(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + 1


def test_the_limit_warns_once_with_cause_and_remedy(capfd):
    compiled = jitshape.compile(steps, dynamic=False, options={"recompile_limit": 2})
    x = torch.ones(2)
    for n in range(5):
        assert_same(steps(x, n), compiled(x, n))
    told = [line for line in capfd.readouterr().err.splitlines() if "was compiled" in line]
    assert len(told) == 1
    assert "was compiled 3 times, the last time because n == 1 failed: 2" in told[0]
    assert "To avoid it: dynamic=True in place of dynamic=False." in told[0]


def test_entries_past_the_limit_serve():
    jitshape.reset()
    compiled = jitshape.compile(steps, dynamic=False, options={"recompile_limit": 1})
    x = torch.ones(2)
    for _ in range(2):
        for n in range(LIMITS_KEPT):
            assert_same(steps(x, n), compiled(x, n))
    assert jitshape.stats()["compiles"] == LIMITS_KEPT
    assert jitshape.stats()["fallbacks"] == 0


def test_the_entry_used_least_lately_goes():
    jitshape.reset()
    compiled = jitshape.compile(steps, dynamic=False, options={"recompile_limit": 1})
    x = torch.ones(2)
    for n in range(LIMITS_KEPT):
        compiled(x, n)
    assert len(compiled.entries) == LIMITS_KEPT
    for n in range(LIMITS_KEPT):
        if n != 3:
            compiled(x, n)
    gone = weakref.ref(compiled.entries[3].function)
    compiled(x, 100)
    assert len(compiled.entries) == LIMITS_KEPT
    gc.collect()
    assert gone() is None
    misses = compiled.misses
    for n in (0, 1, 2, 4, 100):
        assert_same(steps(x, n), compiled(x, n))
    assert compiled.misses == misses
    assert_same(steps(x, 3), compiled(x, 3))
    assert compiled.misses == misses + 1


def test_entries_of_other_code_are_forgotten():
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    compiled, x = jitshape.compile(f), torch.ones(2)
    compiled(x)
    f.__code__ = (lambda x, y: x * y).__code__
    jitshape.reset()
    assert_same(x * 3, compiled(x, 3))
    assert_same(x * 4, compiled(x, 4))
    known = compiled.miss.__self__.entries
    assert [entry for entry, _ in known.known()] == list(compiled.entries)


def test_the_story_of_an_entry():
    compiled, x = jitshape.compile(steps), torch.ones(2)
    for n in (1, 1, 1, 2, 3):
        compiled(x, n)
    known = compiled.miss.__self__.entries.known()
    assert [entry.hits for entry, _ in known] == [2, 1]
    assert [k.native for _, k in known] == [False, False]
    assert known[0][0].created < known[1][0].created
