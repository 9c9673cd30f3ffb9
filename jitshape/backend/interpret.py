"""Runs a loop IR kernel with numpy: the oracle of the code generators.

In: a `Kernel`, its tensors (torch or flat numpy), its sizes and scalar arguments.  Out: the
stores, in the tensors' memory.
Invariant: every axis in force owns one array dimension, outermost first, so a scalar is an array
that broadcasts against all of them.  A loop becomes one more dimension, unless its body reads a
buffer the kernel stores to: then it runs step by step.  Indices are checked against the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from jitshape.backend import loops
from jitshape.backend.interpret_ops import OPS
from jitshape.backend.loops import Accumulator, Kernel, Loop, Scalar, Statement, Store
from jitshape.ir.symint import Atom, IntExpr, Size

HALF = (torch.float16, torch.bfloat16)
NUMPY = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float32,  # held in f32, rounded
    torch.bfloat16: np.float32,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
Array = np.ndarray


def interpret(
    kernel: Kernel,
    buffers: Sequence[torch.Tensor | Array],
    sizes: Sequence[int] = (),
    scalars: Sequence[float | int] = (),
) -> None:
    """Run `kernel`; `buffers` are those that are no scratch, in the kernel's order."""
    with np.errstate(all="ignore"):
        _Run(kernel, buffers, sizes, scalars).run()


def flat_memory(tensor: torch.Tensor) -> torch.Tensor:
    """All elements from the tensor's first one to the end of its storage."""
    offset = tensor.storage_offset()
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - offset
    return torch.as_strided(tensor.detach(), (max(count, 0),), (1,), offset)


class _Run:
    def __init__(self, kernel: Kernel, buffers: Sequence, sizes: Sequence, scalars: Sequence):
        self.kernel = kernel
        assert len(sizes) == len(kernel.sizes) and len(scalars) == len(kernel.scalars)
        self.given = [torch.from_numpy(b) if isinstance(b, Array) else b for b in buffers]
        passed = [b for b in kernel.buffers if b.role != "scratch"]
        assert len(passed) == len(self.given), (passed, len(self.given))
        self.memory = {b: flat_memory(t) for b, t in zip(passed, self.given)}
        self.atoms: dict[int, Array] = {a.id: np.asarray(s) for a, s in zip(kernel.sizes, sizes)}
        self.scalars = scalars
        self.carries: dict[Accumulator, Array] = {}
        self.prefixes: dict[Accumulator, Array] = {}
        self.scratch: dict[loops.Buffer, Array] = {}  # where a grid point's part starts
        self.values: dict[Scalar, Array] = {}
        self.shape: tuple[int, ...] = ()

    def run(self) -> None:
        for axis in self.kernel.grid:
            self.push(axis.symbol.symbol, int(self.size(axis.extent)))
        points = int(np.prod(self.shape, dtype=np.int64))
        for buffer in self.kernel.buffers:
            if buffer.role == "scratch":
                extent = int(self.size(buffer.extent))
                self.memory[buffer] = torch.zeros(points * extent, dtype=buffer.dtype)
                self.scratch[buffer] = np.arange(points).reshape(self.shape) * extent
        self.block(self.kernel.body)

    # ---- axes

    def push(self, atom: Atom | None, extent: int) -> tuple:
        """Give the axis a dimension behind those in force; `pop` undoes it."""
        assert atom is not None
        saved = self.atoms, self.carries, self.scratch, self.shape
        self.atoms = {key: _deeper(value) for key, value in self.atoms.items()}
        self.carries = {key: _deeper(value) for key, value in self.carries.items()}
        self.scratch = {key: _deeper(value) for key, value in self.scratch.items()}
        self.shape = (*self.shape, extent)
        self.atoms[atom.id] = np.arange(extent).reshape((1,) * (len(self.shape) - 1) + (-1,))
        self.values = {}
        return saved

    def pop(self, saved: tuple) -> None:
        self.atoms, self.carries, self.scratch, self.shape = saved
        self.values = {}

    # ---- statements

    def block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Store):
                self.store(statement)
            elif self.carries_memory(statement):
                self.stepwise(statement)
            else:
                self.spread(statement)

    def spread(self, loop: Loop) -> None:
        """All iterations at once."""
        saved = self.push(loop.axis.symbol.symbol, int(self.size(loop.axis.extent)))
        for acc in loops.running(loop):
            value = np.broadcast_to(self.contribution(acc), self.shape)
            self.prefixes[acc] = _RUNNING[acc.combine](value, axis=-1, dtype=NUMPY[acc.dtype])
        self.block(loop.body)
        found = {}
        for acc in loop.accumulators:
            value = np.broadcast_to(self.contribution(acc), self.shape)
            found[acc] = _COMBINE[acc.combine](value, NUMPY[acc.dtype])
        self.pop(saved)
        self.carries.update(found)

    def stepwise(self, loop: Loop) -> None:
        atom = loop.axis.symbol.symbol
        assert atom is not None
        extent = int(self.size(loop.axis.extent))
        steps: dict[Accumulator, list[Array]] = {acc: [] for acc in loop.accumulators}
        for step in range(extent):
            self.atoms[atom.id], self.values = np.asarray(step), {}
            self.block(loop.body)
            for acc in loop.accumulators:
                steps[acc].append(np.broadcast_to(self.contribution(acc), self.shape))
        self.atoms.pop(atom.id, None)
        self.values = {}
        for acc, values in steps.items():
            dtype = NUMPY[acc.value.dtype if acc.combine.startswith("arg") else acc.dtype]
            stacked = np.stack(values, -1) if values else np.empty((*self.shape, 0), dtype)
            self.carries[acc] = _COMBINE[acc.combine](stacked, NUMPY[acc.dtype])

    def contribution(self, acc: Accumulator) -> Array:
        value = self.scalar(acc.value)
        if acc.combine.startswith("arg"):
            return value
        return convert(value, acc.value.dtype, acc.dtype)

    def carries_memory(self, loop: Loop) -> bool:
        """Whether an iteration may read what an earlier one stored."""
        inside = Kernel("", (), (loop,), (), ())
        todo = [root for s in inside.statements() for root in loops.roots(s)]
        stored = {s.buffer for s in inside.statements() if isinstance(s, Store)}
        seen: set[Scalar] = set()
        while todo:
            scalar = todo.pop()
            if scalar not in seen:
                seen.add(scalar)
                if isinstance(scalar, loops.Load) and scalar.buffer in stored:
                    return True
                todo += scalar.operands()
        return False

    def store(self, store: Store) -> None:
        memory = self.memory[store.buffer]
        where = np.broadcast_to(self.place(store.buffer, store.index, store.indirect), self.shape)
        value = convert(self.scalar(store.value), store.value.dtype, store.buffer.dtype)
        value = np.broadcast_to(value, self.shape)
        if store.mask is not None:
            mask = np.broadcast_to(self.scalar(store.mask), self.shape)
            where, value = where[mask], value[mask]
        self.check(store.buffer, where)
        values = torch.from_numpy(np.array(value).reshape(-1)).to(memory.dtype)
        index = torch.from_numpy(np.array(where).reshape(-1))
        memory.index_put_((index,), values, accumulate=store.add)
        self.values = {}

    # ---- scalars

    def scalar(self, scalar: Scalar) -> Array:
        value = self.values.get(scalar)
        if value is None:
            value = self.values[scalar] = _EVALUATE[type(scalar)](self, scalar)
        return value

    def literal(self, scalar: loops.Literal) -> Array:
        value = torch.tensor(scalar.value, dtype=scalar.dtype)
        return _to_numpy(value)

    def index_value(self, scalar: loops.IndexValue) -> Array:
        return np.asarray(self.size(scalar.expr), np.int64)

    def argument(self, scalar: loops.SizeArgument) -> Array:
        return _to_numpy(torch.tensor(self.scalars[scalar.position], dtype=scalar.dtype))

    def carry(self, scalar: loops.Carry) -> Array:
        return self.carries[scalar.accumulator]

    def prefix(self, scalar: loops.Prefix) -> Array:
        return self.prefixes[scalar.accumulator]

    def load(self, load: loops.Load) -> Array:
        where = self.place(load.buffer, load.index, load.indirect)
        memory = self.memory[load.buffer]
        if load.mask is None:
            self.check(load.buffer, where)
            return _to_numpy(memory[torch.from_numpy(np.array(where))])
        where, mask = np.broadcast_arrays(where, self.scalar(load.mask))
        self.check(load.buffer, where[mask])
        other = self.literal(load.other) if load.other is not None else 0
        out = np.full(where.shape, other, NUMPY[load.dtype])
        out[mask] = _to_numpy(memory[torch.from_numpy(where[mask])])
        return out

    def apply(self, apply: loops.Apply) -> Array:
        args = [self.scalar(a) for a in apply.args]
        dtypes = [a.dtype for a in apply.args]
        if apply.op == "cast":
            return convert(args[0], dtypes[0], apply.dtype)
        if apply.op in loops.COMPARISONS:
            common = torch.promote_types(*dtypes)
            args = [convert(a, d, common) for a, d in zip(args, dtypes)]
        elif apply.op == "where":
            args[1:] = [convert(a, d, apply.dtype) for a, d in zip(args[1:], dtypes[1:])]
        elif apply.op not in loops.PREDICATES:
            args = [convert(a, d, apply.dtype) for a, d in zip(args, dtypes)]
        result = np.asarray(OPS[apply.op](*args))
        if apply.dtype in HALF:
            return convert(result, torch.float32, apply.dtype)
        return result.astype(NUMPY[apply.dtype], copy=False)

    # ---- indices

    def place(self, buffer: loops.Buffer, index: Size, indirect: tuple) -> Array:
        bound = {atom.id: self.scalar(value).astype(np.int64) for atom, value in indirect}
        where = np.asarray(self.size(index, bound), np.int64)
        if buffer.role == "scratch":
            where = where + self.scratch[buffer]
        return where

    def check(self, buffer: loops.Buffer, where: Array) -> None:
        count = self.memory[buffer].numel()
        if where.size and (where.min() < 0 or where.max() >= count):
            raise IndexError(
                f"kernel {self.kernel.name}: {buffer.name}[{where.min()}..{where.max()}] "
                f"is outside its {count} elements"
            )

    def size(self, expr: Size, bound: dict[int, Array] | None = None) -> Array | int:
        if not isinstance(expr, IntExpr):
            return int(expr)
        total: Array | int = 0
        for monomial, coefficient in expr.terms:
            product: Array | int = coefficient
            for id in monomial:
                product = product * self.atom(expr.algebra.atoms[id], bound)
            total = total + product
        return total

    def atom(self, atom: Atom, bound: dict[int, Array] | None) -> Array:
        if atom.args is None:
            found = bound.get(atom.id) if bound else None
            return self.atoms[atom.id] if found is None else found
        a, b = (np.asarray(self.size(x, bound)) for x in atom.args)
        return _ATOM[atom.kind](a, b)


def convert(value: Array, source: torch.dtype, target: torch.dtype) -> Array:
    """ "cast": C semantics, f16 and bf16 rounded and held in f32."""
    if source == target:
        return value
    if target == torch.bool:
        return value != 0
    held = torch.from_numpy(np.array(value)).to(target)
    return _to_numpy(held).reshape(value.shape)


def _deeper(value: Array) -> Array:
    return value[..., None] if value.ndim else value


def _to_numpy(value: torch.Tensor) -> Array:
    return (value.float() if value.dtype in HALF else value).numpy()


def _positions(extreme: Callable[..., Array]) -> Callable[[Array, type], Array]:
    def combine(value: Array, dtype: type) -> Array:
        if value.shape[-1] == 0:
            return np.zeros(value.shape[:-1], dtype)
        return np.asarray(extreme(value, axis=-1), dtype)

    return combine


def _extreme(reduce: Callable[..., Array], sign: int) -> Callable[[Array, type], Array]:
    def combine(value: Array, dtype: type) -> Array:
        if dtype is np.bool_:
            return np.asarray(reduce(value, axis=-1, initial=sign > 0))
        if np.issubdtype(dtype, np.floating):
            return np.asarray(reduce(value, axis=-1, initial=sign * np.inf))
        limits = np.iinfo(dtype)
        return np.asarray(reduce(value, axis=-1, initial=limits.max if sign > 0 else limits.min))

    return combine


_COMBINE: dict[str, Callable[[Array, type], Array]] = {
    "sum": lambda value, dtype: np.asarray(np.sum(value, axis=-1, dtype=dtype)),
    "prod": lambda value, dtype: np.asarray(np.prod(value, axis=-1, dtype=dtype)),
    "max": _extreme(np.max, -1),
    "min": _extreme(np.min, 1),
    "any": lambda value, dtype: np.asarray(np.any(value, axis=-1)),
    "all": lambda value, dtype: np.asarray(np.all(value, axis=-1)),
    "argmax": _positions(np.argmax),
    "argmin": _positions(np.argmin),
}
_RUNNING: dict[str, Callable[..., Array]] = {"sum": np.cumsum, "prod": np.cumprod}
_ATOM: dict[str, Callable[[Array, Array], Array]] = {
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "max": np.maximum,
    "min": np.minimum,
}
_EVALUATE: dict[type, Callable[[_Run, Any], Array]] = {
    loops.Literal: _Run.literal,
    loops.IndexValue: _Run.index_value,
    loops.SizeArgument: _Run.argument,
    loops.Carry: _Run.carry,
    loops.Prefix: _Run.prefix,
    loops.Load: _Run.load,
    loops.Apply: _Run.apply,
}
