"""Each composite block agrees with eager: its type, and the values of its decomposition."""

import pytest
import torch

import jitshape
from jitshape.ir.evaluate import evaluate
from jitshape.ir.graph import Graph, Node, map_leaves
from jitshape.ir.ops import attention, losses, normalization, softmax  # noqa: F401
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes.decompose import decompose
from jitshape.ir.rewrite import MISSING
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.types import TensorType
from jitshape.ir.verify import verify

MODULES = ("softmax", "normalization", "losses", "attention")
CASES = [
    (name, index)
    for name, definition in OPS.items()
    if definition.block.__mro__[1].__module__.rsplit(".", 1)[1] in MODULES
    and definition.has("samples")
    for index in range(len(definition.samples()))
]


def graph_of(op, args, kwargs, symbolic):
    """One call of `op`, its tensors as inputs; with `symbolic`, sizes above 1 are symbols."""
    env, inputs = ShapeEnv(), []
    graph = Graph(env)
    symbols = {}

    def size(number):
        if not symbolic or number < 2:
            return number
        if number not in symbols:
            symbols[number] = env.size_symbol(number)
        return symbols[number]

    def lift(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = tuple(map(size, leaf.shape))
        strides = leaf.stride()
        if leaf.is_contiguous():
            from jitshape.ir.types import contiguous_strides

            strides = contiguous_strides(shape)
        inputs.append(leaf)
        type_ = TensorType(shape, tuple(strides), leaf.dtype, leaf.device)
        return graph.add_input(type_, f"x{len(inputs)}")

    args, kwargs = map_leaves(lift, (tuple(args), kwargs))
    types = OPS[op].type(env, *args, **kwargs)
    rows = [types] if isinstance(types, TensorType) else types
    outs = tuple(graph.new_value(type_ or MISSING) for type_ in rows)
    graph.add_node(Node(op, args, kwargs), outs)
    graph.outputs = [out if type_ is not None else None for out, type_ in zip(outs, rows)]
    graph.functional = True
    return graph, inputs


def run_eager(graph, inputs):
    return [x.clone() if x is not None else None for x in evaluate(graph, inputs, check=True)]


def assert_alike(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype and a.shape == b.shape
            loose = {"rtol": 2e-2, "atol": 2e-2} if a.dtype == torch.bfloat16 else {}
            torch.testing.assert_close(a, b, equal_nan=True, **loose)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name,index", CASES, ids=lambda x: str(x).removeprefix("aten."))
def test_block(name, index, symbolic):
    torch.manual_seed(index)
    args, kwargs = OPS[name].samples()[index]
    contiguous = all(x.is_contiguous() for x in args if isinstance(x, torch.Tensor))
    if symbolic and not contiguous:
        pytest.skip("the layouts of samples are static")
    graph, inputs = graph_of(name, args, kwargs, symbolic)
    expected = run_eager(graph, inputs)
    decompose(graph)
    verify(graph)
    if OPS[name].family == "composite":
        assert all(OPS[node.op].family != "composite" for node in graph.nodes)
    assert_alike(evaluate(graph, inputs, check=True), expected)


@pytest.mark.parametrize("index", range(4))
def test_attention_against_torch(index):
    (q, k, v, *rest), _ = attention.SDPA.samples()[index]
    mask, causal, scale = (*rest, *(None, False, None)[len(rest) :])
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, 0.0, causal, scale=scale
    )
    torch.testing.assert_close(attention.SDPA.run(q, k, v, *rest)[0], expected)


def test_attention_without_the_fused_kernel(monkeypatch):
    for args, _ in attention.SDPA.samples():
        fused = attention.SDPA.run(*args)
        grad = torch.randn_like(fused[0])
        q, k, v, *rest = args
        expected = attention.SDPABackward.run(grad, q, k, v, *fused, *rest)
        with monkeypatch.context() as patch:
            patch.setattr(attention, "_flash", lambda *a: False)
            torch.testing.assert_close(attention.SDPA.run(*args), fused)
            found = attention.SDPABackward.run(grad, q, k, v, *fused, *rest)
        torch.testing.assert_close(found, expected)
        assert [x.stride() for x in found] == [x.stride() for x in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_batches_of_heads(dtype, causal):
    """Saturated scores, where low precision or another order of factors would show."""

    def f(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    compiled = jitshape.compile(f, dynamic=True, fullgraph=True)
    for rows in (3, 5):
        q, k, v = ((torch.randn(4, n, 8) * 6).to(dtype) for n in (rows, 6, 6))
        torch.testing.assert_close(compiled(q, k, v), f(q, k, v))


def test_statistics_of_batch_norm_have_the_dtype_of_the_parameters():
    def f(x, weight, mean):
        return torch.native_batch_norm(x, weight, weight, mean, mean, True, 0.1, 1e-5)

    x = torch.randn(4, 3, 5)
    for dtype, parameters in ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)):
        row = x.to(dtype), torch.ones(3, dtype=parameters), None
        for args in (row, (row[0], None, torch.ones(3, dtype=parameters))):
            got, expected = jitshape.compile(f)(*args), f(*args)
            assert [t.dtype for t in got] == [t.dtype for t in expected]
