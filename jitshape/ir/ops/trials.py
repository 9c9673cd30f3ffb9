"""Calls tried on dummies: what eager refuses for its dtypes, ranks or numbers.

In: an ATen op that has a block, with the arguments of a call and the types of its results.  Out:
nothing, or eager's error.  Invariant: a call of a kind that was taken once is not tried again, so
what depends on sizes is no matter of this: for that a block has `check`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from jitshape.ir.graph import Value, map_leaves
from jitshape.ir.ops.externs import HARMLESS, LARGEST, ONES, ZEROS, run
from jitshape.ir.ops.registry import OpDef
from jitshape.ir.symint import Size
from jitshape.ir.types import TensorType

FAMILIES = frozenset(("pointwise", "reduction", "scan", "inplace", "index", "composite", "factory"))
SMALL = 1 << 12  # elements of a tensor on which a call costs next to nothing
TINY = 3  # sizes instead of larger ones
KEPT = 1 << 14
MASKS = (torch.bool, torch.uint8)
_taken: set[Hashable] = set()


def try_call(env: Any, definition: OpDef, args: Any, kwargs: Any, types: Iterable[Any]) -> None:
    """Raise what eager raises for a call whose kind was not met before."""
    if definition.family not in FAMILIES or not definition.name.startswith("aten."):
        return
    key = _kind(definition, args, kwargs)
    if key is None or key in _taken or _has_mask(args):
        return
    count = _counts(env, args, kwargs, types)
    if not count or max(count) > LARGEST:
        return
    if max(count) <= SMALL:
        _run(env, definition, args, kwargs, lambda size: _at_call(env, size))
    elif definition.family == "factory":
        if not _has_shape(args):
            return
        _run(env, definition, _tiny(args), kwargs, lambda size: min(_at_call(env, size), TINY))
    elif not _is_taken_when_tiny(env, definition, args, kwargs):
        _run(env, definition, args, kwargs, lambda size: _at_call(env, size))
    if 0 in count:  # eager may not have looked
        return
    if len(_taken) >= KEPT:
        _taken.clear()
    _taken.add(key)


def _kind(definition: OpDef, args: Any, kwargs: Any) -> Hashable:
    """Everything but the sizes of tensors; None where this is not for a CPU."""
    kind: list[Hashable] = [definition.name]
    devices: set[str] = set()

    def note(x: Any) -> None:
        if isinstance(x, torch.device):
            devices.add(x.type)
        elif type(x) is not Value:
            kind.append((type(x), x if isinstance(x, (bool, int, float, complex, str)) else str(x)))
        elif isinstance(x.type, TensorType):
            kind.append((x.type.dtype, x.type.ndim))
            devices.add(x.type.device.type)
        else:
            kind.append(x.type.dtype)

    map_leaves(note, (list(args), sorted(kwargs.items())))
    return None if devices - {"cpu"} else tuple(kind)


def _has_mask(args: Any) -> bool:
    """Whether a list of indices has a mask: how many elements it takes is in its data, of which a
    dummy has none."""
    lists = [x for x in args if type(x) in (list, tuple)]
    values = [x for row in lists for x in row if type(x) is Value]
    return any(isinstance(x.type, TensorType) and x.type.dtype in MASKS for x in values)


def _counts(env: Any, args: Any, kwargs: Any, types: Iterable[Any]) -> list[int]:
    """The numbers of elements of all tensors of a call."""
    found = [t for t in types if isinstance(t, TensorType)]
    map_leaves(
        lambda x: found.append(x.type) if isinstance(getattr(x, "type", None), TensorType) else 0,
        (list(args), dict(kwargs)),
    )
    return [math.prod(_at_call(env, size) for size in type_.shape) for type_ in found]


def _at_call(env: Any, size: Size) -> int:
    value = env.actual(size)
    return TINY if value is None else value


def _has_shape(args: Any) -> bool:
    """Whether a new tensor is like another or of sizes in a list, not of a number of elements."""
    return any(type(x) in (list, tuple, Value) for x in args)


def _tiny(args: Any) -> list[Any]:
    """With small sizes in the lists."""
    return [[1] * len(x) if type(x) in (list, tuple) else x for x in args]


def _is_taken_when_tiny(env: Any, definition: OpDef, args: Any, kwargs: Any) -> bool:
    try:
        _run(env, definition, args, kwargs, lambda size: min(_at_call(env, size), TINY))
    except Exception:
        return False
    return True


def _run(
    env: Any, definition: OpDef, args: Any, kwargs: Any, number: Callable[[Size], int]
) -> None:
    """Some contents are refused by some ops: the call is taken if any is."""
    first: Exception | None = None
    for fill in (HARMLESS, ZEROS, ONES):
        try:
            run(env, definition.torch_op, args, kwargs, number, fill)
            return
        except Exception as error:
            first = first or error
    assert first is not None
    raise first.with_traceback(None)
