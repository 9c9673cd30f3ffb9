"""Programs that cannot be captured whole: eager execution is the judge of every piece."""

import collections
import contextlib
import itertools
import sys
import threading
import traceback

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same, clone, gradients

SIZES = [(3, 4), (5, 4), (6, 7)]
LOG: list = []


@jitshape.disable
def note(*items):
    """Not captured: what is noted, and when, is compared with eager."""
    LOG.append([x.detach().clone() if isinstance(x, torch.Tensor) else x for x in items])
    return len(items)


def inputs(sizes=SIZES, grad=True):
    torch.manual_seed(0)
    return [(torch.randn(*size, requires_grad=grad),) for size in sizes]


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


def observed(call, args):
    """What a call gives: result or exception, what was noted, arguments, gradients."""
    LOG.clear()
    args = clone(args)
    try:
        result = call(*args)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__)[1:]]
        return type(error).__name__, str(error), lines, list(LOG), args
    return result, list(LOG), args, gradients(result, args)


def check_pieces(program, *calls, breaks=1, fallbacks=0):
    """Eager and compiled, twice; the second time nothing is compiled."""
    jitshape.reset()
    compiled = jitshape.compile(program)
    for turn in range(2):
        before = jitshape.stats()["compiles"]
        for number, args in enumerate(calls):
            want, got = observed(program, args), observed(compiled, args)
            assert_same(want, got, f"turn {turn}, call {number}")
    stats = jitshape.stats()
    assert stats["fallbacks"] == fallbacks, stats["details"]
    assert stats["graph_breaks"] >= breaks, stats["details"]
    assert stats["compiles"] == before, [str(r) for r in jitshape.history()]
    return stats


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_pieces(program):
    calls = inputs(SIZES[:2], grad=program not in ROUNDED)
    check_pieces(program, *calls, breaks=program not in WHOLE)


def test_print_shows_what_was_there(capsys):
    def f(x):
        y = x.detach() * 2
        print("before", y, end="!")
        y += 1
        print(y.shape, 3)
        return y

    check_pieces(f, *inputs(SIZES[:1]))
    shown = capsys.readouterr().out
    assert shown[: len(shown) // 4] * 4 == shown


def test_errors_in_pieces_have_the_lines_of_the_user():
    def inner(x, k):
        y = x * 2
        note(k)
        z = y + 1
        return [z][k]

    def outer(x, k):
        w = x + 1
        note("outer")
        try:
            return inner(w, k) + 1
        finally:
            note("finally")

    def f(x, k):
        return outer(x, k) * 2

    x = torch.randn(3)
    check_pieces(f, (x, 0), (x, 1), (x, 2))


def test_no_stack_grows_with_a_loop():
    def f(x):
        for i in range(3000):
            x = x + i
            note(i)
        return x

    (args,) = inputs([(2,)], grad=False)
    check_pieces(f, args)


def test_many_threads_compile_each_piece_once():
    sizes = [(3, 4), (5, 4), (7, 4)]
    calls = [(torch.full(size, 0.5),) for size in sizes]
    wants = [three_deep(*args) for args in calls]
    jitshape.reset()
    compiled = jitshape.compile(three_deep, dynamic=True)
    compiled(*calls[0])
    first = jitshape.stats()["compiles"]
    jitshape.reset()
    barrier, failures = threading.Barrier(6), []

    def work(number):
        barrier.wait()
        for turn in range(10):
            index = (number + turn) % len(calls)
            try:
                torch.testing.assert_close(compiled(*calls[index]), wants[index])
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)
    stats = jitshape.stats()
    assert stats["fallbacks"] == 0
    assert stats["compiles"] <= first


def test_training_across_breaks():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

        def forward(self, x):
            h = self.first(x).relu()
            if h.sum() > 1e6:
                h = h * 0
            note(h)
            return self.second(h)

    torch.manual_seed(0)
    mine, theirs = Net(), Net()
    theirs.load_state_dict(mine.state_dict())
    jitshape.reset()
    compiled = jitshape.compile(mine)
    optimizers = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (mine, theirs)]
    for size in (3, 5, 6, 5):
        x, losses = torch.randn(size, 4), []
        for net, optimizer in zip((compiled, theirs), optimizers):
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    stats = jitshape.stats()
    assert stats["fallbacks"] == 0 and stats["graph_breaks"] >= 2
    assert_same(list(theirs.parameters()), list(mine.parameters()))


def test_a_bound_method_on_the_stack_is_known_by_what_it_is_bound_to():
    def grow(x):
        note("grow")
        return x + 1

    def f(x):
        out, table = [], {}
        add = out.append
        for i in (1, 2):
            out.append(grow(x) * i)
            add(grow(x) - i)
            table.setdefault("k", []).append(note(i))
        return out, table

    stats = check_pieces(f, *inputs([(3,)], grad=False) * 2)
    assert stats["recompiles"] <= 3  # `i` and the counts become symbols
    assert not any(
        "append" in str(f) for r in jitshape.history() for f in getattr(r, "failures", ())
    )


def shows_locals(x):
    def inner():
        _ = x, scale
        return eval("scale + 1"), sorted(locals()), locals()["scale"]

    scale = 3
    note("before")
    return inner(), eval("inner")() == inner(), sorted(locals())


def changes_builtins(x):
    import builtins

    kept = builtins.iter, builtins.len
    del builtins.iter
    builtins.len = lambda x: -1
    note("changed")
    try:
        return len([x]), hasattr(builtins, "iter")
    finally:
        note("restored")
        builtins.iter, builtins.len = kept


def leaves_a_generator(x):
    def made():
        yield x
        yield x + 1

    made.__name__ = made.__qualname__ = "renamed"
    found = made()
    note(next(found))
    return found.__name__, found.__qualname__, list(found)


@pytest.mark.parametrize("program", [shows_locals, changes_builtins, leaves_a_generator])
def test_what_pieces_show_is_what_the_function_shows(program):
    outcomes = []
    for call in (program, jitshape.compile(program)):
        LOG.clear()
        outcomes.append((call(2), list(LOG)))
    assert outcomes[0] == outcomes[1]


def renamed():
    yield 1
    yield 2


def test_a_generator_is_called_what_its_function_is(monkeypatch):
    def program():
        found = renamed()
        return next(found), found

    compiled = jitshape.compile(program)
    for name in ("renamed", "other", "renamed"):
        monkeypatch.setattr(renamed, "__name__", name)
        monkeypatch.setattr(renamed, "__qualname__", f"a.{name}")
        made = compiled()[1]
        assert (made.__name__, made.__qualname__, next(made)) == (name, f"a.{name}", 2)


class Squares:
    def __init__(self, count):
        self.count = count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError
        return index * index


@pytest.mark.parametrize("taken", [0, 2, 4])
def test_an_iterator_by_subscripts_leaves_where_it_stands(taken):
    def program(squares):
        found = iter(squares)
        first = [next(found, None) for _ in range(taken)]
        note("between")
        return first, found

    def outcome(call):
        squares = Squares(3)
        first, found = call(squares)
        squares.count = 5
        return first, list(found), type(found)

    compiled = jitshape.compile(program)
    assert outcome(compiled) == outcome(program) == outcome(compiled)
    jitshape.reset()
    compiled(Squares(3))
    assert jitshape.stats()["fallbacks"] == 0


def test_a_submodule_is_imported_where_the_program_imports_it(tmp_path, monkeypatch):
    folder = tmp_path / "package_of_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("here = 1")
    (folder / "first.py").write_text("value = 3")
    (folder / "second.py").write_text("value = 4")
    monkeypatch.syspath_prepend(tmp_path)

    def package():
        import package_of_test

        return package_of_test.here

    def submodules():
        from package_of_test import first, here
        from package_of_test import second as other

        return first.value + other.value + here

    assert package() == 1
    compiled = jitshape.compile(submodules)
    assert "package_of_test.first" not in sys.modules
    assert [compiled() for _ in range(3)] == [8] * 3
    for name in [name for name in sys.modules if name.startswith("package_of_test")]:
        monkeypatch.delitem(sys.modules, name)
