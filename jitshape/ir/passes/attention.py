"""The math form of attention becomes one op that never holds all scores.

    t0 = bmm(q, k');  t1 = mul(t0, c);  t2 = softmax(t1);  t3 = bmm(t2, v)
-->
    t3 = attention(q, k, v, None, c)

In: a clean graph of core ops.  `softmax_operand` finds the softmax in front of a product, `scored`
the product in front of the softmax with what lies between: scales by numbers, masks and biases
that are added, a mask that fills.  What stays as it is, and why, is told in `graph.notes`.  Rows
that a mask leaves nothing of have eager's values: nan where it adds or fills -inf, the mean of v
where it fills a number.  Where backward is wanted the weights are, and nothing is done; nor where
the scores are few, at the sizes seen, since kernels of our own are faster then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Graph, Node, Value, tensor_type, values_in
from jitshape.ir.ops.composing import add, call, where
from jitshape.ir.passes import CORE, DEDUPED, FUNCTIONAL, graph_pass
from jitshape.ir.passes.cse import cse
from jitshape.ir.passes.dce import dce
from jitshape.ir.passes.simplify import constant, simplify
from jitshape.ir.rewrite import Rewriter, rewriting
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.strides import is_contiguous, same
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symfloat import apply as real
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import TensorType

SURE = -1e8  # a number filled in that leaves no weight, whatever the other scores are
NOTHING = -1e38  # what is filled in instead: any score added to it gives it again, so rows of it
# alone have equal weights
PRODUCT = "aten.bmm.default"
VIEWS = frozenset(
    f"aten.{name}" for name in "view.default _unsafe_view.default unsqueeze.default".split()
)
TURN, COPIES = "aten.permute.default", ("aten.clone.default", "aten.expand.default")
DTYPES = (torch.float32, torch.bfloat16)
WORTH = 1 << 20  # bytes of scores, at the sizes seen: fewer stay in a cache between kernels


@dataclass
class Scored:
    """The operand of a softmax, of a `shape`: `q @ k' * scale`, to which `added` are added or
    where `filled` (mask, what it is where scores are replaced, number) replaces them."""

    shape: tuple[Size, ...]
    product: Node | None = None
    scale: Any = 1.0
    added: list[Value] = field(default_factory=list)
    filled: tuple[Value, bool, float] | None = None

    @property
    def masked(self) -> bool:
        return bool(self.added) or self.filled is not None


class Sizes:
    """What is known of sizes; nothing is asked, so no guard is made."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env

    def equal(self, a: Size, b: Size) -> bool:
        return same(a, b) or self.env.static(compare("eq", a, b)) is True

    def alike(self, a: Sequence[Size], b: Sequence[Size]) -> bool:
        return len(a) == len(b) and all(map(self.equal, a, b))

    def keeps_order(self, node: Node) -> bool:
        """Whether `node` gives the elements of its operand, all of them, in their order."""
        if node.op in VIEWS:
            return tensor_type(node.outs[0]).dtype is tensor_type(node.args[0]).dtype
        if node.op not in (TURN, *COPIES):
            return False
        before, after = (tensor_type(v).shape for v in (node.args[0], node.outs[0]))
        if node.op in COPIES:
            return self.alike(before, after)
        moved = [d % len(before) for d in node.args[1]]
        moved = [d for d in moved if before[d] != 1]
        return moved == sorted(moved)


@graph_pass(requires={FUNCTIONAL, CORE, DEDUPED})
def attention(graph: Graph) -> None:
    products = [node for node in graph.nodes if node.op == PRODUCT]
    if len(products) < 2:
        return
    forward = [node for node in graph.nodes if not node.backward]
    users = Counter(value for node in forward for value in set(node.inputs()))
    users.update(values_in(graph.outputs))
    found: dict[Node, Scored] = {}
    known = Sizes(graph.env)
    for node in products:
        x = softmax_operand(node, users, known)
        if x is None:
            continue
        scores = "backward needs the weights" if graph.gradients else scored(node, x, users, known)
        outcome = f"stays a softmax: {scores}" if isinstance(scores, str) else "one op"
        graph.notes.append(f"{node.outs[0]}: attention: {outcome}")
        if not isinstance(scores, str):
            found[node] = scores
    if not found:
        return
    with rewriting(graph) as g:
        for node in g.walk():
            if node in found:
                g.replace(node, _fused(g, node, found[node], known))
            else:
                g.keep(node)
    for step in (dce, simplify, cse, dce):
        step.run(graph)


# ---- what stands there


def softmax_operand(node: Node, users: Counter[Value], known: Sizes) -> Value | None:
    """The operand of a softmax over the last dimension whose result alone `node` multiplies."""
    weights = node.args[0]
    while weights.node is not None and known.keeps_order(weights.node) and users[weights] == 1:
        weights = weights.node.args[0]
    narrowed = _made_by(weights, "aten._to_copy.default")
    if narrowed is not None and users[weights] == 1:
        weights = narrowed.args[0]
    if users[weights] != 1:
        return None
    x = _softened(weights, users)
    return x if x is not None and tensor_type(x).shape == tensor_type(weights).shape else None


def _softened(weights: Value, users: Counter[Value]) -> Value | None:
    """x, if `weights` is exp(x - max(x)) over the sum of that."""
    if shares := _made_by(weights, "aten.div.Tensor"):
        e, total = shares.args
    elif shares := _made_by(weights, "aten.mul.Tensor"):
        e, inverse = shares.args[0], _made_by(shares.args[1], "aten.reciprocal.default")
        total = inverse.args[0] if inverse else None
    else:
        return None
    exp = _made_by(e, "aten.exp.default")
    if exp is None or users[e] != 2 or not _reduces(total, "aten.sum.dim_IntList", e):
        return None
    shifted = _made_by(exp.args[0], "aten.sub.Tensor")
    if shifted is None or shifted.kwargs or users[shifted.args[0]] != 2:
        return None
    x, top = shifted.args
    return x if _reduces(top, "aten.amax.default", x) else None


def _reduces(result: Any, op: str, x: Value) -> bool:
    """Whether `result` is a reduction of the last dimension of `x`, which is kept as one."""
    node = _made_by(result, op)
    if node is None or node.args[0] is not x:
        return False
    _, dims, *keep = node.args
    rank = tensor_type(x).ndim
    return [d % rank for d in dims] == [rank - 1] and keep[:1] == [True] and not node.kwargs


def _made_by(value: Any, op: str) -> Node | None:
    node = value.node if isinstance(value, Value) else None
    return node if node is not None and node.op == op else None


def scored(node: Node, x: Value, users: Counter[Value], known: Sizes) -> Scored | str:
    """What the operand `x` of the softmax is made of, or why it is not attention's."""
    found, v = Scored(tensor_type(x).shape), tensor_type(node.args[1])
    if len(found.shape) not in (3, 4):
        return f"scores of rank {len(found.shape)}"
    if v.dtype not in DTYPES or v.device.type != "cpu":
        return f"no kernel for {v.dtype} on {v.device.type}"
    while x.node is not None and x.node.op != PRODUCT:
        inner = _step(found, x, known)
        if isinstance(inner, str):
            return inner
        if users[inner] != 1:
            return f"{inner} is used elsewhere"
        x = inner
    if x.node is None or tensor_type(x).dtype is not v.dtype:
        return "no product of this type gives the scores"
    found.product = x.node
    if not known.alike(tensor_type(x).shape[1:], found.shape[-2:]):
        return "scores are reshaped"
    masks = [*found.added, *((found.filled[0],) if found.filled else ())]
    if not all(_masks(tensor_type(mask).shape, found.shape, known) for mask in masks):
        return "a mask of another shape"
    if any(tensor_type(mask).dtype is not v.dtype for mask in found.added):
        return "a mask of another type is added"
    held = math.prod(known.env.hint(n, 1) for n in found.shape) * v.dtype.itemsize
    if held < WORTH:
        return f"scores of {held} bytes, at the sizes seen, stay in a cache"
    return found


def _masks(mask: Sequence[Size], scores: Sequence[Size], known: Sizes) -> bool:
    """Whether a mask has all columns, and is broadcast along other dimensions at most."""
    if not mask or not known.equal(mask[-1], scores[-1]):
        return False
    rows = zip(reversed(mask), reversed(scores))
    return len(mask) <= len(scores) and all(m == 1 or known.equal(m, s) for m, s in rows)


def _step(found: Scored, x: Value, known: Sizes) -> Value | str:
    """Note what the op that gives `x` does to the scores; returns those, or why not."""
    node = x.node
    assert node is not None
    if known.keeps_order(node):
        return node.args[0]
    handler = _HANDLERS.get(node.op)
    inner = handler(found, node) if handler else f"{node.op} on the scores"
    if isinstance(inner, Value) and not known.alike(tensor_type(inner).shape, found.shape):
        return "scores are broadcast"
    return inner


def _scale(op: str) -> Callable[[Scored, Node], Value | str]:
    def note(found: Scored, node: Node) -> Value | str:
        x, by = node.args
        if not isinstance(by, (int, float, IntExpr, FloatExpr)) or (op == "div" and by == 0):
            return "scores are scaled by a tensor"
        found.scale = real(op, found.scale, by)
        return x

    return note


def _widen(found: Scored, node: Node) -> Value | str:
    (x,) = node.args
    to = tensor_type(node.outs[0]).dtype
    return x if to is torch.float32 else f"scores are converted to {to}"


def _add(found: Scored, node: Node) -> Value | str:
    x, mask = node.args
    if node.kwargs or not (isinstance(x, Value) and isinstance(mask, Value)):
        return "a number is added to the scores"
    if tensor_type(x).ndim < len(found.shape) or 1 in tensor_type(x).shape:
        x, mask = mask, x
    if found.filled or found.scale != 1.0:
        return "masked scores are scaled or masked again"
    found.added.append(mask)
    return x


def _fill(found: Scored, node: Node) -> Value | str:
    if node.op == "aten.where.self":
        mask, yes, no = node.args
        replaced = constant(no) is None
        x, number = (no, constant(yes)) if replaced else (yes, constant(no))
    else:
        x, mask, number = node.args
        replaced = True
    if not isinstance(number, (int, float)) or not isinstance(x, Value):
        return "scores are replaced by a tensor"
    if not number <= SURE:
        return f"{number} is filled in, which leaves masked scores a weight"
    if found.masked or found.scale != 1.0:
        return "masked scores are scaled or masked again"
    found.filled = mask, replaced, float(number)
    return x


_HANDLERS: dict[str, Callable[[Scored, Node], Value | str]] = {
    "aten.mul.Tensor": _scale("mul"),
    "aten.mul.Scalar": _scale("mul"),
    "aten.div.Tensor": _scale("div"),
    "aten.div.Scalar": _scale("div"),
    "aten._to_copy.default": _widen,
    "aten.add.Tensor": _add,
    "aten.masked_fill.Scalar": _fill,
    "aten.where.self": _fill,
}


# ---- what stands there then


def _fused(g: Rewriter, node: Node, found: Scored, known: Sizes) -> Value:
    """The product of weights and v, by the op."""
    lead = found.shape[:-2]
    assert found.product is not None
    q, turned = (_operand(g, g.resolve(x), lead, known) for x in found.product.args)
    k = g.call("aten.transpose.int", turned, -1, -2)
    q, k, v = (_rows_dense(g, x) for x in (q, k, _operand(g, node.args[1], lead, known)))
    mask, dead = _mask(g, found, tensor_type(q).dtype)
    dense = is_contiguous(tensor_type(q).shape, tensor_type(q).strides)
    out = g.call("jitshape.attention", q, k, v, mask, found.scale, dense)
    if dead is not None:
        out = where(g, dead, math.nan, out)
    type_ = tensor_type(node.outs[0])
    out = g.call("aten.clone.default", out, memory_format=torch.contiguous_format)
    return g.emit("aten.view.default", (out, list(type_.shape)), {}, type_)


def _operand(g: Rewriter, x: Value, lead: Sequence[Size], known: Sizes) -> Value:
    """An operand (batch, m, n) of a product, as (batch, heads, m, n): the tensor that it was
    flattened and copied from, where there is one."""
    _, *rows = tensor_type(x).shape
    shape, source, y = (*lead, *rows), None, x
    while len(lead) == 2:
        if known.alike(tensor_type(y).shape, shape):
            source = y
        if y.node is None or y.node.op == TURN or not known.keeps_order(y.node):
            break
        y = y.node.args[0]
    if source is not None:
        return source
    if len(lead) == 1:
        return g.call("aten.unsqueeze.default", x, 0)
    type_ = tensor_type(x)
    outer, *inner = type_.strides
    strides = (lead[1] * outer, outer, *inner)
    split = TensorType(shape, strides, type_.dtype, type_.device, type_.offset)
    return g.emit("aten.view.default", (x, list(shape)), {}, split)


def _rows_dense(g: Rewriter, x: Value) -> Value:
    if same(tensor_type(x).strides[-1], 1):
        return x
    return g.call("aten.clone.default", x, memory_format=torch.contiguous_format)


def _mask(g: Rewriter, found: Scored, dtype: torch.dtype) -> tuple[Value | None, Value | None]:
    """What is added to the scores, and where rows are of -inf alone; both of rank 4 or None."""
    if found.filled is not None:
        mask, replaced, number = found.filled
        mask = _rank_4(g, g.resolve(mask))
        if not replaced:
            mask = call(g, "logical_not", mask)
        zeros = g.call("aten.full.default", list(tensor_type(mask).shape), 0.0, dtype=dtype)
        if number != -math.inf:
            return where(g, mask, NOTHING, zeros), None
        added = where(g, mask, number, zeros)
    elif not found.added:
        return None, None
    else:
        added = _sum(g, found.added)
    top = call(g, "amax", added, [-1], True)
    return added, g.call("aten.eq.Scalar", top, -math.inf)


def _sum(g: Rewriter, masks: list[Value]) -> Value:
    added = _rank_4(g, g.resolve(masks[0]))
    for other in masks[1:]:
        added = add(g, added, _rank_4(g, g.resolve(other)))
    return added


def _rank_4(g: Rewriter, mask: Value) -> Value:
    while tensor_type(mask).ndim < 4:
        mask = g.call("aten.unsqueeze.default", mask, 0)
    return mask
