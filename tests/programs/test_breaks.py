"""Programs that cannot be captured whole: eager execution is the judge of every piece."""

import collections
import contextlib
import itertools

import pytest
import torch

from tests.programs.pieces import LOG, SIZES, check_pieces, inputs, note


def branch(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    else:
        y = y - 1
    return y.tanh() * x


def branch_in_call(x):
    return branch(x + 1) + branch(x - 1)


def three_deep(x):
    y = x.sin()
    return y + branch_in_call(y) * y.cos()


def printing(x):
    y = x.exp()
    note("before", y)
    z = y.sum(-1, keepdim=True)
    note("after", z)
    return y / z


def item(x):
    scale = x.detach().abs().max().item()
    return x / scale, scale


def through_numpy(x):
    y = (x * 2).detach().numpy()
    return x + float(y.sum()), y.shape


def in_loop(x):
    out = x
    for i in range(4):
        out = out + i
        note(i)
        out = out.sin()
    return out


def in_loop_over_a_list(x):
    out = []
    for i, (name, scale) in enumerate(zip("abc", [x, x + 1, x + 2])):
        note(name)
        out.append(scale * i)
    return out


def in_while(x):
    n = 0
    while x.detach().sum() < 20:
        x = x.abs() + 1
        n += 1
    return x, n


class Manager:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, traceback):
        LOG.append(("exit", self.name, kind and kind.__name__))
        return kind is KeyError


def in_with(x):
    with Manager("a") as a, Manager("b"):
        y = x * 2
        note(a)
        z = y + 1
    return z


def in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        note(torch.is_grad_enabled())
        z = y + 1
    note(torch.is_grad_enabled())
    return x * z


def in_autocast(x):
    w = x.detach().t() + 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        note(y.dtype, torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled())
        z = y @ x
    note(torch.is_autocast_enabled("cpu"))
    return z.float() + x @ w @ x


def in_autocast_of_a_call(x):
    def inner(y):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False), torch.no_grad():
            for i in range(2):
                y = y @ y.t() @ y
                if y.sum() > 0:
                    note(i, y.dtype)
        note(torch.is_autocast_cache_enabled())
        return y

    return inner(x / 10) + x


def generator_in_no_grad(x):
    with torch.no_grad():
        values = (x * i for i in range(3))
        y = next(values)
        note(y.requires_grad)
    return y + x, [v.requires_grad for v in values]


def swallowed(x):
    y = x * 2
    with Manager("swallows"):
        y = y + 1
        note("inside")
        y = y + 1
        raise KeyError("k")
    return y * x


def in_try(x):
    try:
        y = x.sin()
        note("try")
        y = y + 1
        raise ValueError("from here")
    except ValueError as error:
        z = y * 2
        note("except", str(error))
        z = z + 1
    else:
        z = y
    finally:
        note("finally")
        z = z - 3
    return z


def in_finally_of_return(x):
    try:
        return x.sin() + note("body")
    finally:
        note("finally")


def in_comprehension(x):
    values = [(x + i) * note(i) for i in range(3)]
    return sum(values), {k: x * note(k) for k in "ab"}


class Thing:
    def __init__(self, scale):
        self.scale = scale
        self.calls = 0

    def grow(self, x):
        self.calls += 1
        y = x * self.scale
        note(self.calls)
        self.calls += 1
        return y + 1

    @property
    def size(self):
        note("property")
        return self.calls


class Derived(Thing):
    def grow(self, x):
        y = super().grow(x)
        note("derived")
        return super().grow(y)


def in_method(x):
    thing = Thing(2.0)
    y = thing.grow(x)
    return y, thing.calls, thing.size


def in_super(x):
    thing = Derived(3.0)
    return thing.grow(x), thing.calls


def in_closure(x):
    total = 0
    seen = []

    def add(y):
        nonlocal total
        total = total + y.sum()
        note("add")
        total = total * 2
        seen.append(len(seen))
        return y + total

    z = add(x)
    w = add(z)
    return w, total, seen


def in_lambda_default(x):
    def scaled(y, k=3, *, j=2):
        note(k, j)
        return y * k + j

    return scaled(x) + scaled(x, 4, j=5)


def numbers(x):
    for i in range(3):
        note("yield", i)
        yield x * i


def consuming(x):
    out = x
    for y in numbers(x):
        out = out + y
    return out, list(numbers(x))


def generator_alive(x):
    generator = (x * i for i in range(4))
    y = next(generator)
    note("alive")
    return [y, *generator]


def iterators_alive(x):
    values = [x, x + 1, x + 2, x + 3]
    table = {"a": x, "b": x * 2, "c": 3}
    alive = [
        iter(values),
        iter(table),
        iter(table.values()),
        iter(table.items()),
        iter(range(5)),
        zip(values, "abcd"),
        enumerate(values, 7),
        reversed(values),
        iter((1, 2, 3)),
        map(lambda v: v * 2, values),
        itertools.chain([1, 2], [x]),
        iter(collections.OrderedDict(a=1, b=2)),
        itertools.count(3),
        itertools.islice(values, 3),
    ]
    firsts = [next(iterator) for iterator in alive]
    note("alive")
    types = [type(iterator).__name__ for iterator in alive]
    return firsts, types, [list(itertools.islice(i, 3)) for i in alive]


def list_grows_under_its_iterator(x):
    values = [x, x + 1]
    for y in values:
        note(len(values))
        if len(values) < 5:
            values.append(y * 2)
    return values


def recursion(x, depth=4):
    if depth == 0:
        return x
    y = recursion(x + 1, depth - 1)
    note(depth)
    return y * 2


def calls_disabled(x):
    y = x + 1
    n = note(y)
    return y * n


def unknown_builtin(x):
    y = x * 2
    key = hash(LOG.__class__.__name__) == hash("list")
    with contextlib.suppress(KeyError):
        {}["missing"]
    return y + int(key) + len(memoryview(b"abc"))


def writes_input(x):
    y = x.detach() * 1
    y += 1
    note(y)
    y *= 2
    return y, x + y


def mutated_containers(x):
    values, table = [1], {"k": x}
    alias = values
    values.append(x.sum())
    table["n"] = values
    note(len(alias))
    alias.append(x.max())
    return values, table, values is alias, table["n"] is alias


def conditional_expression(x):
    return x + (1 if x.detach().mean() > 0 else 2) * (x.detach().max() > 1 or 3)


def star_calls(x):
    args, kwargs = (x, x + 1), {"k": 2}

    def inner(a, *rest, k, **more):
        note(k, sorted(more))
        return a + rest[0] * k

    return inner(*args, **kwargs, z=1)


PROGRAMS = [
    branch,
    branch_in_call,
    three_deep,
    printing,
    item,
    through_numpy,
    in_loop,
    in_loop_over_a_list,
    in_while,
    in_with,
    in_no_grad,
    in_autocast,
    in_autocast_of_a_call,
    generator_in_no_grad,
    swallowed,
    in_try,
    in_finally_of_return,
    in_comprehension,
    in_method,
    in_super,
    in_closure,
    in_lambda_default,
    consuming,
    generator_alive,
    iterators_alive,
    list_grows_under_its_iterator,
    recursion,
    calls_disabled,
    unknown_builtin,
    writes_input,
    mutated_containers,
    conditional_expression,
    star_calls,
]


WHOLE = [item]  # no break any more
ROUNDED = [in_autocast]  # the gradients in another place than by eager


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_pieces(program):
    calls = inputs(SIZES[:2], grad=program not in ROUNDED)
    check_pieces(program, *calls, breaks=program not in WHOLE)
