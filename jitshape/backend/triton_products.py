"""Matrix products on Triton: which tile runs, or ATen.

In: a kernel that is a contraction.  Out: a `ProductLauncher`.
Invariant: sizes are never compiled in, as for any launcher: a tile has at most two binaries, and
a third where indices leave 32 bits.  Whatever is chosen computes the same; a choice is made once
for sizes with the same next powers of two (a bucket), kept in the store, and never on a clock
that somebody else's stream capture would record.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from jitshape.backend.codegen.triton_contraction import contraction
from jitshape.backend.codegen.triton_plan import ALIGNMENT, power_of_two, typical
from jitshape.backend.loops import Kernel
from jitshape.backend.products_by_aten import ByAten, Matrices
from jitshape.backend.triton_jit import (
    Binary,
    Launcher,
    Parts,
    compile_for,
    launcher_of,
    multiprocessors,
    target_of,
)
from jitshape.backend.triton_tiles import Tile, bucket, ranked

if TYPE_CHECKING:
    from jitshape.cache.store import Store

LEVEL = "tile"  # of the store
MEASURED = 3  # tiles, besides ATen
REPEATED = 5  # runs that are timed, after one that is not
TYPICAL_PROCESSORS = 132  # of a device that is not there
Choice = Tile | None  # None: ATen
Variant = tuple[bool, bool, str]  # aligned, indices of 64 bits, precision


class ProductLauncher(Launcher):
    """Launches one contraction.  `clock(run)` gives the seconds that `run()` takes."""

    def __init__(
        self,
        kernel: Kernel,
        store: Store | None = None,
        clock: Callable[[Callable[[], None]], float] | None = None,
    ) -> None:
        super().__init__(kernel, store)
        self.parts = contraction(kernel)
        self.clock = clock or seconds_on_gpu
        self.choices: dict[tuple, Choice] = {}

    def __call__(self, *args: Any) -> None:
        tensors, sizes, scalars = self.parts_of(args)
        extents, inner, large, wide = self.geometry(*sizes)
        if 0 in extents:
            return
        device = tensors[0].device
        if device.type == "cpu":
            self.interpret_tile(tensors, sizes, scalars, extents, inner)
            return
        for tensor in tensors:
            wide |= tensor.data_ptr()
        variant = (wide % ALIGNMENT == 0, large, self.precision())
        chosen = self.choice(device, (tensors, sizes, scalars), (*extents, inner), variant)
        self.run(chosen, device, (tensors, sizes, scalars), extents, variant)

    def with_stages(self) -> list[Launcher]:
        return [self]

    def ahead_of_time(self, target: Any, aligned: bool) -> Binary:
        sizes = [typical(group.extent) for group in self.parts.groups]
        sizes.append(typical(self.parts.loop.axis.extent))
        tile = ranked(sizes, self.parts.dtype, TYPICAL_PROCESSORS, aligned)[0]
        return self.binary(tile, target, aligned, False, "tf32")

    @functools.cached_property
    def by_aten(self) -> ByAten:
        """The same as calls."""
        return ByAten(self.kernel, self.parts, lambda kernel: launcher_of(kernel, self.store))

    def precision(self) -> str:
        """How f32 is multiplied, as torch's settings have it at this call."""
        if self.parts.dtype is not torch.float32:
            return "ieee"
        setting = torch.backends.cuda.matmul.fp32_precision
        return "tf32" if setting == "tf32" else "ieee"

    # ---- what runs

    def run(
        self,
        chosen: Choice,
        device: torch.device,
        args: Parts,
        extents: Sequence[int],
        variant: Variant,
    ) -> None:
        tensors, sizes, scalars = args
        if chosen is None:
            self.by_aten(tensors, sizes, scalars)
            return
        key = (device, chosen, *variant)
        if key not in self.binaries:
            made = self.binary(chosen, target_of(device), *variant)
            self.binaries[key] = made.on(device)
        self.binaries[key].start(programs(chosen, extents), *tensors, *sizes, *scalars)

    def binary(
        self, tile: Tile, target: Any, aligned: bool, large: bool, precision: str = "ieee"
    ) -> Binary:
        """The binary of a tile; needs no device."""
        return compile_for(
            self.kernel,
            self.written,
            self.file,
            target,
            aligned,
            large,
            self.store,
            tile.blocks,
            tile.options(target.backend),
            {"PRECISION": precision},
        )

    def interpret_tile(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        scalars: Sequence[Any],
        extents: Sequence[int],
        inner: int,
    ) -> None:
        """Large tiles, and blocks of which the last is not full: both loops run."""
        import triton.language as tl

        rows, columns = (max(16, min(power_of_two(extent), 256)) for extent in extents[1:])
        tile = Tile(rows, columns, max(16, min(power_of_two(inner) // 2, 512)), 1, 1)
        passed = [tensor.detach() for tensor in tensors]
        grid = programs(tile, extents)
        blocks = tile.blocks.values()
        self._interpreted(grid, *passed, *sizes, *scalars, *blocks, tl.int64, "ieee")

    # ---- the choice

    def choice(
        self,
        device: torch.device,
        args: Parts,
        sizes: tuple[int, ...],
        variant: Variant,
    ) -> Choice:
        """What runs at these sizes: (batch, rows, columns, inner)."""
        key = (device, bucket(sizes), variant)
        if key not in self.choices:
            name = self._name(device, key)
            kept = self._kept(name)
            if not kept and not self.can_measure(device):
                return self.default(sizes, device, variant)
            self.choices[key] = kept[0] if kept else self.measured(device, args, sizes, variant)
            if not kept and self.store is not None:
                self.store.put(LEVEL, name, msgspec.msgpack.encode(self.choices[key]))
        return self.choices[key]

    def default(self, sizes: Sequence[int], device: torch.device, variant: Variant) -> Choice:
        """Without a measurement: ATen for a product alone, for f32 without tf32, and for factors
        that are read element by element; else the tile with the shortest expected time."""
        aligned, _, precision = variant
        alone = isinstance(self.by_aten.rest, Matrices)
        exact = self.parts.dtype is torch.float32 and precision == "ieee"
        if alone or exact or not aligned:
            return None
        return ranked(sizes, self.parts.dtype, multiprocessors(device), aligned)[0]

    def can_measure(self, device: torch.device) -> bool:
        """Whether runs may be repeated and timed: nothing is added to what was there, and no
        stream is being captured."""
        own = all(b.role in ("in", "out") for b in self.kernel.buffers)
        adds = any(store.add for store in self.parts.stores)
        return own and not adds and not torch.cuda.is_current_stream_capturing()

    def measured(
        self,
        device: torch.device,
        args: Parts,
        sizes: tuple[int, ...],
        variant: Variant,
    ) -> Choice:
        """The fastest of ATen and the tiles that are expected to be."""
        tiles = ranked(sizes, self.parts.dtype, multiprocessors(device), variant[0])
        seconds: dict[Choice, float] = {}
        for way in (None, *tiles[:MEASURED]):
            run = functools.partial(self.run, way, device, args, sizes[:3], variant)
            seconds[way] = self.clock(run)
        return min(seconds, key=seconds.__getitem__)

    def _name(self, device: torch.device, key: tuple) -> str:
        code = [line for line in self.written.text.splitlines() if not line.startswith("#")]
        facts = (code, [b.dtype for b in self.kernel.buffers], torch.cuda.get_device_name(device))
        return hashlib.sha256(repr((facts, key[1:])).encode()).hexdigest()

    def _kept(self, name: str) -> tuple[Choice] | None:
        """What an earlier process chose, if one did."""
        data = self.store.get(LEVEL, name) if self.store is not None else None
        if data is None:
            return None
        try:
            return (msgspec.msgpack.decode(data, type=Tile | None),)
        except msgspec.DecodeError:
            return None


def programs(tile: Tile, extents: Sequence[int]) -> int:
    """How many tiles make up the results of all batches."""
    batch, rows, columns = extents
    return batch * -(-rows // tile.rows) * -(-columns // tile.columns)


def seconds_on_gpu(run: Callable[[], None]) -> float:
    """The time that a run takes on the current stream."""
    run()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(REPEATED):
        run()
    events[1].record()
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) / REPEATED / 1000
