"""Code of the user's that C calls: whatever it reads is seen to change, and it has its effects as
often as in eager execution."""

import collections
import contextlib
import functools
import itertools
import operator

import pytest
import torch
from torch.utils import checkpoint

import jitshape
from tests.programs.compare import assert_same, clone, gradients

SCALE = 1
SEEN: list = []


def seen(what):
    """Notes the call, and reads a global."""
    SEEN.append(what)
    return SCALE


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = seen("forward")
        return x * ctx.scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale * seen("backward")


def autograd_function(x):
    return Scaled.apply(x * 2).sin()


def autograd_function_in_a_call(x):
    def inner(y):
        return Scaled.apply(y) + Scaled.apply(y * 2)

    return inner(x) * x


def tensor_hook(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * seen("hook"))
    return y.sin()


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda m, args: (args[0] * seen("before"),))
        self.register_forward_hook(lambda m, args, out: out + seen("after"))

    def forward(self, x):
        return x * 3


LAYER = Layer()


def module_hooks(x):
    return LAYER(x) + LAYER(x * 2)


def saved_tensors_hooks(x):
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t * seen("pack"), lambda t: t)
    with hooks:
        y = x.sin()
    return y * x


def checkpointed(x):
    def run(y):
        return y.sin() * seen("run")

    return checkpoint.checkpoint(run, x, use_reentrant=False) + 1


class Wrapped:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args = [a.tensor * seen("function") if isinstance(a, cls) else a for a in args]
        return function(*args, **(kwargs or {}))


def torch_function(x):
    return torch.add(x, Wrapped(x)) + torch.mul(Wrapped(x), 2)


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {})) if seen("mode") < 2 else args[0] * 7


def function_mode(x):
    y = x + 1
    with Mode():
        y = torch.sin(y)
    return y


class DispatchMode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen(str(function))
        return function(*args, **(kwargs or {}))


def dispatch_mode(x):
    y = x + 1
    with DispatchMode():
        y = torch.sin(y) * SCALE
    return y


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        seen("subclass")
        return super().__torch_function__(function, types, args, kwargs or {})


def tensor_subclass(x):
    y = x.as_subclass(Tagged)
    return (y * 2).as_subclass(torch.Tensor) * SCALE


def sort_keys(x):
    pairs = [(3, x), (1, x + 1), (2, x * 2)]
    pairs.sort(key=lambda pair: pair[0] * (1 if seen("key") < 2 else -1))
    largest = max(pairs, key=lambda pair: pair[0] * seen("max"))
    return [t for _, t in sorted(pairs, key=lambda p: seen("sorted") % 2 * p[0])], largest[1]


def map_filter_reduce(x):
    kept = filter(lambda i: i >= seen("filter"), [0, 1, 2, 3])
    values = [x * i for i in map(lambda i: i * seen("map"), kept)]
    total = functools.reduce(lambda a, b: a + b * seen("reduce"), values, x)
    sums = itertools.accumulate([1, 2], lambda a, b: a + b * seen("accumulate"))
    return total, list(sums), list(itertools.starmap(lambda a: a * seen("star"), [(1,), (2,)]))


def grouped(x):
    groups = itertools.groupby([1, 2, 3, 4], key=lambda i: i > seen("group"))
    taken = itertools.takewhile(lambda i: i <= seen("take"), [1, 2, 3])
    return [(k, len(list(g))) for k, g in groups], x * len(list(taken))


def partials(x):
    def scaled(y, k, *, more):
        return y * k * seen("partial") + more

    return functools.partial(scaled, x, more=1)(2), list(
        map(functools.partial(scaled, k=1, more=0), [x])
    )


class Thing:
    def __init__(self, value):
        self.value = value

    @property
    def scaled(self):
        return self.value * seen("property")

    def __index__(self):
        return seen("index")

    def __bool__(self):
        return seen("bool") > 1

    def __len__(self):
        return seen("len")

    def __eq__(self, other):
        return self.value % seen("eq") == other.value % SCALE

    def __hash__(self):
        return hash(self.value % seen("hash"))

    def __lt__(self, other):
        return self.value * (-1) ** seen("lt") < other.value

    def __iter__(self):
        return iter(range(seen("iter")))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return seen(name)

    def __float__(self):
        return float(seen("float"))

    def __str__(self):
        return "s" * seen("str")

    def __format__(self, spec):
        return "f" * seen("format")

    def __reversed__(self):
        return iter([seen("reversed")])

    def __contains__(self, item):
        return item == seen("contains")


def getters_called_from_c(x):
    thing = Thing(3)
    get = operator.attrgetter("scaled", "missing")
    scaled = [getattr(thing, name) for name in ("scaled", "other")]
    return x * scaled[0], scaled, get(thing), hasattr(thing, "other"), x * thing.more


def numbers_asked_by_c(x):
    thing = Thing(3)
    return (
        [x, x + 1, x + 2, x + 3][thing],
        x[thing - 1] if isinstance(thing, int) else x.narrow(0, 0, operator.index(thing)),
        list(range(thing)),
        any([thing, thing]),
        all([thing]),
        bool(thing),
        float(thing),
        len(thing),
        x.sum(thing.__index__() % 2),
    )


def comparisons_asked_by_c(x):
    a, b, c = Thing(2), Thing(3), Thing(4)
    return (
        x * [a, b, c].index(c),
        [a, b].count(b),
        b in [a, c],
        [t.value for t in sorted([b, c, a])],
        min(a, b).value,
        (a, b) == (c, b),
        2 in a,
        list(b),
        list(reversed(b)),
    )


def hashed_by_c(x):
    a, b, c = Thing(2), Thing(3), Thing(4)
    table = {a: x, b: x + 1}
    return len(table), len({a, b, c}), c in table, table.get(c) is not None


class Drawn:
    def __repr__(self):
        return "r" * seen("repr")

    def __format__(self, spec):
        return spec * seen("format")


def text_asked_by_c(x):
    thing, drawn, plain, percent = Thing(1), Drawn(), "{}{:3}|{.value}", "%s %r %5s %%"
    return (
        f"{thing}{thing!s:>5}",
        percent % (thing, drawn, drawn),
        plain.format(thing, drawn, thing),
        "{0!r:>{width}}".format(drawn, width=5),
        str(thing),
        x * len(str(thing)),
    )


class Counted:
    """An iterator that knows its length."""

    def __init__(self):
        self.left = 3

    def __iter__(self):
        return self

    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

    def __length_hint__(self):
        return seen("hint")


def lengths_asked_by_c(x):
    items = [x]
    items.extend(Counted())
    items += Counted()
    first, *rest = Thing(2)
    return (
        items,
        [*Thing(2), *Counted()],
        tuple(Counted()),
        sorted(Thing(2)),
        max(*Counted()),
        sum(Counted()),
        (first, rest),
    )


class Missing(dict):
    def __missing__(self, key):
        return seen("missing")


def defaults(x):
    made = collections.defaultdict(lambda: seen("default"))
    return x * made["k"] + Missing()["k"], dict(made)


@contextlib.contextmanager
def managed():
    yield seen("enter")
    seen("exit")


def managers(x):
    with managed() as k:
        y = x * k
    with contextlib.ExitStack() as stack:
        stack.callback(seen, "callback")
        y = y * stack.enter_context(managed())
    return y


class Unfinished:
    def __del__(self):
        seen("del")


def finalizers(x):
    thing = Unfinished()
    y = x * 2
    del thing
    return y * SCALE


PROGRAMS = [
    autograd_function,
    autograd_function_in_a_call,
    tensor_hook,
    module_hooks,
    saved_tensors_hooks,
    checkpointed,
    torch_function,
    function_mode,
    dispatch_mode,
    tensor_subclass,
    sort_keys,
    map_filter_reduce,
    grouped,
    partials,
    getters_called_from_c,
    numbers_asked_by_c,
    comparisons_asked_by_c,
    hashed_by_c,
    text_asked_by_c,
    lengths_asked_by_c,
    defaults,
    managers,
    finalizers,
]


def observed(call, x):
    SEEN.clear()
    x = clone(x)
    result = call(x)
    return result, gradients(result, x), list(SEEN)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_reads_and_effects(program, monkeypatch):
    jitshape.reset()
    compiled = jitshape.compile(program, backend="eager")
    x = torch.linspace(0.1, 1, 12).reshape(3, 4).requires_grad_()
    for scale in (1, 2, 2, 3, 1):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert_same(observed(program, x), observed(compiled, x), f"scale {scale}")
