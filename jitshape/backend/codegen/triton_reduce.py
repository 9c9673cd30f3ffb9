"""Accumulators of the Triton generator.

In: an accumulator and the values of each iteration.  Out: its result after the loop, a block with
one element along r.
Invariant: a lane holds the neutral element until an iteration of its own comes; lanes are combined
once, behind the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jitshape.backend.codegen.triton_ops import NAMES, OPS, cast, number
from jitshape.backend.codegen.triton_plan import lower_bound
from jitshape.backend.loops import Accumulator, Loop, neutral

if TYPE_CHECKING:
    from jitshape.backend.codegen.triton import Generator, Text

BEHIND = torch.iinfo(torch.int64).max  # a position behind all others
COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


class Running:
    """An accumulator while its loop runs: in a variable, or (`at_once`) the loop's only block."""

    def __init__(
        self, g: Generator, accumulator: Accumulator, lanes: bool, at_once: bool = False
    ) -> None:
        self.g, self.accumulator, self.lanes = g, accumulator, lanes
        self.at_once = at_once
        self.arg = accumulator.combine.startswith("arg")
        self.dtype = accumulator.value.dtype if self.arg else accumulator.dtype
        self.zero = number(neutral(accumulator.combine, self.dtype), self.dtype)
        self.dims = g.here | {"r"} if lanes else g.here
        self.position = ""
        if at_once:
            self.name = ""
            return
        self.name = self._start(f"{accumulator.name}_lanes", self.zero, self.dtype)
        if self.arg:
            self.position = self._start(f"{accumulator.name}_places", str(BEHIND), torch.int64)

    def _start(self, name: str, value: str, dtype: torch.dtype) -> str:
        g = self.g
        variable = g.fresh(name)
        g.line(f"{variable} = tl.full({g.shape(self.dims)}, {value}, {NAMES[dtype]})")
        return variable

    # ---- iterations

    def update(self, value: Text, loop: Loop, mask: Text | None) -> None:
        g, acc = self.g, self.accumulator
        value = g.operand(acc.value)
        text = cast(value.text, acc.value.dtype, self.dtype)
        self.value = value._replace(text=text)
        if self.at_once:
            self._hold(loop, mask)
        elif self.arg:
            at = g.index(loop.axis.symbol)
            position = f"tl.full({g.shape(frozenset())}, {at.text}, tl.int64)"
            if at.dims:
                position = f"{at.text}.to(tl.int64)"
            beats = f"lib.beats_{acc.combine[3:]}({text}, {position}, {self.name}, {self.position})"
            first = g.fresh("first")
            g.line(f"{first} = {beats}" + (f" & {mask.text}" if mask is not None else ""))
            g.line(f"{self.name} = tl.where({first}, {text}, {self.name})")
            g.line(f"{self.position} = tl.where({first}, {position}, {self.position})")
        else:
            combined = self._combine(self.name, text)
            if mask is not None:
                combined = f"tl.where({mask.text}, {combined}, {self.name})"
            g.line(f"{self.name} = {combined}")

    def _combine(self, a: str, b: str) -> str:
        combine = self.accumulator.combine
        if combine in ("any", "all"):
            return f"{a} {'|' if combine == 'any' else '&'} {b}"
        text = OPS[COMBINE[combine]](self.dtype, a, b)
        return text[1:-1] if text.startswith("(") else text

    def _hold(self, loop: Loop, mask: Text | None) -> None:
        """The row in one block, with the neutral element behind its end."""
        g = self.g
        dims = self.value.dims | {"r"}
        text = self.value.text
        if mask is not None:
            text = f"tl.where({mask.text}, {text}, {self.zero})"
        elif "r" not in self.value.dims:
            text = f"tl.broadcast_to({text}, {g.shape(dims)})"
        self.dims = dims
        self.level = max(self.value.level, g.level if mask is None else mask.level)
        self.name = g.assign("t", self.value._replace(text=text, dims=dims)).text
        if self.arg:
            at = f"{g.index(loop.axis.symbol).text}.to(tl.int64)"
            if mask is not None:
                at = f"tl.where({mask.text}, {at}, {BEHIND})"
            self.position = f"tl.broadcast_to({at}, {g.shape(dims)})"

    def now(self) -> Text:
        """What it holds at this place, in a loop without lanes."""
        return _text(self.g, self.name, self.dims)

    # ---- the result

    def finish(self, loop: Loop) -> None:
        """Combine the lanes; the result is the accumulator's Carry from here on."""
        g, acc = self.g, self.accumulator
        if not self.lanes:
            text = self.position if self.arg else self.name
        elif self.arg:
            text = self._over_positions()
        else:
            text = self._over()
        if self.arg and lower_bound(loop.axis.extent) < 1:
            text = f"tl.where({g.positive(loop.axis.extent)}, {text}, 0)"
        if self.arg:
            text = cast(text, torch.int64, acc.dtype)
        value = g.assign(acc.name, _text(g, text, self.dims - {"r"}), unique=True)
        g.scope.carries[acc] = value

    def _over(self) -> str:
        combine, narrow = self.accumulator.combine, self.dtype.itemsize < 4
        dim = len(self.g.plan.dims) - 1
        if not narrow or combine in ("any", "all"):
            return f"lib.{combine}_over({self.name}, {dim})"
        wide = f"lib.{combine}_over({self.name}.to(tl.int32), {dim})"
        return cast(wide, torch.int32, self.dtype)

    def _over_positions(self) -> str:
        g = self.g
        largest = self.accumulator.combine == "argmax"
        both = f"lib.arg_over({self._wide()}, {self.position}, {largest}, {len(g.plan.dims) - 1})"
        extreme, position = g.fresh("extreme"), g.fresh("position")
        g.line(f"{extreme}, {position} = {both}")
        return position

    def _wide(self) -> str:
        narrow = self.dtype.itemsize < 4
        return f"{self.name}.to(tl.int32)" if narrow else self.name


def _text(g: Generator, text: str, dims: frozenset[str]) -> Text:
    value = g.index(0)
    return value._replace(text=text, dims=dims, level=g.level)
