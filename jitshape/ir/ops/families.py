"""What the ops of a family have in common: promotion, broadcasting, output layout, defaults.

In: a call's arguments, tensors as graph Values, integers as Size.  Out: output types; for
pointwise ops the scalar expression.  Invariant: shape, strides, dtype as eager's (ir/strides.py
says where strides may differ); asks `env` only what the program depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from jitshape.ir.conditions import compare
from jitshape.ir.graph import Node, Value, tensor_type, values_in
from jitshape.ir.ops.registry import OPS, op
from jitshape.ir.overlap import check_internal_overlap, check_no_overlap, check_partial_overlap
from jitshape.ir.strides import (
    Shape,
    broadcast,
    broadcasts_to,
    elementwise_strides,
    preserved_strides,
    row_major,
)
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import IntExpr, Size
from jitshape.ir.types import TensorType

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
HELD_BY_HALVES = torch.bool, torch.int8, torch.uint8  # all of their elements are some of a half's
BOOL, INT, FLOAT, COMPLEX = range(4)  # categories of dtypes, each wins over those before it
_COMPLEX_OF = {
    torch.float64: torch.complex128,
    torch.float32: torch.complex64,
    torch.float16: torch.complex32,
    torch.bfloat16: torch.complex64,
}


# ---- types


def fresh(shape: Sequence[Size], dtype: torch.dtype, device: torch.device) -> TensorType:
    """A new contiguous tensor."""
    shape = tuple(shape)
    return TensorType(shape, row_major(shape), dtype, device)


def like(x: Value, shape: Sequence[Size] | None = None, dtype: Any = None) -> TensorType:
    """A new contiguous tensor with the dtype and device of `x` unless given."""
    type_ = x.type
    shape = type_.shape if shape is None else shape
    return fresh(shape, dtype or type_.dtype, type_.device)


def preserved(env: Any, x: Value, dtype: Any = None) -> TensorType:
    """A new tensor laid out as `x`, without gaps or overlap: empty_like's."""
    old = x.type
    strides = preserved_strides(env, old.shape, old.strides)
    return TensorType(old.shape, strides, dtype or old.dtype, old.device)


def is_tensor(x: Any) -> bool:
    return type(x) is Value and type(x.type) is TensorType


def wrap_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front."""
    limit = rank if rank else 1
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], "
            f"but got {dim})"
        )
    return dim % limit


# ---- what ops demand of sizes


def require(env: Any, condition: Any, message: str) -> None:
    """What a call of the program must fulfil: a fact, or eager's error."""
    if not env.assume(condition):
        raise RuntimeError(message)


def require_shape(env: Any, shape: Sequence[Size], wanted: Sequence[Size], message: str) -> None:
    """Two shapes that must agree."""
    if len(shape) != len(wanted):
        raise RuntimeError(message)
    for size, other in zip(shape, wanted):
        if size is not other:
            require(env, compare("eq", size, other), message)


def require_elements(env: Any, shape: Sequence[Size], message: str) -> None:
    """A shape that must hold at least one element."""
    for size in shape:
        require(env, compare("ge", size, 1), message)


# ---- type promotion


def category(dtype: torch.dtype) -> int:
    if dtype.is_floating_point:
        return FLOAT
    if dtype.is_complex:
        return COMPLEX
    return BOOL if dtype is torch.bool else INT


def number_dtype(x: Any) -> torch.dtype:
    """The dtype that a Python number takes part in promotion with."""
    if type(x) is Value:
        dtype = x.type.dtype
        return torch.get_default_dtype() if dtype.is_floating_point else dtype
    if isinstance(x, bool):
        return torch.bool
    if isinstance(x, (int, IntExpr)):
        return torch.int64
    if isinstance(x, complex):
        return _COMPLEX_OF[torch.get_default_dtype()]
    return torch.get_default_dtype()


def _join(a: torch.dtype | None, b: torch.dtype) -> torch.dtype:
    return b if a is None or a is b else torch.promote_types(a, b)


def _prefer(strong: torch.dtype | None, weak: torch.dtype | None) -> torch.dtype | None:
    """`strong`, unless `weak` is of a higher category."""
    if strong is None or weak is None:
        return strong or weak
    a, b = category(strong), category(weak)
    if a >= b:
        return strong
    if a == FLOAT:
        return _COMPLEX_OF[strong]
    return weak if a == BOOL else torch.promote_types(strong, weak)


def promote(operands: Iterable[Any]) -> torch.dtype:
    """The common dtype: tensors with dimensions win within a category over those without, and
    these over Python numbers."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for x in operands:
        if is_tensor(x):
            if x.type.shape:
                dims = _join(dims, x.type.dtype)
            else:
                zeros = _join(zeros, x.type.dtype)
        elif x is not None:
            numbers = _join(numbers, number_dtype(x))
    if zeros is None and numbers is None:
        assert dims is not None
        return dims
    common = _prefer(dims, _prefer(zeros, numbers))
    assert common is not None
    return common


def to_float(dtype: torch.dtype) -> torch.dtype:
    return torch.get_default_dtype() if category(dtype) <= INT else dtype


RESULTS: dict[str, Callable[[torch.dtype], torch.dtype]] = {
    "same": lambda common: common,
    "float": to_float,
    "bool": lambda common: torch.bool,
    "magnitude": lambda common: common.to_real() if common.is_complex else common,
    "angle": lambda common: RESULTS["magnitude"](to_float(common)),
}


# ---- pointwise


def elementwise(
    env: Any,
    tensors: Sequence[Value],
    dtype: torch.dtype,
    common: torch.dtype | None = None,
    numbers: bool = False,
) -> TensorType:
    """The type of a result computed elementwise from `tensors`, which are cast to `common`, and
    `numbers`."""
    first = tensor_type(tensors[0])
    if len(tensors) == 1:
        strides = first.strides
        if numbers or strides != row_major(first.shape):
            strides = elementwise_strides(env, first.shape, [_layout(env, first, common)], numbers)
        return TensorType(first.shape, strides, dtype, first.device)
    wide = [type_ for x in tensors if (type_ := tensor_type(x)).shape]
    if not wide:
        return TensorType((), (), dtype, first.device)
    shape = wide[0].shape if len(wide) == 1 else broadcast(env, *(t.shape for t in wide))
    numbers = numbers or len(wide) < len(tensors)
    strides = elementwise_strides(env, shape, [_layout(env, t, common) for t in wide], numbers)
    return TensorType(shape, strides, dtype, wide[0].device)


def _layout(env: Any, type_: TensorType, common: torch.dtype | None) -> tuple[Shape, Shape]:
    """Shape and strides of an operand, after the copy that a cast makes on the CPU."""
    if common is None or type_.dtype is common or type_.device.type != "cpu":
        return type_.shape, type_.strides
    return type_.shape, preserved_strides(env, type_.shape, type_.strides)


class Pointwise:
    """An output element from the elements at the same place.  The first `operands` arguments are
    tensors or numbers and take part in broadcasting and promotion; the rest are parameters."""

    operands = 1
    result = "same"
    exact: tuple[int, ...] = ()  # places of numbers that half types are computed with unrounded
    rounds_all = False  # to a half type, the parameters as the operands

    @classmethod
    def common(cls, *args: Any) -> torch.dtype:
        """The dtype that the operands are cast to."""
        dtype = promote(args[: cls.operands])
        return to_float(dtype) if cls.result in ("float", "angle") else dtype

    @classmethod
    def type(cls, env: Any, *args: Any, **kwargs: Any) -> TensorType:
        common = cls.common(*args)
        tensors = [x for x in args[: cls.operands] if is_tensor(x)]
        numbers = len(tensors) < cls.operands
        return elementwise(env, tensors, RESULTS[cls.result](common), common, numbers)

    @classmethod
    def element(cls, b: Any, node: Node, operand: Callable[[Value | FloatExpr], Any]) -> Any:
        """The output element of `node`; `operand` gives the element of a tensor operand and a
        real of sizes.  The computation runs in f32 or wider; numbers stay Python numbers, except
        the first."""
        common = cls.common(*node.args)
        compute = WIDER.get(common, common)
        real = compute if compute.is_floating_point else torch.get_default_dtype()
        rounds = common in WIDER and node.outs[0].type.device.type == "cpu"

        def convert(place: int, x: Any) -> Any:
            if rounds and (place < cls.operands or cls.rounds_all) and not _is_exact(x, place, cls):
                x = _rounded(b, x, operand, common)
            if type(x) is Value:
                return b.cast(operand(x), compute) if place < cls.operands else operand(x)
            if type(x) is FloatExpr:
                return b.cast(operand(x), real)
            return b.cast(b.scalar(x), compute) if place == 0 else x

        args = [convert(place, x) for place, x in enumerate(node.args)]
        kwargs = {k: convert(cls.operands, x) for k, x in node.kwargs.items()}
        return b.cast(cls.lower(b, *args, **kwargs), node.outs[0].type.dtype)

    @staticmethod
    def lower(b: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _is_exact(x: Any, place: int, block: type[Pointwise]) -> bool:
    """Whether ATen hands `x`, a number or a tensor of no dimensions, on without rounding it."""
    return place in block.exact and not (type(x) is Value and x.type.shape)


def _rounded(b: Any, x: Any, operand: Callable[[Value | FloatExpr], Any], dtype: Any) -> Any:
    """`x` as an element of the half type `dtype`, to which ATen's CPU kernels bring operands before
    they compute in f32: a number if it is one."""
    if type(x) is Value and (x.type.dtype is dtype or x.type.dtype in HELD_BY_HALVES):
        return x
    if isinstance(x, (int, float)):
        near = torch.tensor(float(x), dtype=torch.float64, device="cpu").to(dtype).item()
        return x if near == x else near
    if x is None:
        return x
    wide = b.cast(b.scalar(x) if type(x) is IntExpr else operand(x), torch.float32)
    return b.cast(b.cast(wide, dtype), torch.float32)


def pointwise(
    *names: str, operands: int = 1, result: str = "same", **attributes: Any
) -> Callable[[type], type]:
    """Register a pointwise block; `result` names the rule for the output dtype."""

    def register(block: type) -> type:
        block.operands, block.result = operands, result
        return op(*names, family="pointwise", base=Pointwise, **attributes)(block)

    return register


def pointwise_table(
    rows: dict[str, Callable[..., Any]],
    stored: tuple[int, ...] = (),
    exact: tuple[int, ...] = (),
    rounds_all: bool = False,
    **options: Any,
) -> None:
    """Register ops whose block is their lowering, and what is said there of numbers."""
    of_numbers = {"stored": stored, "exact": exact, "rounds_all": rounds_all}
    for name, lower in rows.items():
        block = type(name.split(".")[1], (), {"lower": staticmethod(lower), **of_numbers})
        pointwise(name, **options)(block)


# ---- reductions


def reduced_dims(rank: int, dims: Any) -> tuple[int, ...]:
    """The dimensions that `dims` (None, an int, a list; empty is all) names, in order."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    return tuple(sorted({wrap_dim(d, rank) for d in dims})) if rank else ()


def reduced_shape(shape: Shape, dims: tuple[int, ...], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(shape))
    return tuple(s for d, s in enumerate(shape) if d not in dims)


class Reduction:
    """Combines the elements along `dims`.  `reduce` names the combine op of the loop IR."""

    reduce = "sum"
    integers_to = None  # the dtype that bool and integers are reduced in, if another

    @classmethod
    def arguments(cls, x: Value, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> tuple:
        """(dims, keepdim, requested dtype) of a call."""
        return reduced_dims(x.type.ndim, dim), keepdim, kwargs.get("dtype")

    @classmethod
    def dtype(cls, x: torch.dtype, requested: Any) -> torch.dtype:
        if requested is not None:
            return requested
        return cls.integers_to if cls.integers_to and category(x) <= INT else x

    @classmethod
    def type(cls, env: Any, x: Value, *args: Any, **kwargs: Any) -> TensorType:
        dims, keepdim, requested = cls.arguments(x, *args, **kwargs)
        shape = reduced_shape(x.type.shape, dims, keepdim)
        return fresh(shape, cls.dtype(x.type.dtype, requested), x.type.device)

    @classmethod
    def accumulate(cls, node: Node) -> torch.dtype:
        """The dtype of the accumulator."""
        dtype = node.outs[0].type.dtype
        if cls.reduce in ("any", "all"):
            return torch.bool
        if cls.reduce.startswith("arg"):
            dtype = node.args[0].type.dtype
        return WIDER.get(dtype, dtype)

    @staticmethod
    def prepare(b: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """The scalar that is combined, from an element in the accumulator's dtype."""
        return x

    @staticmethod
    def finish(b: Any, acc: Any, count: Size, *args: Any, **kwargs: Any) -> Any:
        """The result, from the combined value and the number of elements."""
        return acc


def reduction(*names: str, **attributes: Any) -> Callable[[type], type]:
    return op(*names, family="reduction", base=Reduction, **attributes)


# ---- data movement


def index_op(*names: str, **attributes: Any) -> Callable[[type], type]:
    """Of the index family: ops that move elements (ir/ops/indexing.py)."""
    return op(*names, family="index", **attributes)


# ---- views


class View:
    """The memory of the first argument, seen with another shape, strides or offset."""

    @staticmethod
    def alias(args: tuple) -> Value:
        return args[0]


def view(*names: str, **attributes: Any) -> Callable[[type], type]:
    return op(*names, family="view", base=View, **attributes)


def see(
    x: Value, shape: Sequence[Size], strides: Sequence[Size], offset: Size | None = None
) -> TensorType:
    """The type of a view of `x`."""
    old = x.type
    where = old.offset if offset is None else offset
    return TensorType(tuple(shape), tuple(strides), old.dtype, old.device, where)


# ---- in-place


class InPlace:
    """Writes the result of the op `functional` into the first argument, whose type stays."""

    functional = ""

    @staticmethod
    def alias(args: tuple) -> Value:
        return args[0]

    @classmethod
    def type(cls, env: Any, x: Value, *args: Any, **kwargs: Any) -> TensorType:
        from jitshape.ir.ops.registry import OPS

        pure = OPS[cls.functional]
        result = pure.type(env, x, *args, **kwargs)
        target = tensor_type(x)
        check_written(env, target, result)
        check_internal_overlap(env, target)
        for operand in values_in((args, kwargs)):
            if pure.family == "pointwise":
                check_partial_overlap(env, x, operand)
            elif pure.family in ("index", "extern"):
                check_no_overlap(env, x, operand)
        return target


def check_written(env: Any, target: TensorType, result: TensorType) -> None:
    """The errors of eager for a result that does not fit the tensor it is written to."""
    if target.dtype is not result.dtype and not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(
            f"result type {str(result.dtype)[6:]} can't be cast to the desired output type "
            f"{str(target.dtype)[6:]}"
        )
    if not broadcasts_to(env, result.shape, target.shape):
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(result.shape)}"
        )


def inplace(*names: str, functional: str, **attributes: Any) -> None:
    """Register the in-place form of `functional` under each of `names`."""
    for name in names:
        stored = getattr(OPS[functional].block, "stored", ())
        own = {"functional": functional, "stored": stored, **attributes}
        block = type(name.split(".")[1], (), own)
        op(name, family="inplace", base=InPlace)(block)
