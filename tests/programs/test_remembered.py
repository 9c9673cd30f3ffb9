"""Functions that remember their results, called in a compiled one."""

import functools

import pytest
import torch

import jitshape

FACTOR = [2]


@functools.lru_cache
def factor(name, *, plus=0):
    return FACTOR[0] + len(str(name)) + plus


@functools.lru_cache(maxsize=0)
def forgetful(name):
    return FACTOR[0]


@functools.cache
def listed(name):
    return [FACTOR[0]]


class Key:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


KEY = Key()


class Model:
    @functools.lru_cache  # noqa: B019
    def own(self, name):
        return 3

    @staticmethod
    @functools.lru_cache
    def static(name):
        return 5


MODEL = Model()


def by_position_and_name(x):
    return x * factor("ab") + factor("ab", plus=1) if factor("a") > 0 else x


def static_method(x):
    return x * MODEL.static("a") + Model.static("b")


def size_as_argument(x):
    return x + factor("a", plus=x.shape[0])


def object_as_argument(x):
    return x * MODEL.own("a")


@pytest.fixture(autouse=True)
def fresh():
    jitshape.reset()
    FACTOR[0] = 2
    factor.cache_clear()


@pytest.mark.parametrize(
    "function", [by_position_and_name, static_method, size_as_argument, object_as_argument]
)
def test_is_part_of_the_graph(function):
    compiled = jitshape.compile(function, fullgraph=True)
    for n in (3, 4, 3):
        assert torch.equal(compiled(torch.ones(n)), function(torch.ones(n)))


def test_what_is_remembered_is_used_until_it_is_forgotten():
    compiled = jitshape.compile(by_position_and_name, fullgraph=True)
    first = compiled(torch.ones(2))
    FACTOR[0] = 7
    assert torch.equal(compiled(torch.ones(2)), first)
    factor.cache_clear()
    assert torch.equal(compiled(torch.ones(2)), by_position_and_name(torch.ones(2)))
    assert jitshape.stats()["compiles"] == 2


@pytest.mark.parametrize("call", [lambda: factor("a"), lambda: factor(7.0)])
def test_what_is_remembered_already_is_known_behind_writes(call):
    def function(x, log):
        log.append(1)
        return x * call()

    call()
    compiled, log = jitshape.compile(function, fullgraph=True), []
    FACTOR[0] = 11
    assert compiled(torch.ones(1), log).item() == call()
    assert log == [1]


def test_a_cache_without_room_remembers_nothing():
    def function(x):
        return x * forgetful("a")

    compiled = jitshape.compile(function, fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2
    FACTOR[0] = 7
    assert compiled(torch.ones(1)).item() == 7


def list_result(x):
    return x * listed("a")[0]


def equal_to_others(x):
    return x * Model.static(KEY)


def behind_writes(x):
    FACTOR[0] = 9
    return x * factor("a")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (list_result, "listed gives the same list each time, which can change"),
        (equal_to_others, "static remembers results by a Key, of which the trace knows no value"),
        (behind_writes, "factor remembers results and is called behind writes"),
    ],
)
def test_breaks(function, reason):
    compiled = jitshape.compile(function)
    factor.cache_clear()
    found = compiled(torch.ones(2))
    FACTOR[0] = 2
    factor.cache_clear()
    assert torch.equal(found, function(torch.ones(2)))
    assert jitshape.stats()["details"]["break_reasons"] == {f"builtin: {reason}": 1}


@functools.lru_cache(maxsize=2)
def bounded(name):
    return FACTOR[0] + len(name)


@functools.lru_cache(typed=True)
def typed(number, *, plus=0):
    return number + plus


def counts(x, name):
    y = x * factor("a") + factor("a", plus=2) + bounded(name) + typed(1) + typed(1.0, plus=2)
    return y * factor("a")


def test_calls_are_counted_as_in_eager():
    infos = {}
    for function in (counts, jitshape.compile(counts, fullgraph=True)):
        functions, seen = (factor, bounded, typed), []
        for remembering in functions:
            remembering.cache_clear()
        for name in ("a", "a", "bb", "ccc", "a", "a", "ccc"):
            function(torch.ones(2), name)
            seen.append([remembering.cache_info() for remembering in functions])
        infos[function] = seen
    eager, compiled = infos.values()
    assert compiled == eager
