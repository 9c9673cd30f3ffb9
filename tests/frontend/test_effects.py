"""Effects: what is written, what is left alone, and the guards that writes need."""

from __future__ import annotations

import pytest

from jitshape.frontend.checks import Distinct, Keys, Length
from jitshape.frontend.effects import Effects
from jitshape.frontend.machine import Machine
from jitshape.frontend.sources import Local
from tests.frontend.tracing import Evaluator, check


def traced(function, *args):
    machine = Machine(effects=Effects())
    names = function.__code__.co_varnames
    slots = [machine.wrap(a, Local(i, names[i])) for i, a in enumerate(args)]
    outcome = machine.run(function, slots)
    return machine, outcome


def test_a_trace_leaves_no_mark_until_its_effects_are_replayed():
    def write(items, table):
        items.append(1)
        table["b"] = items

    items, table = [], {"a": 0}
    machine, _ = traced(write, items, table)
    assert (items, table) == ([], {"a": 0})
    evaluator = Evaluator([items, table])
    machine.effects.replay(evaluator)
    for step in evaluator.steps:
        step()
    assert items == [1] and table["b"] is items


def test_a_written_list_is_guarded_against_being_another_one():
    def write(a, b):
        a.append(1)
        return len(b)

    machine, _ = traced(write, [], [])
    (guard,) = machine.effects.distinct(machine.known_values())
    assert guard.source == Local(0, "a") and guard.check == Distinct(Local(1, "b"))


def test_the_same_list_twice_is_one_value():
    def write(a, b):
        a.append(1)
        return len(b)

    both = []
    _, outcome = traced(write, both, both)
    assert outcome.value.constant() == 1


def test_only_what_was_read_is_guarded():
    def read(items, table):
        return items[0], table["a"]

    machine, _ = traced(read, [1, 2, 3], {"a": 1, "b": 2})
    kinds = {type(guard.check) for guard in machine.guards}
    assert not kinds & {Length, Keys}


class Point:
    def __init__(self, x):
        self.x = x

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


def change_attributes(p):
    p.x += 1
    p.y = [p.x]
    del p.x
    p.x = 7


def reorder(table):
    value = table.pop("a")
    table["c"] = 3
    table["a"] = value
    return list(table)


def change_places(items):
    items[0], items[-1] = items[-1], items[0]
    items += [items[0]]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (change_attributes, (Point(1),)),
        (reorder, ({"a": 1, "b": 2},)),
        (change_places, ([1, 2, 3],)),
    ],
)
def test_arguments_end_as_in_plain_python(function, args):
    check(function, *args)
