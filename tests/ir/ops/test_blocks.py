"""Every block with samples: its type rule against eager, with static and with symbolic sizes."""

import itertools

import pytest
import torch

from jitshape.ir.evaluate import runner
from jitshape.ir.graph import Graph, map_leaves
from jitshape.ir.ops.registry import OPS
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symint import IntExpr
from jitshape.ir.types import ScalarType, TensorType

SAMPLED = sorted(name for name, d in OPS.items() if d.has("samples") and d.samples())

OTHER_OVERLOAD = ("expected at most", "missing value", "only supports 0-dimension", "found type")


def as_values(env, tree, symbolic):
    """Tensors as graph values; with `symbolic`, sizes above 1 as symbols, equal ones shared."""
    graph, symbols = Graph(env), {}

    def size(n):
        if not symbolic or n < 2:
            return n
        if n not in symbols:
            symbols[n] = env.size_symbol(n)
        return symbols[n]

    def value(x):
        if not isinstance(x, torch.Tensor):
            return x
        shape = tuple(size(n) for n in x.shape)
        strides = layout(x, shape)
        return graph.new_value(TensorType(shape, strides, x.dtype, x.device, x.storage_offset()))

    return map_leaves(value, tree)


def layout(x, shape):
    """The strides of `x` as products of sizes where it is dense, else as numbers."""
    order = sorted(range(x.ndim), key=lambda d: (x.stride(d), x.shape[d]))
    strides, step, number = list(x.stride()), 1, 1
    for d in order:
        if x.stride(d) != number:
            return tuple(x.stride())
        strides[d] = step
        step, number = step * shape[d], number * x.shape[d]
    return tuple(strides)


def check_type(env, name, found, real):
    number = lambda s: env.actual(s) if type(s) is IntExpr else s  # noqa: E731
    if found is None or isinstance(found, ScalarType) or not isinstance(real, torch.Tensor):
        return
    shape, strides = (tuple(map(number, row)) for row in (found.shape, found.strides))
    unknown = None in shape
    assert unknown or shape == tuple(real.shape), name
    assert found.dtype == real.dtype, name
    if not unknown and 0 not in shape:
        long = [d for d, n in enumerate(shape) if n > 1]
        assert [strides[d] for d in long] == [real.stride(d) for d in long], name


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", SAMPLED)
def test_type_is_eagers(name, symbolic):
    definition = OPS[name]
    for args, kwargs in definition.samples():
        if len(args) > len(schema_of(name) or args):
            continue
        env = ShapeEnv()
        values = as_values(env, (tuple(args), dict(kwargs)), symbolic)
        found = definition.type(env, *values[0], **values[1])
        try:
            real = runner(name)(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            if any(text in str(error) for text in OTHER_OVERLOAD):
                continue  # a sample of another overload of the block
            raise
        rows = found if isinstance(found, (list, tuple)) else [found]
        reals = real if isinstance(real, (list, tuple)) else [real]
        for row, one in zip(rows, reals, strict=True):
            check_type(env, name, row, one)


# Eager reads memory that is not there where sizes do not fit: its callers check.
UNSAFE = {"aten._native_batch_norm_legit_functional", "aten._native_batch_norm_legit_no_training"}
# An index of a tensor is out of range, or the size of the memory counts: found when it runs.
FOUND_LATER = (
    "index", "indexing axis dim should be positive", "out of bounds", "setStorage",
    "number of ones in mask", "tried to take from an empty",
    "divisible by 2 to view Float as Double",
)  # fmt: skip
CHECKED = [
    name
    for name in SAMPLED
    if OPS[name].family != "extern" and "backward" not in name
    and name.rpartition(".")[0] not in UNSAFE
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_sizes_that_eager_refuses_break_a_fact(name):
    """Each dimension of each tensor has a symbol of its own; one of them changes."""
    definition = OPS[name]
    for args, kwargs in definition.samples():
        try:
            runner(name)(*args, **kwargs)
        except (RuntimeError, TypeError):
            continue  # a sample of another overload of the block
        env = ShapeEnv()
        graph, sizes_of = Graph(env), {}

        def value(x, env=env, graph=graph, sizes_of=sizes_of):
            if not isinstance(x, torch.Tensor):
                return x
            shape = tuple(env.size_symbol(n) for n in x.shape)
            sizes_of.setdefault(id(x), []).append(shape)
            return graph.new_value(TensorType(shape, layout(x, shape), x.dtype, x.device))

        values = map_leaves(value, (tuple(args), dict(kwargs)))
        if definition.has("canonical"):
            values = definition.canonical(env, *values[0], **values[1])
        if definition.has("check"):
            definition.check(env, *values[0], **values[1])
        definition.type(env, *values[0], **values[1])
        hints = {name: symbol.hints[0] for name, symbol in env.symbols.items()}
        for changed, new in itertools.product(hints, (0, 1, None)):
            sizes = hints | {changed: hints[changed] + 1 if new is None else new}
            if all(holds(fact.condition, sizes) for fact in env.facts):
                assert_eager_takes(name, args, kwargs, sizes_of, sizes)


def holds(condition, sizes):
    return condition.evaluate(lambda s: s if type(s) is int else s.algebra.evaluate(s, sizes))


def assert_eager_takes(name, args, kwargs, sizes_of, sizes):
    shapes = {place: list(rows) for place, rows in sizes_of.items()}

    def resized(x):
        if not isinstance(x, torch.Tensor):
            return x
        shape = shapes[id(x)].pop(0)
        return torch.zeros([sizes[str(n)] for n in shape], dtype=x.dtype)

    args, kwargs = map_leaves(resized, (tuple(args), dict(kwargs)))
    try:
        runner(name)(*args, **kwargs)
    except (RuntimeError, IndexError) as error:
        assert any(text in str(error) for text in FOUND_LATER), (error, sizes)


def schema_of(name):
    if name.startswith("jitshape."):
        return None
    return OPS[name].torch_op._schema.arguments


@pytest.mark.parametrize(
    "name", [n for n in SAMPLED if OPS[n].family == "view" and OPS[n].has("index")]
)
def test_index_map(name):
    """The element at each index of a view is that of the source at the mapped index."""
    definition = OPS[name]
    for args, kwargs in definition.samples():
        x = args[0]
        ((value, *rest), _) = as_values(ShapeEnv(), (tuple(args), {}), False)
        real = runner(name)(*args, **kwargs)
        if definition.has("canonical"):
            (value, *rest), _ = definition.canonical(ShapeEnv(), value, *rest)
        for index in itertools.product(*map(range, real.shape)):
            source = definition.index(None, index, value, *rest)
            assert real[index] == x[tuple(source)], (name, index, source)


def test_no_block_shadows_a_composite():
    """C++ decomposes these before they could be recorded: a block would never be used."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    backend = torch._C.DispatchKey.CPU
    for name, definition in OPS.items():
        if name.startswith("aten."):
            op = definition.torch_op.name()
            assert not has(op, composite) or has(op, backend), name


def test_in_place_ops_take_what_their_pure_ops_take():
    def positional(definition):
        arguments = definition.torch_op._schema.arguments
        return [str(a.type) for a in arguments if not a.kwarg_only]

    for definition in [d for d in OPS.values() if d.mutates]:
        pure = OPS[definition.block.functional]
        if pure.name.startswith("aten."):
            taken, given = positional(pure), positional(definition)
            assert given[: len(taken)] == taken, (definition.name, pure.name)
