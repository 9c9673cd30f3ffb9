"""When objects go: finalizers, callbacks of weak references and dead references as in eager, in the
call that compiles and in those that find the compiled code."""

import weakref

import pytest

import jitshape

LOG: list = []


class Finalized:
    def __del__(self):
        LOG.append("del")


class Plain:
    pass


def local_of_a_call():
    def inner():
        made = Finalized()  # noqa: F841
        return 5

    result = inner()
    LOG.append("after")
    return result


def argument_of_a_call():
    def inner(given):
        LOG.append("inside")
        return 5

    made = Finalized()
    result = inner(made)
    LOG.append("after")
    del made
    LOG.append("deleted")
    return result


def returned_by_a_call():
    def inner():
        made = Finalized()
        return [made]

    result = inner()
    LOG.append("after")
    result.clear()
    LOG.append("cleared")


def nobody_keeps_it():
    LOG.append("before")
    Finalized()
    LOG.append("after")


def replaced_in_a_dict():
    kept = {"a": Finalized()}
    LOG.append(1)
    kept["a"] = 1
    LOG.append(2)


def taken_out_of_a_set():
    made = Finalized()
    kept = {made}
    del made
    LOG.append(1)
    kept.clear()
    LOG.append(2)


def reference_to_a_local():
    def inner():
        made = Plain()
        return weakref.ref(made, lambda _: LOG.append("gone"))

    reference = inner()
    LOG.append("after")
    return reference()


def reference_to_what_is_deleted():
    made = Plain()
    reference = weakref.ref(made)
    alive = reference() is made
    del made
    return alive, reference()


def reference_to_what_a_list_held():
    made = [Plain()]
    reference = weakref.ref(made[0])
    before = reference() is made[0]
    made.pop()
    return before, reference()


def weak_set():
    made = Plain()
    kept = weakref.WeakSet([made])
    before = len(kept)
    made = None
    return before, len(kept)


@pytest.mark.parametrize(
    "program",
    [
        local_of_a_call,
        argument_of_a_call,
        returned_by_a_call,
        nobody_keeps_it,
        replaced_in_a_dict,
        taken_out_of_a_set,
        reference_to_a_local,
        reference_to_what_is_deleted,
        reference_to_what_a_list_held,
        weak_set,
    ],
    ids=lambda f: f.__name__,
)
def test_gone_when_eager_lets_go(program):
    def told(function):
        LOG.clear()
        return function(), list(LOG)

    expected, compiled = told(program), jitshape.compile(program)
    for _ in range(3):
        assert told(compiled) == expected


def test_references_of_a_caller():
    def program(items):
        reference = weakref.ref(items[0])
        items.pop()
        return reference()

    compiled = jitshape.compile(program)
    kept = Plain()
    assert compiled([Plain()]) is None and compiled([kept]) is kept and compiled([Plain()]) is None


class Named:
    """Objects of one name are equal."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self):
        return hash(self.name)


def found_by_equal_keys():
    keys = [Named(i) for i in range(3)]
    table = weakref.WeakKeyDictionary((key, key.name * 10) for key in keys)
    table[Named(1)] = 5  # the key that is there stays
    reference = weakref.ref(keys[0])
    return (
        [table[Named(i)] for i in range(3)],
        keys[2] in table,
        table.get(Named(7)),
        reference == weakref.ref(Named(0)),
        {reference: "first"}.get(weakref.ref(keys[0])),
    )


def test_weak_references_hash_and_compare_as_what_they_refer_to():
    want = ([0, 5, 20], True, None, False, "first")
    assert found_by_equal_keys() == want
    compiled = jitshape.compile(found_by_equal_keys)
    assert compiled() == want
    assert compiled() == want
