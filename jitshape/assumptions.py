"""What the entries of one function assume of numbers that exist only when their graphs run.

In: an entry whose program raises `Refuted` where something that it assumed does not hold, or where
an op of the graph raises.  Out: a callable that then makes the call again without the graph, so
that an error of the program's comes from its line, meets its handlers and finds done what stands
before it.  If the program goes on where an assumption failed, later entries assume less: `refuted`
names what failed.
Invariant: nothing that the program could observe happens twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from jitshape.errors import JitshapeError, Refuted


class Assumptions:
    """`natively(slots)` calls the function itself; `wrong(reason)` is told of what failed though
    the program goes on, `again()` drops the entries that assume it."""

    def __init__(
        self,
        natively: Callable[[tuple], Any],
        wrong: Callable[[str], None],
        again: Callable[[], None] | None,
    ) -> None:
        self.natively, self.wrong, self.again = natively, wrong, again
        self.refuted: set[str] = set()

    def checked(self, entry: Callable[..., Any], count: int) -> Callable[..., Any]:
        """`entry`, called with the `count` slots of the call in front of what it takes."""
        return functools.partial(self._call, entry, count)

    def _call(self, entry: Callable[..., Any], count: int, *values: Any) -> Any:
        try:
            return entry(*values[count:])
        except Refuted as error:
            refuted = error
        if refuted.random_state is not None:
            torch.set_rng_state(refuted.random_state)
        result = self.natively(values[:count])  # raises, if the program does
        if refuted.raised is not None:
            self.wrong(f"the graph raises {type(refuted.raised).__name__}: {refuted.raised}")
            return result
        self.wrong(f"a number of run time is not what the graph assumes: {refuted.assumption}")
        if self.again is not None and refuted.assumption not in self.refuted:
            self.refuted.add(refuted.assumption)
            self.again()
        return result


def refutable(run: Callable[..., Any], draws: bool) -> Callable[..., Any]:
    """`run`, a graph, with errors of its ops as Refuted; `draws`: it may have drawn random numbers
    before one."""

    def checked(*inputs: Any) -> Any:
        state = torch.get_rng_state() if draws else None
        try:
            return run(*inputs)
        except (Refuted, JitshapeError):
            raise
        except Exception as error:
            raise Refuted(str(error), "that no op raises", state, error) from error

    return checked
