import difflib
import fractions
import functools
import heapq
import json
import statistics
import sys
import textwrap
import threading
import traceback

import pytest
from bytecode import Bytecode

from jitshape.frontend._evalframe import hook_state
from jitshape.frontend.hook import routed, unrouted, watch


def add(a, b=2, *args, c=3, **kwargs):
    return a, b, args, c, kwargs


def caller(x):
    return add(x, c=5)


def route_to(code, answer):
    return lambda seen, function: answer if seen is code else None


def test_a_handler_gets_the_function_and_its_slots():
    def handler(function, slots):
        return function, slots

    with routed(route_to(add.__code__, handler)):
        assert hook_state()["installed"]
        got = caller(1), add(1, 7, 8, k=9), list(map(add, [4]))
    assert not hook_state()["installed"]
    assert got[0] == (add, (1, 2, 5, (), {}))
    assert got[1] == (add, (1, 7, 3, (8,), {"k": 9}))
    assert got[2] == [(add, (4, 2, 3, (), {}))]
    assert add(1) == (1, 2, (), 3, {})


def test_exceptions_of_handlers_are_the_calls():
    def handler(function, slots):
        raise KeyError(slots)

    with routed(route_to(add.__code__, handler)), pytest.raises(KeyError) as caught:
        caller(3)
    names = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "handler" and "caller" in names


def test_code_is_swapped_in_place():
    def other(a, b=2, *args, c=3, **kwargs):
        one, two, three = "swapped", [a, b], {k: v for k, v in zip("abc", [c] * 3)}
        return one, two, args, three, sys._getframe().f_code.co_name

    before = hook_state()["swapped"]
    with routed(route_to(add.__code__, other.__code__)):
        assert caller(1) == ("swapped", [1, 2], (), dict.fromkeys("abc", 5), "other")
    assert hook_state()["swapped"] == before + 1


def test_none_is_not_asked_again_and_false_is():
    asked = []

    def route(code, function):
        asked.append(code)
        return False if code is add.__code__ else None

    with routed(route):
        caller(1), caller(1), caller(1)
    assert asked.count(caller.__code__) == 1 and asked.count(add.__code__) == 3


def test_routes_nest_and_end_with_exceptions():
    with routed(route_to(add.__code__, lambda f, s: "outer")):
        with routed(route_to(add.__code__, lambda f, s: "inner")):
            assert caller(1) == "inner"
        with unrouted():
            assert caller(1) == (1, 2, (), 5, {})
        with pytest.raises(ValueError), unrouted():
            raise ValueError
        assert caller(1) == "outer"
    assert not hook_state()["installed"]


def test_other_threads_are_left_alone():
    results = []
    with routed(route_to(add.__code__, lambda f, s: "routed")):
        thread = threading.Thread(target=lambda: results.append(caller(1)))
        thread.start()
        thread.join()
        results.append(caller(1))
    assert results == [(1, 2, (), 5, {}), "routed"]


def test_audit_and_trace_functions_are_left_alone():
    heard = []

    def listen(*event):
        if event[0] == "tests.hook" or event[1] == "call":
            heard.append(event[0])

    sys.addaudithook(listen)  # stays for good, and hears of nothing else
    with routed(route_to(listen.__code__, lambda function, slots: heard.append("routed"))):
        sys.audit("tests.hook", 1)
        previous = sys.getprofile()
        sys.setprofile(listen)
        add(1)
        sys.setprofile(previous)
    assert heard[0] == "tests.hook" and len(heard) > 1 and "routed" not in heard


def test_watch_reports_code_called_from_c():
    def key(x):
        return -x

    here = test_watch_reports_code_called_from_c.__code__
    with watch(lambda code: code.co_filename != __file__) as found:
        assert sorted([1, 2, 3], key=key) == [3, 2, 1]
        functools.reduce(lambda a, b: a + b, [1, 2, 3])
    assert [u.code.co_name for u in found] == ["key", "<lambda>"]
    assert str(found[0]).startswith(f"{here.co_qualname}.<locals>.key ({__file__}:")


def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)


def test_deep_recursion_and_recursion_errors():
    with routed(lambda code, function: None):
        assert deep(600) == 600
        with pytest.raises(RecursionError):
            deep(10**6)


@functools.cache
def round_tripped(code):
    taken_apart = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
    return taken_apart.to_code(
        stacksize=code.co_stacksize + 5, compute_exception_stack_depths=False
    )


def work():
    """Something of everything: generators, comprehensions, closures, exceptions, classes."""
    text = "the quick brown fox jumps over the lazy dog " * 8
    data = {"a": [1, 2.5, None, {"b": text[:20]}], "c": [[i] * 3 for i in range(5)]}
    errors = []
    for bad in ("{", "[1,", '{"a" 1}'):
        try:
            json.loads(bad)
        except json.JSONDecodeError as e:
            errors.append(str(e))
    half = fractions.Fraction(1, 2)
    return (
        json.JSONEncoder(indent=2, sort_keys=True).encode(data),
        errors,
        textwrap.wrap(text, 30),
        list(difflib.unified_diff(text.split(), text.replace("fox", "cat").split(), lineterm="")),
        list(heapq.merge([1, 4, 9], [2, 3, 10])),
        heapq.nsmallest(3, range(20), key=lambda x: -x),
        statistics.linear_regression([1, 2, 3], [2, 4, 7]),
        statistics.quantiles([3, 1, 4, 1, 5, 9]),
        half**3 + fractions.Fraction("0.125"),
        sum(x * y for x, y in zip(range(10), range(10))),
    )


def test_the_standard_library_runs_on_swapped_code():
    want = work()
    before = hook_state()
    skipped = (__file__, functools.__file__)

    def route(code, function):
        if code.co_filename in skipped and code is not work.__code__:
            return None
        return round_tripped(code)

    with routed(route):
        for _ in range(10):
            assert work() == want
    after = hook_state()
    assert after["swapped"] - before["swapped"] > 1000
    assert after["without_room"] - before["without_room"] < 50
