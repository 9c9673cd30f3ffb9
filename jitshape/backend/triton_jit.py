"""Kernels on Triton: compiled for CUDA tensors, interpreted for those of the CPU.

In: kernels.  Out: a `Launcher` each, called with tensors, sizes and scalars in the kernel's order.
Invariant: sizes are never compiled in.  A kernel has at most two binaries (sizes, strides and
addresses divisible by 16, or not), and a third for tensors that 32-bit indices do not reach;
which one runs is decided here, not by Triton's own specialisation, as is whether few long rows
are shared among programs (backend/split.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from jitshape.backend.codegen.triton import Written, write_kernel
from jitshape.backend.codegen.triton_plan import (
    ALIGNMENT,
    LONGEST_BLOCK,
    blocks_on_gpu,
    power_of_two,
)
from jitshape.backend.codegen.triton_sizes import geometry, relevant_sizes
from jitshape.backend.cuda_launch import Started
from jitshape.backend.generated import defined
from jitshape.backend.loops import Kernel
from jitshape.backend.split import CHUNK, MOST_PARTS, Stages, split
from jitshape.backend.text import kernel_text
from jitshape.backend.triton_binaries import compiled

if TYPE_CHECKING:
    from jitshape.cache.store import Store

_files = itertools.count()
Parts = tuple[Sequence[Any], Sequence[int], Sequence[Any]]  # tensors, sizes, scalars
HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice

from jitshape.backend.codegen import triton_library as lib


"""
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
LONG_ROW = 2**15  # elements, from which it is shared among programs where there are few rows
PROGRAMS_EACH = 2  # of a multiprocessor, to keep it busy
INTERPRETED_TILE = 2**16  # elements; a program of the interpreter costs a millisecond


def compile_kernels(kernels: Sequence[Kernel], store: Store | None = None) -> list[Launcher]:
    """Launchers of `kernels`; code for a device is made when the first tensors arrive."""
    return [launcher_of(kernel, store) for kernel in kernels]


def launcher_of(kernel: Kernel, store: Store | None = None) -> Launcher:
    if kernel.contraction is not None:
        from jitshape.backend.triton_products import ProductLauncher

        return ProductLauncher(kernel, store)
    return Launcher(kernel, store)


@dataclass(frozen=True)
class Binary:
    """What Triton compiled for one variant of a kernel: with these block sizes and this type of
    indices, for parameters of these types (constexpr ones, `constants`, left out).  `start` is
    there on a device only."""

    code: Any
    blocks: Mapping[str, int]
    index: Any
    types: tuple[str, ...]
    constants: tuple[Any, ...]
    start: Callable[..., None] = field(repr=False, default=lambda *args: None)

    def on(self, device: torch.device) -> Binary:
        """The binary for tensors of `device`."""
        return replace(self, start=Started(self.code, device, self.types, self.constants))


class Launcher:
    """Launches one kernel."""

    def __init__(self, kernel: Kernel, store: Store | None = None, is_stage: bool = False) -> None:
        self.kernel, self.store, self.is_stage = kernel, store, is_stage
        self.written = write_kernel(kernel)
        loops = "".join(f"# {line}\n" for line in kernel_text(kernel).splitlines())
        self.source = HEADER + loops + self.written.text
        self.tensors = sum(buffer.role != "scratch" for buffer in kernel.buffers)
        self.geometry = geometry(kernel, self.written.plan)
        self.file = f"<jitshape triton {next(_files)}>"
        self.binaries: dict[tuple, Binary] = {}

    def parts_of(self, args: Sequence[Any]) -> Parts:
        """Tensors, sizes and scalars."""
        last = self.tensors + len(self.kernel.sizes)
        return args[: self.tensors], args[self.tensors : last], args[last:]

    def __call__(self, *args: Any) -> None:
        tensors, sizes, scalars = self.parts_of(args)
        extents, row, large, wide = self.geometry(*sizes)
        if 0 in extents or not tensors:
            return
        device = tensors[0].device
        if row >= LONG_ROW and self._in_parts(device, args, sizes, scalars, extents, row):
            return
        if device.type == "cpu":
            self._interpret(tensors, sizes, scalars, extents, row)
            return
        for tensor in tensors:
            wide |= tensor.data_ptr()
        self._launch(device, tensors, sizes, scalars, extents, (wide % ALIGNMENT == 0, large))

    # ---- long rows

    @functools.cached_property
    def stages(self) -> Stages | str:
        return "it is a stage" if self.is_stage else split(self.kernel)

    @functools.cached_property
    def _stage_launchers(self) -> list[Launcher]:
        assert isinstance(self.stages, Stages)
        return [Launcher(kernel, self.store, True) for kernel in self.stages.kernels]

    def with_stages(self) -> list[Launcher]:
        """All that may run for this kernel."""
        return [self, *([] if isinstance(self.stages, str) else self._stage_launchers)]

    def _in_parts(
        self,
        device: torch.device,
        args: Sequence[Any],
        sizes: Sequence[int],
        scalars: Sequence[float],
        extents: tuple[int, ...],
        row: int,
    ) -> bool:
        """Run the kernel as stages where it has too few rows to keep the device busy."""
        blocks, _ = blocks_on_gpu(self.written.plan)
        parts = min(parts_of_row(device, _programs(self.written, extents, blocks), row), MOST_PARTS)
        stages = self.stages if parts > 1 else ""
        if isinstance(stages, str):
            return False
        values = {atom.name: size for atom, size in zip(self.kernel.sizes, sizes)}
        points = number_of(stages.points, values)
        tensors = list(args[: self.tensors])
        for dtype in stages.partials:
            tensors.append(torch.empty(parts * points, dtype=dtype, device=device))
        chunks = [-(-number_of(extent, values) // (CHUNK * parts)) for extent in stages.extents]
        more = (parts, *(max(count, 1) for count in chunks))
        for launcher, places in zip(self._stage_launchers, stages.tensors):
            given = (tensors[place] for place in places)
            known = len(launcher.kernel.sizes) - len(sizes)
            launcher(*given, *sizes, *more[:known], *scalars)
        return True

    # ---- arguments

    def _buffers(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[Any]:
        """The tensors, and scratch where the kernel needs it in memory."""
        given = iter(tensors)
        values = {atom.name: size for atom, size in zip(self.kernel.sizes, sizes)}
        passed = []
        for buffer in self.written.buffers:
            if buffer.role != "scratch":
                passed.append(next(given))
                continue
            count = number_of(self.written.plan.points * buffer.extent, values)
            passed.append(torch.empty(count, dtype=buffer.dtype, device=tensors[0].device))
        return passed

    def ahead_of_time(self, target: Any, aligned: bool) -> Binary:
        """The binary for a target that typical sizes have."""
        return compile_for(self.kernel, self.written, self.file, target, aligned, False)

    # ---- on the CPU

    def _interpret(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
        extents: tuple[int, ...],
        row: int,
    ) -> None:
        import triton.language as tl

        blocks = interpreted_blocks(self.written, extents, row)
        grid = _programs(self.written, extents, blocks)
        passed = [tensor.detach() for tensor in self._buffers(tensors, sizes)]
        self._interpreted(grid, *passed, *sizes, *scalars, *blocks.values(), tl.int64)

    @functools.cached_property
    def _interpreted(self) -> Callable[..., None]:
        from jitshape.backend.triton_interpreter import interpreted

        return interpreted(self.written.text, self.written.name, self.file)

    # ---- on a GPU

    def _launch(
        self,
        device: torch.device,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[float],
        extents: tuple[int, ...],
        variant: tuple[bool, bool],
    ) -> None:
        binary = self.binaries.get((device, *variant))
        if binary is None:
            target = target_of(device)
            made = compile_for(self.kernel, self.written, self.file, target, *variant, self.store)
            binary = self.binaries[(device, *variant)] = made.on(device)
        grid = _programs(self.written, extents, binary.blocks)
        binary.start(grid, *self._buffers(tensors, sizes), *sizes, *scalars)


def target_of(device: torch.device) -> Any:
    """What Triton compiles for on a device."""
    from triton.runtime.driver import driver

    with torch.cuda.device(device):
        return driver.active.get_current_target()


def parts_of_row(device: torch.device, programs: int, row: int) -> int:
    """Among how many programs a row is shared where there are so many without."""
    if device.type == "cpu" or programs > MOST_PARTS:
        return 1  # one after the other in the interpreter
    busy = PROGRAMS_EACH * multiprocessors(device)
    return min(busy // max(programs, 1), row // (LONG_ROW // 4))


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def number_of(size: Any, values: dict[str, int]) -> int:
    return size if type(size) is int else size.algebra.evaluate(size, values)


def _programs(written: Written, extents: Sequence[int], blocks: Mapping[str, int]) -> int:
    """How many programs cover the lanes."""
    count = 1
    for group, extent in zip(written.plan.lanes, extents):
        count *= -(-extent // blocks[group.block])
    return count


def interpreted_blocks(written: Written, extents: Sequence[int], row: int) -> dict[str, int]:
    """Large blocks and few programs."""
    left = INTERPRETED_TILE
    sizes: dict[str, int] = {}
    plan = written.plan
    if "r" in plan.dims:
        longest = power_of_two(plan.longest_row) if plan.persistent else power_of_two(row)
        sizes["RBLOCK"] = min(longest, LONGEST_BLOCK)
        left = max(left // sizes["RBLOCK"], 1)
    for group, extent in reversed(list(zip(plan.lanes, extents))):
        sizes[group.block] = min(power_of_two(extent), left)
        left = max(left // sizes[group.block], 1)
    return {name: sizes[name] for name in written.blocks}


def jit_function(written: Written, file: str) -> Any:
    """The kernel as a function that Triton compiles."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    from jitshape.backend.codegen import triton_library

    names: dict[str, Any] = {"triton": triton, "tl": tl, "__name__": "jitshape.generated"}
    names |= {"libdevice": libdevice, "lib": triton_library}
    return defined(written.text, written.name, names, file)


def compile_for(
    kernel: Kernel,
    written: Written,
    file: str,
    target: Any,
    aligned: bool,
    large: bool,
    store: Store | None = None,
    blocks: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Binary:
    """The binary of one variant; needs no device.  `blocks` with Triton's `options`, where they
    are not those of the plan; `constants`: further parameters' values."""
    import triton.language as tl
    from triton.compiler import ASTSource

    function = jit_function(written, file)
    if blocks is None:
        chosen, warps = blocks_on_gpu(written.plan)
        blocks, options = {name: chosen[name] for name in written.blocks}, {"num_warps": warps}
    index = tl.int64 if large else tl.int32
    pointers = [POINTERS[buffer.dtype] for buffer in written.buffers]
    integers = ["i64" if large else "i32"] * len(written.sizes)
    scalars = ["fp64" if dtype.is_floating_point else "i64" for dtype in kernel.scalars]
    types = (*pointers, *integers, *scalars)
    known = {**blocks, "INDEX": index, **(constants or {})}
    signature = dict(zip(function.arg_names, (*types, *["constexpr"] * len(known))))
    divisible = {atom for atom, factor in kernel.facts if factor % ALIGNMENT == 0}
    places = [len(pointers) + i for i, atom in enumerate(written.sizes) if atom in divisible]
    if aligned:
        wide = set(relevant_sizes(kernel, written.plan)) - divisible
        places += [len(pointers) + i for i, atom in enumerate(written.sizes) if atom in wide]
        places += range(len(pointers))
    attributes = {(place,): [["tt.divisibility", ALIGNMENT]] for place in sorted(places)}
    source = ASTSource(function, signature, known, attributes)
    options = {**(options or {}), "enable_fp_fusion": True}
    code = compiled(source, written.text, target, options, store)
    return Binary(code, blocks, index, types, tuple(known.values()))
