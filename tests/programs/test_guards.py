"""What a program read must be seen to change: every stale entry misses."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import jitshape
from tests.programs.compare import assert_same, check

FACTOR = 2.0
TABLE = {"scale": 3.0}
LAYERS = [torch.sin, torch.cos]


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 20


def uses_helper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return helper(x) + y


def test_a_global_function_is_rebound(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitshape.compile(uses_helper)
    x = torch.ones(1)
    assert_same(uses_helper(x, x), compiled(x, x))
    monkeypatch.setitem(globals(), "helper", torch.cos)
    assert_same(torch.cos(x) + x, compiled(x, x))


def test_a_global_number_and_containers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for layer in LAYERS:
            x = layer(x)
        return x * FACTOR + TABLE["scale"]

    compiled, x = jitshape.compile(f), torch.ones(3)
    assert_same(f(x), compiled(x))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert_same(f(x), compiled(x))
    monkeypatch.setitem(TABLE, "scale", 7.0)
    assert_same(f(x), compiled(x))
    monkeypatch.setitem(globals(), "LAYERS", [torch.exp])
    assert_same(f(x), compiled(x))
    LAYERS.append(torch.tanh)
    assert_same(f(x), compiled(x))


def test_a_class_attribute_changes() -> None:
    class Config:
        factor = 1.0

    compiled, x = jitshape.compile(lambda x: x * Config.factor), torch.tensor([4.0])
    assert compiled(x).item() == 4.0
    Config.factor = 10.0
    assert compiled(x).item() == 40.0


def test_an_instance_attribute_covers_the_class() -> None:
    class Scale:
        value = 2.0

    scale = Scale()
    compiled, x = jitshape.compile(lambda x: x * scale.value), torch.ones(2)
    assert compiled(x).tolist() == [2.0, 2.0]
    scale.value = 3.0
    assert compiled(x).tolist() == [3.0, 3.0]
    del scale.value
    assert compiled(x).tolist() == [2.0, 2.0]


def test_an_attribute_of_a_base_class_is_covered() -> None:
    class Base:
        def scale(self) -> float:
            return 2.0

    class Derived(Base):
        pass

    thing = Derived()
    compiled, x = jitshape.compile(lambda x: x * thing.scale()), torch.ones(1)
    assert compiled(x).item() == 2.0
    Derived.scale = lambda self: 5.0
    assert compiled(x).item() == 5.0
    thing.scale = lambda: 6.0
    assert compiled(x).item() == 6.0


@pytest.mark.parametrize("plain", [True, False])
def test_a_child_module_is_replaced(plain: bool) -> None:
    model = nn.Module()
    model.sub = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.sub.weight.copy_(torch.eye(4))
    model.forward = lambda x: model.sub(x)
    compiled = jitshape.compile(lambda x: model.sub(x))
    x = torch.arange(4.0)
    assert compiled(x).tolist() == [0.0, 1.0, 2.0, 3.0]
    other = nn.Linear(4, 4, bias=False)
    nn.init.constant_(other.weight, 5.0)
    setattr(model, "sub", other) if plain else object.__setattr__(model, "sub", other)
    assert compiled(x).tolist() == [30.0] * 4


def test_code_of_a_method_is_replaced() -> None:
    class Thing:
        def m(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    thing = Thing()
    compiled, x = jitshape.compile(lambda x: thing.m(x)), torch.tensor([1.0, 2.0, 3.0])
    assert compiled(x).tolist() == [2.0, 4.0, 6.0]
    Thing.m.__code__ = (lambda self, x: x * 9).__code__
    assert compiled(x).tolist() == [9.0, 18.0, 27.0]


def test_defaults_of_a_function_are_replaced() -> None:
    def scaled(x: torch.Tensor, by: float = 2.0, *, plus: float = 1.0) -> torch.Tensor:
        return x * by + plus

    compiled, x = jitshape.compile(lambda x: scaled(x)), torch.ones(2)
    assert compiled(x).tolist() == [3.0, 3.0]
    scaled.__defaults__ = (4.0,)
    assert compiled(x).tolist() == [5.0, 5.0]
    scaled.__kwdefaults__ = {"plus": 3.0}
    assert compiled(x).tolist() == [7.0, 7.0]


def test_the_compiled_functions_own_code_and_defaults() -> None:
    def f(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
        return x * by

    compiled, x = jitshape.compile(f), torch.ones(2)
    assert compiled(x).tolist() == [2.0, 2.0]
    f.__defaults__ = (3.0,)
    assert compiled(x).tolist() == f(x).tolist() == [3.0, 3.0]


def test_closure_cells_change() -> None:
    scale = 2.0

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    compiled, x = jitshape.compile(f), torch.ones(2)
    assert compiled(x).tolist() == [2.0, 2.0]
    scale = 3.0
    assert compiled(x).tolist() == [3.0, 3.0]
    scale = torch.tensor([1.0, 7.0])
    assert compiled(x).tolist() == [1.0, 7.0]


def test_two_lists_then_one_twice() -> None:
    def foo(left: list, right: list, x: torch.Tensor) -> None:
        left.append(x + 1)
        right.append(x - 1)

    x, calls = torch.ones(1), ([], [])
    for first in (True, False):
        compiled = jitshape.compile(foo)
        for twice in (not first, first):
            left: list = []
            right: list = left if twice else []
            compiled(left, right, x)
            if twice:
                assert [t.item() for t in left] == [2.0, 0.0]
            else:
                assert [t.item() for t in left] == [2.0]
                assert [t.item() for t in right] == [0.0]
    assert calls == ([], [])


def test_requires_grad_is_toggled() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2, self.num_iter = nn.Linear(3, 3), nn.Linear(3, 3), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_iter += 1
            return self.layer2(x + self.layer1.bias)

    torch.manual_seed(0)
    model = Model()
    compiled = jitshape.compile(model)
    for step in range(6):
        model.layer2.weight.requires_grad_(step % 2 == 0)
        model.zero_grad(set_to_none=True)
        compiled(torch.ones(2, 3)).sum().backward()
        assert (model.layer2.weight.grad is not None) == (step % 2 == 0)
        assert model.layer1.bias.grad is not None
    assert model.num_iter == 6


def test_training_mode_is_flipped() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    compiled, x = jitshape.compile(model), torch.ones(8, 4)
    for training in (True, False, True):
        model.train(training)
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        assert_same(expected, compiled(x))
    compiled.eval()
    assert not model.training and not (compiled(x) == 0).all(0).any()


def test_a_cache_is_replaced() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = torch.zeros(2)

        def forward(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
            self.cache[pos] = x
            return self.cache

    model = Model()
    compiled = jitshape.compile(model)
    assert compiled(torch.tensor([2.0]), torch.tensor([0])).tolist() == [2.0, 0.0]
    model.cache = torch.zeros(2)
    assert compiled(torch.tensor([1.0]), torch.tensor([1])).tolist() == [0.0, 1.0]


def test_grad_mode_default_dtype_and_autocast() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple:
        return x @ w, torch.ones(2), torch.arange(2.0), torch.tensor(1.5), torch.full((2,), 0.5)

    compiled = jitshape.compile(f)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)
    assert_same(f(x, w), compiled(x, w))
    with torch.no_grad():
        assert_same(f(x, w), compiled(x, w))
    with torch.inference_mode():
        got = compiled(x, w)
        assert got[0].is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(f(x, w), compiled(x, w))
    torch.set_default_dtype(torch.float64)
    try:
        assert_same(f(x, w)[1:], compiled(x, w)[1:])
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(f(x, w), compiled(x, w))


def test_a_branch_on_the_shape() -> None:
    def foo(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a if tuple(a.shape) == (2, 2) else b

    check(
        foo,
        (torch.zeros(2, 2), torch.ones(1)),
        (torch.zeros(2, 1), torch.ones(8)),
        (torch.zeros(2, 2), torch.ones(8)),
        (torch.zeros(3, 2), torch.ones(8)),
    )


def test_clamp_limits_that_change() -> None:
    def f(x: torch.Tensor, limit: float) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)

    calls = [(torch.randn(3, 8, requires_grad=True), limit) for limit in (0.5, 1.0, 0.25, 2.0)]
    check(f, *calls, compiles=2)


def test_dict_keys_types_and_lengths() -> None:
    def f(d: dict, items: list) -> torch.Tensor:
        total = torch.zeros(2)
        for key in d:
            total = total + d[key]
        for item in items:
            total = total * item
        return total

    x = torch.ones(2)
    check(
        f,
        ({"a": x}, [2]),
        ({"a": x, "b": x}, [2]),
        ({"b": x, "a": x * 2}, [2, 3]),
        ({"a": 1.5}, [x]),
        ({}, []),
    )


def test_attributes_of_plain_objects() -> None:
    def f(cfg: SimpleNamespace, x: torch.Tensor) -> torch.Tensor:
        return x * cfg.scale if hasattr(cfg, "scale") else x

    compiled, x = jitshape.compile(f), torch.ones(2)
    assert compiled(SimpleNamespace(), x).tolist() == [1.0, 1.0]
    assert compiled(SimpleNamespace(scale=2), x).tolist() == [2.0, 2.0]
    assert compiled(SimpleNamespace(other=2), x).tolist() == [1.0, 1.0]


def test_hooks_added_later_run() -> None:
    model = nn.Linear(3, 3)
    compiled, x = jitshape.compile(model), torch.ones(1, 3)
    assert_same(model(x), compiled(x))
    handle = model.register_forward_hook(lambda module, args, out: out * 2)
    assert_same(model(x), compiled(x))
    handle.remove()
    assert_same(model(x), compiled(x))
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert_same(model(x), compiled(x))


def test_a_hit_runs_one_python_frame() -> None:
    compiled = jitshape.compile(lambda x, y: x * y + 1)
    x = torch.randn(4)
    compiled(x, x.clone())
    compiled(x, x.clone())
    y, frames = x.clone(), []
    sys.setprofile(lambda frame, event, arg: event == "call" and frames.append(frame.f_code))
    compiled(x, y)
    sys.setprofile(None)
    names = [code.co_name for code in frames]
    assert len(names) <= 2, names  # the entry, and the program it calls


def test_nothing_of_a_trace_stays_alive() -> None:
    from jitshape.ir.symbolic_tensor import SymbolicTensor

    compiled = jitshape.compile(lambda x: (x @ x.t()).softmax(-1))
    for n in (3, 4, 5):
        compiled(torch.randn(n, 4, requires_grad=True)).sum().backward()
    gc.collect()
    alive = [o for o in gc.get_objects() if type(o) is SymbolicTensor]
    assert not alive
    assert not [o for o in gc.get_objects() if type(o).__name__ in ("TracedInt", "TracedFloat")]


def test_arguments_and_results_are_freed() -> None:
    compiled = jitshape.compile(lambda x, d: {"y": x * 2, "d": d["k"] + x})
    x, d = torch.randn(5), {"k": torch.randn(5)}
    out = compiled(x, d)
    refs = [weakref.ref(t) for t in (x, d["k"], out["y"], out["d"])]
    del x, d, out
    gc.collect()
    assert [r() for r in refs] == [None] * 4


def test_the_entry_does_not_keep_the_module_alive() -> None:
    model = nn.Linear(3, 3)
    ref = weakref.ref(model)
    jitshape.compile(model)(torch.ones(1, 3))
    del model
    gc.collect()
    assert ref() is None


def test_the_default_device_changes() -> None:
    def f(a: torch.Tensor, t: float) -> tuple:
        return a * t, torch.ones(2)

    compiled, a = jitshape.compile(f), torch.ones(3, requires_grad=True)
    results = []
    try:
        for device in (None, "meta", "cpu", "meta"):
            torch.set_default_device(device)
            results.append(compiled(a, 2.0))
            results[-1][0].sum().backward()
    finally:
        torch.set_default_device(None)
    assert [r[1].device.type for r in results] == ["cpu", "meta", "cpu", "meta"]
    assert all(r[0].tolist() == [2.0] * 3 for r in results)
    assert a.grad.tolist() == [8.0] * 3


def test_a_function_mode_of_the_user_sees_every_call() -> None:
    class Log(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    seen: list = []
    compiled, x = jitshape.compile(lambda x: torch.sin(x) + 1), torch.ones(2)
    compiled(x)
    with Log():
        assert_same(torch.sin(x) + 1, compiled(x))
    assert "sin" in seen[-2:] or "sin" in seen


def test_a_place_that_is_written_unread_must_exist() -> None:
    def f(x: torch.Tensor, log: list) -> torch.Tensor:
        log.append(x + 1)
        log[0] = "first"
        return x

    x = torch.ones(2)
    check(f, (x, [0]), (x, []), (x, [1, 2]), (x, []))


def test_text_of_functions() -> None:
    def given(x: torch.Tensor) -> torch.Tensor:
        "Text."
        return x

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * len(given.__name__) + len(given.__doc__ or "") + len(given.__module__ or "")

    compiled, x = jitshape.compile(f), torch.ones(2)
    assert_same(f(x), compiled(x))
    for name, text in [("__name__", "g"), ("__doc__", None), ("__module__", None)]:
        setattr(given, name, text)
        assert_same(f(x), compiled(x))


def test_methods_that_a_class_of_containers_gets_later() -> None:
    class Table(dict):
        pass

    def f(x: torch.Tensor, table: Table) -> torch.Tensor:
        return x * table["a"] if table else x

    compiled, x, table = jitshape.compile(f), torch.ones(2), Table(a=2.0)
    assert compiled(x, table).tolist() == [2.0, 2.0]
    Table.__getitem__ = lambda self, key: 5.0
    assert compiled(x, table).tolist() == [5.0, 5.0]
    Table.__bool__ = lambda self: False
    assert compiled(x, table).tolist() == [1.0, 1.0]


def test_parts_of_a_function_that_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.softplus_of_ours(x)

    def softplus_of_ours(x: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
        return torch.nn.functional.softplus(x, beta)

    softplus_of_ours.__module__ = "torch.nn.functional"
    monkeypatch.setattr(F, "softplus_of_ours", softplus_of_ours, raising=False)
    compiled, x = jitshape.compile(f), torch.ones(2)
    assert_same(f(x), compiled(x))
    softplus_of_ours.__defaults__ = (2.0,)
    assert_same(f(x), compiled(x))


def test_buffers_that_come_to_share_memory() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.zeros(3))
            self.register_buffer("b", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.add_(x)
            return self.b + x

    model = Model()
    compiled, x = jitshape.compile(model), torch.ones(3)
    assert compiled(x).tolist() == [1.0] * 3
    model.b = model.a
    assert compiled(x).tolist() == [3.0] * 3
    model.b = model.a.view(3)
    assert compiled(x).tolist() == [4.0] * 3


def test_hooks_on_saved_tensors_see_what_eager_saves() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sin().exp()

    compiled, x = jitshape.compile(f), torch.ones(3, requires_grad=True)
    compiled(x)
    packed: list[list] = [[], []]
    for function, seen in zip((f, compiled), packed):
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, seen=seen: (seen.append(t.detach()), t)[1], lambda t: t
        )
        with hooks:
            function(x).sum().backward()
    assert_same(*packed)
    assert len(packed[0]) == 4
    jitshape.reset()
    compiled(x)
    assert jitshape.stats()["fallbacks"] == 0


def test_an_empty_cell_that_exists_is_guarded():
    def make():
        def read():
            try:
                return later
            except NameError as error:
                return str(error)

        def fill(value):
            nonlocal later
            later = value

        return read, fill
        later = None

    read, fill = make()
    compiled = jitshape.compile(read)
    assert compiled() == read() and "free variable 'later'" in read()
    fill(3)
    assert compiled() == read() == 3


def test_empty_fields_of_c_read_as_none():
    """A field that nobody set, one that holds None, and one that holds something."""

    def read(error, function):
        return error.filename, error.strerror, function.__doc__

    def documented():
        """Text."""

    def undocumented():
        pass

    deleted = eval("lambda: 0")
    del deleted.__doc__
    errors = [OSError(), OSError(2, None), OSError(2, "text", "name")]
    compiled = jitshape.compile(read)
    for function in (documented, undocumented, deleted, documented):
        for error in (*errors, *errors):
            assert compiled(error, function) == read(error, function)


def test_a_class_gets_a_finalizer() -> None:
    """Objects that a trace makes, and nobody sees, are made where their end is noticed."""
    ended = []

    class Held:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    class Derived(Held):
        pass

    def f(x: torch.Tensor) -> torch.Tensor:
        return Derived(x).value + 1

    compiled, x = jitshape.compile(f), torch.ones(3)
    assert_same(f(x), compiled(x))
    Held.__del__ = lambda self: ended.append(type(self))  # type: ignore[attr-defined]
    assert_same(x + 1, compiled(x))
    assert ended == [Derived]
