"""Starts binaries on CUDA devices, from C where that can be done.

In: a binary of Triton and what it is called with.  Out: a `Started`, called with a grid and the
arguments.  Invariant: what C passes is what the kernel takes: the parameters that its PTX declares
are the known ones and at most two null pointers behind them, Triton's unused scratch.  Anything
else (scratch in use, clusters, cooperative or dependent launches, somebody who watches launches,
AMD) goes through Triton's own launcher.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any

import torch

from jitshape.backend._launch import DeviceLaunch
from jitshape.backend.runtime import read_tensors_directly

DRIVER = "libcuda.so.1"
LETTERS = {"i32": "i", "i64": "l", "fp64": "d"}  # of Triton's types; pointers: p
UNUSED = 2  # pointers to scratch behind a kernel's own parameters, at most
_PARAMETER = {"p": "u64", "i": "u32", "l": "u64", "d": "f64"}  # as PTX declares them


class Started:
    """One binary on one device.  `constants`: constexpr arguments, which Triton's launcher is
    given too."""

    def __init__(
        self, code: Any, device: torch.device, types: Sequence[str], constants: Sequence[Any] = ()
    ) -> None:
        self.code, self.device, self.constants = code, device, tuple(constants)
        self.index = device.index if device.index is not None else torch.cuda.current_device()
        self.types = types

    @functools.cached_property
    def direct(self) -> DeviceLaunch | None:
        """The launch from C, made when the device is the current one; None: Triton's."""
        address = driver_function()
        if not address or is_watched():
            return None
        self.code._init_handles()
        return direct_launch(self.code, self.types, address)

    def __call__(self, grid: int, *args: Any) -> None:
        """Queue `grid` programs on the device's current stream."""
        if torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                self._queue(grid, args)
        else:
            self._queue(grid, args)

    def _queue(self, grid: int, args: Sequence[Any]) -> None:
        if self.direct is None:
            self.code[(grid, 1, 1)](*args, *self.constants)
        else:
            self.direct(grid, torch._C._cuda_getCurrentRawStream(self.index), *args)


@functools.cache
def driver_function() -> int:
    """Where the driver's cuLaunchKernelEx lies; 0 without a driver that has it."""
    try:
        function = ctypes.CDLL(DRIVER).cuLaunchKernelEx
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def is_watched() -> bool:
    """Whether a profiler wants to be told of launches by Triton."""
    from triton import knobs

    hooks = (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook)
    return any(getattr(hook, "calls", hook) for hook in hooks)


def direct_launch(code: Any, types: Sequence[str], address: int) -> DeviceLaunch | None:
    """The launch of a loaded binary whose parameters have Triton's `types`, by the driver's
    function; None where there is more to it than a grid and these parameters."""
    metadata = code.metadata
    if metadata.target.backend != "cuda" or getattr(metadata, "num_ctas", 1) != 1:
        return None
    special = ("launch_cooperative_grid", "launch_pdl", "global_scratch_size")
    if any(getattr(metadata, name, 0) for name in (*special, "profile_scratch_size")):
        return None
    kinds = "".join("p" if t.startswith("*") else LETTERS.get(t, "?") for t in types)
    declared, threads = declaration(code.asm["ptx"])
    unused = len(declared) - len(kinds)
    known = ["?" if kind == "?" else _PARAMETER[kind] for kind in kinds]
    if not 0 <= unused <= UNUSED or declared != [*known, *["u64"] * unused]:
        return None
    if threads != metadata.num_warps * metadata.target.warp_size:
        return None
    read_tensors_directly()
    return DeviceLaunch(
        metadata.name, address, code.function, threads, metadata.shared, kinds + "n" * unused, code
    )


def declaration(ptx: str) -> tuple[list[str], int]:
    """The types of an entry's parameters and its threads, as PTX declares them."""
    entry = ptx[ptx.index(".entry") :]
    head = entry[: entry.index("{")]
    threads = re.search(r"\.(?:req|max)ntid (\d+)", head)
    return re.findall(r"\.param \.(\w+)", head), int(threads[1]) if threads else 0
