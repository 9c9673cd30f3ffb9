import sys
import traceback

import pytest
from bytecode import Label

from jitshape.frontend import sources as S
from jitshape.frontend._evalframe import Dispatcher
from jitshape.frontend.emit import Emitter, listing
from jitshape.frontend.guards import assemble
from jitshape.frontend.values.base import Value

X, Y = S.Local(0, "x"), S.Local(1, "y")


def user(x, y):
    return x


class Sourced(Value):
    def __init__(self, source):
        self.source = source


class ListValue(Value):
    def __init__(self, *items):
        self.items = list(items)

    def reconstruct(self, e):
        e.build("list", 0)
        e.bind(self)
        for item in self.items:
            e.value(item)
            e.op("LIST_APPEND", 1)


class Output(Value):
    def __init__(self, key):
        self.key = key

    def reconstruct(self, e):
        e.output(self.key)


def run(emit, *args, graph=None, inputs=()):
    e = Emitter(user.__code__)
    emit(e)
    e.op("RETURN_VALUE")
    function = e.finish(globals(), graph, inputs)
    objects = assemble((), e.extract).run(args)
    return function(*objects)


def test_values_come_from_their_sources_and_from_the_graph():
    result = ListValue(Sourced(S.Item(X, 1)), Output("sum"), Sourced(Y), Output("difference"))
    got = run(
        lambda e: e.value(result),
        *((1, 2), 5),
        graph=lambda y, n: (y + n, y - n),
        inputs=(Y, S.Number(X, "len")),
    )
    assert got == [2, 7, 5, 3]


def test_identity_is_kept_also_in_cycles():
    inner = ListValue()
    outer = ListValue(inner, inner)
    inner.items.append(outer)
    got = run(lambda e: e.value(outer))
    assert got[0] is got[1] and got[0][0] is got


def test_constants_are_the_very_objects():
    unhashable = [1]

    def emit(e):
        e.const(unhashable)
        e.const(-0.0)
        e.const(0.0)
        e.const((unhashable,))
        e.build("tuple", 4)

    got = run(emit)
    assert got[0] is unhashable and got[3][0] is unhashable and str(got[1:3]) == "(-0.0, 0.0)"


@pytest.mark.parametrize("nargs", [0, 1, 3])
@pytest.mark.parametrize("kwnames", [(), ("k",), ("k", "l")])
def test_calls(nargs, kwnames):
    def emit(e):
        e.begin_call()
        e.const(lambda *args, **kwargs: (args, kwargs))
        for i in range(nargs + len(kwnames)):
            e.const(i)
        e.end_call(nargs + len(kwnames), kwnames)

    named = {k: nargs + i for i, k in enumerate(kwnames)}
    assert run(emit) == (tuple(range(nargs)), named)


@pytest.mark.parametrize("keywords", [False, True])
def test_calls_with_unpacking(keywords):
    def emit(e):
        e.begin_call()
        e.const(lambda *args, **kwargs: (args, kwargs))
        e.const((1, 2))
        if keywords:
            e.const({"k": 3})
        e.end_call_ex(keywords)

    assert run(emit) == ((1, 2), {"k": 3} if keywords else {})


def test_stores_and_builds():
    class Box:
        pass

    box, table = Box(), {"old": 1}

    def emit(e):
        e.const("new")
        e.source(X)
        e.store_attr("a")
        e.const(7)
        e.source(Y)
        e.const("k")
        e.store_item()
        e.source(Y)
        e.const("old")
        e.delete_item()
        e.source(X)
        e.load_attr("a")
        e.const("!")
        e.build("string", 2)
        t = e.local()
        e.store(t)
        e.const("key")
        e.load(t)
        e.build("map", 1)
        e.const(1)
        e.const(2)
        e.build("slice", 2)
        e.const(3)
        e.build("set", 1)
        e.build("tuple", 3)
        e.source(X)
        e.delete_attr("a")
        e.drop_locals()

    assert run(emit, box, table) == ({"key": "new!"}, slice(1, 2), {3})
    assert table == {"k": 7} and not hasattr(box, "a")


def test_jumps():
    def emit(e):
        other = Label()
        e.source(X)
        e.op(
            "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE",
            other,
        )
        e.const("yes")
        e.op("RETURN_VALUE")
        e.label(other)
        e.const("no")

    assert run(emit, True) == "yes" and run(emit, False) == "no"


def test_traceback_shows_the_users_function():
    def emit(e):
        e.line(user.__code__.co_firstlineno + 1)
        e.call(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError) as caught:
        run(emit)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [(f.filename, f.name, f.line) for f in frames][-2] == (__file__, "user", "return x")


def test_an_entry_behind_a_dispatcher():
    e = Emitter(user.__code__)
    e.value(ListValue(Output(0), Sourced(X)))
    e.op("RETURN_VALUE")
    entry = e.finish(globals(), lambda y: (y * 10,), (Y,))
    d = Dispatcher(user, None)
    d.add_entry(assemble((), e.extract).program, entry)
    assert d(1, y=2) == [20, 1]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="golden text of one version")
def test_listing():
    e = Emitter(user.__code__)
    e.value(ListValue(Output("o")))
    e.line(99)
    e.op("RETURN_VALUE")
    text = listing(e.finish(globals(), abs, (X,)).__code__).replace(__file__, "f.py")
    first = user.__code__.co_firstlineno
    assert (
        text
        == f"""\
# f.py:{first}
    RESUME
    PUSH_NULL
    LOAD_CONST <built-in function abs>
    LOAD_FAST a0
    PRECALL
    CALL
    UNPACK_SEQUENCE
    STORE_FAST out0
    BUILD_LIST
    COPY
    STORE_FAST v.1
    LOAD_FAST out0
    COPY
    STORE_FAST v.2
    LIST_APPEND
# f.py:99
    RETURN_VALUE"""
    )
