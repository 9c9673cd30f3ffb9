"""Version counters of results and written inputs, as eager leaves them.

In: tensors of a run.  Out: nothing; their counters stand where the program's writes would have
left them.  Invariant: views share the counter of their base, so it is set once.
"""

from __future__ import annotations

import torch

_set = torch._C._autograd._unsafe_set_version_counter


def owner(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or where it is a view of something the program does not know, one that is none."""
    return tensor if tensor._base is None else tensor.detach()


def set_version(tensor: torch.Tensor, number: int) -> None:
    """A new tensor that the program wrote to `number` times."""
    if number and not tensor.is_inference():
        _set((tensor,), (number,))


def add_versions(tensor: torch.Tensor, number: int) -> None:
    """An input that was written once, and by the program once and `number` times more."""
    if number and not tensor.is_inference():
        _set((tensor,), (tensor._version + number,))


def reshape(tensor: torch.Tensor, view: torch.Tensor | None, times: int) -> None:
    """An input shows its memory as `view` does, which the program changed `times` times."""
    if view is None:
        add_versions(tensor, times)
        return
    with torch.no_grad():
        tensor.as_strided_(view.shape, view.stride(), view.storage_offset())
    add_versions(tensor, times - 1)
