"""Tiles of matrix products on GPUs, and which are likely to be fast at which sizes.

In: the sizes of a product, its dtype, the number of multiprocessors.  Out: tiles in the order of
their expected time.  Invariant: a rule of thumb only; where there is a device, the first few and
ATen are measured (backend/triton_products.py).

A multiprocessor computes the tiles given to it one after the other.  A block of a tile costs as
much as its multiplications or, if that is more, as the elements that it reads from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from jitshape.backend.codegen.triton_plan import power_of_two

MULTIPLICATIONS = 1024  # of halves that a multiprocessor starts in a clock (A100; H100: twice that)
BYTES = 64  # that it reads from the cache in a clock
START = 1500  # clocks until the first block of a tile is there and after the last one is done


@dataclass(frozen=True)
class Tile:
    """`rows` x `columns` of a result, summed up in blocks of `inner`; with so many warps, and
    blocks on their way at once."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    @property
    def blocks(self) -> dict[str, int]:
        return {"YBLOCK": self.rows, "XBLOCK": self.columns, "RBLOCK": self.inner}

    def options(self, backend: str) -> dict[str, int]:
        """As Triton takes them.  AMD's shared memory holds one block of large tiles only."""
        stages = self.stages if backend == "cuda" else 2
        return {"num_warps": self.warps, "num_stages": stages}


TILES = (
    Tile(128, 128, 64, 8, 3),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(32, 128, 64, 4, 4),
    Tile(16, 128, 128, 4, 3),
    Tile(16, 64, 128, 4, 4),
    Tile(128, 16, 128, 4, 3),
    Tile(64, 16, 128, 4, 4),
)
LARGEST_UNALIGNED = 64 * 64  # elements of a tile whose factors go through registers


def tiles_for(dtype: torch.dtype, aligned: bool) -> list[Tile]:
    """All whose code keeps its values in registers: blocks of f32 are half as long, and so are
    those that are read element by element, which takes registers until they are multiplied."""
    found = [tile for tile in TILES if aligned or tile.rows * tile.columns <= LARGEST_UNALIGNED]
    shorter = (1 if dtype.itemsize == 2 else 2) * (1 if aligned else 2)
    return [replace(tile, inner=tile.inner // shorter) for tile in found]


def expected_clocks(tile: Tile, sizes: Sequence[int], itemsize: int, processors: int) -> float:
    """How long a product of `sizes` (batch, rows, columns, inner) is likely to take."""
    batch, rows, columns, inner = sizes
    programs = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
    rounds = -(-programs // processors)
    blocks = -(-inner // tile.inner)
    multiplied = tile.rows * tile.columns * tile.inner * itemsize / 2 / MULTIPLICATIONS
    read = (tile.rows + tile.columns) * tile.inner * itemsize / BYTES
    return rounds * (blocks * max(multiplied, read) + START)


def ranked(
    sizes: Sequence[int], dtype: torch.dtype, processors: int, aligned: bool = True
) -> list[Tile]:
    """Tiles, the one with the shortest expected time first."""
    itemsize = dtype.itemsize
    return sorted(
        tiles_for(dtype, aligned), key=lambda t: expected_clocks(t, sizes, itemsize, processors)
    )


def bucket(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes for which one choice is made: those with the same next powers of two."""
    return tuple(map(power_of_two, sizes))
