"""Compiled code beside whatever else looks at frames: trace functions, threads, processes, other
compilers, interpreters; and functions whose code no compiler made."""

import dis
import gc
import multiprocessing
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import types
import warnings

import pytest
import torch

import jitshape
from jitshape.frontend._evalframe import hook_state
from tests.programs.compare import assert_same
from tests.programs.pieces import note

SOURCE = """
import torch, jitshape

def inner(x):
    y = x * 2
    if y.sum() > -100:
        y = y.sin()
    return y

def program(x):
    total = 0
    for i in range(3):
        total = total + inner(x + i)
    return total
"""


def run_alone(text, silent=False):
    """Run a program in an interpreter of its own; returns what it prints.  With `silent` nothing
    is said on stderr, also when the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", SOURCE + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and not (silent and done.stderr), done.stderr[-3000:]
    return done.stdout.strip()


def inner(x):
    y = x * 2
    note("inner")
    return y.sin()


def program(x):
    total = x.sum()
    for i in range(3):
        total = total + inner(x + i)
    return total


@pytest.mark.parametrize("setter", ["settrace", "setprofile"])
def test_trace_functions_see_the_program(setter):
    """They hear of compiling too, and of every line that runs natively."""
    x, heard = torch.ones(3), []

    def listen(frame, event, arg):
        if frame.f_code in (inner.__code__, note.__code__):
            heard.append((event, frame.f_code.co_name))
        return listen

    jitshape.reset()
    compiled, before = jitshape.compile(program, backend="eager"), sys.gettrace()
    for _ in range(2):
        getattr(sys, setter)(listen)
        try:
            got = compiled(x)
        finally:
            getattr(sys, setter)(before if setter == "settrace" else None)
        torch.testing.assert_close(got, program(x))
    assert heard.count(("call", "note")) == 6
    assert jitshape.stats()["fallbacks"] == 0 and not hook_state()["installed"]


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="new in CPython 3.12")
def test_monitoring_tools_see_the_program():
    """While it is compiled, and what of it runs natively; a tool that comes later, too."""
    events, heard = sys.monitoring.events, []

    def listen(code, *rest):
        if code is note.__code__:
            heard.append(code.co_name)

    jitshape.reset()
    x, compiled = torch.ones(3), jitshape.compile(program, backend="eager")
    for number in range(3):
        if number != 1:
            sys.monitoring.use_tool_id(4, "a profiler")
            sys.monitoring.register_callback(4, events.PY_START, listen)
            sys.monitoring.register_callback(4, events.LINE, listen)
            sys.monitoring.set_events(4, events.PY_START | events.LINE)
        try:
            got = compiled(x)
        finally:
            if number != 1:
                sys.monitoring.set_events(4, 0)
                sys.monitoring.free_tool_id(4)
        torch.testing.assert_close(got, program(x))
    assert len(heard) >= 12 and not hook_state()["installed"]
    assert jitshape.stats()["fallbacks"] == 0


def test_threads_of_random_sizes():
    sizes = [(n, m) for n in (1, 2, 3, 5) for m in (2, 4)]
    inputs = [torch.full(size, 0.3) for size in sizes]
    wants = [program(x) for x in inputs]
    jitshape.reset()
    compiled = jitshape.compile(program)
    barrier, failures = threading.Barrier(8), []

    def work(seed):
        choose = random.Random(seed)
        barrier.wait()
        for _ in range(25):
            i = choose.randrange(len(inputs))
            try:
                torch.testing.assert_close(compiled(inputs[i]), wants[i])
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads)
    stats = jitshape.stats()
    assert stats["fallbacks"] == 0 and stats["compiles"] <= 24
    assert not hook_state()["installed"]


def test_a_thread_that_waits_too_long_runs_natively(monkeypatch):
    """No lock is held while the program's code runs, but while a back end compiles."""
    monkeypatch.setattr("jitshape.compiler.LOCK_SECONDS", 0.05)
    compiling, done = threading.Event(), threading.Event()

    def slow(graph, example_inputs):
        compiling.set()
        assert done.wait(60)
        return lambda *inputs: (inputs[0] * 2,)

    jitshape.reset()
    compiled, x = jitshape.compile(lambda x: x * 2, backend=slow), torch.ones(3)
    thread = threading.Thread(target=lambda: compiled(x))
    thread.start()
    assert compiling.wait(20)
    torch.testing.assert_close(compiled(x), x * 2)
    done.set()
    thread.join(60)
    assert jitshape.stats()["fallbacks"] == 1
    assert "another thread" in str(jitshape.stats()["details"])


def test_no_lock_is_held_while_the_program_runs():
    """One thread waits inside the program for another one to come through it."""
    waiting, passed = threading.Event(), threading.Event()

    @jitshape.disable
    def meet(first):
        if first:
            waiting.set()
            assert passed.wait(60)

    def f(x, first):
        y = x * 2
        meet(first)
        return y + 1

    jitshape.reset()
    compiled, x = jitshape.compile(f), torch.ones(3)
    thread = threading.Thread(target=lambda: compiled(x, True))
    thread.start()
    assert waiting.wait(20)
    torch.testing.assert_close(compiled(x, False), f(x, False))
    passed.set()
    thread.join(60)
    assert not thread.is_alive() and jitshape.stats()["fallbacks"] == 0


def test_recursion_and_calls_of_other_compiled_functions():
    def f(x, n):
        return x if n == 0 else compiled(x + 1, n - 1) * 2

    def g(x):
        y = other(x) + 1
        note(y)
        return other(y)

    compiled, other = jitshape.compile(f), jitshape.compile(lambda x: x.sin())
    x = torch.ones(3)
    jitshape.reset()
    torch.testing.assert_close(compiled(x, 3), ((x + 3) * 2) * 4)
    torch.testing.assert_close(jitshape.compile(g)(x), (x.sin() + 1).sin())
    assert jitshape.stats()["fallbacks"] == 0


def leave_room_for(frames):
    """Set the recursion limit so that this many more frames fit."""
    depth = 1
    while True:
        try:
            sys.setrecursionlimit(depth)
        except RecursionError:
            depth += 1
        else:
            break
    sys.setrecursionlimit(depth + frames)


def near_the_limit(room):
    """Breaks, handlers and errors where the program has no room for the compiler's frames."""

    def descend(n):
        try:
            note(n)
            return descend(n + 1)
        except RecursionError as error:
            note(error)
            raise

    former, seen = sys.getrecursionlimit(), []
    try:
        leave_room_for(room)
        descend(0)
    except RecursionError as error:
        seen.append(str(error)[:32])
    finally:
        sys.setrecursionlimit(former)
    return seen, former


@pytest.mark.parametrize("room", [8, 12, 60])
def test_pieces_are_made_where_the_program_has_no_room(room):
    compiled = jitshape.compile(near_the_limit)
    for _ in range(2):
        assert compiled(room) == near_the_limit(room)
        assert sys.getrecursionlimit() == near_the_limit(room)[1]


def test_a_call_from_a_back_end_runs_natively():
    seen = []

    def backend(graph, example_inputs):
        seen.append(compiled(torch.full((2,), 3.0)))
        return lambda x: (x * 2,)

    jitshape.reset()
    compiled = jitshape.compile(lambda x: x * 2, backend=backend)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    torch.testing.assert_close(seen[0], torch.full((2,), 6.0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_goes_on_with_compiled_code_and_compiles():
    jitshape.reset()
    compiled = jitshape.compile(program)
    inputs = [torch.ones(3), torch.ones(2, 5), torch.ones(4, 5)]
    compiled(inputs[0])
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def child():
        found = [compiled(x).sum().item() for x in inputs]
        results.put((found, jitshape.stats()["recompiles"] > 0))

    process = context.Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == 0
    want = [program(x).sum().item() for x in inputs]
    assert results.get() == (pytest.approx(want), True)


def outcome_in_child(work):
    """What `work` returns in a forked process, as text."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads beside a fork
        child = os.fork()
    if child == 0:
        try:
            shown = str(work())
        except BaseException as error:
            shown = repr(error)
        os.write(writer, shown.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        shown = file.read()
    os.waitpid(child, 0)
    return shown


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("place", ["trace", "back end"])
def test_a_fork_while_another_thread_compiles(place):
    """Its locks, the frame hook and what it changed of the process are not the child's."""
    compiling, done, parent = threading.Event(), threading.Event(), os.getpid()

    def wait(where):
        if where == place and os.getpid() == parent:
            compiling.set()
            assert done.wait(60)

    @jitshape.allow_in_graph
    def traced(x):
        wait("trace")
        return x * 2

    def backend(graph, example_inputs):
        wait("back end")
        return lambda x: (x * 2,)

    def outside():
        state = bool(hook_state()["installed"]), gc.isenabled(), sys.getrecursionlimit() == limit
        start = time.monotonic()
        found = compiled(torch.ones(3)).tolist(), jitshape.stats()["fallbacks"]
        return *state, *found, time.monotonic() - start < 30

    jitshape.reset()
    limit = sys.getrecursionlimit()
    compiled = jitshape.compile(lambda x: traced(x), backend=backend)
    thread = threading.Thread(target=lambda: compiled(torch.ones(3)))
    thread.start()
    try:
        assert compiling.wait(60)
        assert outcome_in_child(outside) == str((False, True, True, [2.0] * 3, 0, True))
        assert not gc.isenabled() and hook_state()["installed"] == (place == "trace")
    finally:
        done.set()
        thread.join(60)
    assert gc.isenabled() and not hook_state()["installed"]


class Squares(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = jitshape.compile(lambda x: (x * x).sum(-1))

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.transform(torch.full((index + 1, 2), float(index)))[:1]


def test_workers_of_a_data_loader():
    data = Squares()
    data[0]
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2)
    assert torch.cat(list(loader)).flatten().tolist() == [2.0 * i * i for i in range(6)]


def test_below_torch_compile():
    shown = run_alone(
        """
        compiled = jitshape.compile(program)
        x = torch.ones(3)
        outer = torch.compile(lambda x: compiled(x) + 1, backend="eager")
        for x in (torch.ones(3), torch.ones(4)):
            torch.testing.assert_close(outer(x), program(x) + 1)
        print(torch.compile(compiled, backend="eager")(x).shape)
        """
    )
    assert shown == "torch.Size([4])"


def test_below_vmap_make_fx_and_modes():
    from torch.fx.experimental.proxy_tensor import make_fx

    compiled = jitshape.compile(program)
    x = torch.rand(4, 3)
    compiled(x[0])
    assert_same(torch.vmap(program)(x), torch.vmap(compiled)(x))
    gradients = [torch.func.grad(lambda x, f=f: f(x).sum())(x) for f in (program, compiled)]
    assert_same(*gradients)
    traced, direct = make_fx(compiled)(x), make_fx(program)(x)
    assert [n.target for n in traced.graph.nodes] == [n.target for n in direct.graph.nodes]

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    lists = []
    for call in (program, compiled):
        seen = []
        with Mode():
            call(x)
        lists.append(seen)
    assert lists[0] == lists[1] and len(lists[0]) > 5


def test_a_process_ends_without_complaints():
    """Of functions that live to its end, with machine code that was to be freed."""
    text = """
        compiled = [jitshape.compile(f, dynamic=True) for f in (inner, program)]
        for f in compiled:
            f(torch.ones(3, requires_grad=True)).sum().backward()
        print(len(compiled))
        """
    assert run_alone(text, silent=True) == "2"


def test_other_interpreters_are_refused():
    shown = run_alone(
        """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        other = interpreters.create()
        text = (
            "try:\\n    import jitshape.frontend._evalframe"
            "\\nexcept ImportError as error:\\n    print(error)"
        )
        interpreters.run_string(other, text)
        """
    )
    assert "main interpreter" in shown or "does not support loading in subinterpreters" in shown


def test_nothing_is_left_installed_after_a_call():
    compiled = jitshape.compile(program)
    before = hook_state()
    for n in (2, 3, 4):
        compiled(torch.ones(n))
        assert not hook_state()["installed"]
    after = hook_state()
    compiled(torch.ones(3))
    assert hook_state()["seen"] == after["seen"] >= before["seen"]


def plain(x):
    y = x * 2
    return y + 1


def calls_it(x, function):
    y = x.sin()
    return function(y) * 2


def with_code(**changes):
    """`plain` with some of its code replaced by hand."""
    return types.FunctionType(plain.__code__.replace(**changes), globals(), "made")


TEXT = plain.__code__.co_code
JUMP_OUT = TEXT + bytes([dis.opmap["JUMP_FORWARD"], 200])
UNKNOWN = TEXT + bytes([next(i for i in range(3, 256) if dis.opname[i] == f"<{i}>"), 0])


@pytest.mark.parametrize(
    "changes",
    [
        {"co_code": UNKNOWN},
        {"co_linetable": b""},
        {"co_exceptiontable": b"\xff\xff"},
        {"co_firstlineno": 0, "co_name": "<odd name>", "co_filename": ""},
    ],
    ids=lambda c: "+".join(c),
)
def test_code_that_no_compiler_made_is_compiled_where_it_can_be(changes):
    made, x = with_code(**changes), torch.ones(3)
    jitshape.reset()
    torch.testing.assert_close(jitshape.compile(made)(x), made(x))
    assert jitshape.stats()["compiles"] == 1 and jitshape.stats()["fallbacks"] == 0


def test_code_that_cannot_be_read_runs_natively_with_one_warning(caplog):
    made, x = with_code(co_code=JUMP_OUT), torch.ones(3)
    jitshape.reset()
    compiled, caller = jitshape.compile(made), jitshape.compile(calls_it)
    for n in (3, 3, 4):
        torch.testing.assert_close(compiled(torch.ones(n)), plain(torch.ones(n)))
    warned = [r.getMessage() for r in caplog.records if "runs eagerly" in r.getMessage()]
    assert len(warned) == 1 and "bytecode that no compiler makes" in warned[0]
    jitshape.reset()
    torch.testing.assert_close(caller(x, made), calls_it(x, plain))
    assert jitshape.stats()["graph_breaks"] == 1 and jitshape.stats()["fallbacks"] == 0


def test_code_that_a_tool_replaces_is_compiled_anew():
    def f(x):
        return x * 2

    def g(x):
        return x * 3

    compiled, x = jitshape.compile(f), torch.ones(3)
    calls = jitshape.compile(lambda x: f(x) + 1)
    assert compiled(x).tolist() == [2.0] * 3 and calls(x).tolist() == [3.0] * 3
    f.__code__ = g.__code__
    assert compiled(x).tolist() == [3.0] * 3 and calls(x).tolist() == [4.0] * 3
