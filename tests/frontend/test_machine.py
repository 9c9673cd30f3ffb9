"""The machine's own contract: outcomes, breaks and restarts, guards, locations, determinism."""

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from jitshape.frontend import checks
from jitshape.frontend.frame import SavedException
from jitshape.frontend.instructions import decode
from jitshape.frontend.machine import Machine
from jitshape.frontend.values.base import Break, Value
from tests.frontend.tracing import Effects, check, traced


def stopper():
    """Replaced in the machine by a callable that breaks."""
    return "ran"


class Stopping(Value):
    """A callable that cannot be captured."""

    def call(self, m, args, kwargs):
        raise Break("test", "stopper is called")

    def python_type(self):
        return type(stopper)


def run(function, *args):
    return traced(function, args, [(stopper, Stopping())])


def opname(snapshot):
    return decode(snapshot.code).instructions[snapshot.index].opname


def local(snapshot, name):
    return snapshot.slots[decode(snapshot.code).slot_names.index(name)]


def test_return_and_raise():
    def f(x):
        if x:
            raise KeyError(x)
        return x

    assert run(f, 0)[1].kind == "return"
    outcome = run(f, 5)[1]
    assert outcome.kind == "raise"
    assert outcome.value.python_type() is KeyError


def test_break_leaves_the_operands():
    def f(x):
        y = x + 1
        return (x, stopper(y, key=2), y)

    _, outcome = run(f, 3)
    assert outcome.kind == "break"
    assert (outcome.cause.kind, outcome.location.function) == ("test", f.__qualname__)
    assert outcome.location.line == f.__code__.co_firstlineno + 2
    (frame,) = outcome.frames
    assert opname(frame) in ("CALL", "CALL_KW")
    constants = [v.constant() for v in frame.stack if isinstance(v, Value) and v.is_constant()]
    assert constants[:3] == [3, 4, 2]
    assert local(frame, "y").constant() == 4
    first = decode(f.__code__).instructions[frame.start].opname
    assert first == {(3, 11): "KW_NAMES", (3, 12): "KW_NAMES"}.get(sys.version_info[:2], "CALL_KW")


def test_break_in_nested_calls_leaves_every_frame():
    def inner(z):
        return stopper() + z

    class Caller:
        def method(self, v):
            w = [v]
            return inner(v), w

    caller = Caller()

    def f(x):
        return caller.method(x + 1)

    _, outcome = run(f, 1)
    assert [s.code.co_name for s in outcome.frames] == ["f", "method", "inner"]
    assert [opname(s) for s in outcome.frames] == ["CALL"] * 3
    assert local(outcome.frames[2], "z").constant() == 2
    assert local(outcome.frames[1], "v") is local(outcome.frames[2], "z")


def test_break_inside_a_dunder_restarts_before_the_outer_instruction():
    class Odd:
        def __add__(self, other):
            return stopper()

    odd = Odd()

    def f(log):
        log.append(1)
        result = odd + log
        log.append(2)
        return result

    log = []
    machine, outcome = run(f, log)
    assert outcome.kind == "break"
    (frame,) = outcome.frames
    assert opname(frame) == "BINARY_OP"
    assert len(local(frame, "log").items) == 1
    assert log == []
    assert machine.break_at


def test_break_after_a_change_restarts():
    calls = []

    def key(x):
        return stopper() if x == 2 else x

    def f(xs):
        ys = [0]
        ys.extend(key(x) for x in xs)
        return ys

    _, outcome = run(f, [1, 2, 3])
    assert outcome.kind == "break"
    (frame,) = outcome.frames
    assert len(local(frame, "ys").items) == 1
    assert calls == []


def test_break_in_a_handler_keeps_the_exception():
    def f():
        try:
            raise ValueError("a")
        except ValueError:
            try:
                raise KeyError("b")
            except KeyError as e:
                return stopper(e)

    _, outcome = run(f)
    (frame,) = outcome.frames
    assert frame.handled.python_type() is KeyError
    saved = [entry.exception for entry in frame.stack if isinstance(entry, SavedException)]
    assert [s and s.python_type() for s in saved] == [None, ValueError]


def test_deep_recursion_runs_natively():
    def f(n):
        def down(k):
            return 0 if k == 0 else down(k - 1) + 1

        return down(n)

    assert run(f, 50)[1].kind == "return"
    _, outcome = run(f, 800)
    assert (outcome.kind, outcome.cause.kind) == ("break", "recursion")
    assert [s.code.co_name for s in outcome.frames] == ["f"]


def test_a_trace_that_relies_on_too_much_ends(monkeypatch):
    monkeypatch.setattr("jitshape.frontend.machine.GUARD_LIMIT", 20)

    def f(items):
        found = []
        for item in items:
            found.append(item[0])
        return found

    assert run(f, [[i] for i in range(3)])[1].kind == "return"
    machine, outcome = run(f, [[i] for i in range(60)])
    assert (outcome.kind, outcome.cause.kind) == ("break", "guard_limit")
    assert len(machine.guards) <= 20


def test_long_loops_end_the_graph():
    def f(n):
        total = 0
        for i in range(n):
            total += i
        return total

    assert run(f, 4096)[1].kind == "return"
    _, outcome = run(f, 5000)
    assert outcome.cause.kind == "unroll_limit"
    assert local(outcome.frames[0], "i").constant() == 4096


def test_coroutines_that_are_dropped_unawaited_are_made_natively():
    async def g():
        return 1

    def awaits():
        try:
            g().send(None)
        except StopIteration as end:
            return end.value

    def drops():
        g()

    assert run(awaits)[1].value.constant() == 1
    _, outcome = run(drops)
    assert outcome.cause.reason.endswith("g is dropped before its end")
    assert [opname(s) for s in outcome.frames] == ["CALL"]


def test_generators_that_let_the_end_pass_may_be_dropped():
    class Rows(Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i > 2:
                raise IndexError(i)
            return i

    def stops():
        yield from ()
        try:
            yield 1
        except (ValueError, GeneratorExit):
            pass

    def f():
        return [a + b for a, b in zip([1, 2], Rows())]

    def caught():
        return next(stops())

    assert run(f)[1].kind == "return"
    assert check(f) == [1, 3]
    assert run(caught)[1].cause.reason.endswith("stops is dropped before its end")


def test_hooks_of_asynchronous_generators_are_guarded():
    async def items():
        yield 1

    def f():
        try:
            items().__anext__().send(None)
        except StopIteration as end:
            return end.value

    machine, outcome = run(f)
    assert outcome.value.constant() == 1
    assert checks.Ambient("asyncgen_hooks", "") in [guard.check for guard in machine.guards]


def test_guards_name_source_and_line():
    def f(x):
        len("")
        return len(x) + x[0]

    machine, _ = run(f, (7, 8))
    lines = {g.location.line for g in machine.guards if g.location}
    first = f.__code__.co_firstlineno
    assert lines == {first + 1, first + 2}
    shown = {(str(g.source), type(g.check).__name__) for g in machine.guards}
    assert ("x", "TypeIs") in shown
    assert ("x[0]", "Equals") in shown
    assert any(isinstance(g.check, checks.Missing) and g.check.key == "len" for g in machine.guards)


def test_two_sources_of_one_object():
    def f(a, b):
        a.append(1)
        return b

    shared = []
    machine, outcome = run(f, shared, shared)
    assert [type(g.check) for g in machine.guards if str(g.source) == "b"] == [checks.SameObject]
    assert len(outcome.value.items) == 1


def test_tracing_twice_takes_the_same_steps():
    def f(n):
        return sorted([(-i, str(i)) for i in range(n)], key=lambda p: p[0])

    assert run(f, 6)[0].steps == run(f, 6)[0].steps


def test_location_stack():
    seen = []

    class Spy(Value):
        def python_type(self):
            return type(stopper)

        def call(self, m, args, kwargs):
            seen.extend(m.locations())
            return m.const(1)

    def inner():
        return stopper()

    def f():
        return inner()

    machine = Machine(effects=Effects())
    machine.remember(stopper, Spy())
    assert machine.run(f, []).kind == "return"
    assert [(p.line - f.__code__.co_firstlineno) for p in seen] == [1, -2]
    assert seen[0].file == __file__


def test_a_finished_generator_that_leaves_breaks_where_it_is_made():
    def numbers():
        yield 1
        yield 2

    def f():
        g = numbers()
        for _ in g:
            pass
        return g

    _, outcome = run(f)
    from jitshape.frontend.values.base import Restart

    with pytest.raises(Restart) as restart:
        outcome.value.reconstruct(None)
    machine = Machine(effects=Effects(), break_at={restart.value.step: restart.value.cause})
    again = machine.run(f, [])
    assert again.kind == "break"
    assert [opname(s) for s in again.frames] == ["CALL"]


def test_closure_cells_of_the_outermost_function():
    count = 10

    def f(x):
        nonlocal count
        count += x
        return count

    machine, outcome = run(f, 5)
    assert outcome.value.constant() == 15
    assert count == 10
    assert any(str(g.source) == "count" for g in machine.guards)


def test_without_torch():
    code = "import jitshape.frontend.machine, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_arguments_of_check_are_compared_too():
    def f(x):
        x.append(len(x))
        return x

    assert check(f, [1]) == [1, 1]


def test_locals_as_the_interpreter_shows_them():
    def f(a, b):
        def inner():
            return c, list(locals().items())

        first = locals()
        shown = list(first)
        c = a + b
        again = locals()
        del b
        return shown, list(again), again["b"], list(locals()), inner(), first is again

    check(f, 1, 2)


def test_identity_of_numbers_and_text():
    def f(a, b):
        text = "".join(["a", "bc"])
        return a is b, text is "".join(["a", "bc"]), (a, b)[:] is (a, b), None is None, a is None

    check(f, 3, 4)


class Finalized:
    def __del__(self):
        CASES_SEEN.append("del")


class FinalizedNumber(int):
    def __del__(self):
        CASES_SEEN.append("del")


CASES_SEEN = []


def test_dropping_an_object_that_has_a_finalizer_breaks():
    def dropped(x):
        del x
        return len(CASES_SEEN)

    def replaced(x):
        x = 1
        return x

    def made():
        return Finalized()

    def made_of_c():
        return FinalizedNumber(3)

    def replaced_in_dict(x):
        for key, _ in x.items():
            x[key] = None

    def taken_from_dict(x):
        del x[len(x.pop("b", ""))]

    def replaced_in_list(x):
        x[0] = len(x[0:1])

    def removed_from_list(x):
        x.clear()

    def replaced_attribute(x):
        x.kept = x.kept is None

    def held():
        cell = Finalized()

        def replaced_in_cell():
            nonlocal cell
            cell = cell is None

        return replaced_in_cell

    one = FinalizedNumber(0)
    for function, args in (
        (dropped, [Finalized()]),
        (replaced, [Finalized()]),
        (made, []),
        (made_of_c, []),
        (replaced_in_dict, [{"a": one}]),
        (taken_from_dict, [{0: one}]),
        (replaced_in_list, [[one]]),
        (removed_from_list, [[one]]),
        (replaced_attribute, [SimpleNamespace(kept=one)]),
        (held(), []),
    ):
        outcome = run(function, *args)[1]
        assert outcome.kind == "break" and outcome.cause.kind == "finalizer", function


def test_infinite_calls_without_frames_end_as_a_break():
    class Endless:
        pass

    Endless.__call__ = Endless()

    def f(x):
        return x()

    assert run(f, Endless())[1].cause.kind == "recursion"
