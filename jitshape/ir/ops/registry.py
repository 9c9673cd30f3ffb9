"""The registry of ops: each op is one block, in the file of its family.

A block is a class; its decorator names the ATen overload(s) and the family, the family gives
the defaults.  What a block may define (all static methods):

    type(env, *args, **kwargs) -> TensorType | ScalarType | list of such | None
        output type(s) from the call's arguments, where tensors appear as graph Values
        (`x.type.shape`), integers as Size.  Facts are asked of `env` (ShapeEnv), which guards.
    check(env, *args, **kwargs)
        raises eager's error for a call of the program that does not fit; what it asks of sizes
        becomes facts.  Ops that a composite is rewritten into are not checked
    alias(args) -> Value            view and in-place families: the argument whose storage is shared
    lower(b, *args, **kwargs)       pointwise family: a scalar expression, built with backend
        loops' Builder `b` (b.exp(x), b.add(x, y), b.where(c, x, y), b.const(v, dtype)); tensor
        arguments arrive as scalars of that tensor's element, Python numbers as they are
    index(b, index, x, *args)       view family: maps an index tuple of the output to one of `x`
    reduce = "sum" | ...            reduction family: combine op; `prepare(b, x, ...)` runs on the
        element before, `finish(b, acc, count, ...)` on the result
    left_to_aten(*args) -> bool     whether this call has no kernel, but is one of ATen's
    pieces(*args) -> (part, place)s index family: the arguments that make up the result, each
        with the map from its indices to the result's
    combine, dimension(x, dim)      scan family: the op that joins the total and an element; the
        dimension it runs along
    decompose(g, node, *args, **kwargs) -> Value | tuple[Value, ...]
        composite family: rewrites the node into other ops, emitted through `g.call(op, *args,
        **kwargs) -> Value` (ir/rewrite.py), before the backend sees the graph
    samples() -> list of (args, kwargs) with real tensors, for the differential tests
    stored = (1,)                   the arguments that become elements (ir/ops/elements.py)
    functional = "aten.x"           in-place family: the pure op it stands for
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FAMILIES = (
    "pointwise",
    "reduction",
    "view",
    "scan",  # running sums and products along a dimension
    "factory",
    "inplace",
    "random",
    "index",  # gathers, scatters, cat, pad: data movement
    "extern",  # matmul, convolution, sdpa, sort: calls of ATen
    "composite",  # decomposed before the backend sees it
)


@dataclass(frozen=True)
class OpDef:
    """Everything known about one ATen overload, such as "aten.add.Tensor"."""

    name: str
    family: str
    block: type
    attributes: dict[str, Any] = field(default_factory=dict)

    def has(self, method: str) -> bool:
        return getattr(self.block, method, None) is not None

    @functools.cached_property
    def is_run(self) -> bool:
        return self.has("run")

    @functools.cached_property
    def left_to_aten_rule(self) -> Callable[..., bool] | None:
        return getattr(self.block, "left_to_aten", None)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        return getattr(self.block, method)

    @property
    def mutates(self) -> bool:
        return self.family == "inplace"

    @property
    def torch_op(self) -> Any:
        """The ATen overload itself."""
        import torch

        namespace, packet, overload = self.name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


OPS: dict[str, OpDef] = {}


def op(*names: str, family: str, base: type = object, **attributes: Any) -> Callable[[type], type]:
    """Register the decorated block for each overload in `names` ("aten.add.Tensor"); `base`
    gives the methods that the block leaves out."""
    assert family in FAMILIES, family

    def register(block: type) -> type:
        merged = type(block.__name__, (block, base), {"__doc__": block.__doc__})
        for name in names:
            full = name if name.count(".") == 2 else f"{name}.default"
            assert full not in OPS, f"{full} has a block already"
            OPS[full] = OpDef(full, family, merged, attributes)
        return merged

    return register
