"""Sources compare by structure, and say their text and hash once."""

from jitshape.frontend.sources import Held, InstanceDict, Item, Key, Local


def nested(index: int) -> Item:
    return Item(Key(InstanceDict(Local(0, "self")), "layers"), index)


def test_equal_paths_are_one_key():
    table = {nested(1): "one", nested(2): "two"}
    assert table[nested(1)] == "one"
    assert nested(1) == nested(1) and nested(1) != nested(2)
    assert hash(nested(3)) == hash(nested(3))


def test_text_is_the_users():
    source = nested(1)
    assert str(source) == str(source) == "self.layers[1]"


def test_held_objects_compare_by_identity():
    first, second = [1], [1]
    assert Held(first, "x") == Held(first, "y")
    assert Held(first, "x") != Held(second, "x")
