# ruff: noqa
"""Dunder methods: operators, containers, iteration, truth, hashing, context."""

from tests.frontend.corpus.basics import CASES, cases


class Vec:
    def __init__(self, *v):
        self.v = list(v)

    def __add__(self, other):
        if not isinstance(other, Vec):
            return NotImplemented
        return Vec(*[a + b for a, b in zip(self.v, other.v)])

    def __mul__(self, k):
        return Vec(*[a * k for a in self.v])

    def __rmul__(self, k):
        return ("reflected", self.__mul__(k).v)

    def __iadd__(self, other):
        self.v.extend(other.v)
        return self

    def __neg__(self):
        return Vec(*[-a for a in self.v])

    def __eq__(self, other):
        return isinstance(other, Vec) and self.v == other.v

    def __lt__(self, other):
        return self.v < other.v

    def __len__(self):
        return len(self.v)

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, value):
        self.v[i] = value

    def __delitem__(self, i):
        del self.v[i]

    def __contains__(self, x):
        return x in self.v

    def __iter__(self):
        return iter(self.v)

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self, other))

    def __bool__(self):
        return any(self.v)

    def __abs__(self):
        return max(self.v)

    def __repr__(self):
        return f"Vec{tuple(self.v)}"


@cases((1, 2), (0, 0))
def p_operators(a, b):
    x, y = Vec(a, b), Vec(3, 4)
    z = x
    z += y
    return (
        (x + y).v,
        (x * 2).v,
        2 * y,
        (-y).v,
        x == y,
        x != y,
        y < x,
        len(x),
        x[0],
        3 in x,
        list(y),
        x @ y,
        bool(Vec(a)),
        z is x,
        not y,
        repr(y),
        f"{y}",
        str(x),
    )


@cases()
def p_operator_errors():
    out = []
    for f in (
        lambda: Vec(1) + 1,
        lambda: 1 + Vec(1),
        lambda: Vec(1) - Vec(1),
        lambda: Vec(1) > 3,
        lambda: ~Vec(1),
        lambda: Vec(1) ** 2,
        lambda: len(3),
        lambda: 3[0],
        lambda: iter(3),
        lambda: next(3),
        lambda: 1 in 3,
        lambda: {}[[]],
        lambda: [1][5],
        lambda: {}["k"],
        lambda: "a" < 1,
    ):
        try:
            out.append(f())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out


@cases()
def p_item_assignment():
    v = Vec(1, 2, 3)
    v[0] = 9
    del v[1]
    out = [v.v]
    try:
        (1,)[0] = 2
    except TypeError as error:
        out.append(str(error))
    try:
        del (1,)[0]
    except TypeError as error:
        out.append(str(error))
    return out


class Base:
    def __add__(self, other):
        return "base add"

    def __radd__(self, other):
        return "base radd"


class Derived(Base):
    def __radd__(self, other):
        return "derived radd"


class Plain(Base):
    pass


@cases()
def p_reflected_order():
    return Base() + Derived(), Derived() + Base(), Base() + Plain(), 1 + Base(), Base() + Base()


class Old:
    def __getitem__(self, i):
        if i > 3:
            raise IndexError
        return i * 10


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


@cases((3,), (0,))
def p_iteration(n):
    a, b, c = Countdown(n), list(Old()), []
    for x in a:
        c.append(x)
    return c, list(Countdown(n)), b, 20 in Old(), [x for x in Countdown(n)], sum(Countdown(n))


class Truthy:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class BadBool:
    def __bool__(self):
        return 3


@cases((0,), (2,), (-1,))
def p_truth(n):
    out = ["t" if Truthy(n) else "f"]
    try:
        if BadBool():
            out.append("no")
    except TypeError as error:
        out.append(str(error))
    return out


class Index:
    def __index__(self):
        return 2


@cases()
def p_index():
    return [1, 2, 3][Index()], list(range(Index()))


class Key:
    pass


@cases()
def p_hash_identity():
    a, b = Key(), Key()
    d = {a: 1, b: 2, (1, "x"): 3}
    return d[a], d[b], a in d, Key() in d, d[(1, "x")], len({a, b, a})


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self.log

    def __exit__(self, kind, value, traceback):
        self.log.append(kind.__name__ if kind else "exit")
        return self.swallow


@cases((False, False), (True, True), (False, True), (True, False))
def p_with(swallow, fail):
    log = []
    with Manager(log, swallow) as inner, Manager(log, False):
        inner.append("body")
        if fail:
            raise ValueError("inside")
    log.append("after")
    return log


@cases((0,), (1,), (2,))
def p_with_leaving(n):
    log = []

    def run():
        for i in range(3):
            with Manager(log):
                if n == 0:
                    return i
                if n == 1:
                    break
                continue
        return "end"

    return run(), log


@cases()
def p_with_errors():
    out = []
    for thing in (3, Old()):
        try:
            with thing:
                pass
        except TypeError as error:
            out.append(str(error))
    return out


class Unreachable:
    named = property(None, doc="text")
    other = property(fset=lambda self, value: None)


Unreachable.late = property(None)


@cases()
def p_unreachable():
    out = []
    for name in ("named", "other", "late"):
        for action in (
            lambda: getattr(Unreachable(), name),
            lambda: setattr(Unreachable(), name, 1),
            lambda: delattr(Unreachable(), name),
        ):
            try:
                out.append(action())
            except AttributeError as error:
                out.append(str(error))
    return out


@cases()
def p_read_only_parts():
    def f():
        return out

    out = []
    for name in ("__closure__", "__globals__"):
        try:
            setattr(f, name, None)
        except AttributeError as error:
            out.append(str(error))
    return f()


class Asked(type):
    """Says that everything is derived from its classes, and notes who wants to know."""

    log = []

    def __subclasscheck__(cls, other):
        Asked.log.append(other.__name__)
        return True


class Ordered:
    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        self.log.append(type(self).__name__ + " eq")
        return NotImplemented

    def __lt__(self, other):
        self.log.append(type(self).__name__ + " lt")
        return NotImplemented

    __gt__ = __lt__

    def __add__(self, other):
        self.log.append(type(self).__name__ + " add")
        return NotImplemented

    __radd__ = __add__


class First(Ordered, metaclass=Asked):
    pass


class Virtual(Ordered):
    pass


class Derived(First):
    def __radd__(self, other):
        self.log.append("Derived radd")
        return NotImplemented


class Made(metaclass=Asked):
    def __new__(cls):
        return Virtual([])

    def __init__(self):
        Asked.log.append("init")


@cases()
def p_bases_and_not_what_classes_say():
    log = []
    Asked.log.clear()
    for right in (Virtual, Derived):
        for action in (lambda a, b: a == b, lambda a, b: a < b, lambda a, b: a + b):
            try:
                log.append(action(First(log), right(log)))
            except TypeError:
                log.append("error")
    return log, type(Made()).__name__, list(Asked.log)


@cases()
def p_super_of_strangers():
    out = []
    for cls, thing in ((int, Virtual([])), (Virtual, []), (Virtual, list), (3, 3)):
        try:
            super(cls, thing)
        except TypeError as error:
            out.append(str(error))
    return out


class EqualToAll:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return "differs"


@cases()
def p_other_side_of_callables():
    items, text = [], "a"
    return [
        (left == EqualToAll(), left != EqualToAll(), EqualToAll() == left)
        for left in (p_shown_again, lambda: 0, len, items.append, str.join, property)
    ] + [p_shown_again == len, p_shown_again != len, p_shown_again == p_shown_again]


def p_shown_again():
    pass


@cases()
def p_methods_of_c_are_equal():
    items, others = [], []
    return (
        items.append == items.append,
        items.append == others.append,
        dict.fromkeys == dict.fromkeys,
        dict.fromkeys != dict.fromkeys,
        object.__init_subclass__ == object.__init_subclass__,
        list.__init_subclass__ == object.__init_subclass__,
        len == abs,
    )


@cases()
def p_a_list_while_it_is_sorted():
    items, seen = [3, 1, 2], []

    def key(item):
        seen.append(list(items))
        return -item

    items.sort(key=key)
    seen.append(list(items))

    def fails(item):
        raise KeyError(item)

    def appends(item):
        items.append(item)
        items.pop()
        return item

    for key in (fails, appends):
        try:
            items.sort(key=key)
        except (KeyError, ValueError) as error:
            seen.append((str(error), list(items)))
    return seen


__all__ = ["CASES"]
