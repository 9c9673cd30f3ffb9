import copy
import gc
import inspect
import pickle
import sys
import threading
import weakref

import pytest

from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend._evalframe import (
    Dispatcher,
    WithRoom,
    call_finished,
    pop_bypass,
    push_bypass,
)
from jitshape.frontend.guards import GuardSet, assemble


def guard_program(guards=(), extract=()):
    found = GuardSet()
    for source, check in guards:
        found.add(source, check)
    return assemble(found, extract).program


def dispatcher(function, miss=None):
    return Dispatcher(function, miss or (lambda d, slots: ("miss", slots)))


def simple(a, b=2, *, c=3):
    "Doc."
    return a, b, c


def positional(a, b, /, c=3):
    return a, b, c


def everything(a, /, b, *args, c, d=4, **kwargs):
    return a, b, args, c, d, kwargs


CALLS = [
    ((1,), {}),
    ((1, 5), {}),
    ((1,), {"c": 9, "b": 8}),
    ((1, 2, 3), {}),
    ((1, 2, 3, 4, 5), {"c": 6}),
    ((1, 2), {"c": 6, "e": 7, "a": 8}),
    ((), {"a": 1, "b": 2}),
    ((1,), {"a": 1}),
    ((1,), {"zz": 1}),
    ((), {}),
    ((1, 2), {"b": 3}),
]


def outcome(call):
    try:
        return call()
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("function", [simple, positional, everything])
@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_binding_is_cpythons(function, args, kwargs):
    d = dispatcher(function, Dispatcher.call_original)
    want = outcome(lambda: function(*args, **kwargs))
    assert outcome(lambda: d(*args, **kwargs)) == want
    assert d.misses == (0 if isinstance(want, str) else 1)


def test_slots_are_in_the_order_of_the_code():
    d = dispatcher(everything)
    slots = (1, 2, 5, 4, (3,), {"z": 6})
    assert d(1, 2, 3, c=5, z=6) == ("miss", slots)
    assert everything.__code__.co_varnames[:6] == ("a", "b", "c", "d", "args", "kwargs")
    assert d.call_original(slots) == everything(1, 2, 3, c=5, z=6)


def test_defaults_are_read_at_call_time():
    def f(a, b=1, *, c=2):
        return a

    d = dispatcher(f)
    assert d(0) == ("miss", (0, 1, 2))
    f.__defaults__, f.__kwdefaults__ = (5,), {"c": 6}
    assert d(0) == ("miss", (0, 5, 6))


def test_a_hit_calls_the_entry_with_extracted_objects_and_no_frame_between():
    d = dispatcher(simple)

    def entry(b, length, a):
        return b, length, a, sys._getframe(1).f_code

    a, b = S.Local(0, "a"), S.Local(1, "b")
    program = guard_program([(a, C.TypeIs(list))], [S.Item(a, 0), S.Number(a, "len"), b])
    added = d.add_entry(program, entry)
    here = sys._getframe().f_code
    assert d([7, 8], "b") == (7, 2, "b", here)
    assert d(b="b", a=[7]) == (7, 1, "b", here)
    assert d((7,)) == ("miss", ((7,), 2, 3))
    assert (d.hits, d.misses, added.hits, d.entries) == (2, 1, 2, (added,))


def test_entries_are_tried_in_order_and_can_be_removed():
    d = dispatcher(simple)
    a = S.Local(0, "a")
    special = d.add_entry(guard_program([(a, C.Equals(1))]), lambda: "special")
    general = d.add_entry(guard_program(), lambda: "general")
    assert d(1) == "special" and d(2) == "general"
    assert d.entries == (special, general)
    d.remove_entry(general)
    assert d(2)[0] == "miss"
    assert call_finished(lambda: d.find_entry((1, 2, 3))) == "special"
    assert d.find_entry((2, 2, 3)) is None
    d.clear()
    assert d.entries == () and d(1)[0] == "miss"


def test_the_entry_of_the_last_call_is_tried_first():
    d = dispatcher(simple)
    a = S.Local(0, "a")
    large = d.add_entry(guard_program([(a, C.TypeIs(int))]), lambda: "int")
    d.add_entry(guard_program([(a, C.TypeIs(str))]), lambda: "str")
    d.add_entry(guard_program([(a, C.Equals(1))]), lambda: "one")
    assert [d(1), d("x"), d("y"), d(1)] == ["int", "str", "str", "int"]
    d.remove_entry(large)
    assert [d(1), d(1)] == ["one", "one"]
    d.add_entry(guard_program([(a, C.TypeIs(int))]), lambda: "int")
    assert [d("x"), d(2), d(1)] == ["str", "int", "int"]
    d.clear()
    assert d(1)[0] == "miss"


def test_new_code_forgets_entries():
    def f(a):
        return a

    d = dispatcher(f)
    d.add_entry(guard_program(), lambda: "old")
    assert d(1) == "old"
    f.__code__ = (lambda p, q: p).__code__
    assert d(1, 2) == ("miss", (1, 2))


def test_exceptions_pass_through():
    d = dispatcher(simple)
    d.add_entry(guard_program(), lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        d(1)
    assert d.hits == 1


def test_it_looks_like_the_function():
    d = dispatcher(simple)
    assert d.__wrapped__ is simple and d.__name__ == "simple" and d.__doc__ == "Doc."
    assert d.__module__ == __name__ and d.__qualname__ == "simple"
    assert inspect.signature(d) == inspect.signature(simple)
    assert callable(d) and "simple" in repr(d)
    d.note = 1
    assert d.__dict__["note"] == 1
    assert copy.deepcopy(d) is d and weakref.ref(d)() is d


@lambda f: Dispatcher(f, Dispatcher.call_original)
def pickled(a):
    return a


def test_pickle_by_name():
    assert pickle.loads(pickle.dumps(pickled)) is pickled


def test_method_binding():
    class K:
        @dispatcher
        def method(self, x):
            return x

    k = K()
    assert k.method(1) == ("miss", (k, 1)) and k.method.__self__ is k
    assert K.method(k, 2) == ("miss", (k, 2)) and K.method is K.__dict__["method"]


def test_bypass():
    d = dispatcher(simple)
    push_bypass()
    try:
        assert d(1) == (1, 2, 3)
    finally:
        pop_bypass()
    assert d(1)[0] == "miss"
    d.disabled = True
    assert d(1) == (1, 2, 3)
    with pytest.raises(RuntimeError):
        pop_bypass()


def test_cycles_are_collected():
    def f(a):
        return d

    d = dispatcher(f)
    d.add_entry(guard_program(extract=[S.Held(d, "d")]), lambda x: x)
    d.add_entry(guard_program(), lambda: d)
    assert d(1) is d
    gone = weakref.ref(d)
    d = f = None
    gc.collect()
    assert gone() is None


def test_no_reference_leaks():
    d = dispatcher(everything)
    marker, other = object(), object()
    args = S.Local(4, "args")
    d.add_entry(guard_program([(args, C.Length(1))], [S.Item(args, 0), args]), lambda x, y: None)
    before = sys.getrefcount(marker), sys.getrefcount(other)
    for _ in range(50):
        d(marker, other, marker, c=other, k=marker)
        d(marker, other, c=other, k=marker)
        outcome(lambda: d(marker, other, a=other))
    assert (sys.getrefcount(marker), sys.getrefcount(other)) == before


def test_entries_change_while_threads_call():
    d = dispatcher(simple)
    a = S.Local(0, "a")
    stop, wrong = threading.Event(), []

    def caller():
        while not stop.is_set():
            if d(1) not in ("hit", ("miss", (1, 2, 3))):
                wrong.append(1)

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        d.add_entry(guard_program([(a, C.Equals(1))]), lambda: "hit")
        d.clear()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_parameters_and_extracted_objects():
    names = [f"p{i}" for i in range(100)]
    scope: dict = {}
    exec(f"def f({', '.join(names)}): return ({', '.join(names)})", scope)
    d = dispatcher(scope["f"])
    values = tuple(range(100, 200))
    assert d(**dict(zip(names, values))) == ("miss", values)
    d.add_entry(guard_program(extract=[S.Local(i, n) for i, n in enumerate(names)]), scope["f"])
    assert d(**dict(zip(names, values))) == values


def deepest(n=0):
    try:
        return deepest(n + 1)
    except RecursionError:
        return n


def test_room_is_given_for_one_call():
    before = deepest()
    roomy = WithRoom(deepest)
    assert roomy.callable is deepest and abs(roomy() - before - 1000) < 5
    assert roomy(n=3) - roomy() == 3 and deepest() == before
    with pytest.raises(TypeError):
        roomy("too", "many", "arguments")
    assert deepest() == before


def test_a_miss_has_room():
    def miss(dispatcher, slots):
        return deepest()

    assert abs(Dispatcher(deepest, miss)(0) - deepest() - 1000) < 5
