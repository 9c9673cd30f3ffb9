"""Transforms of torch.func inside compiled functions: one graph, eager's values at every size."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import scan
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

import jitshape
from jitshape.errors import GraphBreak
from tests.programs.compare import assert_same
from tests.test_independence import FORBIDDEN, ROOT

WEIGHT = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
LINEAR = torch.nn.Linear(4, 3)
SCALE = 2.0


def loss(parameters: Any, x: torch.Tensor) -> torch.Tensor:
    return functional_call(LINEAR, parameters, (x,)).pow(2).sum()


def product(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def with_pullback(x: torch.Tensor) -> Any:
    out, pullback = vjp(torch.sin, x)
    return out, pullback(torch.ones_like(out))


def scaled(x: torch.Tensor) -> torch.Tensor:
    return vmap(lambda row: row.sum() * SCALE)(x)


def noted(x: torch.Tensor) -> Any:
    seen: list[int] = []
    return vmap(lambda row: (seen.append(row.ndim), row * 2)[1])(x), seen


WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "a row": lambda x: vmap(lambda row: (WEIGHT @ row).softmax(-1) * row)(x),
    "two inputs": lambda x: vmap(torch.dot)(x, x + 1),
    "other dimensions": lambda x: vmap(lambda a, b: a * b, (1, None), 1)(x, x[0, 0]),
    "nested": lambda x: vmap(vmap(lambda e: e.sin() + 1))(x),
    "in chunks": lambda x: vmap(lambda row: row[row.shape[0] // 2 :] + 1, chunk_size=2)(x[:4]),
    "a side effect": noted,
    "gradient": lambda x: grad(product)(x),
    "gradient and value": lambda x: grad_and_value(product)(x),
    "second derivative": lambda x: grad(lambda t: grad(product)(t).sum())(x),
    "of each sample": lambda x: vmap(grad(loss), (None, 0))(dict(LINEAR.named_parameters()), x),
    "pullback": with_pullback,
    "jacobian": lambda x: jacrev(lambda t: t.sin() * t.sum())(x[0]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str) -> None:
    f = WHOLE[name]
    jitshape.reset()
    compiled = jitshape.compile(f, fullgraph=True)
    for rows in (6, 7, 9):
        x = torch.randn(rows, 4)
        assert_same(f(x), compiled(x))
    # The batch rule of torch.dot asks for the sizes before torch 2.13.
    a_size_each = name in ("two inputs", "of each sample") and torch.__version__ < "2.13"
    assert jitshape.stats()["compiles"] <= (3 if a_size_each else 2)
    assert torch._C._functorch.maybe_current_level() is None


def test_gradients_of_what_is_batched() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return vmap(lambda row: (w @ row).sin())(x)

    jitshape.reset()
    compiled = jitshape.compile(f, fullgraph=True)
    for rows in (5, 8):
        x = torch.randn(rows, 4)
        found = []
        for call in (f, compiled):
            w = WEIGHT.clone().requires_grad_()
            call(x, w).sum().backward()
            found.append(w.grad)
        assert_same(*found)


def test_what_a_transformed_function_reads_is_guarded() -> None:
    jitshape.reset()
    compiled, x = jitshape.compile(scaled), torch.randn(3, 4)
    assert_same(scaled(x), compiled(x))
    globals()["SCALE"] = 5.0
    try:
        assert_same(scaled(x), compiled(x))
    finally:
        globals()["SCALE"] = 2.0
    assert jitshape.stats()["compiles"] == 2


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


def kept(x: torch.Tensor) -> Any:
    held: list[torch.Tensor] = []
    result = vmap(lambda row: (held.append(row), row + 1)[1])(x)
    return result, held


BROKEN: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "forward mode": (lambda x: jvp(torch.sin, (x,), (x,)), "forward mode"),
    "jacobian forward": (lambda x: jacfwd(torch.sin)(x[0]), "forward mode"),
    "hessian": (lambda x: hessian(product)(x[0]), "forward mode"),
    "a formula": (lambda x: grad(lambda t: Doubled.apply(t).sum())(x), "goes through"),
    "a file": (lambda x: vmap(lambda row: row * len(open(os.devnull).read() + "ab"))(x), "open"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_graph_ends_before_the_transform(name: str) -> None:
    f, reason = BROKEN[name]
    jitshape.reset()
    compiled = jitshape.compile(lambda x: f(x + 1))
    for rows in (3, 4):
        x = torch.randn(rows, 4)
        assert_same(f(x + 1), compiled(x))
    reasons = jitshape.stats()["details"]["break_reasons"]
    assert any(reason in text for text in reasons), reasons
    assert jitshape.stats()["fallbacks"] == 0
    assert torch._C._functorch.maybe_current_level() is None


def test_what_torch_compiles_itself_is_a_break() -> None:
    def branches(x: torch.Tensor) -> Any:
        return scan(lambda a, b: (a + b, a * b), x[0], x)

    with pytest.raises(GraphBreak, match="torch compiles the functions it is given itself"):
        jitshape.compile(branches, fullgraph=True)(torch.ones(3))


def test_errors_are_eagers() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda row: row * 2 if row.sum() > 0 else row)(x)

    jitshape.reset()
    compiled = jitshape.compile(branches)
    messages = []
    for call in (branches, compiled):
        with pytest.raises(RuntimeError) as caught:
            call(torch.ones(3, 4))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_tensor_does_not_leave_its_transform() -> None:
    jitshape.reset()
    result, held = jitshape.compile(kept)(torch.ones(3, 4))
    assert_same(result, torch.full((3, 4), 2.0))
    assert len(held) == 1
    (reason,) = jitshape.stats()["details"]["break_reasons"]
    assert "leaves the transform" in reason


def test_torchs_compiler_is_not_loaded() -> None:
    code = (
        "import sys, torch, jitshape\n"
        "before = set(sys.modules)\n"
        "from torch.func import grad, vmap\n"
        "f = jitshape.compile(lambda x: vmap(grad(lambda t: t.sin().sum()))(x), fullgraph=True)\n"
        "f(torch.ones(3, 4)), f(torch.ones(5, 4))\n"
        f"print([m for m in {{*sys.modules}} - before if m.startswith({FORBIDDEN!r})])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr[-2000:]
