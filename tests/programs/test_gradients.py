"""Autograd through compiled functions."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import jitshape
from tests.programs.compare import assert_same, check


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_unused_inputs_get_none() -> None:
    compiled = jitshape.compile(lambda x, y: x * 2)
    x, y = leaf(3), leaf(3)
    compiled(x, y).sum().backward()
    assert x.grad.tolist() == [2.0] * 3 and y.grad is None


def test_backward_from_one_of_several_outputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple:
        return x * 2, y * 3, x * y

    compiled = jitshape.compile(f)
    for place in range(3):
        for _ in range(2):
            x, y, a, b = leaf(3), leaf(3), None, None
            a, b = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
            compiled(x, y)[place].sum().backward()
            f(a, b)[place].sum().backward()
            assert_same([a.grad, b.grad], [x.grad, y.grad])


def test_retain_graph_accumulates() -> None:
    compiled = jitshape.compile(lambda x: (x.exp() * x).sum())
    x = leaf(4)
    loss = compiled(x)
    loss.backward(retain_graph=True)
    once = x.grad.clone()
    loss.backward()
    assert_same(once * 2, x.grad)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_outputs_that_do_not_require_grad() -> None:
    def f(x: torch.Tensor) -> tuple:
        with torch.no_grad():
            a = x * 2
        return a, x.detach() + 1, x.argmax(-1), x > 0, x * 3, torch.ones(2)

    check(f, *[(leaf(n, 4),) for n in (3, 5, 6)], compiles=2)


def test_double_backward_is_an_error() -> None:
    compiled = jitshape.compile(lambda x: (x**3).sum())
    x = leaf(3)
    with pytest.raises(jitshape.errors.JitshapeError):
        torch.autograd.grad(compiled(x), x, create_graph=True)


def test_enable_grad_inside_no_grad() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x + 1

    compiled, x = jitshape.compile(f), leaf(3)
    with torch.no_grad():
        y = compiled(x)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad.tolist() == [1.0] * 3


def test_requires_grad_made_inside() -> None:
    def f(x: torch.Tensor) -> tuple:
        a = torch.ones(3, requires_grad=True)
        return a, a + 2, (a * x).sum()

    compiled = jitshape.compile(f)
    a, b, c = compiled(torch.ones(3))
    assert a.requires_grad and b.requires_grad and c.requires_grad


def test_non_leaf_inputs_and_hooks_outside() -> None:
    compiled = jitshape.compile(lambda x: torch.sin(x) * 2)
    w, seen = leaf(3), []
    x = w * 3
    x.register_hook(lambda g: seen.append(g.clone()))
    compiled(x).sum().backward()
    assert_same(torch.cos(w * 3).detach() * 2, seen[0])
    assert_same(torch.cos(w * 3).detach() * 6, w.grad)


def test_gradients_of_views_and_aliased_outputs() -> None:
    def f(x: torch.Tensor) -> tuple:
        y = x * 2
        return y, y.view(-1), y[0]

    check(f, *[(leaf(n, 4),) for n in (3, 5, 6)], compiles=2)


def test_write_to_a_non_leaf_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x.exp()

    compiled = jitshape.compile(f)
    for n in (3, 4, 5):
        w = leaf(n)
        v = w.detach().clone().requires_grad_()
        x, y = w * 2, v * 2
        compiled(x).sum().backward()
        f(y).sum().backward()
        assert_same(y.detach(), x.detach())
        assert_same(v.grad, w.grad)


def test_tangents_of_other_layouts() -> None:
    compiled = jitshape.compile(lambda x: x.exp())
    x = leaf(3, 4)
    compiled(x).backward(torch.ones(4, 3).t())
    assert_same(x.detach().exp(), x.grad)
    x.grad = None
    compiled(x).backward(torch.ones(()).expand(3, 4))
    assert_same(x.detach().exp(), x.grad)


def test_integers_and_bools_beside_floats() -> None:
    def f(x: torch.Tensor, index: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x[index], 0.0).sum(-1)

    def call(n: int) -> tuple:
        return leaf(n, 4), torch.randint(0, n, (5,)), torch.rand(5, 4) > 0.5

    check(f, call(3), call(4), call(6), compiles=2)


def test_what_is_written_to_places_fits_by_a_fact() -> None:
    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.ones(5, 4) > 0, x[index], 0.0).sum(-1)

    check(f, (leaf(3, 4), torch.randint(0, 3, (5,))), dynamic=True)


def test_no_function_without_grad() -> None:
    compiled = jitshape.compile(lambda x: x * 2)
    assert compiled(torch.ones(2)).grad_fn is None
    assert compiled(leaf(2)).grad_fn is not None
    with torch.no_grad():
        assert compiled(leaf(2)).grad_fn is None


def test_half_precision_training() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w)

    def call(n: int) -> tuple:
        w = torch.randn(8, 4).bfloat16().requires_grad_()
        return torch.randn(n, 8).bfloat16(), w

    check(f, call(3), call(5), call(6), compiles=2)


def test_through_complex_numbers() -> None:
    def f(x: torch.Tensor) -> tuple:
        y = torch.fft.rfft(x)
        return y.abs(), torch.view_as_real(y * 2).flip(0), torch.cat([y, y]).real

    check(f, *[(leaf(n, 8),) for n in (3, 5, 6)], compiles=2)


def test_padding_by_reflection() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (1, 2, 0, 1), mode="reflect")

    check(f, *[(leaf(2, 3, n, n),) for n in (6, 8, 9)], compiles=2)


def first_met_without_grad(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = h.abs().max()
    return h * 2 / scale


def multiplied(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h.mul_(3)
    return h * h


def assigned(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h[0] = 7.0
    return h * 2


def clamped_twice(h: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        h.clamp_(0, 1)
    h.mul_(2)
    with torch.no_grad():
        h[1:].add_(1)
    return h.exp()


def detached(h: torch.Tensor) -> torch.Tensor:
    h.detach().mul_(3)
    return h.sin()


@torch.no_grad()
def _zero(h: torch.Tensor) -> None:
    h.zero_()


def by_a_decorated_function(h: torch.Tensor) -> torch.Tensor:
    y = h * 3
    _zero(h)
    return y + h


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize(
    "function",
    [
        first_met_without_grad,
        multiplied,
        assigned,
        clamped_twice,
        detached,
        by_a_decorated_function,
    ],
    ids=lambda function: function.__name__,
)
def test_writes_hidden_from_autograd_to_what_was_computed(function, backend) -> None:
    """Of a non-leaf: its own history and the results' go past the writes, as in eager."""
    compiled = jitshape.compile(function, backend=backend)
    for n in (3, 4, 5):
        gradients = []
        base = torch.randn(n)
        for f in (function, compiled):
            w = base.clone().requires_grad_()
            h = w * 2
            r = f(h)
            gradients.append((r.detach(), h.detach().clone(), type(h.grad_fn).__name__))
            (r.sum() + (h * torch.arange(n)).sum()).backward()
            gradients.append(w.grad)
        (r0, h0, name0), g0, (r1, h1, name1), g1 = gradients
        assert_same([r0, h0, g0], [r1, h1, g1])
        tracked = function is clamped_twice
        assert name0 == name1 or tracked
    stats = jitshape.stats()
    assert (stats["fallbacks"], stats["graph_breaks"]) == (0, 0)


def test_saved_tensors_are_let_go_of_while_backward_runs() -> None:
    """Unless the graph is kept, a backward holds no more than what it still needs."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.linalg.inv(x.sin() + 3 * torch.eye(8))
        return x.sum()

    compiled = jitshape.compile(f)
    x = leaf(8, 8)
    loss = compiled(x)
    node = loss.grad_fn
    assert len(node.saved_tensors) > 1
    loss.backward(retain_graph=True)
    assert len(node.saved_tensors) > 1
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    expected = torch.autograd.grad(f(x), x)[0]
    assert_same(2 * expected, x.grad)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_attention_of_operands_in_any_layout(order: tuple[int, ...]) -> None:
    back = sorted(range(4), key=order.__getitem__)

    def laid(length: int, heads: int = 3) -> torch.Tensor:
        x = torch.randn(2, heads, length, 8).permute(order).contiguous().permute(back)
        return x.requires_grad_()

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple:
        out = F.scaled_dot_product_attention(q, k, v)
        return out, out.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1) * 2

    check(f, *[(laid(n), laid(6), laid(6)) for n in (5, 7)], dynamic=True, compiles=1)


def independent(x, y):
    return x.sin(), y.exp()


def sharing_a_sum(x, y):
    h = x + y
    return h.sin(), h.exp()


def sharing_a_product(x, y):
    h = x * y
    return h.sin(), y.exp(), h.cos()


def saving_nothing(x, y):
    return x + y, x - y


KEPT = {"retain_graph": True}
ORDERS = [
    (independent, [(0, {}), (1, {})]),
    (independent, [(1, {}), (0, {})]),
    (independent, [(0, {}), (0, {})]),
    (independent, [(0, KEPT), (0, {}), (1, {})]),
    (sharing_a_sum, [(0, {}), (1, {})]),
    (sharing_a_product, [(0, {}), (1, {}), (2, {})]),
    (sharing_a_product, [(1, {}), (0, {})]),
    (sharing_a_product, [(0, KEPT), (2, KEPT), (0, {}), (1, {})]),
    (saving_nothing, [(0, {}), (1, {}), (0, {})]),
]


@pytest.mark.parametrize("program, order", ORDERS)
def test_results_have_a_backward_each(program, order):
    """As far as eager lets them."""

    def run(call):
        x, y = torch.arange(1.0, 5.0).requires_grad_(), torch.ones(4, requires_grad=True)
        results = call(x, y)
        done = []
        for place, options in order:
            try:
                results[place].sum().backward(**options)
            except RuntimeError as error:
                done.append(str(error))
            done += [None if t.grad is None else t.grad.clone() for t in (x, y)]
        return done

    compiled = jitshape.compile(program)
    assert_same(run(program), run(compiled))


def test_a_backward_frees_what_the_others_do_not_need():
    def program(x, y):
        return x.sin().exp(), y.exp().sin()

    compiled = jitshape.compile(program)
    x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    first, second = compiled(x, y)
    node = first.grad_fn
    first.sum().backward()
    needed = [t for t in node.remaining.tensors if t.device.type == "cpu"]
    assert 0 < len(needed) < len(node.remaining.tensors)
    second.sum().backward()
    assert node.remaining is None


def test_what_a_later_backward_needs_is_not_written_meanwhile():
    compiled = jitshape.compile(lambda x, y: (x.sin(), y @ y))
    x, y = leaf(4), leaf(4, 4)
    first, second = compiled(x, y)
    first.sum().backward()
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.sum().backward()


@pytest.mark.parametrize("wanted", range(3))
@pytest.mark.parametrize("norm", ["layer", "batch", "group", "convolution"])
def test_only_some_operands_of_a_norm_or_a_convolution_get_gradients(
    norm: str, wanted: int
) -> None:
    """Frozen weights under a trained layer, and the first layer, whose input gets none."""
    x, weight, bias = torch.randn(3, 4, 4), torch.randn(4), torch.randn(4)

    def f(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if norm == "layer":
            y = F.layer_norm(x, (4,), weight, bias)
        elif norm == "batch":
            y = F.batch_norm(x, None, None, weight, bias, training=True)
        elif norm == "group":
            y = F.group_norm(x, 2, weight, bias)
        else:
            y = F.conv1d(x, weight.view(1, 4, 1).expand(4, 4, 1), bias)
        return y.square().sum()

    args = [x, weight, bias]
    args[wanted].requires_grad_()
    check(f, tuple(args), compiles=1)


def test_a_backward_without_steps():
    """What is saved is released by a program that gives zeros."""
    x = torch.randn(4, requires_grad=True)
    (grad,) = torch.autograd.grad(jitshape.compile(torch.angle)(x).sum(), x)
    assert torch.equal(grad, torch.zeros(4))


class Stops(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize(
    ("f", "inputs"),
    [
        (lambda x, y: Stops.apply(x) + 1, lambda n: (torch.randn(n, 3), torch.randn(3))),
        (torch.linalg.householder_product, lambda n: (torch.randn(n + 3, 4), torch.randn(0))),
    ],
)
def test_results_without_gradients_require_grad(f, inputs):
    jitshape.reset()
    compiled = jitshape.compile(f, fullgraph=True)
    for n in (2, 3, 4):
        args = [x.requires_grad_() for x in inputs(n)]
        found, expected = compiled(*args), f(*args)
        assert torch.equal(found, expected) and found.requires_grad and expected.requires_grad
        with pytest.raises(RuntimeError, match="not have been used in the graph"):
            torch.autograd.grad(found.sum(), args, retain_graph=True)
        found.sum().backward()
        assert all(x.grad is None for x in args)
    assert jitshape.stats()["compiles"] <= 2
