"""In-place ops: each is the name of the pure op whose result it writes to its first argument."""

from __future__ import annotations

from typing import Any

import torch

from jitshape.ir.ops.families import inplace
from jitshape.ir.ops.registry import OPS, op

# Where the pure op is not the in-place op's name without the underscore.
NAMED = {
    "aten.copy_.default": "aten.copy.default",
    "aten.zero_.default": "aten.zero.default",
    "aten.fill_.Scalar": "aten.fill.Scalar",
    "aten.fill_.Tensor": "aten.fill.Tensor",
    "aten.bernoulli_.Tensor": "aten.bernoulli.Tensor",
    "aten.normal_.default": "aten.normal_functional.default",
    "aten.uniform_.default": "aten.uniform.default",
    "aten.exponential_.default": "aten.exponential.default",
    "aten.pow_.Scalar": "aten.pow.Tensor_Scalar",
    "aten.pow_.Tensor": "aten.pow.Tensor_Tensor",
    "aten._index_put_impl_.default": "aten.index_put.default",
}


@op("jitshape.on_copies", family="extern")
class OnCopies:
    """A call of an op that writes to the arguments at `written`, on copies of these: its results,
    then the copies.  `names` are the keywords of the last values.  The trace has its types."""

    row = True

    def run(name, written, names, values):
        values = list(values)
        copies = [values[place].clone() for place in written]
        for place, copy in zip(written, copies):
            values[place] = copy
        count = len(values) - len(names)
        namespace, packet, overload = name.split(".")
        target = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        results = target(*values[:count], **dict(zip(names, values[count:])))
        if results is None:
            return tuple(copies)
        return (*(results if isinstance(results, (tuple, list)) else (results,)), *copies)


FAMILIES = ("pointwise", "index", "extern", "factory")


def _register() -> None:
    """Every op with a block that ATen has in place too."""
    for name, definition in list(OPS.items()):
        namespace, packet, overload = name.split(".")
        target = f"{namespace}.{packet}_.{overload}"
        if definition.family in FAMILIES and target not in NAMED and _exists(packet, overload):
            inplace(target, functional=name)
    for name, functional in NAMED.items():
        inplace(name, functional=functional)
    inplace("aten.bernoulli_.float", functional="aten.bernoulli.p", canonical=_with_probability)


def _with_probability(env: Any, x: Any, p: float = 0.5, generator: Any = None) -> tuple:
    """The in-place op alone has a default for `p`."""
    return (x, p), {"generator": generator} if generator is not None else {}


def _exists(packet: str, overload: str) -> bool:
    found = getattr(torch.ops.aten, f"{packet}_", None)
    return found is not None and overload in found.overloads()


_register()
