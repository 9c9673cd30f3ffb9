"""Code of the user's that torch would call while tracing: it runs when, and as often as, in
eager execution."""

import abc
import importlib.util
import sys

import pytest
import torch

import jitshape
from jitshape.frontend.torchside.watching import watched
from jitshape.frontend.values.base import Break
from tests.programs.pieces import check_pieces, inputs, note


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        note("forward", type(x).__name__)
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        note("backward", type(gradient).__name__)
        (x,) = ctx.saved_tensors
        return gradient * 3 + x * 0


def custom_function(x):
    y = x + 1
    return Doubling.apply(y) * y


def pack(x):
    note("pack")
    return x


def saved_tensors_hooks(x):
    y = x + 1
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        z = y.sin()
    return z * y


def tensor_hook(x):
    y = x * 2
    y.register_hook(lambda g: note("hook") + g)
    return y.sin()


class Wrapped:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        note("torch function", function.__name__)
        args = [a.tensor if isinstance(a, cls) else a for a in args]
        return function(*args, **(kwargs or {}))


def torch_function(x):
    return torch.add(x * 2, Wrapped(x)) * 2


def sort_keys(x):
    def key(item):
        note("key", item[0])
        return -item[0]

    return [t for _, t in sorted([(1, x), (3, x + 1), (2, x + 2)], key=key)]


def map_elements(x):
    y = torch.ones(3)
    return y.map_(torch.ones(3), lambda a, b: note("map") + a + b) * x.sum()


def vectorized(x):
    def row(v):
        note("row")
        return v * 2

    return torch.vmap(row)(x) + 1


class Shown:
    def __format__(self, spec):
        note("format", spec)
        return "shown"

    def __index__(self):
        note("index")
        return 1


def formatted(x):
    shown = Shown()
    return x[shown] + len(f"{shown:>9}")


PROGRAMS = [
    custom_function,
    tensor_hook,
    torch_function,
    sort_keys,
    map_elements,
    vectorized,
    formatted,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_user_code(program):
    check_pieces(program, *inputs([(3, 4), (5, 4)]))


def test_what_runs_under_hooks_on_saved_tensors_runs_natively():
    calls = inputs([(3, 4), (5, 4)])
    check_pieces(saved_tensors_hooks, *calls, fallbacks=2 * len(calls))


def test_imports_run_with_all_that_hooks_and_modules_call(tmp_path, monkeypatch):
    """A function of torch that imports something for the first time is no reason to break."""
    helper, called = tmp_path / "helper.py", []
    helper.write_text("def of(called, name): called.append(name)")
    (tmp_path / "imported.py").write_text("import sys; sys.modules['looked_for'] = sys.version")
    monkeypatch.syspath_prepend(tmp_path)
    of = importlib.import_module("helper").of

    class Hook:
        def find_spec(self, name, path=None, target=None):
            of(called, name)

    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    with pytest.raises(Break, match="torch calls of"), watched(torch.add):
        importlib.import_module("imported")
        assert importlib.util.find_spec("nowhere") is None
        of(called, "directly")
    assert called == ["imported", "nowhere"]
    for name in ("helper", "imported", "looked_for"):
        del sys.modules[name]


def abstract(log):
    """A class that decides by code of the user's which classes derive from it."""

    class Having(metaclass=abc.ABCMeta):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, other):
            log.append(other.__name__)
            return hasattr(other, "wanted") or NotImplemented

    class Odd:
        __subclasses__ = None

    return Having, abc.ABCMeta("Asks", (), {"__subclasses__": lambda: [Odd, 3]})


class Wanted:
    wanted = 1


def test_hooks_of_abstract_classes_run_as_often_as_in_eager():
    def program(x, having, asks):
        found = [isinstance(x, having), isinstance(Wanted(), having), issubclass(int, having)]
        try:
            issubclass(int, asks)
        except TypeError as error:
            found.append(str(error))
        return found

    logs, results = ([], []), []
    for log, run in zip(logs, (program, jitshape.compile(program))):
        classes = abstract(log)
        results.append([run(torch.ones(2), *classes) for _ in range(2)])
    assert results[0] == results[1]
    assert logs[0] == logs[1] == ["Tensor", "Wanted", "int"]
