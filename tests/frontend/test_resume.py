"""Every function below is run by a chain of bridges: each instruction in a function of its own."""

import sys
import traceback
import types

import pytest

from jitshape.frontend._evalframe import call_finished
from jitshape.frontend.bridges import Ways, bridge_code
from jitshape.frontend.instructions import decode, slot_names
from jitshape.frontend.positions import Position, unsupported
from jitshape.frontend.resume import resume_code


def ident(x):
    return x


class CM:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow


def expressions(a, b, log):
    c = a + ident(b) * ident(a - 1)
    log.append(c)
    return [c, ident(c) + 1, {"k": ident(a)}], -c, not c, f"{ident(a)!r:>4}{b}"


def loops(a, b, log):
    s = 0
    for i in range(a):
        for j, w in enumerate([10, 20, b]):
            if i == j:
                continue
            s += ident(i) * w
        else:
            log.append(s)
    while True:
        a -= 1
        if ident(a) < 0:
            break
        b = b * 2 if a % 2 else b + ident(a)
    del s
    try:
        s  # noqa: B018, F821
    except UnboundLocalError:
        log.append("unbound")
    return b


def withs(a, b, log):
    with CM(log):
        x = ident(a)
        with CM(log, True):
            y = ident(b)
            raise ValueError(y)
        z = x + 1
    return z, y


def tries(a, b, log):
    r = []
    for i in range(3):
        try:
            r.append(ident(i))
            if i == 1:
                raise KeyError(i)
        except KeyError as e:
            r.append(("exc", ident(e.args), type(sys.exception()).__name__))
            try:
                1 / 0  # noqa: B018
            except ZeroDivisionError as z:
                r.append((type(sys.exception()).__name__, ident(z) is z))
            r.append(type(sys.exception()).__name__)
        else:
            r.append("else")
        finally:
            r.append(("fin", type(sys.exception()).__name__))
    log.append(type(sys.exception()).__name__)
    return r


def comprehensions(a, b, log):
    q = [ident(i) * b for i in range(a) if i != 1]
    d = {k: [ident(j) for j in range(k)] for k in range(3)}
    i = 5
    functions = [lambda: i + k for k in range(2)]  # noqa: B023
    return q, d, list(q), i, [f() for f in functions], {x for x in q}, sum(x for x in q)


def closures(a, b, log):
    n = ident(a)

    def g():
        nonlocal n
        n += 1
        return n + b

    n = n + 1

    def h(k=a):
        return a + n + k

    return g(), h(), [ident(x) + n for x in range(2)], n


def raising(a, b, log):
    try:
        with CM(log):
            raise RuntimeError(ident(a))
    finally:
        log.append("fin")


def matching(a, b, log):
    match [a, {"k": b}]:
        case [int(x), {"k": y, **rest}] if ident(x):
            return x, y, rest
        case _:
            return None


def unpacking(a, b, log):
    def k(*p, **q):
        return p, q

    first, *rest = [ident(a), b, 3]
    (x, y), z = (1, 2), 3
    rest[0], rest[1] = rest[1], rest[0]
    table = {"o": 1, **{"p": 2}}
    return (
        k(*rest, first, z=ident(b), w=1),
        k(*rest, **table),
        a < ident(b) < 100,
        rest[0:1],
        x,
        y,
        z,
    )


class Base:
    def scaled(self, n):
        return n * 2


class Derived(Base):
    def scaled(self, n):
        s = super()
        return super().scaled(n) + s.scaled(1) + ident(n)


def classes(a, b, log):
    class Local(Derived):
        factor = a

        def scaled(self, n):
            return super().scaled(n) * self.factor

    assert Local().scaled(1), "never"
    import math as m
    from os import path as p

    return Local().scaled(b), Derived().scaled(a), m.floor(2.5), p.sep


FUNCTIONS = [
    *(expressions, loops, withs, tries, comprehensions, closures, raising, matching, unpacking),
    classes,
]


class Stepper:
    """Runs code one bridge per instruction."""

    def __init__(self, globals, closure):
        self.globals, self.closure, self.codes, self.steps = globals, closure, {}, 0

    def free(self, code):
        cells = dict(zip(code.co_freevars, self.closure or ()))
        return tuple(cells[n] for n in code.co_freevars if n == "__class__")

    def function(self, code, position):
        closure = self.free(position.code)
        return types.FunctionType(code, self.globals, closure=closure or None)

    def __call__(self, position):
        def step(*args):
            self.steps += 1
            if position.key not in self.codes:
                self.codes[position.key] = bridge_code(position, Ways(self))
            return self.function(self.codes[position.key], position)(*args)

        return step


def start(function, args):
    """The position after RESUME and the objects in its slots."""
    code = function.__code__
    instructions = decode(code).instructions
    index = next(i.index for i in instructions if i.opname == "RESUME") + 1
    slots = dict(zip(code.co_varnames, args))
    for i in instructions[:index]:
        if i.opname == "MAKE_CELL":
            name = slot_names(code)[i.arg]
            slots[name] = types.CellType(slots[name]) if name in slots else types.CellType()
    slots.update(zip(code.co_freevars, function.__closure__ or ()))
    bound = tuple(n for n in dict.fromkeys(slot_names(code)) if n in slots)
    position = Position(code, index, (), bound)
    return position, [slots[n] for n in position.locals]


def outcome(call, log):
    try:
        result = "returned", call()
    except Exception as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__]
        result = "raised", type(e), e.args, frames[-1].lineno
    return result, log, sys.exception()


def stepped(function, args, log):
    stepper = Stepper(function.__globals__, function.__closure__)
    position, objects = start(function, args)
    got = outcome(lambda: call_finished(stepper(position), *objects), log)
    return got, stepper


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_instruction_in_its_own_function(function):
    log, stepped_log = [], []
    want = outcome(lambda: function(4, 7, log), log)
    got, stepper = stepped(function, (4, 7, stepped_log), stepped_log)
    assert got == want
    assert stepper.steps > 10


def test_zero_argument_super():
    derived = Derived()
    got, stepper = stepped(Derived.scaled, (derived, 3), [])
    assert got[0] == ("returned", derived.scaled(3)) and stepper.steps > 8


class Recorder(Stepper):
    """Keeps the positions it sees; goes on in one piece at the one told."""

    def __init__(self, *args, stop=None, codes=None):
        super().__init__(*args)
        self.positions, self.stop, self.codes = {}, stop, codes if codes is not None else {}

    def __call__(self, position):
        self.positions.setdefault(position.key, position)
        if position.key == self.stop:
            return self.function(resume_code(position), position)
        return super().__call__(position)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_rest_in_one_piece(function):
    def run(stop):
        log = []
        recorder = Recorder(function.__globals__, function.__closure__, stop=stop)
        position, objects = start(function, (4, 7, log))
        return outcome(lambda: call_finished(recorder(position), *objects), log), recorder

    log = []
    want = outcome(lambda: function(4, 7, log), log)
    _, recorder = run(None)
    for chosen in list(recorder.positions)[2::24]:
        assert run(chosen)[0] == want, recorder.positions[chosen]


def test_asynchronous_generators_are_not_resumed():
    async def g():
        yield 1

    assert unsupported(g.__code__) and unsupported(ident.__code__) is None
