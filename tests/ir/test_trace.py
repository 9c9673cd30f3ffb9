"""Traces of small models, forward and backward, replayed at other sizes against eager."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from jitshape.errors import DataDependent
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.trace import Trace
from tests.ir.tracing import Module, replay, symbolic_input, trace_joint


def check_module(module, specs, inputs, facts=(), **sizes):
    """Joint trace of `module`, replay on `inputs`: output and gradients must be eager's."""
    holder = []

    def make(trace):
        holder.append(Module(module, trace))
        return holder[0]

    trace, _ = trace_joint(make, *specs, **sizes)
    assert [str(f.condition) for f in trace.env.facts] == list(facts)
    expected = module(*inputs)
    tangent = torch.randn_like(expected)
    leaves = list(module.parameters()) + [x for x in inputs if x.requires_grad]
    grads = torch.autograd.grad(expected, leaves, tangent)
    real = [*holder[0].real.values(), *(x.detach() for x in inputs), tangent]
    out, *found = replay(trace.graph, real)
    torch.testing.assert_close(out, expected.detach())
    for a, b in zip(found, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    return trace


class Block(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h, self.n1, self.n2 = h, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, s, d = x.shape
        parts = self.qkv(self.n1(x)).split(d, 2)
        q, k, v = (t.view(b, s, self.h, d // self.h).transpose(1, 2) for t in parts)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, d))
        return x + self.mlp(self.n2(x))


class Attention(nn.Module):
    def __init__(self, d=16, h=2):
        super().__init__()
        self.h, self.q, self.k, self.v = h, nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, mask):
        b, s, d = x.shape
        split = lambda t: t.view(b, s, self.h, d // self.h).transpose(1, 2)  # noqa: E731
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, None, :].bool(), -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, d)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x, y):
        return F.cross_entropy(self.net(x), y)


def test_transformer_block():
    x = torch.randn(3, 10, 16, requires_grad=True)
    other = torch.randn(2, 7, 16, requires_grad=True)
    check_module(Block(), [(x, {0: "b", 1: "s"})], [other], b=3, s=10)


@pytest.mark.parametrize("shape", [(2, 7), (1, 5), (4, 1), (1, 1)])
def test_masked_attention_needs_no_fact(shape):
    x = torch.randn(3, 10, 16, requires_grad=True)
    named = {0: "b", 1: "s"}
    specs = [(x, named), (torch.ones(3, 10).long(), named)]
    inputs = [torch.randn(*shape, 16, requires_grad=True), torch.ones(*shape).long()]
    check_module(Attention(), specs, inputs, b=3, s=10)


def test_classifier():
    specs = [(torch.randn(6, 8), {0: "n"}), (torch.zeros(6).long(), {0: "n"})]
    inputs = [torch.randn(9, 8), torch.randint(5, (9,))]
    check_module(Classifier(), specs, inputs, n=6)


def test_each_op_is_recorded_once():
    trace, _ = trace_joint(lambda t: lambda x: torch.tanh(x * 2), (torch.randn(3), {0: "n"}), n=3)
    assert [n.op for n in trace.graph.nodes] == ["aten.mul.Tensor", "aten.tanh.default"]


def test_backward_nodes_are_marked_and_have_the_forward_line():
    from jitshape.ir.graph import Location

    env = ShapeEnv()
    trace = Trace(env)
    x = symbolic_input(trace, torch.randn(3, requires_grad=True), "x", {0: env.size_symbol(3)})
    trace.location = lambda: Location("model.py", 7)
    with trace:
        y = torch.tanh(x)
    (grad,) = trace.backward([y])
    assert [n.backward for n in trace.graph.nodes] == [False, True]
    assert trace.graph.nodes[1].location == Location("model.py", 7)
    assert grad.value.node.op == "aten.tanh_backward.default"
    assert trace.graph.inputs[-1].name == "tangent0"


def test_in_place_moves_the_value_on_and_keeps_the_object():
    env = ShapeEnv()
    trace = Trace(env)
    x = symbolic_input(trace, torch.randn(3, 4), "x", {0: env.size_symbol(3)})
    before = x.value
    with trace:
        view = x[0]
        assert x.add_(1) is x
    assert x.value is not before and x.value.storage is before.storage is view.value.storage
    assert x._version == view._version == 1


def test_saved_tensor_modified_in_place_is_eagers_error():
    env = ShapeEnv()
    trace = Trace(env)
    x = symbolic_input(trace, torch.randn(3, requires_grad=True), "x", {0: env.size_symbol(3)})
    with trace:
        y = x.exp()
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trace.backward([y])


def test_inputs_that_share_memory_share_a_storage():
    trace = Trace(ShapeEnv())
    base = torch.randn(4, 4)
    a, b = trace.input(base, "x"), trace.input(base[1:], "x")
    assert a.value.storage is b.value.storage
    assert (a.value.name, b.value.name) == ("x", "x_1")


def test_non_leaf_input():
    trace = Trace(ShapeEnv())
    real = torch.randn(3, requires_grad=True) * 2
    x = trace.input(real, "x")
    assert x.requires_grad and not x.is_leaf
    with trace:
        y = x.mul_(3).sin()
    (grad,) = trace.backward([y])
    assert grad is not None and grad.shape == (3,)


@pytest.mark.parametrize("read", [bool, lambda x: x.expand(300).tolist(), lambda x: x.numpy()])
def test_reading_a_number_is_data_dependent(read):
    trace = Trace(ShapeEnv())
    x = trace.input(torch.randn(()), "x")
    with trace, pytest.raises(DataDependent):
        read(x)


def test_assigning_data_is_refused():
    trace = Trace(ShapeEnv())
    x = trace.input(torch.randn(3), "x")
    with trace:
        assert x.data.value is x.value and not x.data.requires_grad
        with pytest.raises(DataDependent):
            x.data = torch.randn(3)


def test_item_of_integers_is_an_unbacked_size():
    trace = Trace(ShapeEnv())
    x = trace.input(torch.tensor(5), "x")
    with trace:
        n = x.item()
        y = torch.zeros(3) + n
    assert isinstance(n, torch.SymInt)
    (node,) = (n for n in trace.graph.nodes if n.op == "aten._local_scalar_dense.default")
    assert y.value.node.args[1] is node.outs[0].type.symbol


def test_errors_are_eagers():
    trace = Trace(ShapeEnv())
    x, y = trace.input(torch.randn(3, 4), "x"), trace.input(torch.randn(5, 4), "y")
    for call in (lambda a, b: a + b, torch.mm, lambda a, b: a.view(5, 2), lambda a, b: a[:, 9]):
        with pytest.raises((RuntimeError, IndexError)) as eager:
            call(torch.randn(3, 4), torch.randn(5, 4))
        with trace, pytest.raises(eager.type) as ours:
            call(x, y)
        assert str(ours.value) == str(eager.value)


def test_unknown_op_is_an_extern_call():
    trace, _ = trace_joint(
        lambda t: lambda x: torch.special.i0(x), (torch.randn(2, 3), {0: "n"}), n=2
    )
    (name,) = trace.extern_unknown
    assert trace.graph.nodes[-1].op == name
    assert str(trace.graph.outputs[0].type.shape[0]) == "n"


def test_constants_are_inputs():
    trace = Trace(ShapeEnv())
    real = torch.randn(3)
    x = trace.input(torch.randn(3), "x")
    with trace:
        x + real, x * real
        y = torch.tensor([1.0, 2.0, 3.0])
        y.add_(x)
    assert [t is real for _, t in trace.constants] == [True, False]
    assert len(trace.graph.inputs) == 3


def test_random_ops_have_tokens_in_program_order():
    trace = Trace(ShapeEnv())
    x = trace.input(torch.randn(3), "x")
    with trace:
        F.dropout(x, 0.5, True)
        torch.rand(3)
    tokens = [n.token for n in trace.graph.nodes if n.token is not None]
    assert tokens == [0, 1]


def test_nothing_symbolic_survives():
    trace, _ = trace_joint(
        lambda t: lambda x: (x.exp() * x).sum(), (torch.randn(3, requires_grad=True), {0: "n"}), n=3
    )
    leaf = weakref.ref(trace.leaves[0])
    graph, numbers = trace.graph, weakref.ref(trace)
    trace.close()
    gc.collect()
    assert leaf() is None
    del trace
    gc.collect()
    assert numbers() is None and len(graph.nodes) == 8


def test_no_forbidden_import():
    code = """
import sys, torch
from torch import nn
before = set(sys.modules)
from tests.ir.test_trace import Block, Module, trace_joint
x = torch.randn(3, 10, 16, requires_grad=True)
module = Block()
trace_joint(lambda t: Module(module, t), (x, {0: "b", 1: "s"}), b=3, s=10)
names = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd",
         "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
print([m for m in set(sys.modules) - before if m.startswith(names)])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout
