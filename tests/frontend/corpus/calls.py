# ruff: noqa
"""Calls, argument binding, closures, decorators, classes made outside, super."""

import functools

from tests.frontend.corpus.basics import CASES, cases


def positional(a, b=2, /, c=3):
    return a, b, c


def keyword_only(a, *, k, d=4):
    return a, k, d


def everything(a, b=2, *args, k=1, **kw):
    return a, b, args, k, kw


@cases()
def p_binding():
    return (
        positional(1),
        positional(1, 5, c=6),
        keyword_only(1, k=2),
        everything(1),
        everything(1, 2, 3, 4, k=5, z=6),
        everything(*[1, 2, 3], **{"k": 0, "q": 1}),
        everything(b=1, a=0),
    )


def attempt(call):
    try:
        return call()
    except TypeError as error:
        return str(error)


@cases()
def p_binding_errors():
    return [
        attempt(lambda: positional()),
        attempt(lambda: positional(1, 2, 3, 4)),
        attempt(lambda: positional(a=1)),
        attempt(lambda: positional(1, c=2, d=3)),
        attempt(lambda: keyword_only()),
        attempt(lambda: keyword_only(1)),
        attempt(lambda: keyword_only(1, 2)),
        attempt(lambda: keyword_only(1, k=1, k2=2)),
        attempt(lambda: everything()),
        attempt(lambda: everything(1, a=2)),
        attempt(lambda: everything(1, **{"a": 2})),
        attempt(lambda: everything(*5)),
        attempt(lambda: everything(**5)),
        attempt(lambda: everything(**{"k": 1}, **{"k": 2})),
        attempt(lambda: (lambda: 0)(1)),
        attempt(lambda: 5()),
        attempt(lambda: None(3)),
    ]


@cases((3,))
def p_closures(n):
    def make(k):
        count = k

        def step(by=1):
            nonlocal count
            count += by
            return count + n

        return step, lambda: count

    step, read = make(10)
    return step(), step(5), read(), step.__name__, make(0)[1]()


@cases()
def p_late_binding():
    fs = []
    for i in range(3):
        fs.append(lambda: i)
    gs = [lambda i=i: i for i in range(3)]
    return [f() for f in fs], [g() for g in gs]


@cases()
def p_empty_cell():
    def inner():
        return x

    try:
        inner()
    except NameError as error:
        message = str(error)
    x = 1
    return message, inner()


@cases()
def p_delete_cell():
    x = 1

    def inner():
        return x

    del x
    try:
        return inner()
    except NameError as error:
        return str(error)


@cases((5,))
def p_recursion(n):
    def fact(k):
        return 1 if k < 2 else k * fact(k - 1)

    def even(k):
        return True if k == 0 else odd(k - 1)

    def odd(k):
        return False if k == 0 else even(k - 1)

    return fact(n), even(n)


def traced_twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs), function(*args, **kwargs)

    return wrapper


@traced_twice
def decorated(a, b=1):
    return a + b


@cases()
def p_decorator_outside():
    return decorated(3), decorated(1, b=5)


@cases()
def p_decorator_inside():
    def twice(f):
        def g(*a):
            return f(f(*a))

        return g

    @twice
    @twice
    def inc(x):
        return x + 1

    return inc(0)


class Point:
    """Attributes, properties, methods of every kind."""

    kind = "point"

    def __init__(self, x, y=0):
        self.x, self.y = x, y

    def norm(self):
        return self.x * self.x + self.y * self.y

    @property
    def total(self):
        return self.x + self.y

    @total.setter
    def total(self, value):
        self.x = value - self.y

    @classmethod
    def unit(cls):
        return cls(1, 1)

    @staticmethod
    def add(a, b):
        return Point(a.x + b.x, a.y + b.y)

    def __call__(self, k):
        return self.x * k


class Point3(Point):
    def __init__(self, x, y, z):
        super().__init__(x, y)
        self.z = z

    def norm(self):
        return super().norm() + self.z**2

    @classmethod
    def unit(cls):
        return cls(1, 1, 1)


@cases((Point(3, 4),))
def p_object_argument(p):
    p.x += 1
    p.new = [p.total]
    p.total = 20
    return p.norm(), p.kind, p(2), p.x


@cases()
def p_object_made():
    p, q = Point(1, 2), Point3(1, 2, 3)
    r = Point.add(p, q)
    method = q.norm
    return p.norm(), q.norm(), r.x, Point.unit().total, Point3.unit().z, method(), p.kind


@cases((Point(1, 2),))
def p_missing_attribute(p):
    try:
        return p.nothing
    except AttributeError as error:
        return str(error)


@cases((Point(1, 2),))
def p_delete_attribute(p):
    del p.x
    try:
        return p.x
    except AttributeError as error:
        return str(error), hasattr(p, "y"), getattr(p, "x", 5)


class Hooked:
    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return f"made {name}"

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        if name != "log":
            self.log.append(name)


@cases()
def p_attribute_hooks():
    h = Hooked()
    h.a = 1
    try:
        h._b
    except AttributeError as error:
        return h.a, h.other, h.log, str(error)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


@cases()
def p_slots():
    s = Slotted()
    s.b = s.a + 1
    try:
        s.c = 3
    except AttributeError as error:
        text = str(error)
    del s.a
    try:
        s.a
    except AttributeError as error:
        return s.b, text, str(error)


class Doubler:
    def __get__(self, instance, owner):
        return self if instance is None else instance.base * 2


class Validated:
    def __set_name__(self, owner, name):
        self.key = "_" + name

    def __get__(self, instance, owner):
        return getattr(instance, self.key)

    def __set__(self, instance, value):
        if value < 0:
            raise ValueError("negative")
        setattr(instance, self.key, value)


class Described:
    double = Doubler()
    size = Validated()

    def __init__(self, base):
        self.base = base
        self.size = base


@cases((3,), (-3,))
def p_descriptors(n):
    d = Described(n)
    before = d.double
    d.__dict__["double"] = "shadow"
    return before, d.double, d.size, d._size


@cases()
def p_partial():
    f = functools.partial(everything, 1, k=9)
    return f(2), f(3, k=4, z=1)


@cases()
def p_sorted_key():
    people = [("b", 2), ("a", 3), ("c", 1)]
    return sorted(people, key=lambda p: p[1]), sorted(people), max(people, key=lambda p: p[1])


@cases()
def p_map_filter():
    return (
        list(map(lambda x: x + 1, [1, 2])),
        list(filter(None, [0, 1, 2])),
        list(zip("ab", [1, 2])),
    )


@cases()
def p_defaults_evaluated_once():
    def f(x, acc=[]):  # noqa: B006
        acc.append(x)
        return acc

    return f(1), f(2), f(3, [])


@cases()
def p_function_attributes():
    def f():
        return f.calls

    f.calls = 3
    return f(), f.__name__, f.__defaults__


@cases()
def p_lambda_kwonly():
    return (lambda *a, k=1: (a, k))(1, 2, k=3)


@cases((True,), (False,))
def p_isinstance(flag):
    p = Point3(1, 2, 3) if flag else Point(1)
    return isinstance(p, Point3), isinstance(p, (int, Point)), type(p).__name__, type(p) is Point


__all__ = ["CASES"]
