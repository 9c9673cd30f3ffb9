"""Two objects of a call that share what they hold: what is written to one is seen through the
other, while tracing, behind breaks, and afterwards."""

import collections
import copy
import functools
import itertools
import operator
import re
import threading
import types
import weakref

import pytest

import jitshape


class Plain:
    def __init__(self):
        self.a = 1

    def method(self):
        return self.a


class Slotted:
    __slots__ = ("a",)

    def __init__(self):
        self.a = 1


def local():
    made = threading.local()
    made.a = 1
    return made


def with_attributes(function):
    function.a = 3
    return function


def closure_of(numbers):
    return lambda: (len(numbers), numbers[0])


NEW = {
    "dict": lambda: {"a": 1, "b": 2},
    "list": lambda: [1, 2, 3],
    "set": lambda: {1, 2},
    "object": Plain,
    "slots": Slotted,
    "namespace": lambda: types.SimpleNamespace(a=1),
    "local": local,
    "ordered": lambda: collections.OrderedDict(a=1, b=2),
    "deque": lambda: collections.deque([1, 2]),
    "bytes": lambda: bytearray(b"abc"),
    "chain": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
    "user": lambda: collections.UserDict(a=1),
}
VIEWS = [
    ("dict", dict.keys),
    ("dict", dict.values),
    ("dict", dict.items),
    ("dict", types.MappingProxyType),
    ("dict", lambda d: d.get),
    ("dict", lambda d: types.MappingProxyType(d).get),
    ("ordered", lambda d: d.keys()),
    ("ordered", lambda d: d.popitem),
    ("chain", lambda c: c.maps[0]),
    ("user", lambda u: u.data),
    ("list", iter),
    ("list", reversed),
    ("list", enumerate),
    ("list", lambda x: zip(x, x)),
    ("list", lambda x: map(str, x)),
    ("list", lambda x: itertools.islice(x, 5)),
    ("list", lambda x: itertools.chain(x, x)),
    ("list", lambda x: (i for i in x)),
    ("list", lambda x: x.append),
    ("list", lambda x: x.__len__),
    ("list", lambda x: (x, [x])),
    ("list", closure_of),
    ("list", lambda x: functools.partial(len, x)),
    ("list", lambda x: with_attributes(functools.partial(x.append))),
    ("list", lambda x: types.MethodType(len, x)),
    ("set", lambda s: s.add),
    ("set", lambda s: s.__contains__),
    ("deque", iter),
    ("bytes", memoryview),
    ("object", vars),
    ("object", lambda o: o.method),
    ("object", weakref.proxy),
    ("object", weakref.ref),
    ("object", lambda o: weakref.WeakSet([o])),
    ("object", lambda o: operator.attrgetter("a")),
    ("slots", lambda o: operator.attrgetter("a")),
    ("namespace", vars),
    ("local", lambda o: o),
    ("local", vars),
    ("object", copy.copy),
]


def write(thing):
    if isinstance(thing, (dict, collections.UserDict, collections.ChainMap)):
        thing["c"] = 5
        thing["a"] = 6
    elif isinstance(thing, list):
        thing.append(7)
        thing[0] = 9
    elif isinstance(thing, set):
        thing.add(77)
    elif isinstance(thing, collections.deque):
        thing.append(4)
    elif isinstance(thing, bytearray):
        thing[0] = 65
    else:
        thing.a = 42


def attempt(action, *args):
    try:
        return action(*args)
    except Exception as error:
        return type(error).__name__


def look(thing, view):
    found = [attempt(len, view), attempt(lambda: view.a), attempt(list, view)]
    if callable(view):
        found.extend(str(attempt(view, *args)) for args in ((), (1,), ("a",), ("c",), (thing,)))
    return [*found, attempt(len, thing), attempt(lambda: thing.a)]


def written_first(thing, view):
    write(thing)
    return look(thing, view)


def written_between(thing, view):
    before = look(thing, view)
    write(thing)
    return before, look(thing, view)


def store(view):
    view["zz"] = 1


def store_attribute(view):
    view.a = 5


def written_through(thing, view):
    write(thing)
    said = [attempt(store, view), attempt(lambda: view.append(1)), attempt(store_attribute, view)]
    return said, look(thing, view), attempt(list, thing), attempt(vars, thing)


def told(result):
    return re.sub("0x[0-9a-f]+", "", repr(result))


@pytest.mark.parametrize("kind, view", VIEWS, ids=[f"{k}-{i}" for i, (k, _) in enumerate(VIEWS)])
def test_what_is_written_is_seen(kind, view):
    for program in (written_first, written_between, written_through):
        mine, theirs = NEW[kind](), NEW[kind]()
        result = jitshape.compile(program)(mine, view(mine))
        assert told(result) == told(program(theirs, view(theirs)))


def test_sets_are_looked_for_in_sets():
    def program(items, inner):
        found = inner in items, items.__contains__(inner), {1} in items
        items.discard(inner)
        return found, len(items)

    for inner in ({1, 2}, {3}, frozenset({1, 2})):
        mine, theirs = ({frozenset({1, 2}), 5} for _ in range(2))
        assert jitshape.compile(program)(mine, inner) == program(theirs, inner)
        assert mine == theirs


def test_attributes_of_partials():
    def program(given):
        given.later = 4
        made = functools.partial(int, "3")
        made.name = [given.a]
        return made, made.name, given.later, made() + given("7")

    given = with_attributes(functools.partial(int))
    made, *rest = jitshape.compile(program)(given)
    assert rest == [[3], 4, 10] and (made.name, made(), given.later) == ([3], 3, 4)
