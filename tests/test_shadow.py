"""JITSHAPE_SHADOW: compiled calls against eager ones; the program notices nothing."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import jitshape
from jitshape import shadow
from jitshape.errors import ShadowDifference, UnknownOption
from jitshape.shadow import Cloner, Shadow, differences


@pytest.fixture
def checked(monkeypatch):
    """Compiles so that every call is checked, and a difference raises."""
    monkeypatch.setenv("JITSHAPE_SHADOW", "1,raise")
    jitshape.reset()
    return jitshape.compile


def counts():
    return jitshape.stats()["details"].get("shadow", {})


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.calls, self.log = nn.BatchNorm1d(3), 0, []

    def forward(self, x, seen):
        self.calls += 1
        self.log.append(x.shape[0])
        seen["last"] = x.sum()
        y = nn.functional.dropout(self.norm(x), 0.5)
        return y * random.random(), [y.t()]


def test_state_arguments_and_random_numbers_are_used_once(checked):
    def run(model):
        torch.manual_seed(1), random.seed(1)
        seen = {}
        outs = [model(torch.randn(n, 3), seen) for n in (4, 6, 9)]
        return outs, seen, torch.rand(1), random.random()

    with torch.no_grad():
        model = Counting()
        expected = run(model)
        compiled = Counting()
        got = run(checked(compiled))
    assert list(differences(expected, got, "all")) == []
    assert compiled.calls == 3 and compiled.log == [4, 6, 9]
    assert compiled.norm.num_batches_tracked == 3
    torch.testing.assert_close(compiled.norm.running_mean, model.norm.running_mean)
    assert counts() == {"checked": 3}


def test_globals_and_cells_are_cloned(checked):
    layer, items = nn.BatchNorm1d(3), []

    def f(x):
        items.append(x.shape[0])
        return layer(x) * len(items)

    compiled = checked(f)
    for n in (4, 5):
        compiled(torch.randn(n, 3, requires_grad=True) * 2)
    assert items == [4, 5] and layer.num_batches_tracked == 2
    assert counts() == {"checked": 2, "gradients": 2}


def test_graph_breaks_are_part_of_the_call(checked, capsys):
    def f(x):
        y = x * 2
        print("once")
        return y + x.shape[0]

    compiled = checked(f)
    for n in (3, 4, 5):
        assert compiled(torch.ones(n)).tolist() == [2.0 + n] * n
    assert capsys.readouterr().out == "once\n" * 3 and counts() == {"checked": 3}


def test_shared_memory_stays_shared(checked):
    def f(x, y):
        x.add_(1)
        return y * 2

    base = torch.zeros(6)
    assert checked(f)(base[:4], base[2:]).tolist() == [2, 2, 0, 0] and counts() == {"checked": 1}


def wrong(result):
    """A back end whose every graph gives `result`."""
    return lambda graph, example_inputs: lambda *inputs: [result]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.tensor([1.0, 2.0, 3.5]), "values differ by up to 0.5"),
        (torch.tensor([1, 2, 3]), r"eager gives dtype torch.float32, compiled torch.int64"),
        (torch.ones(3, 2)[:, 0] * 0 + torch.tensor(float("nan")), "values differ"),
        (torch.tensor([1.0, 7, 2.0, 7, 3.0])[::2], r"eager gives strides \(1,\), compiled \(2,\)"),
    ],
)
def test_a_wrong_kernel_is_found(checked, result, message):
    compiled = checked(lambda x: x * 1.0, backend=wrong(result))
    with pytest.raises(ShadowDifference, match=f"<lambda> computes something else(.|\n)*{message}"):
        compiled(torch.tensor([1.0, 2.0, 3.0]))
    assert counts() == {"checked": 1, "different": 1}


def test_a_wrong_write_is_found(checked):
    def f(x):
        x.mul_(2)

    with pytest.raises(ShadowDifference, match="an argument or a global: values differ"):
        checked(f, backend=wrong(torch.zeros(3)))(torch.ones(3))


def test_without_raise_it_warns_and_goes_on(monkeypatch, capsys):
    monkeypatch.setenv("JITSHAPE_SHADOW", "1")
    compiled = jitshape.compile(lambda x: x * 1.0, backend=wrong(torch.zeros(3)), name="scale")
    assert compiled(torch.ones(3)).tolist() == [0, 0, 0]
    assert "JITSHAPE_SHADOW: scale computes something else than eager" in capsys.readouterr().err


def test_only_a_sample_is_checked():
    draws = iter((0.5, 0.0, 0.09, 0.1, 0.99))
    entry = shadow.shadowed(
        lambda x: x * 2, 1, lambda x: x * 2, Shadow(0.1, True, lambda: next(draws)), "f"
    )
    jitshape.reset()
    assert [entry(n, n) for n in range(5)] == [0, 2, 4, 6, 8]
    assert counts() == {"checked": 2}


def test_what_cannot_be_copied_is_not_checked(checked):
    import threading

    lock = threading.Lock()

    def f(x, lock):
        return x + 1

    assert checked(f)(torch.ones(1), lock).item() == 2
    (reason,) = counts()
    assert reason.startswith("skipped: TypeError: cannot pickle")


def test_clones_keep_layout_aliasing_and_autograd():
    cloner = Cloner()
    base = torch.arange(12.0)
    leaf = torch.ones(2, requires_grad=True)
    given = {"a": base[::2], "b": base[1:5].view(2, 2).t(), "c": leaf, "d": leaf * 2, "e": [leaf]}
    made = cloner.clone(given)
    assert list(differences(given, made, "x")) == []
    assert made["a"].stride() == (2,) and made["b"].stride() == (1, 2)
    made["a"].zero_()
    assert made["b"].tolist() == [[1, 3], [0, 0]] and base[2] == 2
    assert made["c"].is_leaf and not made["d"].is_leaf and made["e"][0] is made["c"]


@pytest.mark.parametrize("text", ["2", "-1", "often", "0.1,panic"])
def test_unknown_settings(text, monkeypatch):
    monkeypatch.setenv("JITSHAPE_SHADOW", text)
    with pytest.raises(UnknownOption, match="is not known"):
        shadow.setting()


def test_off(monkeypatch):
    for text in ("", "0"):
        monkeypatch.setenv("JITSHAPE_SHADOW", text)
        assert shadow.setting() is None


def test_gradients_are_compared_and_not_accumulated(checked):
    model, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    compiled = checked(model)
    for n in (2, 4, 5):
        x, y = torch.randn(n, 3, requires_grad=True), None
        y = compiled(x)
        assert x.grad is None
        y.square().sum().backward()
        expected = torch.autograd.grad(twin(x).square().sum(), [x, *twin.parameters()])
        for grad, real in zip(expected, [x, *model.parameters()]):
            torch.testing.assert_close(real.grad, grad)
        model.zero_grad()
    assert counts() == {"checked": 3, "gradients": 3}


def test_a_wrong_gradient_is_told(checked):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None

    def f(x):
        return Scaled.apply(x, 2.0).sin()

    x = torch.ones(3, requires_grad=True)
    right = f(x)
    wrong = (x * 2.0).sin() + 0 * x.detach() - (x * 1e-3 - (x * 1e-3).detach())
    inputs = [(x, x)]
    assert list(shadow.gradient_differences(right, f(x), inputs)) == []
    (told,) = shadow.gradient_differences(right, wrong, inputs)
    assert "gradient of an input[0]: values differ" in told
    checked(f)(x).sum().backward()
    assert counts()["gradients"] == 1 + 2


def test_hooks_of_the_program_see_one_backward(checked):
    seen = []
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda grad: seen.append(grad.sum().item()))
    checked(lambda x: x * 3)(x).sum().backward()
    assert seen == [9.0] and counts() == {"checked": 1}
