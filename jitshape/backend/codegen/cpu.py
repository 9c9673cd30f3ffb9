"""LLVM IR for kernels on CPUs: explicit vectors at the host's width.

In: a `Kernel` and the host's number of lanes.  Out: text of an entry `void @name(ptr buffers,
ptr sizes, ptr scalars)` and of `@name.body`, which does the part `lo .. hi-1` of the grid and
which the module's driver calls directly or on several threads.
Invariant: code only reads memory that the kernel reads at an existing grid point: what is hoisted
stands behind the tests that the loops round it are not empty, and masked-off lanes touch nothing.

A vector loop becomes a main loop over several vectors at once and a masked tail.  Scopes nest as
the loops do: of each loop first the preheader, then the body.  A scalar is written in the
outermost scope where its operands exist (loads at most one loop out).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from llvmlite.binding import llvm_version_info

from jitshape.backend import loops
from jitshape.backend.codegen import cpu_memory
from jitshape.backend.codegen.cpu_math import POWERS, one_plus_erf
from jitshape.backend.codegen.cpu_ops import HALF, OPS, cast, round_as_bf16
from jitshape.backend.codegen.cpu_plan import Plan, Turned, make_plan
from jitshape.backend.codegen.cpu_reduce import Running
from jitshape.backend.codegen.cpu_scan import write_scan
from jitshape.backend.codegen.cpu_sizes import SizeWriter, atom_id
from jitshape.backend.codegen.cpu_split import stages_of, write_choice
from jitshape.backend.codegen.cpu_tiles import write_tile
from jitshape.backend.codegen.llvm_text import Value, Variable
from jitshape.backend.halves import Nans
from jitshape.backend.loops import Accumulator, Axis, Kernel, Loop, Scalar, Statement, Store
from jitshape.backend.split import Stages
from jitshape.backend.text import kernel_text

SCALES_SINCE = (22,)  # LLVM before calls ldexpf for each lane


class Facts(NamedTuple):
    """What a scalar depends on: axes and accumulators, memory, memory the kernel stores to."""

    needs: frozenset
    reads: bool
    volatile: bool


class Generator(SizeWriter):
    """Writes the body of one kernel."""

    def __init__(self, kernel: Kernel, plan: Plan, declarations: set[str]) -> None:
        super().__init__(kernel, declarations)
        self.plan = plan
        self.scales = plan.lanes == 16 and llvm_version_info >= SCALES_SINCE  # AVX-512
        self.axis_ids |= {atom_id(axis) for axis in plan.grid}
        self.buffers: dict[loops.Buffer, str] = {}
        self.turned: dict[Turned, str] = {}  # where a tile keeps an access's vector of this step
        self.carries: dict[Accumulator, Value] = {}
        self.nans = Nans()
        self._facts: dict[Scalar, Facts] = {}
        self.stored = {s.buffer for s in kernel.statements() if isinstance(s, Store)}

    # ---- the grid

    def write(self) -> None:
        self.read_parameters()
        cpu_memory.bind_buffers(self)
        if not self.plan.grid:
            self.block(self.plan.body)
        else:
            self.grid_loop(self.plan.grid)
        cpu_memory.free_scratch(self)

    def grid_loop(self, grid: tuple[Axis, ...]) -> None:
        low, high = (Value(self, name, "i64", 0) for name in ("%lo", "%hi"))
        extents = [self.size(axis.extent) for axis in grid]
        ids = [atom_id(axis) for axis in grid]
        coordinates = [Variable(self, "i64", 0, str(axis.symbol)) for axis in grid]
        with self.when(low.compare("slt", high), "work"), self.preheader():
            rest = low
            for variable, extent in reversed(list(zip(coordinates, extents))):
                variable.set(rest.integer("srem", extent))
                rest = rest.integer("sdiv", extent)
            with self.loop(low, high, 1, "item"), self.body(*ids):
                for id, variable in zip(ids, coordinates):
                    self.symbols[id] = variable.get()
                self.block(self.plan.body)
                self._advance(coordinates, extents)

    def _advance(self, coordinates: list[Variable], extents: list[Value]) -> None:
        """To the next grid point, as an odometer: no division in the loop."""
        carry = self.constant("i1", True)
        for variable, extent in reversed(list(zip(coordinates, extents))):
            moved = carry.select(variable.get() + 1, variable.get())
            carry = moved.compare("eq", extent)
            variable.set(carry.select(0, moved))

    # ---- statements

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Store):
                cpu_memory.store(self, statement)
                self.forget_memory()
            elif statement.axis.kind == "vector" and not self.scope.lanes:
                write = write_tile if self.plan.tile else Generator.vector_loop
                write = write_scan if loops.running(statement) else write
                write(self, statement)
            else:
                self.serial_loop(statement)

    def forget_memory(self) -> None:
        for scope in self.scopes:
            scope.volatile.clear()

    def serial_loop(self, loop: Loop) -> None:
        """Main loop over several steps, each with accumulators of its own, and the rest."""
        lanes, ways = self.scope.lanes, self.plan.ways(loop)
        running = [[Running(self, acc, lanes) for acc in loop.accumulators] for _ in range(ways)]
        low, high = self.constant("i64", 0), self.size(loop.axis.extent)
        with self.when(low.compare("slt", high), "some"), self.preheader():
            middle = low + (high - low).integer("udiv", ways) * ways
            self.serial_part(loop, low, middle, running)
            if ways > 1:
                for other in running[1:]:
                    for total, part in zip(running[0], other):
                        total.absorb(part)
                self.serial_part(loop, middle, high, running[:1], rest=True)
        self.finish(running[0])

    def serial_part(
        self, loop: Loop, low: Value, high: Value, running: list, rest: bool = False
    ) -> None:
        id = atom_id(loop.axis)
        self.forget_memory()
        with self.steps(loop, low, high, len(running), running, rest) as (i, running):
            for step, accumulators in enumerate(running):
                with self.body(id):
                    self.bind(id, i + step if step else i)
                    self.iteration(loop, accumulators)

    @contextmanager
    def steps(
        self, loop: Loop, low: Value, high: Value, step: int, running: list, rest: bool = False
    ) -> Iterator[tuple[Value, list[list[Running]]]]:
        """The loop itself.  Long sums go by blocks, each summed from zero: a rounding error grows
        with the length of a block and the number of blocks, not with the length of the axis."""
        name = str(loop.axis.symbol)
        block = 0 if rest else self.plan.block(loop, step)
        if not block:
            with self.loop(low, high, step, name) as i:
                yield i, running
            return
        with self.loop(low, high, block, f"{name}_block") as start:
            end = start + block
            end = end.compare("slt", high).select(end, high)
            parts = [[Running(self, a.accumulator, a.lanes) for a in way] for way in running]
            with self.loop(start, end, step, name) as i:
                yield i, parts
            for way, part in zip(running, parts):
                for total, one in zip(way, part):
                    total.absorb(one)

    def vector_loop(self, loop: Loop) -> None:
        """Main loop over `wide` lanes, masked tail over `lanes`, then lanes into one."""
        lanes = self.plan.lanes
        wide = lanes * self.plan.unroll(loop)
        low, high = self.bounds(loop)
        narrow = [Running(self, acc, lanes) for acc in loop.accumulators]
        with self.when(low.compare("slt", high), "some"), self.preheader():
            running = [Running(self, acc, wide) for acc in loop.accumulators]
            middle = low + (high - low).integer("udiv", wide) * wide
            self.vector_part(loop, low, middle, wide, running)
            for acc, total in zip(running, narrow):
                acc.fold_into(total)
            self.vector_part(loop, middle, high, lanes, narrow, tail=True)
        self.finish([acc.folded() for acc in narrow])

    def vector_part(
        self, loop: Loop, low: Value, high: Value, lanes: int, running: list, tail: bool = False
    ) -> None:
        id = atom_id(loop.axis)
        self.forget_memory()
        with (
            self.steps(loop, low, high, lanes, [running], rest=tail) as (i, [running]),
            self.body(id) as scope,
        ):
            self.bind(id, i)
            scope.lanes, scope.vector_axis = lanes, id
            if tail:
                left = (high - i).convert("trunc", "i32")
                scope.mask = self.iota("i32", lanes).compare("slt", left)
            self.iteration(loop, running)

    def iteration(self, loop: Loop, running: list[Running]) -> None:
        mask = self.scope.mask if atom_id(loop.axis) == self.scope.vector_axis else None
        early = loops.running(loop)
        for acc in running:
            if acc.accumulator in early:
                acc.update(self.scalar(acc.accumulator.value), lambda: self.position(loop), mask)
                self.hold_prefix(acc.accumulator, acc.states[0].get())
        self.block(loop.body)
        for acc in running:
            if acc.accumulator not in early:
                acc.update(self.scalar(acc.accumulator.value), lambda: self.position(loop), mask)
        self.forget_memory()

    def position(self, loop: Loop) -> Value:
        return self.index_vector(loop.axis.symbol, {})

    def hold_prefix(self, accumulator: Accumulator, value: Value) -> None:
        """What the accumulator holds at this step of its loop."""
        self.carries[accumulator] = value
        self.level_of[accumulator] = self.level

    def finish(self, running: list[Running]) -> None:
        for acc in running:
            self.carries[acc.accumulator] = acc.result()
            self.level_of[acc.accumulator] = self.level

    def bounds(self, loop: Loop) -> tuple[Value, Value]:
        extent = self.size(loop.axis.extent)
        if self.plan.chunk is None:
            return self.constant("i64", 0), extent
        low = self.size(self.plan.chunk.symbol) * self.plan.chunk_size
        high = low + self.plan.chunk_size
        return low, high.compare("slt", extent).select(high, extent)

    # ---- scalars

    def scalar(self, scalar: Scalar) -> Value:
        """The value here: found, or written in the outermost scope that can hold it."""
        for scope in reversed(self.scopes[: self.level + 1]):
            found = scope.values.get(scalar) or scope.volatile.get(scalar)
            if found is not None:
                return found
        facts = self.facts(scalar)
        if facts.volatile:
            value = self.scope.volatile[scalar] = _WRITE[type(scalar)](self, scalar)
            return value
        level = self.home(max((self.level_of[n] for n in facts.needs), default=0))
        if facts.reads:
            level = max(level, self.level - self.scope.is_body)
        with self.at(level):
            value = self.scope.values[scalar] = _WRITE[type(scalar)](self, scalar)
        return value

    def facts(self, scalar: Scalar) -> Facts:
        known = self._facts.get(scalar)
        if known is None:
            parts = [self.facts(operand) for operand in scalar.operands()]
            own = _NEEDS[type(scalar)](self, scalar)
            load = scalar if isinstance(scalar, loops.Load) else None
            known = self._facts[scalar] = Facts(
                frozenset().union(own, *(p.needs for p in parts)),
                load is not None or any(p.reads for p in parts),
                (load is not None and load.buffer in self.stored) or any(p.volatile for p in parts),
            )
        return known

    def literal(self, scalar: loops.Literal) -> Value:
        return self.typed_constant(scalar.value, scalar.dtype)

    def index_value(self, scalar: loops.IndexValue) -> Value:
        return self.index_vector(scalar.expr, {})

    def carry(self, scalar: loops.Carry | loops.Prefix) -> Value:
        return self.carries[scalar.accumulator]

    def apply(self, apply: loops.Apply) -> Value:
        inside = one_plus_erf_of(apply)
        if inside is not None:
            return one_plus_erf(self.scalar(inside[0]), inside[1])
        if (single := _rounded_to_bf16(apply)) is not None:
            return round_as_bf16(self.scalar(single), self.nans.stay(single))
        args = [self.scalar(a) for a in apply.args]
        dtypes = [a.dtype for a in apply.args]
        if apply.op == "cast":
            return cast(args[0], dtypes[0], apply.dtype)
        dtype = apply.dtype
        if apply.op in loops.COMPARISONS:
            dtype = torch.promote_types(*dtypes)
        elif apply.op in loops.PREDICATES:
            dtype = dtypes[0]
        work = torch.float32 if dtype in HALF else dtype
        if apply.op == "where":
            condition = cast(args[0], dtypes[0], torch.bool)
            yes, no = (cast(a, d, dtype) for a, d in zip(args[1:], dtypes[1:]))
            return condition.select(yes, no)
        operands = [cast(a, d, work) for a, d in zip(args, dtypes)]
        special = self.special_power(apply) if work.is_floating_point else None
        result = special(operands[0]) if special else OPS[apply.op](work, *operands)
        return cast(result, work, dtype) if result.kind != "i1" else result

    @staticmethod
    def special_power(apply: loops.Apply) -> Callable[[Value], Value] | None:
        exponent = apply.args[-1]
        if apply.op != "pow" or not isinstance(exponent, loops.Literal):
            return None
        return POWERS.get(float(exponent.value))


def _rounded_to_bf16(apply: loops.Apply) -> Scalar | None:
    """The f32 that `apply` is, but for being rounded to bf16."""
    inner = apply.args[0]
    if apply.op != "cast" or not isinstance(inner, loops.Apply) or inner.op != "cast":
        return None
    through = inner.dtype == torch.bfloat16 and apply.dtype == torch.float32
    return inner.args[0] if through and inner.args[0].dtype == torch.float32 else None


def one_plus_erf_of(apply: loops.Apply) -> tuple[Scalar, float] | None:
    """(x, k), if `apply` is 1 + erf(k x) in f32: the sum needs only the absolute error of erf."""
    if apply.op != "add" or apply.dtype != torch.float32:
        return None
    for one, other in (apply.args, apply.args[::-1]):
        if isinstance(one, loops.Literal) and one.value == 1 and isinstance(other, loops.Apply):
            if other.op == "erf" and other.args[0].dtype == torch.float32:
                return _scaled(other.args[0])
    return None


def _scaled(scalar: Scalar) -> tuple[Scalar, float]:
    """(x, k) with `scalar` == k x, k > 0 of moderate size."""
    if isinstance(scalar, loops.Apply) and scalar.op == "mul":
        for factor, x in (scalar.args, scalar.args[::-1]):
            if isinstance(factor, loops.Literal) and 0.1 < factor.value < 10:
                if x.dtype == scalar.dtype:
                    return x, float(factor.value)
    return scalar, 1.0


_WRITE: dict[type, Callable[..., Value]] = {
    loops.Literal: Generator.literal,
    loops.IndexValue: Generator.index_value,
    loops.SizeArgument: SizeWriter.argument,
    loops.Carry: Generator.carry,
    loops.Prefix: Generator.carry,
    loops.Load: cpu_memory.load,
    loops.Apply: Generator.apply,
}


def _load_needs(g: Generator, load: loops.Load) -> frozenset:
    needs = g.axes_in(load.index)
    return needs | g.grid_ids if load.buffer.role == "scratch" else needs


_NEEDS: dict[type, Callable[..., frozenset]] = {
    loops.Literal: lambda g, s: frozenset(),
    loops.IndexValue: lambda g, s: g.axes_in(s.expr),
    loops.SizeArgument: lambda g, s: frozenset(),
    loops.Carry: lambda g, s: frozenset((s.accumulator,)),
    loops.Prefix: lambda g, s: frozenset((s.accumulator,)),
    loops.Load: _load_needs,
    loops.Apply: lambda g, s: frozenset(),
}


def write_kernel(kernel: Kernel, lanes: int, declarations: set[str]) -> str:
    """The text of `kernel`: of its stages, if it has some, its body and its entry."""
    plan = make_plan(kernel, lanes)
    stages = stages_of(kernel, plan.work) if torch.get_num_threads() > 1 else None
    inner = stages.kernels if stages else ()
    texts = [_write_whole(s, make_plan(s, lanes), declarations, None) for s in inner]
    return "".join((*texts, _write_whole(kernel, plan, declarations, stages)))


def _write_whole(kernel: Kernel, plan: Plan, declarations: set[str], stages: Stages | None) -> str:
    body = Generator(kernel, plan, declarations)
    body.write()
    entry = SizeWriter(kernel, declarations)
    entry.read_parameters()
    items = entry.size(plan.items)
    work = entry.size(plan.work)

    def run() -> None:
        given = f"ptr @{kernel.name}.body, ptr %buffers, ptr %sizes, ptr %scalars"
        entry.line(f"call void @jitshape.parallel({given}, {items}, {work})")

    if stages is None:
        run()
    else:
        write_choice(entry, stages, work, run)
    comment = "".join(f"; {line}\n" for line in kernel_text(kernel).splitlines())
    parameters = "ptr %buffers, ptr %sizes, ptr %scalars"
    return (
        f"{comment}"
        + body.text(f"internal void @{kernel.name}.body({parameters}, i64 %lo, i64 %hi) #0")
        + "\n"
        + entry.text(f"void @{kernel.name}({parameters}) #0")
        + "\n"
    )
