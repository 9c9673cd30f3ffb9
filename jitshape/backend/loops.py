"""Loop IR: what a kernel computes, before any target is chosen.

A `Kernel` is a grid of parallel axes and, at each grid point, a block of statements: loops over
further axes, stores.  The same object is printed as text, interpreted (numpy, the oracle), and
turned into LLVM IR and into Triton.

Meaning
- An index is a `Size` over axis symbols and size symbols, in elements from the buffer's base
  pointer (`tensor.data_ptr()`).  `indirect` binds further symbols in it to integer scalars.
- Scalars form a DAG.  A scalar is evaluated where it is used; a code generator evaluates it once
  per loop nest position at most, as far out as its axes allow.
- `Loop` with accumulators runs its body and combines `Accumulator.value` over the axis; after the
  loop `Carry(accumulator)` is the result.  Loops of kind "vector" are spread over SIMD lanes or
  a Triton block; at most one vector loop encloses a statement.  A "serial" loop inside a vector
  loop has one accumulator per lane (column reductions).
- A loop's accumulators combine after the statements of its body, but before them where the body
  uses a `Prefix` (in serial loops only).  Over an empty axis they are the
  neutral element: 0, 1, -inf or the smallest integer (max), inf or the largest (min), False
  (any), True (all), position 0 (argmax, argmin).
- Grid points are independent, and so are the steps of an outermost vector loop without
  accumulators: a target divides either among threads or programs.
- Statements run in order; a store is visible to later statements of the same grid point.  A load
  from a buffer the kernel stores to is repeated after such a store.
- Arithmetic operands have the dtype of the Apply, those of a comparison one common dtype, and a
  stored value the buffer's; where one has not, it is converted as "cast" does.
- Integer division or modulo by zero gives 0; shifts by more than the width give 0 (shl) or the
  sign (shr), as in ATen.  On b1 `add` and `maximum` are or, `mul` and `minimum` are and.
- Scratch buffers are no parameters: each grid point has its own, made by the code generator.
- Scalars of dtype f16/bf16 appear only in Load, Store and "cast": arithmetic is in f32 or wider.
- Floor division and modulo of integers are Python's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from jitshape.ir.symint import Atom, IntExpr, Size


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Flat memory of one element type.  `role`: "in", "out", "inout" or "scratch" (per grid
    point, `extent` elements)."""

    name: str
    dtype: torch.dtype
    role: str = "in"
    extent: Size = 0


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """`symbol` runs over 0 .. extent-1."""

    symbol: IntExpr
    extent: Size
    kind: str = "parallel"  # grid: "parallel"; loops: "vector" or "serial"


class Scalar:
    """A value at one point of the iteration space."""

    __slots__ = ("dtype",)
    dtype: torch.dtype

    def operands(self) -> tuple[Scalar, ...]:
        return ()


class Literal(Scalar):
    __slots__ = ("value",)

    def __init__(self, value: float | int | bool, dtype: torch.dtype) -> None:
        self.value, self.dtype = value, dtype


class IndexValue(Scalar):
    """The integer `expr` (axes and sizes) as an i64."""

    __slots__ = ("expr",)

    def __init__(self, expr: Size) -> None:
        self.expr, self.dtype = expr, torch.int64


class SizeArgument(Scalar):
    """A float or integer argument of the kernel, by position in `Kernel.scalars`."""

    __slots__ = ("position",)

    def __init__(self, position: int, dtype: torch.dtype) -> None:
        self.position, self.dtype = position, dtype


class Load(Scalar):
    """`buffer[index]`; with `mask` (a b1 scalar) false: `other`, without touching memory."""

    __slots__ = ("buffer", "index", "indirect", "mask", "other")

    def __init__(
        self,
        buffer: Buffer,
        index: Size,
        indirect: tuple[tuple[Atom, Scalar], ...] = (),
        mask: Scalar | None = None,
        other: Literal | None = None,
    ) -> None:
        self.buffer, self.index, self.indirect = buffer, index, indirect
        self.mask, self.other, self.dtype = mask, other, buffer.dtype

    def operands(self) -> tuple[Scalar, ...]:
        mask = (self.mask,) if self.mask is not None else ()
        return tuple(scalar for _, scalar in self.indirect) + mask


class Apply(Scalar):
    """`op(*args)`, op in SCALAR_OPS."""

    __slots__ = ("args", "op")

    def __init__(self, op: str, args: tuple[Scalar, ...], dtype: torch.dtype) -> None:
        assert op in SCALAR_OPS and len(args) == SCALAR_OPS[op], (op, len(args))
        self.op, self.args, self.dtype = op, args, dtype

    def operands(self) -> tuple[Scalar, ...]:
        return self.args


class Carry(Scalar):
    """The result of an accumulator, after its loop."""

    __slots__ = ("accumulator",)

    def __init__(self, accumulator: Accumulator) -> None:
        self.accumulator, self.dtype = accumulator, accumulator.dtype


class Prefix(Scalar):
    """In the body of the accumulator's loop: what it holds with this step."""

    __slots__ = ("accumulator",)

    def __init__(self, accumulator: Accumulator) -> None:
        self.accumulator, self.dtype = accumulator, accumulator.dtype


# name: number of arguments.  Comparisons and logic give b1; "cast" goes to the Apply's dtype
# (C semantics float -> int, nan -> 0 unspecified as in ATen; to b1: != 0).
SCALAR_OPS: dict[str, int] = {
    **dict.fromkeys("add sub mul div floordiv mod fmod pow atan2 copysign".split(), 2),
    **dict.fromkeys("maximum minimum".split(), 2),  # nan wins
    **dict.fromkeys("fmax fmin".split(), 2),  # the number wins
    **dict.fromkeys("eq ne lt le gt ge".split(), 2),
    **dict.fromkeys("and or xor shl shr".split(), 2),  # bitwise; logical on b1
    **dict.fromkeys("neg abs not sign floor ceil round trunc reciprocal sqrt rsqrt".split(), 1),
    **dict.fromkeys("exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan".split(), 1),
    **dict.fromkeys("sinh cosh tanh asinh acosh atanh sigmoid erf erfc".split(), 1),
    **dict.fromkeys("isnan isinf signbit cast".split(), 1),
    "where": 3,  # (condition, yes, no)
    "philox": 3,  # (seed, stream, position), i64: 32 random bits (ir/ops/streams.py)
    "fma": 3,
}

COMPARISONS = frozenset("eq ne lt le gt ge".split())  # two operands, b1
PREDICATES = frozenset("isnan isinf signbit".split())  # one operand, b1
COMBINE = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


def neutral(combine: str, dtype: torch.dtype) -> float | int | bool:
    """The accumulator's value over an empty axis."""
    if combine in ("sum", "any"):
        return 0
    if combine in ("prod", "all"):
        return 1
    largest = combine in ("min", "argmin")
    if dtype == torch.bool:
        return largest
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    limits = torch.iinfo(dtype)
    return limits.max if largest else limits.min


class Accumulator:
    """Combines `value` over the loop's axis.  `argmax`/`argmin` give the i64 position (the axis
    symbol's value) of the first extreme; nan counts as extreme.  max/min: nan wins."""

    __slots__ = ("combine", "dtype", "name", "value")

    def __init__(self, name: str, combine: str, value: Scalar, dtype: torch.dtype) -> None:
        assert combine in COMBINE
        self.name, self.combine, self.value, self.dtype = name, combine, value, dtype


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """`buffer[index] = value` (or `+=`, atomically where the grid shares it, with `add`)."""

    buffer: Buffer
    index: Size
    value: Scalar
    indirect: tuple[tuple[Atom, Scalar], ...] = ()
    add: bool = False
    mask: Scalar | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    axis: Axis
    body: tuple[Statement, ...]
    accumulators: tuple[Accumulator, ...] = ()


Statement = Store | Loop


def roots(statement: Statement) -> tuple[Scalar, ...]:
    """The scalars a statement uses itself, in order of evaluation."""
    if isinstance(statement, Loop):
        return tuple(acc.value for acc in statement.accumulators)
    indirect = tuple(scalar for _, scalar in statement.indirect)
    mask = (statement.mask,) if statement.mask is not None else ()
    return (*indirect, *mask, statement.value)


def reachable(roots: Iterable[Scalar]) -> Iterator[Scalar]:
    """Every scalar that these are computed from, themselves included, once."""
    seen: set[Scalar] = set()
    todo = list(roots)
    while todo:
        scalar = todo.pop()
        if scalar not in seen:
            seen.add(scalar)
            yield scalar
            todo += scalar.operands()


def running(loop: Loop) -> frozenset[Accumulator]:
    """The accumulators whose `Prefix` the loop's body uses."""
    used = [root for s in loop.body if isinstance(s, Store) for root in roots(s)]
    return frozenset(s.accumulator for s in reachable(used) if isinstance(s, Prefix))


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """`buffers`, then `sizes` (symbols, as i64), then `scalars` are the kernel's parameters."""

    name: str
    grid: tuple[Axis, ...]
    body: tuple[Statement, ...]
    buffers: tuple[Buffer, ...]
    sizes: tuple[Atom, ...]
    scalars: tuple[torch.dtype, ...] = ()
    facts: tuple[tuple[Atom, int], ...] = ()  # the symbol is divisible by the number
    origin: tuple[str, ...] = ()  # ops and user lines it came from
    # Its only loop sums products of two factors: a matrix product of this dtype.
    contraction: torch.dtype | None = None

    def statements(self) -> Iterator[Statement]:
        """All statements, outer before inner."""
        todo = list(self.body)
        while todo:
            statement = todo.pop(0)
            yield statement
            if isinstance(statement, Loop):
                todo = [*statement.body, *todo]
