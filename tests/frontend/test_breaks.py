"""Breaks from snapshots of real frames: plain execution is the judge."""

import sys
import traceback
import types

import pytest

from jitshape.frontend._evalframe import Dispatcher, call_finished
from jitshape.frontend.breaks import Continuations, build_break
from jitshape.frontend.emit import Emitter
from jitshape.frontend.frame import NULL, FrameSnapshot, Lasti, SavedException
from jitshape.frontend.guards import assemble
from jitshape.frontend.instructions import decode, slot_names
from jitshape.frontend.values.base import Break, Cell, Value

LOG: list = []


class Real(Value):
    """An object that the entry rebuilds by calling a constant function."""

    def __init__(self, object):
        self.object = object

    def reconstruct(self, e):
        e.call(lambda: self.object)


class RealCell(Cell):
    def reconstruct(self, e):
        e.const(self.real)


class Manager:
    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        lines = [f.lineno for f in traceback.extract_tb(tb)][:1] if tb else None
        LOG.append(("exit", kind and kind.__name__, lines))
        return False


def effect(v, mode):
    frames = [sys._getframe(i) for i in range(1, 12)]
    LOG.append([(f.f_code.co_name, f.f_lineno) for f in frames if f.f_code.co_name in NAMES])
    if mode == "key":
        raise KeyError(v)
    if mode == "value":
        raise ValueError(v)
    return v * 2


NAMES = ("inner", "middle", "outer")


def inner(b, mode):
    s = 100
    for i in (1, 2, 3):
        s = s + (i * effect(b + i, mode))
    return s


def middle(a, mode):
    r = []
    try:
        r.append(10 * inner(a, mode=mode) + a)
    except KeyError as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__)]
        r.append(("handled", e.args, lines[0], lines[-1]))
    finally:
        LOG.append("finally")
    return r


def outer(x, mode):
    with Manager():
        y = [x, middle(x + 1, mode)]
        LOG.append(y)
    return y, "done"


def call_index(code, name):
    """Index of the CALL whose callee is the global `name`."""
    program = decode(code)
    found = False
    for i in program.instructions:
        if i.opname == "LOAD_GLOBAL":
            shift = 1
            found = found or code.co_names[i.arg >> shift] == name
        elif found and i.opname in ("CALL", "CALL_KW") and i.arg == 2:
            return i.index
    raise AssertionError(name)


def snapshot(function, name, stack, slots, handled=None, index=None):
    code = function.__code__
    index = call_index(code, name) if index is None else index
    program = decode(code)
    values = {k: v if isinstance(v, Value) else Real(v) for k, v in slots.items()}
    return FrameSnapshot(
        code,
        function.__globals__,
        None,
        (),
        index,
        program.starts[index],
        tuple(x if isinstance(x, Value) or x is NULL else entry(x) for x in stack),
        tuple(values.get(n) for n in slot_names(code)),
        handled,
        program.lines[index],
    )


def entry(x):
    return x if isinstance(x, SavedException | Lasti) else Real(x)


def callee(function, *args):
    return [NULL, function, *args] if sys.version_info < (3, 13) else [function, NULL, *args]


def run(frames, continuations=None):
    emitter = Emitter(frames[0].code)
    continuations = continuations or Continuations(lambda f: f)
    build_break(frames, emitter, continuations)
    function = emitter.finish(frames[0].globals)
    return call_finished(function, *assemble((), emitter.extract).run(()))


def nested(x, mode):
    """What an entry of `outer` does after tracing up to the first call of `effect`."""
    manager = Manager()
    manager.__enter__()
    items = iter((1, 2, 3))
    i, r = next(items), []
    names = ("mode",) if sys.version_info >= (3, 13) else ()
    keywords = [names] if names else []
    method = r.append
    frames = [
        snapshot(
            outer,
            "middle",
            [manager.__exit__, x, *callee(middle, x + 1, mode)],
            {"x": x, "mode": mode},
        ),
        snapshot(
            middle,
            "inner",
            [*callee(method), 10, *callee(inner, x + 1, mode), *keywords],
            {"a": x + 1, "mode": mode, "r": r},
        ),
        snapshot(
            inner,
            "effect",
            [items, 100, i, *callee(effect, x + 1 + i, mode)],
            {"s": 100, "i": i, "b": x + 1, "mode": mode},
        ),
    ]
    return run(frames)


def outcome(call):
    LOG.clear()
    try:
        result = "returned", call()
    except Exception as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if f.name in NAMES]
        lines = list(dict.fromkeys((f.name, f.lineno) for f in frames))
        result = "raised", repr(e), lines, e.__context__
    log = [
        list(dict.fromkeys(x)) if type(x) is list and x and type(x[0]) is tuple else x for x in LOG
    ]
    return result, log


@pytest.mark.parametrize("mode", ["fine", "key", "value"])
def test_nested_break_is_plain_execution(mode):
    want = outcome(lambda: outer(5, mode))
    assert outcome(lambda: nested(5, mode)) == want


def branch(x, log):
    try:
        if x:
            log.append("true")
            r = 1
        else:
            log.append("false")
            r = 2
    finally:
        log.append("finally")
    return r


@pytest.mark.parametrize("truth", [True, False])
def test_a_way_of_a_branch_is_compiled_once_and_when_taken(truth):
    compiled = []

    def compile(function):
        compiled.append(function)
        return Dispatcher(function, Dispatcher.call_original)

    code = branch.__code__
    index = next(i.index for i in decode(code).instructions if "IF" in i.opname)
    continuations = Continuations(compile)
    for _ in range(2):
        log: list = []
        frame = snapshot(branch, None, [truth], {"x": truth, "log": log}, index=index)
        assert run([frame], continuations) == (1 if truth else 2)
        assert log == [str(truth).lower(), "finally"]
    assert [f.__code__.co_name for f in compiled] == ["branch"]


def counting(n):
    total = n

    def add(k):
        nonlocal total
        total += k
        return total

    return add(effect(n, "")), total


def test_cells_stay_shared():
    total = types.CellType(4)
    code = counting.__code__
    add = types.FunctionType(
        next(c for c in code.co_consts if isinstance(c, types.CodeType)),
        globals(),
        closure=(total,),
    )
    index = next(i.index for i in decode(code).instructions if i.opname == "CALL" and i.arg == 2)
    stack = [*callee(add), *callee(effect, 4, "")]
    slots = {"n": 4, "add": add, "total": RealCell(real=total)}
    want = outcome(lambda: counting(4))[0]
    assert outcome(lambda: run([snapshot(counting, None, stack, slots, index=index)]))[0] == want


def handler(x):
    try:
        raise KeyError(x)
    except KeyError:
        try:
            raise ValueError(x)
        except ValueError:
            a = effect(x, "")
        b = type(sys.exception())
    return a, b, sys.exception()


def test_handled_exceptions_are_handled_again():
    code = handler.__code__
    outer_exception, inner_exception = KeyError(3), ValueError(3)
    position = call_index(code, "effect")
    stack = [
        SavedException(None),
        SavedException(Real(outer_exception)),
        *callee(effect, 3, ""),
    ]
    frame = snapshot(handler, "effect", stack, {"x": 3}, Real(inner_exception), position)
    assert run([frame]) == handler(3) == (6, KeyError, None)


class Parent:
    def grown(self, n):
        return n + 1


class Child(Parent):
    def grown(self, n):
        m = effect(n, "")
        return super().grown(m)


def test_super_after_a_break():
    child = Child()
    function = Child.grown
    frame = snapshot(function, "effect", callee(effect, 3, ""), {"self": child, "n": 3})
    cell = RealCell(real=function.__closure__[0])
    slots = tuple(
        cell if n == "__class__" else v for n, v in zip(slot_names(frame.code), frame.slots)
    )
    frame = FrameSnapshot(**{**vars(frame), "closure": (cell,), "slots": slots})
    assert run([frame]) == child.grown(3) == 7
    lost = FrameSnapshot(**{**vars(frame), "slots": (*frame.slots[:-1], Cell())})
    with pytest.raises(Break, match="defined while tracing"):
        run([lost])


def test_asynchronous_generators_break_earlier():
    async def generator():
        yield effect(1, "")

    frame = snapshot(generator, "effect", [], {}, index=3)
    with pytest.raises(Break, match="asynchronous generators"):
        run([frame])
