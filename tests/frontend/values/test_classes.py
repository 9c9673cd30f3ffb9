"""Classes: what calls of them make, what instances pretend to be, whose methods they take."""

from collections.abc import Callable

import pytest

from jitshape.frontend.values.base import Break
from tests.frontend.tracing import check, run_traced


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


class Factory:
    plain = classmethod(Plain)


def aliases(x):
    def g(f: Callable[[int, None], str], *rest: Callable[..., None]) -> dict[str, list[int]]:
        return f

    return g.__annotations__["f"] == Callable[[int, None], str], g(x)


def class_methods_that_are_no_functions(x):
    try:
        return Factory.plain()
    except TypeError as error:
        return str(error)


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
    "program",
    [
        proxies,
        made_by_new,
        wrong_receivers,
        aliases,
        class_methods_that_are_no_functions,
        slots,
    ],
    ids=lambda f: f.__name__,
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


def test_methods_of_classes_that_the_program_makes_leave():
    def f(x):
        def g(*args):
            return args

        made = staticmethod(g), classmethod(g)
        return made, isinstance(made[0], staticmethod), made[1].__func__ is g, made[0](x)

    (static, bound), *others = run_traced(f, [3])
    assert type(static) is staticmethod and type(bound) is classmethod
    assert static.__func__ is bound.__func__ and static(1) == (1,)
    assert others == [True, True, (3,)]


class Sharing:
    pass


def test_objects_that_share_their_dict():
    def f(a, b):
        a.x = 5
        return b.x, a.__dict__ is b.__dict__

    first, second = Sharing(), Sharing()
    second.__dict__ = first.__dict__
    assert run_traced(f, [first, second]) == (5, True) and second.x == 5


def test_weak_references_are_no_slots():
    class Referred:
        __slots__ = ("__weakref__",)

    def f(x):
        return x.__weakref__

    with pytest.raises(Break):
        run_traced(f, [Referred()])


class Noting(property):
    """Called on the class it is itself, as in torch.distributions."""

    def __get__(self, instance, owner=None):
        return self if instance is None else super().__get__(instance, owner)


class Noted:
    def __init__(self, n):
        self.n = n

    @Noting
    def twice(self):
        return 2 * self.n


def test_subclasses_of_property():
    def f(x):
        return x.twice, type(x).twice.fget(x), Noted.twice.fset

    assert check(f, Noted(3)) == (6, 6, None)
