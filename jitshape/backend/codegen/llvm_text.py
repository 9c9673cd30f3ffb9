"""LLVM IR as text: values that know their type and lanes, nested blocks, structured loops.

In: operations on `Value`s, in program order.  Out: the text of one function.
Invariant: a `Value` with `lanes` 0 is uniform; an operation on a uniform and a vector spreads the
uniform one.  Mutable variables are allocas of the entry block (SROA makes them registers), so no
phi is ever written, and a `Region` may grow after code behind it has been written: that is how
loop-invariant code is put in front of a loop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

FLOATS = ("float", "double", "half")
BITS = {"double": 64, "float": 32, "half": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}
SUFFIX = {**{k: k for k in BITS}, "float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
INTEGER_OF = {"float": "i32", "double": "i64", "half": "i16"}


def literal(kind: str, value: float | int | bool) -> str:
    """A constant of the element type `kind`."""
    if kind == "i1":
        return "true" if value else "false"
    if kind not in FLOATS:
        return str(int(value))
    if kind == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if kind == "float":
        value = _to_f32(float(value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"


def _to_f32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def vector_type(kind: str, lanes: int) -> str:
    return f"<{lanes} x {kind}>" if lanes else kind


class Region:
    """A piece of text; holds lines and further regions."""

    def __init__(self) -> None:
        self.parts: list[str | Region] = []

    def flatten(self) -> Iterator[str]:
        for part in self.parts:
            if isinstance(part, Region):
                yield from part.flatten()
            else:
                yield part


class Value:
    """An SSA value of `lanes` elements (0: one, uniform) of LLVM type `kind`."""

    __slots__ = ("f", "kind", "lanes", "level", "text")

    def __init__(self, f: Function, text: str, kind: str, lanes: int, level: int = 0) -> None:
        self.f, self.text, self.kind, self.lanes, self.level = f, text, kind, lanes, level

    @property
    def type(self) -> str:
        return vector_type(self.kind, self.lanes)

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def like(self, value: Operand) -> Value:
        """`value` as this element type: constants are made, values pass."""
        return value if isinstance(value, Value) else self.f.constant(self.kind, value)

    def _binary(self, op: str, other: Operand, flip: bool = False) -> Value:
        a, b = self.f.level_lanes(self, self.like(other))
        if flip:
            a, b = b, a
        return self.f.emit(op.split()[0], f"{op} {a.type} {a.text}, {b.text}", a.kind, a.lanes)

    def __add__(self, other: Operand) -> Value:
        return self._binary("fadd contract" if self.is_float else "add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._binary("fsub contract" if self.is_float else "sub", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._binary("fsub contract" if self.is_float else "sub", other, flip=True)

    def __mul__(self, other: Operand) -> Value:
        return self._binary("fmul contract" if self.is_float else "mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv contract", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._binary("fdiv contract", other, flip=True)

    def __and__(self, other: Operand) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("xor", other)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        if self.is_float:
            return self.f.emit("neg", f"fneg {self}", self.kind, self.lanes)
        return 0 - self

    def __invert__(self) -> Value:
        return self ^ (True if self.kind == "i1" else -1)

    def integer(self, op: str, other: Operand) -> Value:
        """sdiv, srem, udiv, urem, shl, ashr, lshr."""
        return self._binary(op, other)

    def compare(self, predicate: str, other: Operand) -> Value:
        """An LLVM predicate: oeq, une, olt... for floats; eq, slt, ult... for integers."""
        a, b = self.f.level_lanes(self, self.like(other))
        op = "fcmp" if self.is_float else "icmp"
        return self.f.emit(
            predicate, f"{op} {predicate} {a.type} {a.text}, {b.text}", "i1", a.lanes
        )

    def select(self, yes: Operand, no: Operand) -> Value:
        """`yes` where this i1 is true."""
        model = yes if isinstance(yes, Value) else no
        assert isinstance(model, Value) and self.kind == "i1"
        y, n = self.f.level_lanes(model.like(yes), model.like(no))
        mask = self
        if mask.lanes and not y.lanes:
            y, n = self.f.broadcast(y, mask.lanes), self.f.broadcast(n, mask.lanes)
        elif y.lanes and not mask.lanes:
            mask = self.f.broadcast(mask, y.lanes)
        return self.f.emit("sel", f"select {mask}, {y}, {n}", y.kind, y.lanes)

    def convert(self, op: str, kind: str) -> Value:
        """fptosi, sitofp, uitofp, fptrunc, fpext, trunc, zext, sext, bitcast."""
        if kind == self.kind:
            return self
        to = vector_type(kind, self.lanes)
        return self.f.emit(op, f"{op} {self} to {to}", kind, self.lanes)

    def bits(self) -> Value:
        return self.convert("bitcast", INTEGER_OF[self.kind])

    def frozen(self) -> Value:
        return self.f.emit("fr", f"freeze {self}", self.kind, self.lanes)

    def intrinsic(self, name: str, *others: Operand) -> Value:
        """llvm.<name> of this type: floor, rint, fabs, sqrt, fmuladd, copysign..."""
        args = self.f.level_lanes(self, *(self.like(o) for o in others))
        lanes = args[0].lanes
        full = f"llvm.{name}.{self.f.suffix(self.kind, lanes)}"
        return self.f.call(name, self.kind, lanes, full, args)

    def extract(self, lane: int | str) -> Value:
        return self.f.emit("lane", f"extractelement {self}, i64 {lane}", self.kind, 0)

    def half(self, upper: bool) -> Value:
        """The lower or upper half of the lanes."""
        n = self.lanes // 2
        order = ", ".join(f"i32 {i + n * upper}" for i in range(n))
        rhs = f"shufflevector {self}, {self.type} poison, <{n} x i32> <{order}>"
        return self.f.emit("half", rhs, self.kind, n)

    def shifted(self, by: int, fill: Value) -> Value:
        """Each lane from `by` lanes before; the first ones are `fill`."""
        n = self.lanes
        order = ", ".join(f"i32 {i if i < by else n + i - by}" for i in range(n))
        first = self.f.broadcast(fill, n)
        rhs = f"shufflevector {first}, {self}, <{n} x i32> <{order}>"
        return self.f.emit("shifted", rhs, self.kind, n)

    def interleaved(self, other: Value, upper: bool) -> Value:
        """The lower or upper halves of both, lane by lane in turn."""
        n = self.lanes // 2
        order = ", ".join(f"i32 {i + n * upper + side}" for i in range(n) for side in (0, 2 * n))
        rhs = f"shufflevector {self}, {other}, <{2 * n} x i32> <{order}>"
        return self.f.emit("mixed", rhs, self.kind, self.lanes)


Operand = Value | float | int | bool


class Variable:
    """A mutable register."""

    def __init__(self, f: Function, kind: str, lanes: int, name: str) -> None:
        self.f, self.kind, self.lanes = f, kind, lanes
        self.pointer = f.name(name)
        f.allocas.append(f"  {self.pointer} = alloca {vector_type(kind, lanes)}")

    def get(self) -> Value:
        kind = vector_type(self.kind, self.lanes)
        return self.f.emit("v", f"load {kind}, ptr {self.pointer}", self.kind, self.lanes)

    def set(self, value: Operand) -> None:
        value = value if isinstance(value, Value) else self.f.constant(self.kind, value)
        if self.lanes and not value.lanes:
            value = self.f.broadcast(value, self.lanes)
        self.f.line(f"store {value}, ptr {self.pointer}")


class Function:
    """The text of one function as it grows.  `level` numbers the region that code goes to.
    `scales`: one instruction multiplies a vector of floats by powers of two."""

    scales = False

    def __init__(self, declarations: set[str]) -> None:
        self.allocas: list[str] = []
        self.declarations = declarations
        self.region = Region()
        self.level = 0
        self.count = 0

    # ---- lines

    def name(self, hint: str) -> str:
        self.count += 1
        return f"%{hint}.{self.count}"

    def line(self, text: str) -> None:
        self.region.parts.append("  " + text)

    def emit(self, hint: str, rhs: str, kind: str, lanes: int = 0) -> Value:
        name = self.name(hint)
        self.line(f"{name} = {rhs}")
        return Value(self, name, kind, lanes, self.level)

    def call(
        self, hint: str, kind: str, lanes: int, function: str, args: tuple[Value, ...]
    ) -> Value:
        types = ", ".join(a.type for a in args)
        result = vector_type(kind, lanes)
        attributes = (
            "" if function.startswith("llvm.") else " nounwind willreturn memory(none) nonlazybind"
        )
        self.declarations.add(f"declare {result} @{function}({types}){attributes}")
        listed = ", ".join(str(a) for a in args)
        return self.emit(hint, f"call {result} @{function}({listed})", kind, lanes)

    def suffix(self, kind: str, lanes: int) -> str:
        return f"v{lanes}{SUFFIX[kind]}" if lanes else SUFFIX[kind]

    # ---- memory

    def element(self, base: str, kind: str, index: Value) -> str:
        """The address of `base[index]`."""
        name = self.name("at")
        self.line(f"{name} = getelementptr {kind}, ptr {base}, i64 {index.text}")
        return name

    def load(self, pointer: str, kind: str, lanes: int = 0, hint: str = "v") -> Value:
        align = max(1, BITS[kind] // 8)
        rhs = f"load {vector_type(kind, lanes)}, ptr {pointer}, align {align}"
        return self.emit(hint, rhs, kind, lanes)

    # ---- lanes

    def constant(self, kind: str, value: float | int | bool) -> Value:
        return Value(self, literal(kind, value), kind, 0, -1)

    def broadcast(self, value: Value, lanes: int) -> Value:
        if value.lanes == lanes:
            return value
        assert value.lanes == 0, (value.lanes, lanes)
        if value.level == -1:
            return Value(self, f"splat ({value})", value.kind, lanes, -1)
        return self.spread(value, lanes)

    def spread(self, value: Value, lanes: int) -> Value:
        kind = vector_type(value.kind, lanes)
        one = self.emit("one", f"insertelement {kind} poison, {value}, i64 0", value.kind, lanes)
        rhs = f"shufflevector {one}, {kind} poison, <{lanes} x i32> zeroinitializer"
        return self.emit("all", rhs, value.kind, lanes)

    def level_lanes(self, *values: Value) -> tuple[Value, ...]:
        """All with the lanes of the widest."""
        lanes = max(v.lanes for v in values)
        return tuple(self.broadcast(v, lanes) if lanes else v for v in values)

    def any_lane(self, mask: Value) -> Value:
        if not mask.lanes:
            return mask
        return self.call("any", "i1", 0, f"llvm.vector.reduce.or.v{mask.lanes}i1", (mask,))

    def iota(self, kind: str, lanes: int) -> Value:
        listed = ", ".join(f"{kind} {i}" for i in range(lanes))
        return Value(self, f"<{listed}>", kind, lanes, -1)

    # ---- control flow

    @contextmanager
    def loop(self, low: Value, high: Value, step: int, hint: str) -> Iterator[Value]:
        """for (i = low; i < high; i += step), i64."""
        counter = Variable(self, "i64", 0, hint)
        counter.set(low)
        head, body, done = (self.name(f"{hint}_{part}")[1:] for part in ("head", "body", "done"))
        self.line(f"br label %{head}")
        self.label(head)
        value = counter.get()
        go = value.compare("slt", high)
        self.line(f"br {go}, label %{body}, label %{done}")
        self.label(body)
        yield value
        counter.set(value + step)
        self.line(f"br label %{head}")
        self.label(done)

    @contextmanager
    def when(self, condition: Value, hint: str = "if") -> Iterator[None]:
        yes, done = self.name(f"{hint}_yes")[1:], self.name(f"{hint}_done")[1:]
        self.line(f"br {condition}, label %{yes}, label %{done}")
        self.label(yes)
        yield
        self.line(f"br label %{done}")
        self.label(done)

    def label(self, name: str) -> None:
        self.region.parts.append(f"{name}:")

    def text(self, header: str) -> str:
        lines = [f"define {header} {{", "entry:", *self.allocas, *self.region.flatten()]
        return "\n".join([*lines, "  ret void", "}"])
