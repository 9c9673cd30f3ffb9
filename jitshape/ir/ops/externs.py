"""Types of ops without a block, and eager's own error for a call that does not fit.

In: an ATen op and graph-level arguments.  Out: output types.  The op is run on zeros at the sizes
of this call and at two other assignments; an output size that equals an argument's size in all
of them is taken to be that size, a constant one is static, any other is unbacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from jitshape.ir.graph import Value, map_leaves
from jitshape.ir.strides import dense
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import ScalarType, TensorType

LARGEST = 1 << 24  # elements of a tensor that may be materialised
SHIFTS = ((3, 2), (5, 3))  # the other assignments: factors of symbols by parity of their number


def materialise(env: Any, tree: Any, number: Callable[[Size], int], distinct: bool) -> Any:
    """Arguments with zeros for tensors, or `distinct` values, and numbers for sizes."""

    def leaf(x: Any) -> Any:
        if type(x) is IntExpr:
            return number(x)
        if type(x) is not Value:
            return x
        if isinstance(x.type, ScalarType):
            return 1
        shape = [number(s) for s in x.type.shape]
        strides = [number(s) for s in x.type.strides]
        if math.prod(shape) > LARGEST:
            return torch.empty_strided(shape, strides, dtype=x.type.dtype, device="meta")
        made = torch.empty_strided(shape, strides, dtype=x.type.dtype).zero_()
        return made.copy_(torch.arange(made.numel()).view(shape)) if distinct else made

    return map_leaves(leaf, tree)


def run(
    env: Any,
    func: Any,
    args: Any,
    kwargs: Any,
    number: Callable[[Size], int],
    distinct: bool = False,
) -> Any:
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        real_args, real_kwargs = materialise(env, (list(args), dict(kwargs)), number, distinct)
        return func(*real_args, **real_kwargs)


def _at_call(env: Any) -> Callable[[Size], int]:
    def number(size: Size) -> int:
        value = env.actual(size)
        return 7 if value is None else value

    return number


def _shifted(env: Any, factors: tuple[int, int]) -> Callable[[Size], int]:
    """Sizes as if every symbol had another value than at this call."""
    values = {}
    for place, symbol in enumerate(env.symbols.values()):
        values[symbol.name] = 2 + place + factors[0] * (place % 2) + factors[1]

    def number(size: Size) -> int:
        value = size if type(size) is int else size.algebra.evaluate(env.simplify(size), values)
        assert value is not None
        return value

    return number


def eager_error(env: Any, func: Any, args: Any, kwargs: Any, error: Exception) -> Exception:
    """What eager raises for this call; `error` if eager does not."""
    try:
        run(env, func, args, kwargs, _at_call(env))
    except type(error) as eager:
        return eager.with_traceback(None)
    except Exception:
        return error
    return error


def extern_types(env: Any, func: Any, args: Any, kwargs: Any) -> tuple[list, bool]:
    """(types of the outputs, whether there is one that is not in a list)."""
    result = run(env, func, args, kwargs, _at_call(env))
    varied = _rows(result)
    if torch.Tag.dynamic_output_shape in func.tags:  # sizes depend on the values
        varied = _rows(run(env, func, args, kwargs, _at_call(env), distinct=True))
    numbers = [_shifted(env, factors) for factors in SHIFTS]
    others = []
    for number in numbers:
        try:
            others.append(_rows(run(env, func, args, kwargs, number)))
        except Exception:
            others.append(None)
    single = isinstance(result, torch.Tensor)
    candidates = _sizes_in(args, kwargs)
    types = []
    for place, tensor in enumerate(_rows(result)):
        if not isinstance(tensor, torch.Tensor):
            types.append(None)
            continue
        shape = tuple(
            _size(env, size, place, dim, others, numbers, candidates)
            if varied[place].shape[dim] == size
            else env.unbacked()
            for dim, size in enumerate(tensor.shape)
        )
        order = sorted(reversed(range(tensor.ndim)), key=lambda d, t=tensor: t.stride(d))
        types.append(TensorType(shape, dense(shape, order), tensor.dtype, _device(args)))
    return types, single


def _rows(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _device(args: Any) -> torch.device:
    devices: list[torch.device] = []
    map_leaves(
        lambda x: (
            devices.append(x.type.device)
            if type(x) is Value and isinstance(x.type, TensorType)
            else None
        ),
        list(args),
    )
    return devices[0] if devices else torch.device("cpu")


def _sizes_in(args: Any, kwargs: Any) -> list[IntExpr]:
    """The symbolic sizes of the arguments, in order of appearance."""
    found: dict[IntExpr, None] = {}

    def note(x: Any) -> None:
        if type(x) is IntExpr:
            found.setdefault(x)
        elif type(x) is Value and isinstance(x.type, TensorType):
            for size in x.type.shape:
                note(size)

    map_leaves(note, (list(args), dict(kwargs)))
    return list(found)


def _size(
    env: Any, size: int, place: int, dim: int, others: list, numbers: list, candidates: list
) -> Size:
    """The expression of an output size."""
    seen = [None if rows is None else rows[place].shape[dim] for rows in others]
    for candidate in candidates:
        at_call = env.actual(candidate)
        values = [number(candidate) for number in numbers]
        if at_call in (size, None) and all(s in (None, v) for s, v in zip(seen, values)):
            return candidate
    if not candidates or all(s == size for s in seen):
        return size
    for candidate in candidates:  # padding adds a number
        at_call = env.actual(candidate)
        more = size - at_call if at_call is not None else 0
        if more and all(s == number(candidate) + more for s, number in zip(seen, numbers)):
            return candidate + more
    return env.unbacked()
