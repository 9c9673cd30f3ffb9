"""Types of ops without a block, and eager's own error for a call that does not fit.

In: an ATen op and graph-level arguments.  Out: output types.  The op is run on dummies at the sizes
of this call and at other sizes; an output size becomes the simplest expression of the arguments'
sizes that fits all runs (ops/fitting.py).  Where none does, the sizes become facts; where the size
depends on the data, it is unbacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from jitshape.errors import DataDependent
from jitshape.ir.conditions import compare
from jitshape.ir.graph import Node, Value, map_leaves
from jitshape.ir.ops.fitting import Fit
from jitshape.ir.strides import dense
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import ScalarType, TensorType

LARGEST = 1 << 24  # elements of a tensor that may be materialised
VARIED = 1 << 18  # elements up to which contents are worth their time
OF_TORCH = ("aten", "prims", "jitshape", "quantized")  # ops whose shapes follow from arguments
TELLING = 7  # elements of which some can be alike
SLACK = 4096  # elements behind a dummy: a kernel may trust that sizes agree
# Contents of dummies.  Harmless: integers, which are places, are 1; matrices are regular.
HARMLESS, EYE, ZEROS, ONES, DISTINCT, NOWHERE = range(6)  # the last: on the meta device


def materialise(env: Any, tree: Any, number: Callable[[Size], int], fill: int) -> Any:
    """Arguments with dummies for tensors, and numbers for sizes."""

    def leaf(x: Any) -> Any:
        if type(x) is IntExpr:
            return number(x)
        if type(x) is FloatExpr:
            value = env.actual(x)
            return 0.5 if value is None else value
        if type(x) is not Value:
            return x
        if isinstance(x.type, ScalarType):
            return 1
        shape = [number(s) for s in x.type.shape]
        strides = [number(s) for s in x.type.strides]
        if math.prod(shape) > LARGEST or fill == NOWHERE:
            return torch.empty_strided(shape, strides, dtype=x.type.dtype, device="meta")
        reach = 1 + sum((n - 1) * st for n, st in zip(shape, strides) if n)
        one = fill == ONES or (fill == HARMLESS and _holds_integers(x))
        memory = torch.empty(4 * max(reach, 1) + SLACK, dtype=x.type.dtype).fill_(one)
        made = memory.as_strided(shape, strides)
        if fill == EYE and len(shape) > 1:
            return made.copy_(torch.eye(*shape[-2:]))
        if fill == DISTINCT:
            made.copy_(torch.arange(made.numel()).view(shape))
        elif fill == HARMLESS and made.is_floating_point() and made.numel() < VARIED:
            made.copy_(torch.arange(made.numel()).sin().view(shape))
        return made

    return map_leaves(leaf, tree)


def _holds_integers(x: Any) -> bool:
    """Whether the tensor may hold places, which kernels trust."""
    dtype = x.type.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def run(
    env: Any,
    func: Any,
    args: Any,
    kwargs: Any,
    number: Callable[[Size], int],
    fill: int = HARMLESS,
) -> Any:
    with torch._C._DisableTorchDispatch(), torch.no_grad(), _generator_kept(func):
        real_args, real_kwargs = materialise(env, (list(args), dict(kwargs)), number, fill)
        return func(*real_args, **real_kwargs)


@contextmanager
def _generator_kept(func: Any) -> Iterator[None]:
    """What is drawn here is drawn again when the program runs."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


def at_call(env: Any, size: Size) -> int:
    """A size as it is at this call."""
    value = env.actual(size)
    return 7 if value is None else value


def eager_error(env: Any, func: Any, args: Any, kwargs: Any, error: Exception) -> Exception:
    """What eager raises for this call; `error` if eager does not."""
    try:
        run(env, func, args, kwargs, partial(at_call, env))
    except type(error) as eager:
        return eager.with_traceback(None)
    except Exception:
        return error
    return error


def extern_types(
    env: Any, func: Any, args: Any, kwargs: Any, in_backward: bool = False
) -> tuple[list, bool]:
    """(types of the outputs, whether there is one that is not in a list)."""

    def rows(number: Callable[[Size], int], fill: int) -> list[Any]:
        result = run(env, func, args, kwargs, number, fill)
        return list(result) if isinstance(result, (tuple, list)) else [result]

    def elsewhere(number: Callable[[Size], int]) -> list[Any]:
        """At other sizes.  Kernels trust sizes that they are given as numbers to agree with those
        of the tensors: there none runs."""
        if takes_sizes:
            try:
                return rows(number, NOWHERE)
            except NotImplementedError:  # for the meta device
                pass
        return rows(number, fill)

    takes_sizes = "SymInt" in str(func._schema)
    fill, found = _first_that_runs(rows, partial(at_call, env))
    varied = [found]
    if torch.Tag.dynamic_output_shape in func.tags:  # sizes depend on the values
        varied = _with_other_contents(env, rows)
    fit = Fit(env, sizes_in(args, kwargs), _checks_sizes(func, args))
    fit.run(list(map(_shape, found)), lambda number: list(map(_shape, elsewhere(number))))
    types: list[TensorType | None] = []
    for place, tensor in enumerate(found):
        if not isinstance(tensor, torch.Tensor):
            types.append(None)
            continue
        if tensor.layout is not torch.strided:
            raise DataDependent(
                f"{func} gives a tensor of layout {tensor.layout}",
                because="graphs hold strided tensors",
                avoid="jitshape.disable round the function that needs it",
            )
        shape = tuple(
            _found(env, func, fit.size(size, place, dim), in_backward)
            if len({row[place].shape[dim] for row in varied}) == 1
            else env.unbacked()
            for dim, size in enumerate(tensor.shape)
        )
        order = sorted(reversed(range(tensor.ndim)), key=lambda d, t=tensor: t.stride(d))
        types.append(TensorType(shape, dense(shape, order), tensor.dtype, _device(args)))
    schema = func._schema.returns
    return types, len(schema) == 1 and not str(schema[0].type).startswith("List")


def _with_other_contents(env: Any, rows: Callable[..., list[Any]]) -> list[list[Any]]:
    """Results for dummies that differ in their contents alone, with elements enough to tell."""

    def enough(size: Size) -> int:
        return max(at_call(env, size), TELLING)

    made: list[list[Any]] = []
    for number in (enough, partial(at_call, env)):
        for fill in (DISTINCT, ZEROS, ONES):
            try:
                made.append(rows(number, fill))
            except Exception:  # some refuse some contents, and sizes that do not fit
                continue
        if len(made) > 1:
            break
        made.clear()
    return made


def _found(env: Any, func: Any, size: Size, in_backward: bool) -> Size:
    """A size of a result.  What a custom op computes it from may change where no guard sees it, so
    that it is looked at when the graph runs; in backward by `check_shape`, as a call cannot be
    made again from there."""
    if in_backward or func.namespace in OF_TORCH:
        return size
    found = env.unbacked()
    env.likely(compare("eq", found, size), f"the shape that {func} gives")
    return found


def is_checked(node: Node) -> bool:
    """Whether `check_shape` looks at the results."""
    return node.backward and node.op.partition(".")[0] not in OF_TORCH


def check_shape(op: str, result: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raises DataDependent where a custom op in backward gave another shape than when traced."""
    if tuple(result.shape) != shape:
        raise DataDependent(
            f"{op} gives a tensor of shape {tuple(result.shape)} in backward, not {shape}",
            because="its shape depends on something that is no argument and has changed",
            avoid="make that an argument of the op",
        )


def _first_that_runs(rows: Callable, number: Callable[[Size], int]) -> tuple[int, list[Any]]:
    """Some ops refuse zeros, some ones, some all but regular matrices, some all that they do not
    know to fit."""
    try:
        return HARMLESS, rows(number, HARMLESS)
    except Exception as error:
        fills = [EYE, ZEROS, ONES, DISTINCT]
        if not isinstance(error, NotImplementedError) and "not implemented" not in str(error):
            fills.append(NOWHERE)
        for fill in fills:
            try:
                return fill, rows(number, fill)
            except Exception:
                continue
        raise error


def _checks_sizes(func: Any, args: Any) -> bool:
    """Whether the op can be trusted to refuse sizes that do not fit: not a part of a fused op or
    of a backward formula, and nothing that counts on the places it is given."""
    tensors = [x for x in args if isinstance(x, Value) and isinstance(x.type, TensorType)]
    if len(tensors) > 2 or any(map(_holds_integers, tensors)):
        return False
    return "backward" not in str(func)


def _shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if isinstance(x, torch.Tensor) else ()


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


def sizes_in(args: Any, kwargs: Any) -> list[IntExpr]:
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
