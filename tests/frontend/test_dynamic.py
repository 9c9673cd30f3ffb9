"""Automatic dynamic: first static, symbolic on a change; modes, marks, parameters, reasons."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from jitshape.dims import Dim, promise_of
from jitshape.errors import BadMark
from jitshape.frontend.dynamic import History, Policy, _histories, history_of, same_number
from jitshape.frontend.marks import mark, note_varying
from jitshape.frontend.sources import Held, InstanceDict, Key, Local, Number

torch = pytest.importorskip("torch")

X = Local(0, "x")
N = Local(1, "n")
WIDTH = Key(InstanceDict(Local(0, "self")), "width")
WEIGHT = Key(Key(InstanceDict(Local(0, "self")), "_parameters"), "weight")


def test_a_size_is_static_until_it_changes():
    history = History()
    first = Policy(history).size(X, torch.empty(4, 32), 1)
    again = Policy(history).size(X, torch.empty(8, 32), 1)
    changed = Policy(history).size(X, torch.empty(8, 48), 1)
    assert (first.dynamic, again.dynamic, changed.dynamic) == (False, False, True)
    assert str(changed) == "x.size(1) became dynamic: 32 then 48"
    assert changed.seen == (32,)
    back = Policy(history).size(X, torch.empty(8, 32), 1)
    assert back.dynamic and back.seen == (48,)


def test_one_policy_gives_one_answer():
    policy = Policy(History())
    assert policy.size(X, torch.empty(4), 0) is policy.size(X, torch.empty(4), 0)
    assert policy.became_dynamic() == ()


@pytest.mark.parametrize(
    ("mode", "size", "argument", "attribute"),
    [(None, False, False, False), (True, True, True, False), (False, False, False, False)],
)
def test_modes_on_the_first_call(mode, size, argument, attribute):
    policy = Policy(History(), mode)
    assert policy.size(X, torch.empty(4), 0).dynamic is size
    assert policy.number(N, 3).dynamic is argument
    assert policy.number(N, 0.5).dynamic is argument
    assert policy.number(WIDTH, 64).dynamic is attribute
    assert policy.stride(X, torch.empty(4, 2).t(), 0).dynamic is False


def test_dynamic_false_never_changes_its_mind():
    history = History()
    assert not Policy(history, False).number(N, 3).dynamic
    assert not Policy(history, False).number(N, 4).dynamic


def test_numbers_change_by_bits():
    history = History()
    nan = float("nan")
    assert not Policy(history).number(N, nan).dynamic
    assert not Policy(history).number(N, nan).dynamic
    changed = Policy(history).number(N, 0.5)
    assert changed.dynamic and str(changed) == "n became dynamic: nan then 0.5"
    assert not same_number(0.0, -0.0) and not same_number(1, 1.0) and not same_number(1, True)
    assert not Policy(History(), True).number(N, True).dynamic


def test_parameters_and_buffers_are_static_unless_marked():
    history = History()
    parameter = torch.nn.Parameter(torch.empty(4))
    assert not Policy(history, True).size(X, parameter, 0).dynamic
    assert not Policy(history, True).size(WEIGHT, torch.empty(4), 0).dynamic
    assert not Policy(history, True).size(WEIGHT, torch.empty(5), 0).dynamic
    mark(parameter, 0, "maybe_dynamic")
    assert Policy(history).size(X, parameter, 0).dynamic


def test_marks_come_first():
    x = torch.empty(4, 8, 16)
    mark(x, 0, "dynamic", min=2, max=64, hint=5)
    mark(x, 1, "static")
    mark(x, 2, "unbacked", min=1)
    policy = Policy(History(), False)
    first, second, third = (policy.size(X, x, dim) for dim in range(3))
    assert (first.dynamic, first.lo, first.hi, first.hint) == (True, 2, 64, 5)
    assert first.strict and str(first) == "x.size(0) is dynamic: mark_dynamic"
    assert not second.dynamic and third.unbacked
    assert (first.served_from, third.served_from) == (2, 1)
    assert not Policy(History(), True).size(X, x, 1).dynamic


def test_sources_listed_in_the_environment(monkeypatch):
    monkeypatch.setenv("JITSHAPE_DYNAMIC_SOURCES", "x, self.wid*")
    monkeypatch.setenv("JITSHAPE_STATIC_SOURCES", "y.size(1)")
    y = torch.empty(2, 3)
    assert Policy(History()).size(X, y, 1).dynamic
    assert Policy(History()).number(WIDTH, 3).dynamic
    assert not Policy(History(), True).size(Local(1, "y"), y, 1).dynamic
    assert Policy(History(), True).size(Local(1, "y"), y, 0).dynamic


def test_in_lists_of_sources_only_stars_and_question_marks_are_wild(monkeypatch):
    monkeypatch.setenv("JITSHAPE_DYNAMIC_SOURCES", "xs[0], d['?'], self.*.width")
    for text, listed in {
        "xs[0].size(1)": True,
        "xs0": False,
        "d['k']": True,
        "d['kk']": False,
    }.items():
        assert Policy(History())._dynamic.match(text) is listed, text
    assert Policy(History())._dynamic.match("self.layers[3].width")


def test_a_list_of_sources_comes_before_the_mode_and_opens_parameters(monkeypatch):
    monkeypatch.setenv("JITSHAPE_DYNAMIC_SOURCES", "self.weight, n")
    assert Policy(History(), False).number(N, 3).dynamic
    assert Policy(History()).size(WEIGHT, torch.empty(4), 0).dynamic


def test_declared_sizes_come_behind_marks():
    b = Dim("b", min=2, max=64)
    declared = {"x.size(0)": promise_of(2 * b), "x.size(1)": promise_of(None)}
    declared |= {"x.size(2)": promise_of("auto"), "n": promise_of("dynamic")}
    policy = Policy(History(), None, declared)
    x = torch.empty(8, 3, 5)
    batch, width, length = (policy.size(X, x, dim) for dim in range(3))
    assert (batch.dynamic, batch.lo, batch.hi, batch.served_from) == (True, 4, 128, 4)
    assert str(batch) == "x.size(0) is dynamic: dynamic_shapes says 2*b" and batch.strict
    assert not width.dynamic and length.dynamic and not length.strict
    assert policy.number(N, 3).strict and policy.number(N, 3).served_from is None
    mark(x, 1, "dynamic")
    with pytest.raises(BadMark, match=r"contradicts dynamic_shapes, .* x.size\(1\) is static"):
        Policy(History(), None, declared).size(X, x, 1)


def test_what_was_symbolic_before_stays_symbolic():
    y = torch.empty(4, 3)
    note_varying(y, [1])
    policy = Policy(History(), None, {}, {"n"})
    assert [policy.size(X, y, dim).dynamic for dim in range(2)] == [False, True]
    assert str(policy.number(N, 3)) == "n is dynamic: it was symbolic before the graph break"
    assert not Policy(History(), False, {}, {"n"}).number(N, 3).dynamic


def test_globals_and_attributes_are_not_arguments():
    number = Key(Held({}, "globals()"), "SCALE")
    assert not Policy(History(), True).number(number, 3).dynamic
    assert Policy(History(), True).number(Number(Local(0, "xs"), "len"), 3).dynamic


def test_a_history_belongs_to_one_code_object_and_dies_with_it():
    text = "def f(x): return x"
    first, second = (compile(text, "f.py", "exec").co_consts[0] for _ in range(2))
    assert first == second and history_of(first) is not history_of(second)
    assert history_of(first) is history_of(first)
    gc.collect()  # those of other tests
    before = len(_histories)
    del first, second
    gc.collect()
    assert len(_histories) == before - 2


def test_it_imports_without_torch():
    code = "import sys, jitshape.frontend.dynamic; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_the_batch_varies_with_the_length():
    history = History()
    x, y = torch.ones(2, 3, 8, 5), torch.ones(2, 3, 9, 5)
    for tensor, expected in ((x, [False] * 4), (y, [True, False, True, True])):
        policy = Policy(history)
        source = Local(0, "x")
        assert [policy.size(source, tensor, d).dynamic for d in range(4)] == expected
    assert (
        policy.decisions["x.size(0)"].reason
        == "is dynamic with x.size(2), which became dynamic: 8 then 9"
    )


@pytest.mark.parametrize(
    ("shape", "changed", "dynamic"),
    [
        ((5, 4), 0, [0, 1]),
        ((5, 4), 1, [0, 1]),
        ((5, 1), 0, [0]),
        ((1, 4), 1, [0, 1]),
        ((5, 4, 3), 0, [0, 1]),
        ((5, 4, 3), 1, [0, 1]),
        ((5, 4, 3), 2, [0, 1, 2]),
        ((5, 4, 3, 2), 0, [0]),
        ((5, 4, 3, 2), 1, [0, 1]),
        ((5, 4, 3, 2), 3, [0, 2, 3]),
    ],
)
def test_sizes_that_vary_together(shape, changed, dynamic):
    history, source = History(), Local(0, "x")
    first = [size + 7 * (dim == changed) for dim, size in enumerate(shape)]
    for sizes in (first, shape):
        policy = Policy(history)
        found = [policy.size(source, torch.ones(sizes), d).dynamic for d in range(len(sizes))]
    assert [d for d, is_dynamic in enumerate(found) if is_dynamic] == dynamic
