import functools
import math
import types
from collections import OrderedDict

import pytest

from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend.guard_program import AMBIENT
from jitshape.frontend.guards import GuardSet, assemble, explain
from jitshape.ir.conditions import BoolExpr, all_of, any_of, compare
from jitshape.ir.symfloat import FloatExpr, apply
from jitshape.ir.symint import Algebra

X, Y = S.Local(0, "x"), S.Local(1, "y")


def program(*guards, extract=()):
    found = GuardSet()
    for guard in guards:
        found.add(*guard)
    return assemble(found, extract)


def holds(source, check, value, extract=()):
    return program((source, check), extract=extract).run((value,)) is not None


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (C.TypeIs(int), [1, 2**70], [True, 1.0, None]),
        (C.Equals(3), [3], [4, 3.0, True]),
        (C.Equals(2**80), [2**80], [2**80 + 1]),
        (C.Equals(True), [True], [1, False]),
        (C.Equals(0.0), [0.0], [-0.0, 0, False]),
        (C.Equals(math.nan), [math.nan, float("nan")], [0.0]),
        (C.Equals("ab"), ["".join(["a", "b"])], ["ac", b"ab"]),
        (C.Equals(1j), [1j], [1 + 0j]),
        (C.Equals(None), [None], [0]),
        (C.Is(len), [len], [max]),
        (C.Length(2), [(1, 2), [1, 2], {1: 1, 2: 2}, {1, 2}], [(1,), [], {}, "ab"]),
        (C.Keys(("a", 1)), [{"a": 0, 1: 1}], [{1: 1, "a": 0}, {"a": 0}, {"a": 0, 2: 1}, []]),
        (C.Missing("k"), [{}, {"a": 1}], [{"k": 1}, []]),
    ],
)
def test_checks_of_plain_objects(check, good, bad):
    for value in good:
        assert holds(X, check, value), value
    for value in bad:
        assert not holds(X, check, value), value


class Slotted:
    __slots__ = ("a", "empty")


class Plain:
    shared = "class"


def test_sources_load_what_python_reads():
    slotted, plain = Slotted(), Plain()
    slotted.a, plain.v = [10, 20], {"k": "deep"}

    def function(p=1, *, q=2):
        return plain, p, q

    cell = S.Item(S.Field(S.Local(2, "f"), "__closure__"), 0)
    cases = {
        S.Item(S.Slot(X, "a"), 1): 20,
        S.TypeOf(X): Slotted,
        S.Key(S.Key(S.InstanceDict(Y), "v"), "k"): "deep",
        S.TypeAttribute(S.TypeOf(Y), "shared"): "class",
        S.Field(S.Local(2, "f"), "__code__"): function.__code__,
        S.Field(S.Local(2, "f"), "__defaults__"): (1,),
        S.Field(S.Local(2, "f"), "__kwdefaults__"): {"q": 2},
        S.Field(cell, "cell_contents"): plain,
        S.Field(S.Local(3, "m"), "__self__"): plain,
        S.Field(S.Local(4, "p"), "args"): (1, 2),
        S.Field(S.Local(5, "prop"), "fget"): len,
        S.Held(plain, "plain"): plain,
        S.Number(S.Slot(X, "a"), "len"): 2,
        S.Number(S.Local(6, "n"), "int"): 7,
    }
    method = types.MethodType(len, plain)
    slots = (slotted, plain, function, method, functools.partial(len, 1, 2), property(len), 7)
    assert program(extract=cases).run(slots) == tuple(cases.values())


def test_a_failed_load_is_explained():
    p = program((S.Key(S.InstanceDict(X), "v"), C.Equals(1), "m.py:3 in f"))
    failure = explain(p, (Plain(),))
    assert str(failure) == "x.v == 1 failed: nothing there   # m.py:3 in f"
    assert explain(program(extract=[S.Item(X, 0)]), ((),)).guard.check == C.Present()


@pytest.mark.parametrize("value", [3, Slotted(), object()])
def test_an_object_that_cannot_have_attributes_is_a_miss_and_no_error(value):
    assert program(extract=[S.InstanceDict(X)]).run((value,)) is None


def test_empty_fields():
    def with_defaults(a=1):
        return a

    field = S.Field(X, "__defaults__")
    assert holds(field, C.NullField(), lambda: 0)
    assert not holds(field, C.NullField(), with_defaults)
    assert not holds(field, C.NullField(), 3)
    slotted = Slotted()
    assert holds(S.Slot(X, "empty"), C.NullField(), slotted)
    slotted.empty = 1
    assert not holds(S.Slot(X, "empty"), C.NullField(), slotted)
    assert holds(S.Field(X, "cell_contents"), C.NullField(), types.CellType())


def test_dict_changes_are_seen_through_the_version_cache():
    table = {"k": 1}
    held = S.Held(table, "globals()")
    p = program((S.Key(held, "k"), C.Equals(1)), (held, C.Missing("other")))
    assert p.run(()) == () and p.run(()) == ()
    table["k"] = 2
    assert str(explain(p, ())) == "k == 1 failed: 2"
    table["k"] = 1
    assert p.run(()) == ()
    table["other"] = 0
    assert p.run(()) is None
    del table["other"]
    assert p.run(()) == ()


def test_instance_attribute_written_after_caching():
    plain = Plain()
    plain.v = 1
    p = program((S.Key(S.InstanceDict(X), "v"), C.Equals(1)))
    assert [p.run((plain,)), p.run((plain,))] == [(), ()]
    plain.v = 2
    assert p.run((plain,)) is None
    plain.v = 1
    assert p.run((plain,)) == ()
    plain.__dict__ = {"v": 3}
    assert p.run((plain,)) is None


def test_class_attribute_changes_are_seen():
    class Base:
        a = 1

    class Derived(Base):
        pass

    source = S.Held(Derived, "Derived")
    p = program((S.TypeAttribute(source, "a"), C.Equals(1)), (source, C.NoTypeAttribute("b")))
    assert p.run(()) == () and p.run(()) == ()
    Base.a = 2
    assert p.run(()) is None
    Base.a = 1
    assert p.run(()) == ()
    Derived.b = 0
    assert p.run(()) is None


def test_ordered_dict_order_is_its_own():
    d = OrderedDict(a=1, b=2)
    p = program((X, C.Keys(("a", "b"))))
    assert p.run((d,)) == ()
    d.move_to_end("a")
    assert p.run((d,)) is None


def test_identity_between_sources():
    same, distinct = program((X, C.SameObject(Y))), program((X, C.Distinct(Y)))
    a, b = [], []
    assert same.run((a, a)) == () and same.run((a, b)) is None
    assert distinct.run((a, b)) == () and distinct.run((a, a)) is None


def test_relations_of_sizes_agree_with_evaluation():
    algebra = Algebra()
    s, t = algebra.symbol("s0", hint=6), algebra.symbol("s1", hint=4)
    symbols = (("s0", S.Number(X, "int")), ("s1", S.Number(Y, "int")))
    conditions = [
        compare("eq", s * 2 + t * t - 3, 25),
        compare("le", algebra.max(s, t + 1), algebra.min(s * t, 20)),
        compare("ne", s % 4, 0),
        compare("lt", (s + t) // 3, s - t),
        any_of([compare("gt", s, t), all_of([compare("lt", t, 3), compare("ge", s, -2)])]),
    ]
    for condition in conditions:
        p = program((symbols[0][1], C.Holds(condition, symbols)))
        for a in range(-5, 9):
            for b in range(-3, 9):
                values = {"s0": a, "s1": b}
                want = condition.evaluate(lambda size, v=values: algebra.evaluate(size, v))
                assert (p.run((a, b)) is not None) == want, (condition, a, b)


def test_division_by_zero_and_overflow_miss():
    algebra = Algebra()
    s = algebra.symbol("s0", lo=-math.inf)
    symbols = (("s0", S.Number(X, "int")),)
    p = program((symbols[0][1], C.Holds(compare("ge", 100 // s, -200), symbols)))
    assert p.run((5,)) == () and p.run((0,)) is None
    p = program((symbols[0][1], C.Holds(compare("ge", s * s, -1), symbols)))
    assert p.run((5,)) == () and p.run((2**40,)) is None and p.run((2**90,)) is None


def test_conditions_on_floats():
    algebra = Algebra()
    s = algebra.symbol("s0")
    f = FloatExpr("symbol", (algebra.symbol("f0").symbol,))
    condition = BoolExpr("lt", (apply("mul", apply("div", s, 2), f), 3.5))
    symbols = (("s0", S.Number(X, "int")), ("f0", S.Number(Y, "float")))
    p = program((symbols[0][1], C.Holds(condition, symbols)), extract=[Y, S.Number(X, "int")])
    assert p.run((2, 3.0)) == (3.0, 2) and p.run((2, 4.0)) is None and p.run((2, 3)) is None
    assert str(explain(p, (2, 4.0))) == "(x / 2) * y < 3.5 failed: x = 2, y = 4.0"


def test_ambient_state():
    AMBIENT["test"] = lambda: (1, "a")
    try:
        assert program((None, C.Ambient("test", (1, "a")))).run(()) == ()
        assert program((None, C.Ambient("test", (2, "a")))).run(()) is None
    finally:
        del AMBIENT["test"]


def test_parents_are_checked_before_children():
    base = S.Key(S.InstanceDict(X), "v")
    p = program(
        (S.Item(base, 0), C.Equals(1), "a.py:1 in f"),
        (base, C.TypeIs(tuple), "a.py:1 in f"),
        (X, C.TypeIs(Plain), "a.py:1 in f"),
    )
    plain = Plain()
    plain.v = [1]
    assert explain(p, (3,)).guard.source == X
    assert explain(p, (plain,)).guard.check == C.TypeIs(tuple)
    plain.v = (2,)
    assert explain(p, (plain,)).observed == "2"


def test_equal_guards_are_kept_once_and_others_apart():
    found = GuardSet()
    for value in (1, 1, 1.0, True, 0.0, -0.0):
        found.add(X, C.Equals(value))
    mark = found.snapshot()
    found.add(Y, C.TypeIs(int))
    found.rollback(mark)
    assert [str(g) for g in found] == [f"x == {v}" for v in ("1", "1.0", "True", "0.0", "-0.0")]


def test_text():
    algebra = Algebra()
    s0, s1 = algebra.symbol("s0"), algebra.symbol("s1")
    size = S.Number(X, "size", 1)
    symbols = (("s0", size), ("s1", S.Number(Y, "len")))
    globals_ = S.Held({}, "globals()")
    weight = S.Key(S.Key(S.InstanceDict(S.Key(globals_, "net")), "_parameters"), "weight")
    AMBIENT["test state"] = bool
    p = program(
        (X, C.TypeIs(list), "model.py:12 in forward"),
        (size, C.Equals(32), "model.py:14 in forward"),
        (size, C.Holds(compare("le", s0 * 2, s1), symbols), "model.py:15 in forward"),
        (weight, C.Is(len), "model.py:16 in forward"),
        (globals_, C.Missing("print"), "model.py:17 in forward"),
        (None, C.Ambient("test state", True), ""),
    )
    del AMBIENT["test state"]
    assert (
        str(p)
        == """\
test state is True
type(x) is list   # model.py:12 in forward
2*x.size(1) <= len(y)   # model.py:15 in forward
x.size(1) == 32   # model.py:14 in forward
net.weight is len   # model.py:16 in forward
'print' not in globals()   # model.py:17 in forward"""
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math, "module math"),
        ((0, "a", None), "(0, 'a', None)"),
        ((0, [1]), "<tuple>"),
        (len, "len"),
        ("x" * 70, "'" + "x" * 56 + "..."),
    ],
)
def test_values_are_shown(value, text):
    assert C.short(value) == text


def test_values_are_shown_without_code_of_the_users():
    class Told:
        __module__ = "torch"

        def __repr__(self):
            raise AssertionError

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError

    assert C.short(Told()).endswith("Told>") and C.short((Told(),)) == "<tuple>"
    assert C.short(Module("m")).endswith("Module>")
