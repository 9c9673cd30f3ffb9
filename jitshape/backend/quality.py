"""How good the code for GPUs is, told without one: registers, spills, widths of accesses,
shared memory, how many warps fit a multiprocessor.

In: a kernel and a target ("sm_80", "sm_90", "gfx942").  Out: a `Quality` for each of its variants,
read off the binary that Triton makes ahead of time.
Invariant: these are the binaries that the launcher would run on such a device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitshape.backend.codegen.triton_plan import Plan
from jitshape.backend.identity import kernel_key
from jitshape.backend.loops import Kernel
from jitshape.backend.triton_jit import Launcher, launcher_of


@dataclass(frozen=True)
class Device:
    """What one multiprocessor has.  Sources: NVIDIA's tuning guides for compute capabilities 8.0
    and 9.0, AMD's CDNA3 instruction set manual."""

    backend: str
    arch: Any
    warp: int  # threads
    warps: int  # the most at once
    programs: int  # the most at once
    registers: int  # of 32 bits, in all; on AMD those of one of 4 SIMDs for one lane
    shared: int  # bytes


DEVICES = {
    "sm_80": Device("cuda", 80, 32, 64, 32, 65536, 164 << 10),
    "sm_90": Device("cuda", 90, 32, 64, 32, 65536, 228 << 10),
    "gfx942": Device("hip", "gfx942", 64, 32, 32, 512, 64 << 10),
}
REGISTER_UNIT = 256  # NVIDIA gives registers to a warp in this unit
VECTOR_REGISTER_UNIT = 8  # and AMD to a lane in this one
SHARED_RESERVED = 1024  # bytes of each program that the system keeps, on NVIDIA


@dataclass(frozen=True)
class Quality:
    """One binary.  `spilled`: bytes a thread that do not fit its registers; `accesses`: how often
    the code reads or writes global memory by so many bits a thread; `tensor_cores`: matrix
    instructions; `occupancy`: part of a multiprocessor's warps that its programs can fill."""

    kernel: str
    target: str
    aligned: bool
    registers: int
    spilled: int
    shared: int
    warps: int
    accesses: tuple[tuple[int, int], ...]  # (bits, count), widest first
    tensor_cores: int
    occupancy: float

    @property
    def widest(self) -> int:
        return self.accesses[0][0] if self.accesses else 0


def qualities(
    kernel: Kernel, targets: Sequence[str] = tuple(DEVICES), aligned: Sequence[bool] = (True, False)
) -> list[Quality]:
    """A report for each target and variant of `kernel`, and of the stages for long rows."""
    launchers = launcher_of(kernel).with_stages()
    return [
        _quality(one, target, each) for one in launchers for target in targets for each in aligned
    ]


def unique_qualities(kernels: Sequence[Kernel], targets: Sequence[str]) -> list[Quality]:
    """Of kernels, of which equal ones are told once."""
    unique: dict[Hashable, Kernel] = {}
    for kernel in kernels:
        unique.setdefault(kernel_key(kernel), kernel)
    return [quality for kernel in unique.values() for quality in qualities(kernel, targets)]


def is_flat(plan: Plan) -> bool:
    """Whether the kernel runs over contiguous elements, with code of their own for full tiles."""
    return plan.halves and plan.dims == ("x",)


def goal(target: str) -> Any:
    """The target as Triton names it."""
    from triton.backends.compiler import GPUTarget

    device = DEVICES[target]
    return GPUTarget(device.backend, device.arch, device.warp)


def _quality(launcher: Launcher, target: str, aligned: bool) -> Quality:
    binary = launcher.ahead_of_time(goal(target), aligned)
    return quality_of(binary.code, launcher.kernel.name, target, aligned)


def quality_of(binary: Any, name: str, target: str, aligned: bool) -> Quality:
    """What a binary of Triton for `target` is like."""
    device = DEVICES[target]
    nvidia = device.backend == "cuda"
    registers, spilled = (_nvidia_use if nvidia else _amd_use)(binary.asm, device.arch)
    text = binary.asm["ptx" if nvidia else "amdgcn"]
    widths = _ptx_widths(text) if nvidia else _amd_widths(text)
    shared, warps = binary.metadata.shared, binary.metadata.num_warps
    matrix = re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)" if nvidia else r"\bv_s?mfma_", text)
    return Quality(
        name,
        target,
        aligned,
        registers,
        spilled,
        shared,
        warps,
        tuple(sorted(Counter(widths).items(), reverse=True)),
        len(matrix),
        occupancy(device, registers, shared, warps),
    )


def _nvidia_use(asm: dict[str, Any], arch: int) -> tuple[int, int]:
    """(registers, spilled bytes) of a cubin and the PTX that it is made of."""
    from triton.backends.nvidia import compiler

    with tempfile.TemporaryDirectory() as folder:
        code, text = Path(folder, "kernel.cubin"), Path(folder, "kernel.ptx")
        code.write_bytes(asm["cubin"])
        tool = Path(compiler.__file__).parent / "bin" / "cuobjdump"
        found = _printed([tool, "--dump-resource-usage", code], r"REG:(\d+) STACK:(\d+)")
        if found[1] == 0:
            return found[0], 0
        text.write_text(asm["ptx"])  # the stack also serves calls, of divisions
        name = f"--gpu-name={compiler.sm_arch_from_capability(arch)}"
        command = [compiler.get_ptxas(arch).path, "-v", name, text, "-o", code]
        return found[0], _printed(command, r"(\d+) bytes spill stores")[0]


def _printed(command: Sequence[Any], pattern: str) -> list[int]:
    """The numbers that `pattern` has in what the command prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    found = re.search(pattern, done.stdout + done.stderr)
    assert found is not None, done
    return list(map(int, found.groups()))


def _amd_use(asm: dict[str, Any], arch: str) -> tuple[int, int]:
    """(vector registers, bytes of scratch) of a code object, by its metadata."""

    def number(name: str) -> int:
        found = re.search(rf"^\s*\.{name}:\s*(\d+)", asm["amdgcn"], re.MULTILINE)
        assert found is not None, name
        return int(found[1])

    return number("vgpr_count"), number("private_segment_fixed_size")


_PTX_ACCESS = re.compile(r"\b(?:ld|st)\.global(?:\.[\w:]+)*?(?:\.v(\d))?\.[bufs](\d+)\b")
_AMD_ACCESS = re.compile(r"\b(?:global|buffer)_(?:load|store)_(\w+)")
_AMD_BITS = {"dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128, "short": 16, "byte": 8}


def _ptx_widths(text: str) -> Iterator[int]:
    for lanes, bits in _PTX_ACCESS.findall(text):
        yield int(lanes or 1) * int(bits)


def _amd_widths(text: str) -> Iterator[int]:
    for name in _AMD_ACCESS.findall(text):  # short, ushort, short_d16_hi, dwordx4
        kind = name.partition("_")[0]
        yield _AMD_BITS[kind if kind in _AMD_BITS else kind[1:]]


def occupancy(device: Device, registers: int, shared: int, warps: int) -> float:
    """Part of the device's warps that can be at work, as registers and shared memory allow."""
    if device.backend == "cuda":
        each = -(-max(registers, 1) * device.warp // REGISTER_UNIT) * REGISTER_UNIT
        by_registers = device.registers // (each * warps)
        used = shared + SHARED_RESERVED
    else:
        each = -(-max(registers, 1) // VECTOR_REGISTER_UNIT) * VECTOR_REGISTER_UNIT
        by_registers = 4 * min(device.registers // each, device.warps // 4) // warps
        used = shared
    by_shared = device.shared // used if used else device.programs
    programs = min(by_registers, by_shared, device.programs, device.warps // warps)
    return programs * warps / device.warps
