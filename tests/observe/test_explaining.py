"""Logs and explanations of real compiles: symbols, facts, specialisations, misses, entries."""

from __future__ import annotations

import json

import pytest
import torch

import jitshape
from jitshape.observe import logs


@pytest.fixture
def shown(capsys):
    """What a log shows of calls of a compiled function."""

    def run(names, fn, *calls, **options):
        jitshape.reset()
        logs.set_logs(names)
        compiled = jitshape.compile(fn, **options)
        for args in calls:
            compiled(*args)
        logs.set_logs("")
        return capsys.readouterr().err

    return run


def stepwise(x, y, n):
    if x.shape[0] > 3:
        x = x + y
    return x.reshape(n, 2)


FIRST_LINE = stepwise.__code__.co_firstlineno


def test_dynamic_tells_symbols_facts_and_specialisations(shown):
    calls = [(torch.ones(k), torch.ones(k), k // 2) for k in (4, 6)]
    log = shown("dynamic", stepwise, *calls)
    assert f"[dynamic] stepwise ({__file__}:{FIRST_LINE}), entry 2\n" in log
    for part, line in (
        ("[dynamic]   s0 = x.size(0) became dynamic: 4 then 6   # ", "if x.shape[0] > 3:"),
        ("[dynamic]   s2 = y.size(0) became dynamic: 4 then 6   # ", "x = x + y"),
        ("x.size(0) > 3 (a branch on a size)   # ", "if x.shape[0] > 3:"),
        ("x.size(0) == y.size(0) (broadcasting)   # ", "x = x + y"),
        ("[dynamic]   s4 = n became dynamic: 2 then 3   # ", "return x.reshape(n, 2)"),
        ("[dynamic]   needs 2*n == x.size(0)   # ", "return x.reshape(n, 2)"),
    ):
        assert any(part in row and row.endswith(line) for row in log.splitlines()), (part, log)


def test_dynamic_tells_what_is_specialised(shown):
    def f(x):
        return [x + i for i in range(x.shape[0])]

    log = shown("dynamic", f, (torch.ones(3),), dynamic=True)
    assert "[dynamic]   specialised: x.size(0) == 3 (used as a plain number)   # " in log
    assert log.rstrip().endswith("return [x + i for i in range(x.shape[0])]")


def test_recompiles_tells_the_guard_and_the_value(shown):
    log = shown("recompiles", stepwise, *[(torch.ones(4), torch.ones(4), n) for n in (2, 2)])
    assert log == ""
    log = shown("recompiles", lambda x, n: x * n, (torch.ones(2), 3), (torch.ones(2), 7))
    assert "is compiled again: no entry serves this call" in log
    assert "[recompiles]   entry 1: n == 3 failed: 7" in log


def test_recompiles_tells_what_several_entries_fail_once(shown):
    one, other = torch.ones(2), torch.ones(2, dtype=torch.int8)
    calls = [(one, one), (one, other), (other, one)]
    log = shown("recompiles", lambda x, y: x + y, *calls)
    *_, last = log.splitlines()
    assert "  entries 2, 1: x is Tensor float32[2] on cpu failed: dtype is torch.int8 " in last
    assert last.endswith('log = shown("recompiles", lambda x, y: x + y, *calls)')


def test_more_of_dynamic_tells_the_strides_that_are_checked(shown):
    def double(x):
        return x * 2

    calls = [(torch.ones(3, 4),)]
    assert "x.stride(0)" not in shown("dynamic", double, *calls, dynamic=True)
    assert "s2 = x.stride(0)   # " in shown("+dynamic", double, *calls, dynamic=True)


def test_an_explanation_tells_of_the_functions_that_took_part():
    jitshape.reset()
    one, two = (jitshape.compile(lambda x, k=k: x * k, name=f"times{k}") for k in (2, 3))
    one(torch.ones(2)), two(torch.ones(2))
    for _ in range(2):
        explained = jitshape.explain(two)(torch.ones(2))
        assert [s.name for s in explained.functions] == ["times3"] and not explained.records


def test_an_explanation_tells_each_function_once():
    text = str(jitshape.explain(jitshape.compile(lambda x: x * 2, name="twice"))(torch.ones(2)))
    assert text.count("twice (") == 2 and "compile of twice (" in text
    assert text.count("entry 1  compile") == 1 and "served 0 calls more" in text


def test_an_explanation_covers_all_entries():
    jitshape.reset()
    compiled = jitshape.compile(lambda x: x * 2, name="double")
    explained = [jitshape.explain(compiled)(torch.ones(n)) for n in (3, 4, 5)]
    assert [len(e.records) for e in explained] == [1, 1, 0]
    (story,) = explained[-1].functions
    assert story.name == "double" and [e.hits for e in story.entries] == [0, 1]
    assert all(e.age >= 0 and e.guards for e in story.entries)
    assert explained[-1].fixes[0].change.startswith("jitshape.mark_dynamic(x, 0)")
    assert "to save 1 compile" in str(explained[-1])
    told = json.loads(json.dumps(explained[-1].to_json()))
    assert told["functions"][0]["values"] == {"x.size(0)": ["3", "4"]}
    assert "<h2>double" in explained[-1].to_html()


def test_pieces_behind_breaks_are_told_apart():
    @jitshape.disable
    def outside():
        pass

    def f(x):
        y = x * 2
        outside()
        y = y + 1
        outside()
        return y * 3

    jitshape.reset()
    story = jitshape.explain(f)(torch.ones(3)).functions
    assert [s.name.rpartition(".")[2] for s in story] == ["f", "f, piece 2", "f, piece 3"]
    first = f.__code__.co_firstlineno
    assert [int(s.where.rpartition(":")[2]) - first for s in story] == [0, 2, 4]
    assert [len(s.breaks) for s in story] == [1, 1, 0] and all(s.compiles == 1 for s in story)


class Inner(torch.nn.Module):
    def forward(self, x):
        h = x * 2
        outside()
        return h + 1


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x) * 3


@jitshape.disable
def outside():
    pass


def test_pieces_of_modules_have_the_name_and_the_line_that_the_user_gave():
    jitshape.reset()
    compiled = jitshape.compile(Outer(), name="net")
    explained = jitshape.explain(compiled)(torch.ones(3))
    explained = jitshape.explain(compiled)(torch.ones(4))
    whole, piece = explained.functions
    assert (whole.name, piece.name) == ("net", "net, piece 2")
    assert piece.where == f"{__file__}:{Inner.forward.__code__.co_firstlineno + 2}"
    assert piece.entries[0].inputs == ("forward.h: f32[3]",)
    assert piece.values == {"forward.h.size(0)": ["3", "4"]}
