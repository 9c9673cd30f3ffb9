"""What the pieces of a program show of themselves: output, lines, variables, names, iterators;
and what they cost: the stack, compiles by many threads."""

import sys
import threading

import pytest
import torch

import jitshape
from tests.programs.compare import assert_same
from tests.programs.pieces import LOG, SIZES, check_pieces, inputs, note
from tests.programs.test_breaks import three_deep


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
