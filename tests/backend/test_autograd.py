"""Hand-written forward and backward programs behave under autograd as the eager function does."""

import gc
import weakref

import pytest
import torch

from jitshape.backend.autograd import AliasPlan, Contract, make_autograd_callable
from jitshape.errors import DoubleBackward
from jitshape.ir.graph import Mutation
from jitshape.observe import counters


def eager(x, w, n):
    product = x * w
    return product * n, torch.tanh(product)


def forward(x, w, n):
    product = x * w
    return [product * n, torch.tanh(product), x, w, n]


def contract(**changes):
    base = dict(
        inputs=2,
        differentiable=(0, 1),
        returned=2,
        kept=2,
        saved=2,
        sizes=1,
        tensors=(0, 1),
        same=(),
        passed=(),
        tangents=(0, 1),
        like_output=(True, True),
    )
    return Contract(**(base | changes))


class Backward:
    """Compiles on demand, and notes what for."""

    def __init__(self):
        self.compiled = []

    def __call__(self, defined, lowered):
        self.compiled.append(defined)

        def run(x, w, *rest):
            tangents, n = list(rest[:-1]), rest[-1]
            total = torch.zeros_like(x)
            if defined[0]:
                total = total + tangents.pop(0) * n
            if defined[1]:
                total = total + tangents.pop(0) * (1 - torch.tanh(x * w) ** 2)
            return [total * w, total * x]

        return in_list(run)


def in_list(run):
    """A backward program: it gets its arguments in a list."""
    return lambda given: run(*given)


def gradients_of_product(defined, lowered):
    return in_list(lambda x, w, t: [t * w, t * x])


@pytest.fixture
def compiled():
    backward = Backward()
    run = make_autograd_callable(forward, backward, contract(), "f")
    run.backward = backward
    return run


def tensors():
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(3, 4, requires_grad=True)
    return x, w


@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)])
def test_gradients_with_defined_and_undefined_tangents(compiled, used):
    grads = []
    for f in (eager, compiled):
        x, w = tensors()
        outs = f(x, w, 3)
        sum(out.square().sum() for out, use in zip(outs, used) if use).backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(*grads)
    assert compiled.backward.compiled == [used]


def test_backward_is_compiled_once_and_lazily(compiled):
    for _ in range(3):
        x, w = tensors()
        outs = compiled(x, w, 2)
        assert compiled.backward.compiled in ([], [(True, False)])
        outs[0].sum().backward()
    assert compiled.backward.compiled == [(True, False)]


def test_second_backward_fails_as_in_eager_unless_retained(compiled):
    x, w = tensors()
    loss = compiled(x, w, 2)[1].sum()
    loss.backward(retain_graph=True)
    loss.backward()
    expected = 2 * torch.autograd.grad(eager(x, w, 2)[1].sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_saved_tensors_are_freed_after_backward():
    held = []

    def keeping(x, w, n):
        results = forward(x, w, n)
        results[2] = x.clone()
        held.append(weakref.ref(results[2]))
        return results

    x, w = tensors()
    loss = make_autograd_callable(keeping, Backward(), contract())(x, w, 2)[0].sum()
    gc.collect()
    loss.backward()
    gc.collect()
    assert held[0]() is None


def test_version_check(compiled):
    x, w = tensors()
    loss = compiled(x, w, 2)[0].sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_double_backward_is_a_catalogue_error(compiled):
    x, w = tensors()
    with pytest.raises(DoubleBackward, match="compiled graph of f"):
        torch.autograd.grad(compiled(x, w, 2)[0].sum(), x, create_graph=True)


def test_only_wanted_gradients_and_hooks(compiled):
    x, w = tensors()
    out = compiled(x, w, 2)[0]
    seen = []
    out.register_hook(lambda g: seen.append(g.clone()) or g * 10)
    (grad,) = torch.autograd.grad(out.sum(), [x])
    torch.testing.assert_close(grad, 20 * w.detach())
    assert torch.equal(seen[0], torch.ones(3, 4)) and w.grad is None


def test_tangents_in_another_layout_are_copied(compiled):
    strides = []
    inner = compiled.backward

    def watching(defined, lowered):
        run = inner(defined, lowered)

        def call(given):
            strides.append(given[2].stride())
            return run(given)

        return call

    x, w = tensors()
    before = counters.snapshot()["details"].get("autograd", {}).get("tangents_copied", 0)
    out = make_autograd_callable(forward, watching, contract())(x, w, 2)[0]
    out.backward(torch.randn(4, 3).t())
    assert strides == [(4, 1)]
    assert counters.snapshot()["details"]["autograd"]["tangents_copied"] == before + 1


def test_mutation_alias_and_passed_input_happen_outside():
    """x.mul_(w) of a non-leaf; returns a view of x, x itself and the product's row 0."""

    def eager_mutating(x, w):
        x.mul_(w)
        y = x * 3
        return x.view(12), x, y, y[0]

    def mutating(x, w):
        product = x * w
        geometry = [12, 1, 0, 4, 1, 0]
        return [None, x, product * 3, None, product, x.clone(), w, *geometry]

    def compile_backward(defined, lowered):
        assert defined == (True, True)

        def run(x, w, dy, dproduct):
            total = dproduct + 3 * dy
            return [total * w, total * x]

        return in_list(run)

    plan = contract(
        returned=4,
        kept=5,
        sizes=0,
        tensors=(2, 4),
        passed=((1, 0),),
        aliases=(
            AliasPlan(0, 0, True, 1, 7, torch.float32, True),
            AliasPlan(3, 2, False, 1, 10, torch.float32, True),
        ),
        mutations=(Mutation(0, 4),),
    )
    run = make_autograd_callable(mutating, compile_backward, plan)
    results = []
    for f in (eager_mutating, run):
        leaf, w = tensors()
        x = leaf * 1
        flat, same, y, row = f(x, w)
        assert same is x and flat._base is x and row._base is y
        assert flat.data_ptr() == x.data_ptr()
        (flat.sum() + y.square().sum() + row.sum()).backward()
        results.append((leaf.grad, w.grad, x.detach(), flat.detach(), row.detach()))
    torch.testing.assert_close(*results)


def test_outputs_without_gradient():
    def counting(x, w, n):
        return [x * w, (x > 0).sum(), x, w]

    plan = contract(tangents=(0,), like_output=(True,), sizes=0)
    run = make_autograd_callable(counting, gradients_of_product, plan)
    x, w = tensors()
    y, count = run(x, w, 2)
    assert y.requires_grad and not count.requires_grad
    y.sum().backward()
    torch.testing.assert_close(x.grad, w.detach())


def test_same_value_twice_is_the_same_tensor():
    plan = contract(
        returned=2, tensors=(0,), same=((1, 0),), tangents=(0,), like_output=(True,), sizes=0
    )
    run = make_autograd_callable(
        lambda x, w: [p := x * w, p, x, w],
        gradients_of_product,
        plan,
    )
    x, w = tensors()
    first, second = run(x, w)
    assert first is second
    (first + second).sum().backward()
    torch.testing.assert_close(w.grad, 2 * x.detach())
