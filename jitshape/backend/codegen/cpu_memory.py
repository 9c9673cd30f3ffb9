"""Loads and stores of the CPU generator.

In: a Load or Store and the scope it is written in.  Out: the cheapest access that is right: a
scalar, a vector, or a gather/scatter; masked where the loop's tail or the kernel says so.
Invariant: a masked-off lane touches no memory.  In memory b1 is a byte, 0 or 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jitshape.backend.codegen.cpu_ops import ELEMENT, cast
from jitshape.backend.codegen.exprs import access
from jitshape.backend.codegen.llvm_text import BITS, Value, Variable, vector_type
from jitshape.backend.loops import Buffer, Load, Scalar, Store
from jitshape.ir.symint import Size

if TYPE_CHECKING:
    from jitshape.backend.codegen.cpu import Generator


def memory_kind(dtype: torch.dtype) -> str:
    return "i8" if dtype == torch.bool else ELEMENT[dtype]


# ---- buffers


def bind_buffers(g: Generator) -> None:
    """Read the pointers; make this thread's scratch."""
    position = 0
    for buffer in g.kernel.buffers:
        if _in_registers(buffer):
            kind = memory_kind(buffer.dtype)
            g.buffers[buffer] = g.name(buffer.name)
            g.allocas.append(f"  {g.buffers[buffer]} = alloca {kind}, i64 {buffer.extent}")
        elif buffer.role == "scratch":
            count = g.size(buffer.extent) * (BITS[memory_kind(buffer.dtype)] // 8)
            g.declarations.add("declare ptr @malloc(i64) nonlazybind")
            g.declarations.add("declare void @free(ptr) nonlazybind")
            g.buffers[buffer] = g.emit(buffer.name, f"call ptr @malloc({count})", "ptr").text
        else:
            slot = g.element("%buffers", "ptr", g.constant("i64", position))
            g.buffers[buffer] = g.emit(buffer.name, f"load ptr, ptr {slot}", "ptr").text
            position += 1


def _in_registers(buffer: Buffer) -> bool:
    """Scratch so small that LLVM may keep it in registers."""
    return buffer.role == "scratch" and buffer.extent == 1


def free_scratch(g: Generator) -> None:
    for buffer in g.kernel.buffers:
        if buffer.role == "scratch" and not _in_registers(buffer):
            g.line(f"call void @free(ptr {g.buffers[buffer]})")


# ---- where


def _bound(g: Generator, indirect: tuple) -> dict[int, Value]:
    return {atom.id: cast(g.scalar(value), value.dtype, torch.int64) for atom, value in indirect}


def _place(g: Generator, buffer: Buffer, index: Size, bound: dict[int, Value]) -> tuple[str, str]:
    """(how it moves with the lanes: uniform, unit or gather; the address, or a vector of them)"""
    axis = g.scope.vector_axis
    varying = [id for id, value in bound.items() if value.lanes]
    moves = "uniform" if axis is None else access(index, axis, varying).kind
    kind, base = memory_kind(buffer.dtype), g.buffers[buffer]
    if moves in ("uniform", "unit"):
        return moves, g.element(base, kind, g.index_at_lane_0(index, bound))
    where = g.broadcast(g.index_vector(index, bound), g.scope.lanes)
    pointers = g.name("at")
    g.line(f"{pointers} = getelementptr {kind}, ptr {base}, {where}")
    return "gather", pointers


def _mask(g: Generator, scalar: Scalar | None) -> Value | None:
    return None if scalar is None else cast(g.scalar(scalar), scalar.dtype, torch.bool)


def _both(g: Generator, mask: Value | None) -> Value | None:
    """The kernel's mask and the tail's."""
    tail = g.scope.mask
    if mask is None or tail is None:
        return tail if mask is None else mask
    return mask & tail


# ---- loads


def load(g: Generator, load: Load) -> Value:
    if load in g.turned:
        value = g.load(g.turned[load], memory_kind(load.dtype), g.scope.lanes, load.buffer.name)
        return value.compare("ne", 0) if load.dtype == torch.bool else value
    bound, mask = _bound(g, load.indirect), _mask(g, load.mask)
    moves, address = _place(g, load.buffer, load.index, bound)
    kind = memory_kind(load.dtype)
    other = g.constant(kind, 0)
    if load.other is not None:
        other = g.typed_constant(load.other.value, load.dtype)
        other = other.convert("zext", "i8") if load.dtype == torch.bool else other
    if moves == "uniform":
        value = _load_uniform(g, address, kind, mask, other, load.buffer.name)
    else:
        value = _load_vector(g, moves, address, other, _both(g, mask), load.buffer.name)
    return value.compare("ne", 0) if load.dtype == torch.bool else value


def _load_uniform(
    g: Generator, address: str, kind: str, mask: Value | None, other: Value, name: str
) -> Value:
    """One element.  The tail mask is no matter: at least one of its lanes is on."""
    if mask is None:
        return g.load(address, kind, hint=name)
    any_lane = mask
    if mask.lanes:
        reduced = _both(g, mask)
        assert reduced is not None
        any_lane = g.any_lane(reduced)
    result = Variable(g, kind, 0, name)
    result.set(other)
    with g.when(any_lane, "load"):
        result.set(g.load(address, kind, hint=name))
    return mask.select(result.get(), other) if mask.lanes else result.get()


def _load_vector(
    g: Generator, moves: str, address: str, other: Value, mask: Value | None, name: str
) -> Value:
    kind, lanes = other.kind, g.scope.lanes
    if mask is None and moves == "unit":
        return g.load(address, kind, lanes, name)
    suffix, full = g.suffix(kind, lanes), vector_type(kind, lanes)
    mask = g.broadcast(g.constant("i1", True) if mask is None else mask, lanes)
    rest = f"i32 {_align(kind)}, {mask}, {g.broadcast(other, lanes)}"
    rest_types = f"i32, {mask.type}, {full}"
    pointers, function = (
        ("ptr", f"llvm.masked.load.{suffix}.p0")
        if moves == "unit"
        else (f"<{lanes} x ptr>", f"llvm.masked.gather.{suffix}.v{lanes}p0")
    )
    g.declarations.add(f"declare {full} @{function}({pointers}, {rest_types})")
    return g.emit(name, f"call {full} @{function}({pointers} {address}, {rest})", kind, lanes)


def _align(kind: str) -> int:
    return BITS[kind] // 8


# ---- stores


def store(g: Generator, store: Store) -> None:
    bound, mask = _bound(g, store.indirect), _mask(g, store.mask)
    value = cast(g.scalar(store.value), store.value.dtype, store.buffer.dtype)
    if store.buffer.dtype == torch.bool:
        value = value.convert("zext", "i8")
    lanes = g.scope.lanes
    if store in g.turned:
        g.line(f"store {g.broadcast(value, lanes)}, ptr {g.turned[store]}, align 1")
        return
    moves, address = _place(g, store.buffer, store.index, bound)
    if store.add:
        _add(g, store.buffer.dtype, moves, address, value, _both(g, mask))
    elif moves == "uniform" and not (value.lanes or (mask is not None and mask.lanes)):
        _store_uniform(g, address, value, mask)
    elif moves == "uniform" and not value.lanes and mask is not None:
        on = _both(g, mask)
        assert on is not None
        _store_uniform(g, address, value, g.any_lane(on))
    elif moves == "unit" and mask is None and g.scope.mask is None:
        g.line(f"store {g.broadcast(value, lanes)}, ptr {address}, align {_align(value.kind)}")
    else:
        _store_masked(g, moves, address, g.broadcast(value, lanes), _both(g, mask))


def _store_uniform(g: Generator, address: str, value: Value, mask: Value | None) -> None:
    line = f"store {value}, ptr {address}, align {_align(value.kind)}"
    if mask is None:
        g.line(line)
        return
    with g.when(mask, "store"):
        g.line(line)


def _store_masked(g: Generator, moves: str, address: str, value: Value, mask: Value | None) -> None:
    """Lanes in order: where several lanes write one element, the last one stays."""
    lanes = value.lanes
    mask = g.broadcast(g.constant("i1", True) if mask is None else mask, lanes)
    suffix = g.suffix(value.kind, lanes)
    address, pointers = _addresses(g, moves, address, lanes)
    function = f"llvm.masked.scatter.{suffix}.v{lanes}p0"
    if moves == "unit":
        pointers, function = "ptr", f"llvm.masked.store.{suffix}.p0"
    g.declarations.add(f"declare void @{function}({value.type}, {pointers}, i32, {mask.type})")
    align = f"i32 {_align(value.kind)}"
    g.line(f"call void @{function}({value}, {pointers} {address}, {align}, {mask})")


def _addresses(g: Generator, moves: str, address: str, lanes: int) -> tuple[str, str]:
    """(addresses, their type), one a lane unless they follow one another."""
    vector = f"<{lanes} x ptr>"
    if moves == "uniform":
        one, spread = g.name("one"), g.name("at")
        g.line(f"{one} = insertelement {vector} poison, ptr {address}, i64 0")
        order = f"<{lanes} x i32> zeroinitializer"
        g.line(f"{spread} = shufflevector {vector} {one}, {vector} poison, {order}")
        address = spread
    return address, vector


def _add(
    g: Generator, dtype: torch.dtype, moves: str, address: str, value: Value, mask: Value | None
) -> None:
    """`+=`, lane by lane, since lanes may meet; atomic, since threads may."""
    lanes = g.scope.lanes
    if not lanes:
        if mask is None:
            _add_one(g, dtype, address, value)
        else:
            with g.when(mask, "add"):
                _add_one(g, dtype, address, value)
        return
    kind = value.kind
    values = Variable(g, kind, lanes, "values")
    values.set(value)
    on = Variable(g, "i8", lanes, "on")
    on.set(1 if mask is None else g.broadcast(mask, lanes).convert("zext", "i8"))
    places = g.name("places")
    if moves == "gather":
        g.allocas.append(f"  {places} = alloca <{lanes} x ptr>")
        g.line(f"store <{lanes} x ptr> {address}, ptr {places}")
    with g.loop(g.constant("i64", 0), g.constant("i64", lanes), 1, "lane") as lane:
        active = g.load(g.element(on.pointer, "i8", lane), "i8").compare("ne", 0)
        with g.when(active, "add"):
            where = address
            if moves == "gather":
                slot = g.element(places, "ptr", lane)
                where = g.emit("at", f"load ptr, ptr {slot}", "ptr").text
            elif moves == "unit":
                where = g.element(address, kind, lane)
            _add_one(g, dtype, where, g.load(g.element(values.pointer, kind, lane), kind))


def _add_one(g: Generator, dtype: torch.dtype, address: str, value: Value) -> None:
    if dtype == torch.bool:
        g.line(f"atomicrmw or ptr {address}, {value} monotonic")
    elif dtype not in (torch.bfloat16, torch.float16):
        op = "fadd" if value.is_float else "add"
        g.line(f"atomicrmw {op} ptr {address}, {value} monotonic")
    else:
        _add_half(g, dtype, address, value)


def _add_half(g: Generator, dtype: torch.dtype, address: str, value: Value) -> None:
    """A compare-and-swap loop on the 16 bits."""
    wide = cast(value, dtype, torch.float32)
    again, done = g.name("again")[1:], g.name("added")[1:]
    g.line(f"br label %{again}")
    g.label(again)
    old = g.load(address, "i16")
    before = old if dtype == torch.bfloat16 else old.convert("bitcast", "half")
    after = cast(cast(before, dtype, torch.float32) + wide, torch.float32, dtype)
    new = after.convert("bitcast", "i16") if after.kind == "half" else after
    pair = g.name("pair")
    g.line(f"{pair} = cmpxchg ptr {address}, {old}, {new} monotonic monotonic")
    swapped = g.emit("swapped", f"extractvalue {{ i16, i1 }} {pair}, 1", "i1")
    g.line(f"br {swapped}, label %{done}, label %{again}")
    g.label(done)
