"""A table of programs must choose as its programs, run one by one, would."""

import gc
import random
import sys
import weakref

import pytest

from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend._evalframe import Dispatcher, Table
from jitshape.frontend.guards import GuardSet, assemble
from jitshape.ir.conditions import BoolExpr, compare
from jitshape.ir.symfloat import FloatExpr, apply
from jitshape.ir.symint import Algebra
from tests.frontend.test_snapshots import Other, Plain, Slotted, World

X, Y = S.Local(0, "x"), S.Local(1, "y")


def program(*guards, extract=()):
    found = GuardSet()
    for guard in guards:
        found.add(*guard)
    return assemble(found, extract).program


def one_by_one(programs, slots):
    for index, each in enumerate(programs):
        found = each.run(slots)
        if type(found) is tuple:
            return index, found
    return None


def test_equal_steps_are_one():
    deep = S.Key(S.InstanceDict(X), "v")
    shared = [(X, C.TypeIs(Plain)), (S.Key(S.InstanceDict(X), "mode"), C.Equals("train"))]
    programs = [program(*shared, (deep, C.Equals(n))) for n in range(8)]
    table = Table(tuple(programs))
    assert table.steps == programs[0].steps + 7
    x = Plain()
    x.mode = "train"
    for n in (3, 3, 0, 7, 5, 5):
        x.v = n
        assert table.run((x,)) == (n, ())
    x.v = 8
    assert table.run((x,)) is None


def test_the_first_that_holds_is_chosen_with_its_own_objects():
    a, b = S.Item(X, 0), S.Item(X, 1)
    programs = (
        program((a, C.Equals(1)), extract=[b]),
        program((X, C.Length(2)), extract=[a, b, S.Number(X, "len")]),
        program((X, C.TypeIs(tuple))),
    )
    table = Table(programs)
    for _ in range(4):
        assert table.run(((1, 2),)) == (0, (2,))
        assert table.run(((3, 4),)) == (1, (3, 4, 2))
        assert table.run(((3, 4, 5),)) == (2, ())
        assert table.run(([3],)) is None


def variants(world, rng):
    """Programs of some of the world's guards, some of them with other values than it has."""
    at = world.attribute
    alternatives = [
        (at("v"), C.Equals(10**6 + 1)),
        (at("absent"), C.Equals(1)),
        (X, C.TypeIs(Other)),
        (at("list"), C.Length(3)),
        (S.Item(at("list"), 2), C.Equals(1)),
        (S.Item(at("tuple"), 0), C.Equals(10**6 + 1)),
        (S.Slot(at("slotted"), "n"), C.Equals(10**6 + 1)),
        (at("hooks"), C.Keys(("hook",))),
        (S.TypeAttribute(S.TypeOf(X), "late"), C.Equals(2)),
        (S.TypeAttribute(S.TypeOf(at("child")), "shared"), C.Equals(2)),
        (S.Field(S.Held(world.cell, "cell"), "cell_contents"), C.Equals(10**6 + 1)),
        (S.Key(S.Held(world.table, "globals()"), "other"), C.Equals(1)),
        (S.Field(S.Held(world.function, "f"), "__kwdefaults__"), C.NullField()),
        (S.Slot(at("slotted"), "inner"), C.TypeIs(Other)),
        (at("set"), C.Equals({1, 2, 3})),
    ]
    programs = []
    for _ in range(rng.randrange(5, 12)):
        guards = rng.sample(world.guards(), rng.randrange(1, 9))
        guards += rng.sample(alternatives, rng.randrange(0, 3))
        programs.append(program(*guards, extract=rng.sample([at("child"), X, at("v")], 2)))
    return programs


@pytest.mark.parametrize("seed", range(8))
def test_random_tables_choose_as_their_programs_do(seed):
    rng = random.Random(seed)
    world, met = World(), set()
    programs = variants(world, rng)
    table = Table(tuple(programs))
    for _ in range(150):
        action = rng.random()
        if action < 0.3:
            world.restore()
        elif action < 0.7:
            rng.choice(world.changes())()
        for _ in range(rng.choice([1, 1, 3, 12])):
            expected = one_by_one(programs, (world.x,))
            assert table.run((world.x,)) == expected
        met.add(None if expected is None else expected[0])
    world.restore()
    assert len(met) > 1


def test_entries_that_take_turns_keep_the_snapshot():
    x = Plain()
    x.deep = Plain()
    x.deep.v = 1
    deep = S.Key(S.InstanceDict(S.Key(S.InstanceDict(X), "deep")), "v")
    table = Table(tuple(program((deep, C.Equals(1)), (Y, C.Equals(n))) for n in range(8)))
    numbers = [int(str(n)) for n in range(8)]
    for _ in range(20):
        for n in numbers:
            assert table.run((x, n)) == (n, ())
    found = table.snapshot()
    assert found["hits"] > 100 and found["demotions"] < 4
    x.deep.v = 2
    assert [table.run((x, n)) for n in numbers] == [None] * 8


def test_predicates_decide_among_those_that_are_left():
    algebra = Algebra()
    s = algebra.symbol("s0")
    f = FloatExpr("symbol", (algebra.symbol("f0").symbol,))
    symbols = (("s0", S.Number(X, "int")), ("f0", S.Number(Y, "float")))

    def below(limit):
        condition = BoolExpr("lt", (apply("mul", s, f), limit))
        return (symbols[0][1], C.Holds(condition, symbols))

    bound = compare("lt", s, 10)
    programs = (
        program(below(2.0), extract=[Y]),
        program(below(4.0), (symbols[0][1], C.Holds(bound, symbols[:1])), extract=[X, Y]),
        program((X, C.TypeIs(int)), extract=[X]),
    )
    table = Table(programs)
    for slots in [(2, 0.5), (2, 1.5), (20, 0.15), (2, 3.0), ("x", 1.0), (2, 1)]:
        for _ in range(4):
            assert table.run(slots) == one_by_one(programs, slots), slots


def test_many_entries_in_several_tables():
    calls = []
    d = Dispatcher(lambda a: None, lambda d, slots: "miss")
    a = S.Local(0, "a")
    entries = [
        d.add_entry(program((a, C.Equals(n))), lambda n=n: calls.append(n)) for n in range(200)
    ]
    assert [t.run((70,)) for t in d.tables] == [None, (6, ()), None, None]
    order = list(range(200))
    random.Random(0).shuffle(order)
    for n in order:
        assert d(n) is None
    assert calls == order and d(200) == "miss"
    second = d.tables[1]
    d.remove_entry(entries[150])
    assert d.tables[1] is second  # nothing changed in it
    assert d(150) == "miss" and d(151) is None and d(199) is None
    assert [e.hits for e in d.entries] == [1] * 150 + [2] + [1] * 47 + [2]


def test_entries_know_how_often_and_when_they_served():
    d = Dispatcher(lambda a: None, lambda d, slots: "miss")
    a = S.Local(0, "a")
    one = d.add_entry(program((a, C.Equals(1))), lambda: None)
    two = d.add_entry(program((a, C.Equals(2))), lambda: None)
    for n in [1] * 200 + [2, 3]:
        d(n)
    assert (one.hits, two.hits, d.calls) == (200, 1, 202)
    assert (one.used, two.used) == (200, 201)
    assert one.timed == 3 and 0 < one.guard_seconds < 1
    assert one.created <= two.created


class Hostile:
    """What a class attribute of a foreign object must not get to see."""

    def __getattribute__(self, name):
        raise AssertionError(f"{name} was read")

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None


def test_steps_of_other_programs_run_no_code_of_the_objects():
    programs = (
        program((X, C.TypeIs(Slotted)), (S.Slot(X, "n"), C.Equals(1))),
        program((X, C.TypeIs(Hostile))),
        program((S.Key(S.InstanceDict(X), "v"), C.Equals(1))),
        program((X, C.Equals(1)), (S.Item(X, 0), C.Equals(1))),
    )
    table, hostile = Table(programs), Hostile()
    for _ in range(4):
        assert table.run((hostile,)) == (1, ())


def test_a_table_keeps_nothing_of_a_call():
    table = Table((program((X, C.TypeIs(Plain)), extract=[X]), program(extract=[X, Y])))
    x, y = Plain(), Plain()
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(10):
        table.run((x, y))
        table.run((y, x))
        table.run((1, x))
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before
    alive = weakref.ref(x)
    del x
    assert alive() is None


def test_tables_are_collected_with_what_they_hold():
    held = Plain()
    held.table = Table((program(extract=[S.Held(held, "held")]),))
    assert held.table.run(()) == (0, (held,))
    alive = weakref.ref(held)
    del held
    gc.collect()
    assert alive() is None


def test_too_many_or_wrong_programs_are_refused():
    with pytest.raises(ValueError, match="64"):
        Table((program(),) * 65)
    with pytest.raises(TypeError, match="programs"):
        Table((3,))
    assert Table(()).run(()) is None
