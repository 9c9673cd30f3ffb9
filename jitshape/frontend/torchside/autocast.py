"""Autocast while tracing: the program sets it for real, the compiled code sets it again.

In: the state of this thread.  Out: `AutocastState.now()`, `restore()`, and `set_autocast(change)`
for compiled code, which leaves inside a region at a break.
The cache of casts is off while tracing: it would carry symbolic tensors from trace to trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

DEVICES = ("cpu", "cuda")


def nesting() -> int:
    """How many regions this thread is in."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def change_nesting(by: int) -> None:
    for _ in range(by):
        torch.autocast_increment_nesting()
    for _ in range(-by):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


@dataclass(frozen=True)
class AutocastState:
    """`modes`: (enabled, dtype) by device."""

    modes: tuple[tuple[bool, torch.dtype], ...]
    cache: bool
    nesting: int

    @classmethod
    def now(cls) -> AutocastState:
        modes = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in DEVICES)
        return cls(modes, torch.is_autocast_cache_enabled(), nesting())

    def restore(self) -> None:
        set_autocast(AutocastState(self.modes, self.cache, self.nesting - nesting()))

    def since(self, start: AutocastState) -> AutocastState:
        """What `set_autocast` has to do to come here from `start`."""
        return AutocastState(self.modes, self.cache, self.nesting - start.nesting)


def set_autocast(change: AutocastState) -> None:
    """`change.nesting` counts from where the thread is."""
    for device, (enabled, dtype) in zip(DEVICES, change.modes):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(change.cache)
    change_nesting(change.nesting)


@contextmanager
def outside_autocast() -> Iterator[None]:
    """As no region was entered."""
    state = AutocastState.now()
    for device in DEVICES:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        state.restore()
