"""A matrix product with what stands round it, as calls: the other way to run a contraction.

In: a kernel that is a contraction.  Out: `ByAten`, called as its launcher.  Before --> after:
    out[i, j] = f(sum of g(a[i, k]) * b[k, j])   -->   left[i, k] = g(a[i, k])      a kernel
                                                       c = mm(left, b)              ATen
                                                       out[i, j] = f(c[i, j])       a kernel
Factors that lie in memory as matrices, and a result that is stored as it is, need no kernel.
Invariant: the same buffers, sizes and scalars as the kernel; c is rounded to the factors' dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jitshape.backend.codegen.exprs import linear_in
from jitshape.backend.codegen.triton_contraction import Contraction
from jitshape.backend.codegen.triton_plan import Lanes, axis_id
from jitshape.backend.loops import Apply, Axis, Buffer, Carry, Kernel, Load, Loop, Scalar, Store
from jitshape.backend.split import Rewriter, buffers_of
from jitshape.ir.symint import Size

Launch = Callable[..., None]


@dataclass(frozen=True)
class Matrices:
    """Memory of the kernel's buffer `place` as matrices: [batch, rows, columns]."""

    place: int
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size


@dataclass(frozen=True)
class Beside:
    """A kernel that makes a factor or stores the result; `tensors`: its buffers' places among
    those of the contraction, of which the one behind the last is the factor or product."""

    kernel: Kernel
    tensors: tuple[int, ...]
    shape: tuple[Size, ...] = ()


class ByAten:
    """Called with the tensors, sizes and scalars of `kernel`."""

    def __init__(
        self, kernel: Kernel, parts: Contraction, launcher: Callable[[Kernel], Launch]
    ) -> None:
        self.kernel, self.parts, self.launcher = kernel, parts, launcher
        inner = Lanes("r", (parts.loop.axis,))
        groups = parts.groups
        self.left = self._factor(parts.left, (groups[0], groups[1], inner), "left")
        self.right = self._factor(parts.right, (groups[0], inner, groups[2]), "right")
        self.shape = tuple(group.extent for group in groups)
        self.rest = self._whole_result() or self._rest()
        beside = (self.left, self.right, self.rest)
        self.launches = {b: launcher(b.kernel) for b in beside if isinstance(b, Beside)}

    # ---- how

    def _factor(self, factor: Scalar, groups: Sequence[Lanes], name: str) -> Matrices | Beside:
        seen = self._matrices(factor, groups)
        if seen is not None:
            return seen
        made = Buffer(name, factor.dtype, "out")
        store = Store(made, position(groups), factor)
        kernel, tensors = self._kernel(name, groups, (store,))
        return Beside(kernel, tensors, tuple(group.extent for group in groups))

    def _matrices(self, factor: Scalar, groups: Sequence[Lanes]) -> Matrices | None:
        """The factor where it lies, if that is how a matrix may lie."""
        if not isinstance(factor, Load) or factor.mask is not None or factor.indirect:
            return None
        rest, strides = factor.index, []
        for group in groups:
            if len(group.axes) > 1:
                return None
            found = linear_in(rest, axis_id(group.axes[0])) if group.axes else (0, rest)
            if found is None:
                return None
            strides.append(found[0])
            rest = found[1]
        shape = tuple(group.extent for group in groups)
        place = self.kernel.buffers.index(factor.buffer)
        return Matrices(place, shape, tuple(strides), rest)

    def _whole_result(self) -> Matrices | None:
        """The memory that the product may be written to as it is."""
        (store, *others), loop = self.parts.stores, self.parts.loop
        value = store.value
        if isinstance(value, Apply) and value.op == "cast":
            value = value.args[0]
        plain = isinstance(value, Carry) and value.accumulator is loop.accumulators[0]
        if others or not plain or store.buffer.dtype is not self.parts.dtype:
            return None
        if store.mask is not None or store.indirect or store.add:
            return None
        return self._matrices(Load(store.buffer, store.index), self.parts.groups)

    def _rest(self) -> Beside:
        product = Buffer("product", self.parts.dtype)
        load: Scalar = Load(product, position(self.parts.groups))
        if product.dtype is not torch.float32:
            load = Apply("cast", (load,), torch.float32)
        write = _WithProduct(load)
        stores = tuple(write.store(store) for store in self.parts.stores)
        return Beside(*self._kernel("rest", self.parts.groups, stores))

    def _kernel(
        self, name: str, groups: Sequence[Lanes], stores: tuple[Store, ...]
    ) -> tuple[Kernel, tuple[int, ...]]:
        """A kernel over `groups` with these stores, and the places of its buffers."""
        axes = [axis for group in groups for axis in group.axes]
        *grid, last = (Axis(axis.symbol, axis.extent) for axis in axes)
        body = (Loop(replace(last, kind="vector"), stores),)
        kernel = replace(
            self.kernel,
            name=f"{self.kernel.name}_{name}",
            grid=tuple(grid),
            body=body,
            contraction=None,
        )
        kernel = replace(kernel, buffers=buffers_of(kernel, self.kernel.buffers))
        places = {buffer: place for place, buffer in enumerate(self.kernel.buffers)}
        return kernel, tuple(places.get(b, len(places)) for b in kernel.buffers)

    # ---- now

    def __call__(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]
    ) -> None:
        values = {atom.name: size for atom, size in zip(self.kernel.sizes, sizes)}

        def numbers(row: Sequence[Size]) -> list[int]:
            found = [s if isinstance(s, int) else s.algebra.evaluate(s, values) for s in row]
            return [0 if number is None else number for number in found]

        def matrices(m: Matrices) -> torch.Tensor:
            base = tensors[m.place]
            offset = base.storage_offset() + numbers([m.offset])[0]
            return torch.as_strided(base, numbers(m.shape), numbers(m.strides), offset)

        def run(beside: Beside, product: torch.Tensor) -> None:
            given = (*tensors, product)
            self.launches[beside](*(given[place] for place in beside.tensors), *sizes, *scalars)

        def factor(way: Matrices | Beside) -> torch.Tensor:
            if isinstance(way, Matrices):
                return matrices(way)
            made = torch.empty(numbers(way.shape), dtype=self.parts.dtype, device=tensors[0].device)
            run(way, made)
            return made

        with torch.no_grad():
            left, right = factor(self.left), factor(self.right)
            if isinstance(self.rest, Matrices):
                multiply(left, right, matrices(self.rest))
                return
            product = torch.empty(
                numbers(self.shape), dtype=self.parts.dtype, device=tensors[0].device
            )
            multiply(left, right, product)
            run(self.rest, product)


def multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """out = left right, one after the other or, if there is one only, without a batch."""
    if len(left) == 1:
        torch.mm(left[0], right[0], out=out[0])
    else:
        torch.bmm(left, right, out=out)


def position(groups: Sequence[Lanes]) -> Size:
    """Where an element lies in contiguous memory."""
    at: Size = 0
    for group in groups:
        for axis in group.axes:
            at = at * axis.extent + axis.symbol
    return at


class _WithProduct(Rewriter):
    """Statements in which the result of the sum is read from memory."""

    def __init__(self, product: Scalar) -> None:
        super().__init__({}, None, {})
        self.product = product

    def _rewritten(self, scalar: Scalar) -> Scalar:
        return self.product if isinstance(scalar, Carry) else super()._rewritten(scalar)
