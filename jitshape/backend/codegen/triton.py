"""Triton text for kernels.

In: a `Kernel`.  Out: the text of one `@triton.jit` function and its parameters.  The same text is
compiled for a GPU and run by Triton's interpreter; block sizes and the width of indices (`INDEX`)
are its only constexpr parameters.
Invariant: lanes outside the kernel's axes touch no memory and are left out of reductions.

Values are blocks of the tile's rank, with one element along dimensions they do not vary in.  A
value is written in the outermost scope where its operands exist, and only once: text that is equal
names an equal value (loads of memory the kernel stores to excepted).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from jitshape.backend import loops
from jitshape.backend.codegen import triton_memory, triton_reduce
from jitshape.backend.codegen.exprs import emit
from jitshape.backend.codegen.triton_ops import (
    HALF,
    NAMES,
    OPS,
    cast,
    number,
    takes_numbers,
)
from jitshape.backend.codegen.triton_plan import Lanes, Plan, axis_id, lower_bound, make_plan
from jitshape.backend.loops import Accumulator, Buffer, Kernel, Loop, Scalar, Statement, Store
from jitshape.ir.symint import Atom, Size


class Text(NamedTuple):
    """A value: its text, the tile's dimensions it varies in, the innermost scope it needs."""

    text: str
    dims: frozenset[str] = frozenset()
    level: int = 0


@dataclass
class Scope:
    """The body of a loop, or of the function, with what is computed there."""

    lines: list[str] = field(default_factory=list)
    values: dict[tuple, Text] = field(default_factory=dict)
    volatile: dict[tuple, Text] = field(default_factory=dict)
    texts: dict[str, Text] = field(default_factory=dict)
    carries: dict[Accumulator, Text] = field(default_factory=dict)


class Written(NamedTuple):
    """A kernel's function: `text` without imports, its plan, its parameters in order."""

    name: str
    text: str
    plan: Plan
    buffers: tuple[Buffer, ...]
    sizes: tuple[Atom, ...]
    blocks: tuple[str, ...]


class Around(NamedTuple):
    """An open loop: its body's scope, or, where it has none of its own, its dimension's name."""

    loop: Loop
    level: int | None


class Generator:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, plan: Plan) -> None:
        self.kernel, self.plan = kernel, plan
        self.scopes = [Scope()]
        self.symbols: dict[int, Text] = {}
        self.stored = {s.buffer for s in kernel.statements() if isinstance(s, Store)}
        self.buffers: dict[Buffer, str] = {}
        self.whole: dict[str, Text] = {}  # the lanes of y and x
        self.masks: dict[str, Text] = {}
        self.around: list[Around] = []
        self.taken: set[str] = {"tl", "lib", "libdevice", "triton", "pid"}
        self.env: tuple = ()  # distinguishes what axes stand for
        self.memory = triton_memory.Memory(self)
        self.in_lanes = False

    # ---- the function

    def write(self) -> Written:
        kernel, plan = self.kernel, self.plan
        memory = [b for b in kernel.buffers if b.role != "scratch" or b in plan.scratch]
        for buffer in memory:
            self.buffers[buffer] = self.fresh(buffer.name)
        for atom in kernel.sizes:
            self.symbols[atom.id] = Text(self.fresh(atom.name))
        scalars = [self.fresh(f"a{i}") for i in range(len(kernel.scalars))]
        self.scalars = scalars
        name = self.fresh(kernel.name)
        blocks, more = self.constants()
        sizes = [self.symbols[atom.id].text for atom in kernel.sizes]
        constants = [f"{c}: tl.constexpr" for c in (*blocks, "INDEX", *more)]
        parameters = [*self.buffers.values(), *sizes, *scalars, *constants]
        self.statements()
        body = "\n".join(f"    {line}" for line in self.scopes[0].lines)
        text = f"@triton.jit\ndef {name}({', '.join(parameters)}):\n{body}\n"
        return Written(name, text, plan, tuple(memory), kernel.sizes, tuple(blocks))

    def constants(self) -> tuple[list[str], list[str]]:
        """Names of the block sizes, and of further constexpr parameters behind INDEX."""
        return [f"{dim.upper()}BLOCK" for dim in self.plan.dims], []

    def statements(self) -> None:
        """The function's body."""
        self.prologue()
        if self.plan.halves:
            self.two_halves()
        else:
            self.mask_lanes()
            self.block(self.plan.body)

    def prologue(self) -> None:
        """Lanes of y and x, and the axes they stand for."""
        self.line("pid = tl.program_id(0).to(INDEX)")
        groups = self.plan.lanes
        for group in groups:
            block = "pid"
            if len(groups) == 2:
                extent = bare(self.index(groups[1].extent).text)
                block = f"(pid {'//' if group is groups[0] else '%'} lib.cdiv({extent}, XBLOCK))"
            start = f"{block} * {group.block}"
            lanes = self.lanes(f"{start} + tl.arange(0, {group.block})", group.name)
            self.whole[group.name] = self.assign(f"{group.name}s", lanes)
            self.place(group, self.whole[group.name])
        if self.plan.persistent and "r" in self.plan.dims:
            row = self.assign("rs", self.lanes("tl.arange(0, RBLOCK)", "r"))
            for loop in self.plan.spread:
                self.symbols[axis_id(loop.axis)] = row

    def place(self, group: Lanes, rest: Text) -> None:
        """Let the axes of `group` stand for the parts of `rest`, their common count."""
        for position, axis in enumerate(reversed(group.axes)):
            at = rest
            if position < len(group.axes) - 1:
                extent = bracketed(self.index(axis.extent).text)
                at = self.assign(str(axis.symbol), Text(f"{rest.text} % {extent}", rest.dims))
                rest = self.assign(f"{group.name}s", Text(f"{rest.text} // {extent}", rest.dims))
            self.symbols[axis_id(axis)] = at

    def lanes(self, text: str, dim: str) -> Text:
        """A range of lanes, laid along its dimension."""
        if len(self.plan.dims) == 1:
            return Text(text, frozenset((dim,)))
        places = ", ".join(":" if d == dim else "None" for d in self.plan.dims)
        return Text(f"({text})[{places}]", frozenset((dim,)))

    def mask_lanes(self) -> None:
        for group in self.plan.lanes:
            if group.axes:
                lanes, extent = self.whole[group.name].text, self.index(group.extent)
                mask = Text(f"{lanes} < {bracketed(extent.text)}", frozenset((group.name,)))
                self.masks[group.name] = self.assign(f"{group.name}_mask", mask)

    def two_halves(self) -> None:
        """A full tile needs no masks; unknown sizes would otherwise make every access narrow."""
        (group,) = self.plan.lanes
        extent = bracketed(self.index(group.extent).text)
        outer = self.scopes[0]
        for opening in (f"if (pid + 1) * {group.block} <= {extent}:", "else:"):
            self.scopes = [Scope(lines=[], texts=dict(outer.texts))]
            self.memory = triton_memory.Memory(self)
            if opening == "else:":
                self.mask_lanes()
            self.block(self.plan.body)
            outer.lines.append(opening)
            outer.lines += [f"    {line}" for line in self.scopes[0].lines]
        self.scopes = [outer]

    # ---- lines and names

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    @property
    def level(self) -> int:
        return len(self.scopes) - 1

    def line(self, text: str) -> None:
        self.scope.lines.append(text)

    def fresh(self, wish: str) -> str:
        wish = re.sub(r"\W", "_", wish)
        name, count = wish, 1
        while name in self.taken:
            name, count = f"{wish}_{count}", count + 1
        self.taken.add(name)
        return name

    def assign(self, wish: str, value: Text, unique: bool = False) -> Text:
        """A variable for `value`, in the scope it needs; an equal one, if there is one."""
        text = bare(value.text)
        if text.isidentifier():
            return value
        if not unique:
            for scope in self.scopes:
                if text in scope.texts:
                    return scope.texts[text]
        name = Text(self.fresh(wish), value.dims, value.level)
        self.scopes[value.level].lines.append(f"{name.text} = {text}")
        if not unique:
            self.scopes[value.level].texts[text] = name
        return name

    def shape(self, dims: frozenset[str]) -> str:
        sizes = (f"{dim.upper()}BLOCK" if dim in dims else "1" for dim in self.plan.dims)
        return f"[{', '.join(sizes)}]"

    @property
    def here(self) -> frozenset[str]:
        """The dimensions of a statement at this place."""
        lanes = frozenset(group.name for group in self.plan.lanes if group.axes)
        return lanes | {"r"} if self.in_lanes else lanes

    # ---- statements

    def block(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Store):
                self.memory.store(statement)
            elif self.memory.only_notes(statement):
                pass
            elif statement not in self.plan.spread:
                self.step_loop(statement)
            elif self.plan.persistent:
                self.row_at_once(statement)
            else:
                self.row_in_blocks(statement)

    def step_loop(self, loop: Loop) -> None:
        """One iteration after the other."""
        running = [triton_reduce.Running(self, acc, False) for acc in loop.accumulators]
        extent = self.index(loop.axis.extent)
        name = self.fresh(str(loop.axis.symbol))
        self.memory.enter(loop)
        with self.open(f"for {name} in range(0, {bare(extent.text)}):"):
            self.symbols[axis_id(loop.axis)] = Text(name, frozenset(), self.level)
            self.iteration(loop, running, None, self.level)
        for acc in running:
            acc.finish(loop)

    def row_at_once(self, loop: Loop) -> None:
        """One block of r covers the row."""
        mask = None
        extent = loop.axis.extent
        if not (isinstance(extent, int) and extent == self.plan.longest_row and _full(extent)):
            row = self.symbols[axis_id(loop.axis)].text
            text = f"{row} < {bracketed(self.index(extent).text)}"
            mask = self.assign("r_mask", Text(text, frozenset("r"), self.index(extent).level))
        running = [
            triton_reduce.Running(self, acc, True, at_once=True) for acc in loop.accumulators
        ]
        self.in_lanes = True
        self.iteration(loop, running, mask, None)
        self.in_lanes = False
        for acc in running:
            acc.finish(loop)

    def row_in_blocks(self, loop: Loop) -> None:
        """Blocks of r, one after the other."""
        running = [triton_reduce.Running(self, acc, True) for acc in loop.accumulators]
        extent = bare(self.index(loop.axis.extent).text)
        name = self.fresh(f"{loop.axis.symbol}_start")
        self.in_lanes = True
        with self.open(f"for {name} in range(0, {extent}, RBLOCK):"):
            lanes = self.lanes(f"{name} + tl.arange(0, RBLOCK)", "r")
            row = self.assign(str(loop.axis.symbol), lanes._replace(level=self.level))
            self.symbols[axis_id(loop.axis)] = row
            mask = Text(f"{row.text} < {bracketed(extent)}", frozenset("r"), self.level)
            self.iteration(loop, running, self.assign("r_mask", mask), self.level)
        self.in_lanes = False
        for acc in running:
            acc.finish(loop)

    def iteration(
        self,
        loop: Loop,
        running: list[triton_reduce.Running],
        mask: Text | None,
        level: int | None,
    ) -> None:
        self.around.append(Around(loop, level))
        if mask is not None:
            self.masks["r"] = mask
        early = loops.running(loop)
        for acc in running:
            if acc.accumulator in early:
                acc.update(self.scalar(acc.accumulator.value), loop, mask)
                self.scope.carries[acc.accumulator] = acc.now()
        self.block(loop.body)
        for acc in running:
            if acc.accumulator not in early:
                acc.update(self.scalar(acc.accumulator.value), loop, mask)
        self.masks.pop("r", None)
        self.around.pop()

    @contextmanager
    def open(self, header: str) -> Iterator[None]:
        self.scopes.append(Scope())
        yield
        inner = self.scopes.pop()
        self.line(header)
        self.scope.lines += [f"    {line}" for line in inner.lines or ["pass"]]

    # ---- indices

    def index(self, expr: Size) -> Text:
        return emit(expr, _Indices(self, {}))

    def index_with(self, expr: Size, bound: dict[int, Text]) -> Text:
        return emit(expr, _Indices(self, bound))

    # ---- scalars

    def scalar(self, scalar: Scalar) -> Text:
        """The value here: a variable, or, of literals, a number."""
        key = self.key(scalar)
        for scope in reversed(self.scopes):
            found = scope.values.get(key) or scope.volatile.get(key)
            if found is not None:
                return found
        text = _WRITE[type(scalar)](self, scalar)
        volatile = isinstance(scalar, loops.Load) and scalar.buffer in self.stored
        if volatile or any(self._is_volatile(operand) for operand in scalar.operands()):
            self.scope.volatile[key] = text
        else:
            self.scopes[text.level].values[key] = text
        return text

    def _is_volatile(self, scalar: Scalar) -> bool:
        key = self.key(scalar)
        return any(key in scope.volatile for scope in self.scopes)

    def key(self, scalar: Scalar) -> tuple:
        """What a value depends on besides its operands: loads moved out of loops are masked."""
        return scalar, self.env, tuple(around.loop for around in self.around)

    def operand(self, scalar: Scalar) -> Text:
        """The value as a block or scalar, also of a literal."""
        value = self.scalar(scalar)
        if not isinstance(scalar, loops.Literal):
            return value
        return Text(self.full(value.text, scalar.dtype))

    def full(self, value: str, dtype: torch.dtype) -> str:
        return f"tl.full({self.shape(frozenset())}, {value}, {NAMES[dtype]})"

    def literal(self, scalar: loops.Literal) -> Text:
        return Text(number(scalar.value, scalar.dtype))

    def index_value(self, scalar: loops.IndexValue) -> Text:
        value = self.index(scalar.expr)
        if value.dims:
            text = f"{bracketed(value.text)}.to(tl.int64)"
        else:
            text = self.full(bare(value.text), torch.int64)
        return self.assign("t", value._replace(text=text))

    def argument(self, scalar: loops.SizeArgument) -> Text:
        text = self.full(self.scalars[scalar.position], scalar.dtype)
        return self.assign("t", Text(text))

    def carry(self, scalar: loops.Carry | loops.Prefix) -> Text:
        for scope in reversed(self.scopes):
            if scalar.accumulator in scope.carries:
                return scope.carries[scalar.accumulator]
        raise KeyError(scalar.accumulator.name)

    def apply(self, apply: loops.Apply) -> Text:
        dtypes = [a.dtype for a in apply.args]
        dtype = apply.dtype
        if apply.op == "cast":
            value = self.operand(apply.args[0])
            return self.assign("t", value._replace(text=cast(value.text, dtypes[0], dtype)))
        if apply.op in loops.COMPARISONS:
            dtype = torch.promote_types(*dtypes)
        elif apply.op in loops.PREDICATES:
            dtype = dtypes[0]
        work = torch.float32 if dtype in HALF else dtype
        if apply.op == "where":
            return self.where(apply, dtype)
        args = self.arguments(apply, work)
        text = OPS[apply.op](work, *(a.text for a in args))
        if apply.dtype in HALF and apply.op not in loops.COMPARISONS | loops.PREDICATES:
            text = cast(text, work, dtype)
        return self.assign("t", joined(text, *args))

    def arguments(self, apply: loops.Apply, work: torch.dtype) -> list[Text]:
        """Operands in the dtype `work`; at most one is a number."""
        literal = [isinstance(a, loops.Literal) and a.dtype == work for a in apply.args]
        plain = takes_numbers(apply.op) and work != torch.bool and not all(literal)
        args = []
        for arg, is_number in zip(apply.args, literal):
            value = self.scalar(arg) if plain and is_number else self.operand(arg)
            args.append(value._replace(text=cast(value.text, arg.dtype, work)))
        return args

    def where(self, apply: loops.Apply, dtype: torch.dtype) -> Text:
        chosen, yes, no = (self.operand(a) for a in apply.args)
        sources = [a.dtype for a in apply.args]
        texts = (
            bare(cast(chosen.text, sources[0], torch.bool)),
            cast(yes.text, sources[1], dtype),
            cast(no.text, sources[2], dtype),
        )
        return self.assign("t", joined(f"tl.where({', '.join(texts)})", chosen, yes, no))

    def not_empty(self, dims: frozenset[str], level: int) -> list[str]:
        """Tests that loops which a value is moved out of have iterations."""
        tests = []
        for loop, body in self.around:
            inside = "r" in dims if body is None else level >= body
            if not inside and lower_bound(loop.axis.extent) < 1:
                tests.append(self.positive(loop.axis.extent))
        return tests

    def positive(self, extent: Size) -> str:
        """Whether `extent` is above 0, as a block."""
        value = self.index(extent)
        text = f"{self.full(bare(value.text), torch.int64)} > 0"
        return self.assign("some", value._replace(text=text)).text


class _Indices:
    """`exprs.Target`: texts of index expressions; symbols bound by the caller come first."""

    def __init__(self, g: Generator, bound: dict[int, Text]) -> None:
        self.g, self.bound = g, bound

    def integer(self, value: int) -> Text:
        return Text(str(value))

    def symbol(self, atom: Atom) -> Text:
        return self.bound[atom.id] if atom.id in self.bound else self.g.symbols[atom.id]

    def add(self, a: Text, b: Text) -> Text:
        sign, right = ("-", b.text[1:]) if b.text.startswith("-") else ("+", b.text)
        return joined(f"{a.text} {sign} {right}", a, b)

    def mul(self, a: Text, b: Text) -> Text:
        if b.text == "-1":
            return a._replace(text=f"-{bracketed(a.text)}")
        left = a.text if _product(a.text) else bracketed(a.text)
        return joined(f"{left} * {bracketed(b.text)}", a, b)

    def divide(self, kind: str, a: Text, b: Text, unsigned: bool) -> Text:
        if unsigned:
            sign = "//" if kind == "floordiv" else "%"
            return joined(f"({bracketed(a.text)} {sign} {bracketed(b.text)})", a, b)
        return joined(f"lib.{kind}({bare(a.text)}, {bare(b.text)})", a, b)

    def extreme(self, kind: str, a: Text, b: Text) -> Text:
        return joined(f"tl.{kind}imum({bare(a.text)}, {bare(b.text)})", a, b)


def joined(text: str, *parts: Text) -> Text:
    """A value made from `parts`."""
    dims = frozenset().union(*(p.dims for p in parts))
    return Text(text, dims, max(p.level for p in parts))


def bare(text: str) -> str:
    """Without parentheses that enclose the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def bracketed(text: str) -> str:
    """As one operand of any operator."""
    if re.fullmatch(r"[\w.]+|[\w.]+\([^()]*\)", text) or bare(text) != text:
        return text
    return f"({text})"


def _product(text: str) -> bool:
    return re.fullmatch(r"\w+( \* \w+)*", text) is not None


def _full(extent: int) -> bool:
    return extent > 0 and extent & (extent - 1) == 0


_WRITE: dict[type, Callable[..., Text]] = {
    loops.Literal: Generator.literal,
    loops.IndexValue: Generator.index_value,
    loops.SizeArgument: Generator.argument,
    loops.Carry: Generator.carry,
    loops.Prefix: Generator.carry,
    loops.Load: lambda g, load: g.memory.load(load),
    loops.Apply: Generator.apply,
}


def write_kernel(kernel: Kernel) -> Written:
    """The Triton function of `kernel`."""
    if kernel.contraction is not None:
        from jitshape.backend.codegen.triton_contraction import write_contraction

        return write_contraction(kernel)
    return Generator(kernel, make_plan(kernel)).write()
