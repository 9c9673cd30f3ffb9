"""Methods of tensors that are called by their name: `x.__setitem__(...)`."""

from __future__ import annotations

import torch

from tests.programs.compare import check


def test_setitem_by_a_computed_mask() -> None:
    check(lambda x: x.__setitem__(x > 1, -7), (torch.arange(5),), (torch.arange(7),))


def test_setitem_by_what_it_reads() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x.__setitem__(mask, x[mask])
        return x

    for n in (4, 6):
        check(f, (torch.arange(n), torch.arange(n) > 2))
