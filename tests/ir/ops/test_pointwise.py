"""Pointwise blocks: types and values against eager, over layouts and dtypes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jitshape.ir.graph import Graph, Node, Value
from jitshape.ir.ops.registry import OPS
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.types import TensorType
from tests.ir.ops.test_blocks import check_type

WITHOUT_GENERIC_CALL = {"aten.clone.default", "aten._to_copy.default", "aten.copy.default"}
EXTRA = {  # parameters after the operands
    "aten.threshold_backward.default": (0.1,),
    "aten.hardtanh_backward.default": (-0.3, 0.4),
    "aten.leaky_relu_backward.default": (0.1, False),
    "aten.elu_backward.default": (1.5, 1.1, 0.9, False),
    "aten.softplus_backward.default": (1.3, 2.0),
    "aten.threshold.default": (0.1, 5.0),
    "aten.clamp_min.default": (),
    "aten.masked_fill.Scalar": (0.5,),
    "aten.elu.default": (1.5, 1.1, 0.9),
    "aten.softplus.default": (1.3, 0.5),
}
X = torch.randn(3, 4)
SAMPLES = {  # whole calls, where operands must fit together
    "aten.clamp.default": (X, -0.5, 0.75),
    "aten.fill.Tensor": (X, torch.tensor(2.0)),
    "aten.masked_fill.Tensor": (X, X > 0, torch.tensor(0.5)),
    "aten.log_sigmoid_backward.default": (X.exp(), X, torch.exp(-X.abs())),
    "aten.where.self": (X > 0, X, X * 2),
}
KEYWORDS = {
    "aten.div.Tensor_mode": {"rounding_mode": "floor"},
    "aten.div.Scalar_mode": {"rounding_mode": "trunc"},
    "aten.round.decimals": {"decimals": 1},
}


class Numbers:
    """The Builder protocol on whole tensors."""

    NAMES = {
        "sub": torch.sub, "add": torch.add, "mul": torch.mul, "div": torch.div, "eq": torch.eq,
        "not_": torch.bitwise_not, "and_": torch.bitwise_and, "or_": torch.bitwise_or,
        "xor": torch.bitwise_xor, "shl": torch.bitwise_left_shift,
        "shr": torch.bitwise_right_shift, "mod": torch.remainder, "floordiv": torch.floor_divide,
    }  # fmt: skip

    def __getattr__(self, name):
        function = self.NAMES.get(name) or getattr(torch, name)
        return lambda *args: function(*(self.scalar(a) for a in args))

    def scalar(self, x):
        return x if isinstance(x, torch.Tensor) else torch.tensor(x)

    def where(self, condition, yes, no):
        return torch.where(condition.bool(), self.scalar(yes), self.scalar(no))

    def cast(self, x, dtype):
        return self.scalar(x).to(dtype)

    def logical_and(self, x, y):
        return torch.logical_and(x, y)


def sample(name):
    """Arguments of a call of the pointwise op `name`."""
    if name in SAMPLES:
        return list(SAMPLES[name])
    packet = name.split(".")[1]
    arguments = OPS[name].torch_op._schema.arguments
    args = []
    for argument in arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "Optional[Tensor]"):
            args.append(value_of(packet, argument.name, len(args)))
        elif not argument.has_default_value() and not argument.kwarg_only:
            args.append(2 if packet.startswith("bitwise") else number_of(name, argument, args))
    return args


def value_of(packet, argument, place):
    torch.manual_seed(place)
    if packet.startswith(("bitwise_left", "bitwise_right")):
        return torch.randint(0, 5, (3, 4))
    if packet.startswith("bitwise"):
        return torch.randint(-9, 9, (3, 4))
    if argument in ("mask", "condition"):
        return torch.rand(3, 4) > 0.5
    x = torch.randn(3, 4)
    needs_positive = packet in ("log", "log2", "log10", "sqrt", "rsqrt", "logit", "atanh", "pow")
    needs_positive = needs_positive or packet in (
        "acos",
        "asin",
        "xlogy",
        "log1p",
        "sigmoid_backward",
    )
    if packet == "acosh":
        return x.abs() + 1.1
    return (x.abs() % 0.9) + 0.05 if needs_positive else x


def number_of(name, argument, args):
    table = EXTRA.get(name)
    if table:
        place = sum(not isinstance(a, torch.Tensor) for a in args)
        return table[place]
    return {"bool": False, "str": "none"}.get(str(argument.type), 0.75)


def typed_call(name, args, kwargs=None):
    """The node of the call and its env."""
    env = ShapeEnv()
    graph = Graph(env)

    def value(x):
        if not isinstance(x, torch.Tensor):
            return x
        return graph.new_value(TensorType(tuple(x.shape), x.stride(), x.dtype))

    values = [value(a) for a in args]
    type_ = OPS[name].type(env, *values, **(kwargs or {}))
    node = Node(name, tuple(values), kwargs or {})
    graph.add_node(node, (graph.new_value(type_),))
    return env, node, dict(zip(map(id, values), args))


POINTWISE = sorted(
    n
    for n, d in OPS.items()
    if d.family == "pointwise" and n.startswith("aten.") and n not in WITHOUT_GENERIC_CALL
)


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_element_is_eagers(name, dtype):
    args = [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in sample(name)]  # fmt: skip
    kwargs = KEYWORDS.get(name, {})
    env, node, reals = typed_call(name, args, kwargs)
    expected = OPS[name].torch_op(*args, **kwargs)
    check_type(env, name, node.outs[0].type, expected)
    found = OPS[name].element(Numbers(), node, lambda v: reals[id(v)].to(v.type.dtype))
    found = found.expand(expected.shape)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)


layouts = st.sampled_from(["plain", "transposed", "sliced", "expanded", "one", "row", "zero_dim"])
dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])


def laid_out(layout, dtype):
    x = torch.ones(2, 3, 4, 5).to(dtype)
    return {
        "plain": x,
        "transposed": x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "sliced": torch.ones(2, 6, 4, 10).to(dtype)[:, ::2, :, ::2],
        "expanded": torch.ones(2, 1, 4, 1).to(dtype).expand(2, 3, 4, 5),
        "one": torch.ones(2, 3, 1, 5).to(dtype),
        "row": torch.ones(4, 5).to(dtype).t().contiguous().t(),
        "zero_dim": torch.tensor(1).to(dtype),
    }[layout]


@settings(max_examples=150, deadline=None)
@given(layouts, dtypes, layouts, dtypes)
def test_binary_layout_and_promotion(la, da, lb, db):
    args = [laid_out(la, da), laid_out(lb, db)]
    for name in ("aten.add.Tensor", "aten.div.Tensor", "aten.lt.Tensor"):
        env, node, _ = typed_call(name, args)
        check_type(env, name, node.outs[0].type, OPS[name].torch_op(*args))


@settings(max_examples=60, deadline=None)
@given(layouts, dtypes, st.sampled_from([True, 2, 2.5]))
def test_promotion_with_numbers(layout, dtype, number):
    args = [laid_out(layout, dtype), number]
    for name in ("aten.add.Tensor", "aten.mul.Tensor", "aten.eq.Scalar"):
        env, node, _ = typed_call(name, args)
        check_type(env, name, node.outs[0].type, OPS[name].torch_op(*args))


@settings(max_examples=80, deadline=None)
@given(layouts, layouts, layouts)
def test_where_layout(lc, la, lb):
    args = [laid_out(lc, torch.bool), laid_out(la, torch.float32), laid_out(lb, torch.float32)]
    env, node, _ = typed_call("aten.where.self", args)
    check_type(env, "where", node.outs[0].type, torch.where(*args))


def test_values_are_graph_values():
    _, node, _ = typed_call("aten.exp.default", [torch.ones(2)])
    assert isinstance(node.args[0], Value)
