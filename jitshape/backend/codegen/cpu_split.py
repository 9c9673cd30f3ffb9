"""Reductions to few elements, shared among threads.

In: a kernel that is one grid point, and its `Stages`.  Out: the part of its entry that decides, by
the sizes and threads of the call, whether one thread runs the kernel or all run the stages.
Invariant: each stage is a kernel of its own; partial results stand on the stack of the caller.
"""

from __future__ import annotations

from collections.abc import Callable

from jitshape.backend.codegen.cpu_memory import memory_kind
from jitshape.backend.codegen.cpu_sizes import SizeWriter
from jitshape.backend.codegen.llvm_text import Value
from jitshape.backend.loops import Kernel
from jitshape.backend.split import CHUNK, Stages, split
from jitshape.ir.symint import Size

SPLIT_FROM = 65536  # elements: two stages start threads twice
MOST_THREADS = 64


def stages_of(kernel: Kernel, work: Size) -> Stages | None:
    """The stages of a kernel without a grid, which is one thread's work otherwise; `work` is its
    number of elements."""
    if kernel.grid or (type(work) is int and work < SPLIT_FROM):
        return None
    stages = split(kernel)
    return stages if isinstance(stages, Stages) and stages.points == 1 else None


def write_choice(f: SizeWriter, stages: Stages, work: Value, whole: Callable[[], None]) -> None:
    """Call the stages, or, of little work or with one thread, write `whole`."""
    threads = f.emit("threads", "call i64 @jitshape.threads()", "i64")
    extents = [f.size(extent) for extent in stages.extents]
    shared = threads.compare("sgt", 1) & work.compare("sge", SPLIT_FROM)
    with f.when(shared, "shared"):
        _call_stages(f, stages, threads, extents)
    with f.when(~shared, "whole"):
        whole()


def _call_stages(f: SizeWriter, stages: Stages, threads: Value, extents: list[Value]) -> None:
    parts = threads.compare("slt", MOST_THREADS).select(threads, MOST_THREADS)
    numbers = [f.symbols[atom.id] for atom in f.kernel.sizes]
    span = parts * CHUNK
    chunks = [(extent + (span - 1)).integer("sdiv", span) for extent in extents]
    chunks = [count.compare("sgt", 1).select(count, 1) for count in chunks]
    sizes = _array(f, "stage_sizes", "i64", [str(n) for n in (*numbers, parts, *chunks)])
    given = [b for b in f.kernel.buffers if b.role != "scratch"]
    pointers = []
    for position in range(len(given)):
        slot = f.element("%buffers", "ptr", f.constant("i64", position))
        pointers.append(f.emit("given", f"load ptr, ptr {slot}", "ptr").text)
    for dtype in stages.partials:
        pointers.append(f.name("partial"))
        kind = memory_kind(dtype)
        f.allocas.append(f"  {pointers[-1]} = alloca [{MOST_THREADS} x {kind}], align 64")
    for kernel, places in zip(stages.kernels, stages.tensors):
        buffers = _array(f, "stage_buffers", "ptr", [f"ptr {pointers[i]}" for i in places])
        f.line(f"call void @{kernel.name}(ptr {buffers}, ptr {sizes}, ptr %scalars)")


def _array(f: SizeWriter, name: str, kind: str, values: list[str]) -> str:
    """Values on the stack, one behind the other."""
    array = f.name(name)
    f.allocas.append(f"  {array} = alloca [{max(len(values), 1)} x {kind}]")
    for position, value in enumerate(values):
        f.line(f"store {value}, ptr {f.element(array, kind, f.constant('i64', position))}")
    return array
