"""Kernels that one process compiled serve the next, also where it must make the program anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import jitshape
from tests.cache.process import run

PROGRAM = """
import torch, jitshape

@jitshape.compile(options=OPTIONS)
def loss(x, w):
    return torch.softmax(torch.nn.functional.gelu(x * w), -1).square().mean()

def expected(x, w):
    return torch.softmax(torch.nn.functional.gelu(x * w), -1).square().mean()

torch.manual_seed(0)
w, told = torch.rand(8, requires_grad=True), []
for n in (3, 5, 7):
    x = torch.rand(n, 8)
    for f in (loss, expected):
        result = f(x, w)
        (gradient,) = torch.autograd.grad(result, w)
        told.append([result.item(), gradient.tolist()])
"""


def test_the_code_of_equal_kernels_is_made_once(tmp_path: Path) -> None:
    first, stats = run(tmp_path, PROGRAM.replace("OPTIONS", "{}"))
    assert stats["cache"]["kernel"] == {"hit": 0, "miss": 4}
    lower = "# the function stands lower now, and a graph knows its lines\n" + PROGRAM
    lower = lower.replace("def loss(", "def cost(").replace("(loss,", "(cost,")  # another entry
    second, stats = run(tmp_path, lower.replace("OPTIONS", "{}"))
    assert stats["cache"]["kernel"] == {"hit": 4, "miss": 0}
    assert stats["cache"]["program"]["hit"] == 0 and second == first
    for got, want in zip(first[::2], first[1::2], strict=True):
        torch.testing.assert_close(torch.tensor(got[1]), torch.tensor(want[1]))
        assert abs(got[0] - want[0]) < 1e-6


def test_a_program_is_explained_in_the_same_way_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITSHAPE_CACHE", "1")
    monkeypatch.setenv("JITSHAPE_CACHE_DIR", str(tmp_path))
    told = []
    for _ in range(3):
        jitshape.reset()
        f = jitshape.compile(lambda x: x.exp() + 1)
        if told:  # what is explained is on disk by now
            f(torch.rand(2))
            jitshape.reset()
        explained = jitshape.explain(f)(torch.rand(2))
        told.append((explained.stats, explained.graphs, explained.guards))
    assert told[0] == told[1] == told[2] and told[0][0]["compiles"] == 1


def test_the_option_leaves_the_cache_alone(tmp_path: Path) -> None:
    _, stats = run(tmp_path, PROGRAM.replace("OPTIONS", "{'cache': False}"))
    assert set(stats["cache"]) == {"graph"} and not (tmp_path / "cache" / "store").exists()


HASHED = """
import torch, jitshape
def order(x):
    for text in {"p", "qq", "rrr", "ssss"}:
        x = x * 2 + len(text)
    return x
def number(x):
    return x * (hash("abc") % 7 + 1)
def of_tuple(x):
    return x * (("a", "b").__hash__() % 7 + 1)
def last(x):
    left = {"p", "qq", "rrr", "ssss"}
    return x * len(left.pop())
def member(x):
    return x * ("p" in {"p", "qq"}) + sum({1, 2, 3})
x = torch.ones(1)
for f in (order, number, of_tuple, last, member):
    assert torch.equal(jitshape.compile(f)(x), f(x)), f.__name__
told = None
"""


def test_what_hashes_decide_is_not_taken_from_another_process(tmp_path: Path) -> None:
    for seed in range(3):
        _, stats = run(tmp_path, HASHED, PYTHONHASHSEED=str(seed + 1))
        assert stats["cache"]["entry"]["hit"] == (seed > 0)  # the member
        assert stats["details"]["not_kept"] == {
            "entry: the order of a set was read": 2,
            "entry: a hash was read": 2,
        }
