"""Joint graphs, split and run under autograd, give eager's outputs and gradients."""

import pytest
import torch
import torch.nn.functional as F

from jitshape.backend.autograd import contract_of, make_autograd_callable
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Value
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes import run_passes
from jitshape.ir.passes.order import CLEAN_UP, OPTIMIZE
from jitshape.ir.passes.partition import partition
from jitshape.ir.passes.tangents import with_defined_tangents
from jitshape.ir.printer import print_graph
from jitshape.ir.verify import verify
from tests.ir.passes.programs import trace


def split_of(f, inputs):
    graph = trace(f, inputs)
    run_passes(graph, OPTIMIZE, debug=True)
    split = partition(graph)
    verify(split.forward)
    verify(split.backward)
    return graph, split


def compiled(f, inputs):
    graph, split = split_of(f, inputs)

    def compile_backward(defined, lowered):
        backward = with_defined_tangents(split.backward, defined)
        has = {p for step in OPTIMIZE for p in step.provides}
        run_passes(backward, CLEAN_UP, has=has, debug=True)
        return lambda given: evaluate(backward, given, check=True)

    def forward(*args):
        return evaluate(split.forward, args, check=True)

    return make_autograd_callable(forward, compile_backward, contract_of(graph, split)), split


def fresh(inputs):
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]


def gradients(f, inputs, weights=None):
    outs = f(*inputs)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    torch.manual_seed(1)
    tracked = [o for o in outs if o.requires_grad]
    loss = sum((o * torch.randn(o.shape)).sum() for o in tracked)
    loss.backward()
    return [o.detach() for o in outs], [x.grad for x in inputs], [x.detach() for x in inputs]


def check(f, inputs, *more):
    run, split = compiled(f, fresh(inputs))
    for real in (inputs, *more):
        found = gradients(run, fresh(real))
        expected = gradients(f, fresh(real))
        torch.testing.assert_close(found, expected)
    return split


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def mlp(x, w1, b1, w2):
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2)


def test_mlp(golden):
    torch.manual_seed(0)
    shapes = [(5, 4), (8, 4), (8,), (3, 8)]
    split = check(mlp, [leaf(*s) for s in shapes], [leaf(7, 4), *(leaf(*s) for s in shapes[1:])])
    golden("partition_mlp", print_graph(split.forward) + print_graph(split.backward, "backward"))


@pytest.mark.parametrize("batch", [1, 6])
def test_layer_norm_and_softmax(batch):
    def f(x, w, b):
        return F.layer_norm(x, (5,), w, b, 1e-5).softmax(-1) * x

    check(f, [leaf(4, 5), leaf(5), leaf(5)], [leaf(batch, 5), leaf(5), leaf(5)])


def test_cross_entropy():
    target = torch.tensor([1, -100, 0, 2])

    def f(x, t):
        return F.cross_entropy(x, t)

    check(f, [leaf(4, 3), target], [leaf(6, 3), torch.tensor([1, 2, 0, 2, -100, 1])])


def test_batch_norm_writes_running_statistics():
    def f(x, w, mean, var):
        return F.batch_norm(x, mean, var, w, None, True, 0.1)

    check(f, [leaf(6, 3, 4), leaf(3), torch.zeros(3), torch.ones(3)])


def test_inputs_without_gradient_and_unused_ones():
    check(lambda x, y, z: (x * y.exp(), y + 1), [leaf(3, 4), torch.randn(3, 4), leaf(2)])


def test_writes_to_inputs():
    def f(x, y):
        y.mul_(2)
        return (x * y).tanh()

    check(f, [leaf(3, 4), torch.randn(3, 4)], [leaf(5, 2), torch.randn(5, 2)])


def test_writes_that_carry_gradient():
    """y becomes part of autograd's graph by the write, and x's view stays in it."""

    def f(x, y):
        y.mul_(x)
        y[0].add_(1)
        return y * 2, x.t()

    def both(g):
        def run(x, y):
            outs = g(x, y)
            assert outs[1]._base is x and y.requires_grad
            return [*outs, y.clone()]

        return run

    inputs = [leaf(3, 4), torch.randn(3, 4)]
    run, _ = compiled(f, fresh(inputs))
    for real in (inputs, [leaf(5, 2), torch.randn(5, 2)]):
        found = gradients(both(run), fresh(real))
        torch.testing.assert_close(found, gradients(both(f), fresh(real)))


def test_outputs_that_alias():
    def f(x):
        y = x * 2
        return y, y.t().exp()

    check(f, [leaf(3, 4)], [leaf(6, 5)])


def saved_bytes(split):
    kept = split.forward.outputs[split.kept : split.kept + split.saved]
    return sum(
        v.type.dtype.itemsize * torch.Size([_number(s) for s in v.type.shape]).numel()
        for v in dict.fromkeys(kept)
        if v.node is not None
    )


def _number(size):
    return size if type(size) is int else size.hint


def eager_bytes(f, inputs):
    """Bytes of intermediates that eager's autograd saves."""
    seen = {x.data_ptr(): 0 for x in inputs}

    def pack(t):
        seen.setdefault(t.untyped_storage().data_ptr(), t.nbytes)
        keep.append(t)
        return t

    keep = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        keep.append(f(*inputs))
    return sum(seen.values())


def test_saves_no_more_than_eager_and_recomputes_only_cheap_ops():
    def f(x, w):
        h = torch.tanh(x @ w)
        return (torch.sigmoid(h) * h.exp() + h).relu()

    inputs = [leaf(16, 8), leaf(8, 32)]
    _, split = split_of(f, fresh(inputs))
    assert 0 < saved_bytes(split) <= eager_bytes(f, inputs)
    early = {v for v in split.forward.inputs} | {o for n in split.forward.nodes for o in n.outs}
    names = {v.name for v in early if isinstance(v, Value)}
    again = [n.op for n in split.backward.nodes if any(o.name in names for o in n.outs)]
    assert again and {OPS[op].family for op in again} <= {"pointwise", "view", "factory"}
    check(f, inputs, [leaf(3, 8), leaf(8, 32)])


def test_symbols_that_no_saved_tensor_shows_are_passed():
    def f(x):
        return x.sum(1)

    _, split = split_of(f, [leaf(3, 4)])
    assert [str(s) for s in split.backward.symbols] == ["s1"]
    check(f, [leaf(3, 4)], [leaf(5, 6)])
