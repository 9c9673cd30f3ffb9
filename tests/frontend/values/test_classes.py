"""Classes: what calls of them make, what instances pretend to be, whose methods they take."""

import pytest

from tests.frontend.tracing import check


class Proxy:
    def __init__(self, shown):
        self.shown = shown

    @property
    def __class__(self):
        return type(self.shown)


class Given:
    @classmethod
    def __new__(*args):
        return args[1:]


class Other:
    @staticmethod
    def __new__(*args):
        return args[1:]


class Slots:
    __slots__ = ("a",)


class Plain:
    pass


class Silent(Plain):
    def __getattribute__(self, name):
        raise AttributeError(name)


def proxies(x):
    pairs = [(Proxy(1), int), (Proxy([]), int), (Proxy(Plain()), Plain), (Proxy(1), Proxy)]
    return [isinstance(value, cls) for value, cls in pairs], isinstance(Silent(), Slots)


def made_by_new(x):
    return Given(x, 2), Other(x, 2)


def wrong_receivers(x):
    found = []
    for call in (
        lambda: list.append({}, 1),
        lambda: list.append(),
        lambda: dict.items([]),
        lambda: str.join(1, []),
        lambda: int.__add__("a", 1),
        lambda: int.__add__(),
        lambda: tuple.__len__([]),
    ):
        try:
            found.append(call())
        except TypeError as error:
            found.append(str(error))
    return found


def slots(x):
    s, found = Slots(), []
    for action in (lambda: s.a, lambda: delattr(s, "a"), lambda: setattr(s, "b", 1)):
        try:
            action()
        except AttributeError as error:
            found.append(str(error))
    s.a = x
    del s.a
    return found, hasattr(s, "a"), hasattr(s, "__dict__")


@pytest.mark.parametrize(
    "program", [proxies, made_by_new, wrong_receivers, slots], ids=lambda f: f.__name__
)
def test_as_plain(program):
    check(program, 1)


def test_arguments_that_object_does_not_take():
    def of_init(x):
        try:
            Plain.__init__(Plain(), x)
        except TypeError as error:
            return str(error)

    check(of_init, 1)
