"""Read-only views of dicts, and classes that compare by code of their metaclass."""

import types

import pytest

import jitshape
from tests.programs.pieces import note


def written_behind(mapping, view):
    keys, values, items = view.keys(), view.values(), view.items()
    before = list(keys), len(view)
    mapping["key"] = 1
    mapping["other"] = [2]
    del mapping["first"]
    return before, list(keys), list(values), list(items), len(view), "key" in view, view["other"]


def asked(mapping, view):
    try:
        view["none"]
    except KeyError as error:
        missing = error.args
    return (
        view == mapping,
        mapping == view,
        view != {"first": 1},
        bool(view),
        view.get("first"),
        view.get("none", 7),
        view.copy(),
        dict(view),
        {**view},
        [*view],
        [*reversed(view)],
        missing,
    )


def written_after_a_break(mapping, view):
    found = [len(view)]
    note(view)
    mapping["second"] = 2
    found.append(len(view))
    note(view)
    return found, list(view)


def read_only(mapping, view):
    said = []
    for action in (
        lambda: view.__setitem__("a", 1),
        lambda: exec("view['a'] = 1", {"view": view}),
        lambda: view.update({}),
    ):
        try:
            action()
        except (TypeError, AttributeError) as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("program", [written_behind, asked, written_after_a_break, read_only])
def test_a_proxy_shows_the_dict_as_it_is(program):
    compiled = jitshape.compile(program)
    for first in (1, 2, 1):
        mine, theirs = {"first": first}, {"first": first}
        result = compiled(mine, types.MappingProxyType(mine))
        assert result == program(theirs, types.MappingProxyType(theirs))
        assert mine == theirs


def test_made_inside():
    def program(mapping):
        view = types.MappingProxyType(mapping)
        keys = view.keys()
        mapping["later"] = 3
        return list(keys), view["later"]

    assert jitshape.compile(program)({}) == (["later"], 3)


class Meta(type):
    of_meta = 3


class Plain:
    factor = 1

    def method(self):
        return 2

    static = staticmethod(len)


class Further(Plain, metaclass=Meta):
    other = 2


class Slotted:
    __slots__ = ("slot",)


def reads_of_classes(cls):
    own = cls.__dict__
    names = [name for name in own if not name.startswith("_")]
    return (
        own.get("factor"),
        "other" in own,
        own.get("of_meta", 7),
        {name: type(own[name]) for name in names},
        own is cls.__dict__,
        own == cls.__dict__,
        vars(cls).get("__module__"),
        ["factor" in base.__dict__ for base in cls.__mro__],
        len(own),
    )


def writes_of_classes(cls):
    before = cls.__dict__.get("made")
    cls.made = 5
    within = cls.__dict__.get("made"), "made" in cls.__dict__
    del cls.made
    return before, within, "made" in cls.__dict__


@pytest.mark.parametrize("program", [reads_of_classes, writes_of_classes])
def test_dicts_of_classes(program):
    compiled = jitshape.compile(program, fullgraph=program is reads_of_classes)
    for cls in (Plain, Further, Slotted):
        assert compiled(cls) == program(cls)
    Plain.factor, Plain.more = 2, 3
    for cls in (Plain, Further):
        assert compiled(cls) == program(cls)
    Plain.factor = 1
    del Plain.more
    assert compiled(Plain) == program(Plain)


def test_a_dict_of_a_class_that_is_returned_shows_later_changes():
    def program(cls):
        return cls.__dict__, cls.__dict__.keys()

    own, keys = jitshape.compile(program)(Plain)
    Plain.later = 1
    assert type(own) is types.MappingProxyType
    assert (own["later"], "later" in keys) == (1, True)
    del Plain.later


class Comparing(type):
    log = []

    def __eq__(cls, other):
        cls.log.append(other)
        return NotImplemented

    __hash__ = None


class Compared(metaclass=Comparing):
    def value(self):
        return 5


def test_classes_that_compare_by_code_are_left_alone():
    def program(thing, cls):
        return thing.value(), cls is type(thing), isinstance(thing, cls), cls().value()

    Comparing.log.clear()
    assert jitshape.compile(program)(Compared(), Compared) == (5, True, True, 5)
    assert not Comparing.log
