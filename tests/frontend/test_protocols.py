"""Which classes read and write attributes as `object` does."""

import contextvars
import functools
import threading
import types

from jitshape.frontend.lookup import class_attribute, is_generic


class Plain:
    pass


class Reads:
    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


class Hook:
    def __getattr__(self, name):
        return name


class Writes(dict):
    def __setattr__(self, name, value):
        pass


def test_generic_attribute_slots():
    generic = (object, Plain, Hook, dict, KeyError, contextvars.ContextVar, functools.partial)
    assert [cls for cls in generic if not is_generic(cls, "__getattribute__")] == []
    own = (type, types.ModuleType, super, Reads, threading.local, types.MethodType)
    assert [cls for cls in own if is_generic(cls, "__getattribute__")] == []


def test_writing_is_a_slot_of_its_own():
    assert is_generic(Writes, "__getattribute__")
    assert not is_generic(Writes, "__setattr__")
    assert is_generic(Writes, "__delattr__")
    assert is_generic(KeyError, "__setattr__")
    assert not is_generic(threading.local, "__delattr__")


def test_class_attribute_follows_the_order_of_resolution():
    assert class_attribute(Writes, "__setattr__") is Writes.__dict__["__setattr__"]
    assert class_attribute(Writes, "__len__") is dict.__dict__["__len__"]
