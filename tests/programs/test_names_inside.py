"""What torch's own functions name inside may be replaced: compiled code sees it as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import jitshape
from jitshape.frontend.torchside.names_inside import names_of
from tests.programs.compare import assert_same

X = torch.linspace(-1.0, 2.0, 24).reshape(4, 6)
LABELS = torch.tensor([0, 1, 2, 3])
NET = torch.ones(18, 6), torch.ones(18), torch.ones(6, 6), torch.ones(6)


def attention(x: torch.Tensor) -> torch.Tensor:
    q, (w, b, w_out, b_out) = x[:, None], NET
    rest = None, None, False, 0.0, w_out, b_out
    return F.multi_head_attention_forward(q, q, q, 6, 2, w, b, *rest)[0]


PROGRAMS: dict[str, tuple[Callable, Any, str]] = {
    "a function of C": (lambda x: F.layer_norm(x, (6,)), torch, "layer_norm"),
    "a method of tensors": (lambda x: F.softmax(x, -1), torch.Tensor, "softmax"),
    "a method written in Python": (F.normalize, torch.Tensor, "norm"),
    "of a module of C": (lambda x: F.cross_entropy(x, LABELS), torch._C._nn, "cross_entropy_loss"),
    "of what is traced in another way": (lambda x: F.mse_loss(x, x + 1), torch._C._nn, "mse_loss"),
    "of a helper": (lambda x: F.l1_loss(x, x + 1), torch.nn._reduction, "get_enum"),
    "of a module without the name": (lambda x: torch.einsum("ij,kj", x, x), torch._VF, "einsum"),
    "behind an operator": (lambda x: 2**x, torch, "pow"),
    "behind two functions": (attention, F, "linear"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replacement_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f, owner, attribute = PROGRAMS[name]
    compiled = jitshape.compile(f)
    assert_same(f(X), compiled(X))
    with monkeypatch.context() as patched:
        patched.setattr(owner, attribute, lambda *args, **kwargs: X[:1, :1] * 0 + 7)
        try:
            expected = f(X)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(X)
        else:
            assert_same(expected, compiled(X))
    before = jitshape.stats()["compiles"]
    assert_same(f(X), compiled(X))
    assert jitshape.stats()["compiles"] == before  # the first entry serves again


def test_code_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = jitshape.compile(lambda x: F.l1_loss(x, x + 1))
    assert_same(torch.tensor(1.0), compiled(X))
    summed = torch.nn._reduction.get_enum.__code__
    monkeypatch.setattr(torch.nn._reduction.get_enum, "__code__", (lambda reduction: 2).__code__)
    assert_same(torch.tensor(24.0), compiled(X))
    assert summed is not torch.nn._reduction.get_enum.__code__


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("__iter__", lambda x: [row + 1 for row in x]),
        ("__len__", lambda x: x + len(x)),
        ("__hash__", lambda x: {x: x + 1}[x]),
    ],
)
def test_code_of_a_method_that_is_answered_for_is_replaced(
    name: str, f: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = jitshape.compile(f)
    assert_same(f(X), compiled(X))
    with monkeypatch.context() as patched:
        patched.setattr(getattr(torch.Tensor, name), "__code__", (lambda self: 1 / 0).__code__)
        for call in (f, compiled):
            with pytest.raises(ZeroDivisionError):
                call(X)
    assert_same(f(X), compiled(X))


def test_a_name_inside_a_method_that_is_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [row + 1 for row in x]

    compiled = jitshape.compile(f)
    assert_same(f(X), compiled(X))
    unbind = torch.Tensor.unbind
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "unbind", lambda self, dim: unbind(self * 2, dim)[:1])
        assert_same(f(X), compiled(X))
        assert len(compiled(X)) == 1
    assert_same(f(X), compiled(X))


def test_names_of_code() -> None:
    def f(x):
        return [F.linear(y, x.weight) for y in torch._C._nn.gelu(x).rows()]

    names, others = names_of(f.__code__)
    assert set(names) == {("F", "linear"), ("torch", "_C", "_nn", "gelu")}
    assert set(others) == {"weight", "rows"}
