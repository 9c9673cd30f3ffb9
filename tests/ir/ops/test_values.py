"""Every block that becomes part of a kernel: the CPU kernel's values against eager's, at the
sample's sizes and at others."""

import pytest
import torch

from jitshape.backend.compile import compile_graph
from jitshape.ir.evaluate import evaluate, runner
from jitshape.ir.graph import Graph, map_leaves
from jitshape.ir.ops.registry import OPS
from jitshape.ir.passes.decompose import decompose
from jitshape.ir.rewrite import rewriting
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import IntExpr
from jitshape.ir.types import TensorType
from tests.backend.graphs import compare
from tests.ir.ops.test_blocks import OTHER_OVERLOAD, SAMPLED, layout, schema_of

FAMILIES = ("pointwise", "reduction", "scan", "factory", "index", "composite", "view")
COMPUTED = [name for name in SAMPLED if OPS[name].family in FAMILIES]
# Arguments that are right together only: not tried at other sizes.
DEPENDENT = {f"aten.max_pool{rank}d_with_indices_backward.default" for rank in (2, 3)}
ROUNDED_AT_EACH_STEP = ("prod", "reflection_pad")  # by eager, in bf16
OTHER_DTYPES = (torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool)


def graph_of(name, args, kwargs):
    """(a graph of one call, its tensors): sizes above 1 as symbols, equal ones shared."""
    env = ShapeEnv()
    graph, symbols, tensors = Graph(env), {}, []

    def size(n):
        if n < 2:
            return n
        if n not in symbols:
            symbols[n] = env.size_symbol(n)
        return symbols[n]

    def value(x):
        if not isinstance(x, torch.Tensor):
            return x
        tensors.append(x)
        shape = tuple(map(size, x.shape))
        return graph.add_input(TensorType(shape, layout(x, shape), x.dtype), f"x{len(tensors)}")

    args, kwargs = map_leaves(value, (tuple(args), dict(kwargs)))
    with rewriting(graph) as g:
        g.call(name.removesuffix(".default"), *args, **kwargs)
    graph.outputs = list(graph.nodes[-1].outs)
    graph.functional = True
    return graph, tensors


def resized(x, graph_input, sizes):
    """A tensor like `x` at other sizes of its symbols, with values of its kind."""
    number = lambda s: s.algebra.evaluate(s, sizes) if type(s) is IntExpr else s  # noqa: E731
    type_ = graph_input.type
    shape, strides = tuple(map(number, type_.shape)), tuple(map(number, type_.strides))
    made = torch.empty_strided(shape, strides, dtype=x.dtype)
    if not x.numel():
        return made.zero_()
    if x.dtype.is_floating_point:
        return made.copy_(torch.randn(shape) if x.min() < 0 else torch.rand(shape))
    return made.copy_(x.flatten()[torch.randint(x.numel(), shape)])  # indices stay valid


def check_kernel(name, args, kwargs, tolerance=2e-4):
    graph, tensors = graph_of(name, args, kwargs)
    first = evaluate(graph, tensors)
    graph.outputs = [o for o, real in zip(graph.outputs, first) if real is not None]
    reference = [runner(name), args, kwargs]
    decompose(graph)
    program = compile_graph(graph, backend="cpu")
    for inputs in calls(graph, tensors):
        expected = eager(*reference, dict(zip(map(id, tensors), inputs)))
        if expected is None:
            continue
        for got, want in zip(program(*inputs), expected, strict=True):
            compare(got, want, tolerance)
    return program


def calls(graph, tensors):
    """The sample's tensors, and such of other sizes that the facts allow, unless the sample
    names a size by its number."""
    env = graph.env
    yield tensors
    hints = {symbol.hints[0] for symbol in env.symbols.values()}
    shapes = [s for node in graph.nodes for out in node.outs for s in out.type.shape]
    if graph.nodes[0].op in DEPENDENT or hints & {s for s in shapes if type(s) is int}:
        return
    for factor, shift in ((1, 3), (7, 2)):
        sizes = {name: s.hints[0] * factor + shift for name, s in env.symbols.items()}
        if all(fact_holds(fact, sizes) for fact in env.facts):
            made = {id(x): resized(x, v, sizes) for x, v in zip(tensors, graph.inputs)}
            yield [made[id(x)] for x in tensors]


def eager(run, args, kwargs, given):
    """The tensors that eager gives; None where the call does not exist at these sizes."""
    swap = lambda x: given.get(id(x), x) if isinstance(x, torch.Tensor) else x  # noqa: E731
    try:
        results = run(*map_leaves(swap, tuple(args)), **map_leaves(swap, dict(kwargs)))
    except (RuntimeError, IndexError):
        return None
    results = results if isinstance(results, (list, tuple)) else [results]
    return [r for r in results if isinstance(r, torch.Tensor)]


def fact_holds(fact, sizes):
    return fact.condition.evaluate(lambda s: s if type(s) is int else s.algebra.evaluate(s, sizes))


def is_complex(args):
    return any(isinstance(x, torch.Tensor) and x.is_complex() for x in args)


def samples(name):
    """The samples that this overload takes."""
    for args, kwargs in OPS[name].samples():
        if len(args) <= len(schema_of(name) or args) and not is_complex(args):
            try:
                runner(name)(*args, **kwargs)
            except (RuntimeError, TypeError) as error:
                assert any(text in str(error) for text in OTHER_OVERLOAD), error
            else:
                yield args, kwargs


@pytest.mark.parametrize("name", COMPUTED)
def test_kernel_gives_eagers_values(name):
    for args, kwargs in samples(name):
        check_kernel(name, args, kwargs)


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("family", ("reduction", "index", "scan", "factory"))
def test_other_dtypes(family, dtype):
    """Tensors of floats as other numbers, where eager takes them."""
    for name in COMPUTED:
        rounded = dtype is torch.bfloat16 and any(part in name for part in ROUNDED_AT_EACH_STEP)
        if OPS[name].family != family or rounded:
            continue
        for args, kwargs in samples(name):
            cast = lambda x: (  # noqa: E731
                (x * 3).to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            )
            args, kwargs = map_leaves(cast, (tuple(args), dict(kwargs)))
            try:
                runner(name)(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                continue
            check_kernel(name, args, kwargs)
