"""Triton text for kernels that are matrix products.

In: a `Kernel` marked as contraction.  Out: what `triton.write_kernel` gives, with tensor cores in
place of a loop of multiplications.
Invariant: a tile's rows and columns behind the end of the result stand for some inside it, so that
factors are read without masks; only the last block of the inner dimension, if it is not full, and
what is read and stored once a tile, are masked.

    for each tile of rows x columns, in bands of BAND rows that read the same columns:
        acc = 0
        for each full block of k:  acc += left[rows, k] . right[k, columns]
        if k does not end there:   the same, masked
        what follows of acc[row, column], as behind any reduction
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from jitshape.backend import loops
from jitshape.backend.codegen.exprs import symbol_ids
from jitshape.backend.codegen.triton import (
    Around,
    Generator,
    Text,
    Written,
    bare,
    bracketed,
)
from jitshape.backend.codegen.triton_plan import Lanes, Plan, axis_id
from jitshape.backend.loops import Apply, IndexValue, Kernel, Load, Loop, Scalar, reachable
from jitshape.ir.symint import Size

LONGEST_INNER = 128  # elements of a block of the inner dimension
PRECISION = "PRECISION"  # of the multiplications: "ieee" or "tf32"; halves have one only


@dataclass(frozen=True)
class Contraction:
    """`acc[batch, row, column]` sums `left[batch, row, k] * right[batch, k, column]` over `loop`;
    `dtype`: of the factors.  What follows stands in `stores`."""

    batch: Lanes
    rows: Lanes
    columns: Lanes
    loop: Loop
    left: Scalar
    right: Scalar
    dtype: torch.dtype
    stores: tuple[loops.Store, ...]

    @property
    def groups(self) -> tuple[Lanes, Lanes, Lanes]:
        return self.batch, self.rows, self.columns


def contraction(kernel: Kernel) -> Contraction:
    """The parts of a kernel that is a matrix product."""
    axes, body = list(kernel.grid), kernel.body
    while isinstance(body[0], Loop) and not body[0].accumulators:
        axes.append(body[0].axis)
        body = body[0].body
    loop, *rest = body
    dtype = kernel.contraction
    assert dtype is not None
    assert isinstance(loop, Loop) and len(loop.accumulators) == 1 and not loop.body
    product = loop.accumulators[0].value
    assert isinstance(product, Apply) and product.op == "mul"
    left, right = product.args
    uses = [_axes_of(factor) for factor in (left, right)]

    def group(name: str, in_left: bool, in_right: bool) -> Lanes:
        wanted = (in_left, in_right)
        return Lanes(name, tuple(a for a in axes if tuple(axis_id(a) in u for u in uses) == wanted))

    both, neither = group("z", True, True), group("z", False, False)
    batch = Lanes("z", (*neither.axes, *both.axes))
    rows, columns = group("y", True, False), group("x", False, True)
    left, right = _multiplied(left, dtype), _multiplied(right, dtype)
    stores = tuple(s for s in rest if isinstance(s, loops.Store))
    return Contraction(batch, rows, columns, loop, left, right, dtype, stores)


def _axes_of(scalar: Scalar) -> set[int]:
    """Ids of the symbols that the scalar depends on."""
    found: set[int] = set()
    for part in reachable([scalar]):
        if isinstance(part, Load):
            found |= symbol_ids(part.index)
        elif isinstance(part, IndexValue):
            found |= symbol_ids(part.expr)
    return found


def _multiplied(factor: Scalar, dtype: torch.dtype) -> Scalar:
    """The factor in the dtype that is multiplied: tensor cores widen by themselves."""
    if factor.dtype is dtype:
        return factor
    if isinstance(factor, Apply) and factor.op == "cast" and factor.args[0].dtype is dtype:
        return factor.args[0]
    return Apply("cast", (factor,), dtype)  # its values are numbers of the dtype already


def contraction_plan(kernel: Kernel, parts: Contraction) -> Plan:
    points: Size = 1
    for group in parts.groups:
        points = points * group.extent
    return Plan(
        parts.groups,
        parts.stores,
        frozenset((parts.loop,)),
        ("y", "x", "r"),
        persistent=False,
        halves=False,
        scratch=(),
        points=points,
        row_first=True,
        turned=False,
    )


def write_contraction(kernel: Kernel) -> Written:
    """The Triton function of `kernel`; its constexpr parameters end with PRECISION."""
    parts = contraction(kernel)
    plan = contraction_plan(kernel, parts)
    written = _Writer(kernel, replace(plan, dims=("y", "x")), parts).write()
    return written._replace(plan=plan)


class _Writer(Generator):
    """Values are blocks of rank 2: of left [y, r], of right [r, x], behind the loop [y, x]."""

    def __init__(self, kernel: Kernel, plan: Plan, parts: Contraction) -> None:
        super().__init__(kernel, plan)
        self.parts = parts
        self.inside: dict[str, Text] = {}  # rows and columns that are there
        self.taken.add(PRECISION)

    @property
    def here(self) -> frozenset[str]:
        return frozenset(("y", "x"))

    def constants(self) -> tuple[list[str], list[str]]:
        return ["YBLOCK", "XBLOCK", "RBLOCK"], [PRECISION]

    def statements(self) -> None:
        self.place_tile()
        self.sum_up()
        for group in (self.parts.rows, self.parts.columns):
            self.place(group, self.whole[group.name])
            extent = bracketed(self.index(group.extent).text)
            mask = Text(f"{self.whole[group.name].text} < {extent}", frozenset((group.name,)))
            self.masks[group.name] = self.assign(f"{group.name}_mask", mask)
        self.block(self.parts.stores)

    # ---- the tile

    def place_tile(self) -> None:
        batch, rows, columns = self.parts.groups
        self.line("pid = tl.program_id(0).to(INDEX)")
        counts = []
        for group in (rows, columns):
            extent = bare(self.index(group.extent).text)
            counts.append(Text(f"lib.cdiv({extent}, {group.block})"))
        down, across = (self.assign(f"{d}_tiles", count) for d, count in zip("yx", counts))
        tile = "pid"
        if batch.axes:
            tile = self.assign("tile", Text(f"pid % ({down.text} * {across.text})")).text
            self.place(batch, self.assign("z", Text(f"pid // ({down.text} * {across.text})")))
        places = [self.fresh(name) for name in ("y", "x")]
        self.line(f"{', '.join(places)} = lib.in_bands({tile}, {down.text}, {across.text})")
        for group, place in zip((rows, columns), places):
            text = f"{place} * {group.block} + tl.arange(0, {group.block})"
            lanes = self.assign(f"{group.name}s", self.lanes(text, group.name))
            self.whole[group.name] = lanes
            extent = bracketed(self.index(group.extent).text)
            wrapped = Text(f"{lanes.text} % {extent}", lanes.dims)
            self.inside[group.name] = self.assign(f"{group.name}s_inside", wrapped)

    # ---- the sum

    def sum_up(self) -> None:
        parts, loop = self.parts, self.parts.loop
        extent = bracketed(self.index(loop.axis.extent).text)
        acc = self.fresh(loop.accumulators[0].name)
        self.line(f"{acc} = tl.full({self.shape(self.here)}, 0, tl.float32)")
        whole = self.assign("whole", Text(f"{extent} // RBLOCK * RBLOCK")).text
        for group in (parts.rows, parts.columns):
            self.place(group, self.inside[group.name])
        start = self.fresh(f"{loop.axis.symbol}_start")
        with self.open(f"for {start} in range(0, {whole}, RBLOCK):"):
            self.block_of(acc, start, None)
        if not _is_multiple(loop.axis.extent):
            with self.open(f"if {whole} < {extent}:"):
                self.block_of(acc, whole, extent)
        self.scope.carries[loop.accumulators[0]] = Text(acc, self.here)

    def block_of(self, acc: str, start: str, end: str | None) -> None:
        """One block of the inner dimension, which goes up to `end` if it is not full."""
        self.around.append(Around(self.parts.loop, self.level))
        names = []
        for factor, dims in ((self.parts.left, ("y", "r")), (self.parts.right, ("r", "x"))):
            with self.tile_of(dims):
                lanes = self.lanes(f"{start} + tl.arange(0, RBLOCK)", "r")
                ks = self.assign(str(self.parts.loop.axis.symbol), lanes._replace(level=self.level))
                self.symbols[axis_id(self.parts.loop.axis)] = ks
                names.append(self.factor(factor, dims, ks, end))
        self.around.pop()
        product = f"tl.dot({names[0]}, {names[1]}, {acc}, input_precision={PRECISION})"
        self.line(f"{acc} = {product}")

    def factor(self, factor: Scalar, dims: tuple[str, str], ks: Text, end: str | None) -> str:
        if end is not None:
            mask = Text(f"{ks.text} < {end}", ks.dims, self.level)
            self.masks["r"] = self.assign("r_mask", mask)
        value = self.operand(factor)
        text, mask = value.text, self.masks.pop("r", None)
        if mask is not None:  # what lies behind the end may be anything
            text = f"tl.where({mask.text}, {text}, {self.zero()})"
        elif value.dims != frozenset(dims):
            text = f"tl.broadcast_to({text}, {self.shape(frozenset(dims))})"
        name = "left" if dims[0] == "y" else "right"
        return self.assign(name, Text(text, frozenset(dims), self.level)).text

    def zero(self) -> str:
        return self.full("0", self.parts.dtype)

    @contextmanager
    def tile_of(self, dims: tuple[str, str]) -> Iterator[None]:
        """Values in the tile of a factor, apart from those of the other."""
        saved = self.plan, self.env
        self.plan, self.env = replace(self.plan, dims=dims), (dims, self.level)
        yield
        self.plan, self.env = saved


def _is_multiple(extent: Size) -> bool:
    """Whether every block of the inner dimension is full, whatever its length."""
    return isinstance(extent, int) and extent % LONGEST_INNER == 0
