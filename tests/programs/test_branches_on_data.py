"""torch.cond and torch.while_loop: one graph, which branches when it runs.

torch's own functions compile what they are given, so that the references here are the same
programs with `if` and `while`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import while_loop

import jitshape
from jitshape.errors import GraphBreak
from tests.programs.compare import assert_same

SHIFT = torch.linspace(-1, 1, 4)


def choose(pred: Any, then: Callable, other: Callable, operands: tuple = ()) -> Any:
    """torch.cond as it is meant."""
    return then(*operands) if pred else other(*operands)


def repeat(test: Callable, body: Callable, carried: tuple, more: tuple = ()) -> Any:
    """while_loop as it is meant."""
    while test(*carried, *more):
        carried = tuple(body(*carried, *more))
    return tuple(x.clone() for x in carried)


def simple(cond: Callable, x: torch.Tensor) -> Any:
    return cond(x.sum() > 0, torch.sin, lambda t: t.cos() * 2, (x,)) + 1


def captured(cond: Callable, x: torch.Tensor) -> Any:
    y = x * 3
    return cond(x.mean() > 0, lambda t: t + y + SHIFT, lambda t: t @ torch.eye(4) - y, (x,))


def several(cond: Callable, x: torch.Tensor) -> Any:
    def then(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a[1:].exp(), [b.sum(0), (a * b).t().contiguous()]

    def other(a: torch.Tensor, b: torch.Tensor) -> Any:
        total = a.new_zeros(a.shape)
        total[:, 1:] += b[:, 1:]
        return total[:-1] * a.shape[0], [b[0] - 1, (a + b).t().contiguous()]

    return cond(x.max() > 1, then, other, (x, x + 1))


def nested(cond: Callable, x: torch.Tensor) -> Any:
    def inner(t: torch.Tensor) -> Any:
        return cond(t[0, 0] > 0, lambda u: u * x, lambda u: u / 2, (t,))

    return cond(x.sum() > 0, inner, torch.neg, (x - 0.1,))


def picked(cond: Callable, x: torch.Tensor) -> Any:
    rows = torch.arange(x.shape[0]).flip(0)
    return cond(x.sum() > 0, lambda t: t[rows], lambda t: t.index_select(0, rows) * 2, (x,))


def drawn(cond: Callable, x: torch.Tensor) -> Any:
    a = torch.rand(3)
    b = cond(x.sum() > 0, lambda t: t + torch.rand(4), lambda t: t.clone(), (x,))
    return a, b, torch.rand(3)


def by_size(cond: Callable, x: torch.Tensor) -> Any:
    return cond(x.shape[0] > 100, torch.sin, torch.cos, (x,))


PROGRAMS = [simple, captured, several, nested, picked, drawn, by_size]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_one_graph_takes_both_branches(program: Callable, backend: str) -> None:
    jitshape.reset()
    compiled = jitshape.compile(lambda x: program(torch.cond, x), backend=backend, fullgraph=True)
    for rows, sign in ((3, 1), (3, -1), (5, 1), (5, -1), (8, 1)):
        x = torch.rand(rows, 4) * sign + 0.5 * sign
        torch.manual_seed(rows)
        expected = program(choose, x)
        after = torch.rand(1)
        torch.manual_seed(rows)
        assert_same(expected, compiled(x))
        assert torch.equal(after, torch.rand(1))
    stats = jitshape.stats()
    assert (stats["compiles"], stats["graph_breaks"], stats["fallbacks"]) == (2, 0, 0)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, cond: Callable, x: torch.Tensor) -> Any:
        y = x * self.scale

        def then(t: torch.Tensor) -> Any:
            return self.a(t) * y, (t * t).sum()

        def other(t: torch.Tensor) -> Any:
            return torch.tanh(self.b(t)) + x, y.detach().mean()

        rows, number = cond(self.gate(x).sum() > 0, then, other, (y.sin(),))
        return rows.square().sum() + number


@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_go_through_the_branch_that_was_taken(sign: int) -> None:
    jitshape.reset()
    model = Gated()
    with torch.no_grad():
        model.gate.weight.fill_(0.1)
        model.gate.bias.fill_(0.0)
    compiled = jitshape.compile(lambda x: model(torch.cond, x), fullgraph=True)
    for rows in (3, 5, 7):
        x = ((torch.rand(rows, 4) + 0.5) * sign).requires_grad_()
        found = []
        for run in (compiled, lambda x: model(choose, x)):
            model.zero_grad()
            loss = run(x)
            loss.backward()
            grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
            found.append((loss.detach(), x.grad, grads))
            x.grad = None
        (loss, gx, grads), (want, wx, wanted) = found
        torch.testing.assert_close((loss, gx), (want, wx))
        for name, grad in grads.items():  # zeros where the other branch alone has it
            torch.testing.assert_close(grad, wanted.get(name, torch.zeros_like(grad)))
    stats = jitshape.stats()
    assert (stats["compiles"], stats["graph_breaks"]) == (2, 0)


def test_operands_that_backward_needs_are_not_written() -> None:
    def f(cond: Callable, x: torch.Tensor) -> Any:
        y = x * 1
        z = cond(x.sum() > 0, lambda t: t * t, torch.sin, (y,))
        y.add_(1)
        return (z + y).sum()

    compiled = jitshape.compile(lambda x: f(torch.cond, x))
    for run in (compiled, lambda x: f(choose, x)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(torch.ones(3, requires_grad=True)).backward()


def twice(cond: Callable, x: torch.Tensor, w: torch.Tensor) -> Any:
    def inner(t: torch.Tensor) -> Any:
        return cond(t[0, 0] > 0, lambda u: (u @ w) * x, lambda u: u[u > 0.5].sum() + u, (t,))

    return cond(x.sum() > 0, inner, lambda t: Tripled.apply(t) @ w, (x * 2,)).square().sum()


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 3 * ctx.saved_tensors[0]


def test_gradients_of_branches_in_branches() -> None:
    jitshape.reset()
    w = torch.rand(4, 4, requires_grad=True)
    compiled = jitshape.compile(lambda x: twice(torch.cond, x, w), fullgraph=True)
    for rows, sign in ((3, 1), (4, -1), (5, 1)):
        given = torch.rand(rows, 4) * sign
        found = []
        for run in (compiled, lambda x: twice(choose, x, w)):
            x, w.grad = given.clone().requires_grad_(), None
            run(x).backward()
            found.append((x.grad, torch.zeros_like(w) if w.grad is None else w.grad))
        torch.testing.assert_close(*found)
    assert jitshape.stats()["compiles"] == 2


def test_only_the_branch_that_is_taken_is_differentiated() -> None:
    def f(cond: Callable, x: torch.Tensor) -> Any:
        return cond(x.sum() > 0, lambda t: t.sqrt().sum(), lambda t: (t * 2).sum(), (x,))

    compiled = jitshape.compile(lambda x: f(torch.cond, x), fullgraph=True)
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    compiled(x).backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))


def test_the_graph_is_a_module_of_fx() -> None:
    def backend(graph: Any, example_inputs: Any) -> Any:
        return graph.to_fx()

    compiled = jitshape.compile(lambda x: captured(torch.cond, x), backend=backend, fullgraph=True)
    for sign in (1, -1):
        x = torch.ones(3, 4) * sign
        assert_same(captured(choose, x), compiled(x))


def test_a_branch_that_is_never_taken_is_not_compiled() -> None:
    jitshape.reset()
    compiled = jitshape.compile(lambda x: simple(torch.cond, x))
    compiled(torch.ones(3, 4))
    before = jitshape.stats()["graphs"]
    compiled(torch.ones(3, 4))
    assert jitshape.stats()["graphs"] == before == 2  # the graph and the branch taken
    compiled(-torch.ones(3, 4))
    assert jitshape.stats()["graphs"] == 3


def looped(loop: Callable, x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64)
    steps, y = loop(
        lambda i, t, w: (i < 10) & (t.abs().sum() < 50),
        lambda i, t, w: (i + 1, t * 2 + w),
        (start, x),
        (SHIFT,),
    )
    return steps, y + 1


def never(loop: Callable, x: torch.Tensor) -> Any:
    (y,) = loop(lambda t: t.sum() > 1e9, lambda t: (t + x.shape[0],), (x,))
    return y.add_(1), x


@pytest.mark.parametrize("program", [looped, never], ids=lambda f: f.__name__)
def test_loops_on_data(program: Callable) -> None:
    jitshape.reset()
    compiled = jitshape.compile(lambda x: program(while_loop, x), fullgraph=True)
    for rows in (3, 5, 8):
        x = torch.rand(rows, 4)
        assert_same(program(repeat, x), compiled(x.clone()))
    stats = jitshape.stats()
    assert (stats["compiles"], stats["graph_breaks"]) == (2, 0)


SEEN: list[int] = []


def appends(t: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return t + 1


def raises(t: torch.Tensor) -> torch.Tensor:
    raise ValueError("no")


def local_list(x: torch.Tensor) -> Any:
    rows: list[int] = []
    torch.cond(x.sum() > 0, lambda t: rows.append(1) or t + 1, torch.sin, (x,))
    return x + len(rows)


REFUSED: dict[str, tuple[Callable, str]] = {
    "writes to an object": (lambda x: torch.cond(x.sum() > 0, appends, torch.sin, (x,)), "object"),
    "writes to its list": (local_list, "object"),
    "writes to a tensor": (
        lambda x: torch.cond(x.sum() > 0, lambda t: t.add_(1) * 2, torch.sin, (x,)),
        "writes to a tensor",
    ),
    "gives its argument": (
        lambda x: torch.cond(x.sum() > 0, lambda t: t, torch.sin, (x,)),
        "returns a view",
    ),
    "raises": (lambda x: torch.cond(x.sum() > 0, raises, torch.sin, (x,)), "raises ValueError"),
    "shapes": (
        lambda x: torch.cond(x.sum() > 0, lambda t: t.sum(), torch.sin, (x,)),
        "tensors that differ",
    ),
    "no bool": (lambda x: torch.cond(x, torch.cos, torch.sin, (x,)), "no bool of one element"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_more_than_compute_is_a_break(name: str) -> None:
    program, reason = REFUSED[name]
    jitshape.reset()
    with pytest.raises(GraphBreak, match=reason):
        jitshape.compile(program, fullgraph=True)(torch.ones(3))
    assert not SEEN
