"""Who decides which sizes are symbolic: the program's own history, a mark, or a declared shape.

Prints the compiles of each, what the explanation says would have saved one, and the errors of
promises that cannot be kept.
"""

from __future__ import annotations

import os

import torch

import jitshape
from jitshape import Dim


def pad_to_pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows of x twice, beside y, which has two rows for each of x's."""
    return torch.cat([x, x]) * 0.5 + y


def show(title: str, **options: object) -> None:
    """Call it with four sizes and say how often it was compiled."""
    jitshape.reset()
    compiled = jitshape.compile(pad_to_pairs, **options)
    for rows in (2, 3, 1, 5):
        compiled(torch.randn(rows, 4), torch.randn(2 * rows, 4))
    print(f"{title}: compiles {jitshape.stats()['compiles']}")


def explain() -> None:
    """The change that would have saved a compile, found by jitshape itself."""
    jitshape.reset()
    compiled = jitshape.compile(pad_to_pairs)
    for rows in (2, 3):
        explained = jitshape.explain(compiled)(torch.randn(rows, 4), torch.randn(2 * rows, 4))
    for fix in explained.fixes:
        print(f"saves {fix.saves}: {fix.change}\n    since {fix.because}")


def main() -> None:
    # Neither what earlier runs compiled nor what they learned: every run is as the first.
    os.environ.update(JITSHAPE_CACHE="0", JITSHAPE_PROFILE="0")
    rows = Dim("rows", max=64)
    show("found out")
    show("symbolic from the start", dynamic=True)
    show("declared", dynamic_shapes={"x": {0: rows}, "y": {0: 2 * rows}})
    explain()

    x = torch.randn(4, 4)
    jitshape.mark_dynamic(x, 0)
    try:
        jitshape.compile(lambda x, y: x + y)(x, torch.randn(4, 4))
    except jitshape.errors.BrokenPromise as error:
        print(error)


if __name__ == "__main__":
    main()
