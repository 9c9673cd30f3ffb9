"""Loads and stores of the Triton generator.

In: a Load or Store, and the place it is written at.  Out: masked accesses, or, where a load reads
what the same lanes have stored, the stored value itself.
Invariant: lanes outside the axes touch nothing; a load that may read what another thread of the
program stored stands behind a barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from jitshape.backend.codegen.triton_ops import cast, number
from jitshape.backend.codegen.triton_plan import (
    computable_again,
    forwarded,
    loads,
    nested_loops,
    stores,
)
from jitshape.backend.loops import Buffer, Carry, Load, Loop, Scalar, Store, reachable
from jitshape.ir.symint import Size

if TYPE_CHECKING:
    from jitshape.backend.codegen.triton import Generator, Text

ATOMIC = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


class Record(NamedTuple):
    """The only store to a buffer, and the loops round it."""

    store: Store
    made_in: tuple[Loop, ...]


class Memory:
    """What has been stored where, while a kernel is written."""

    def __init__(self, g: Generator) -> None:
        self.g = g
        self.records: dict[Buffer, Record | None] = {}
        self.unseen: set[Buffer] = set()  # stored since the last barrier
        self.seen: dict[Buffer, set[Size]] = {}  # loaded: at which indices

    @property
    def _loops(self) -> tuple[Loop, ...]:
        return tuple(around.loop for around in self.g.around)

    def enter(self, loop: Loop) -> None:
        """What a later iteration stores or loads comes before an earlier place too."""
        stored = {store.buffer for store, _ in stores((loop,))}
        self.unseen |= stored
        for load, _ in loads((loop,)):
            if load.buffer in stored:
                self.seen.setdefault(load.buffer, set()).add(load.index)

    def only_notes(self, loop: Loop) -> bool:
        """Whether the loop only stores what its readers compute themselves; if so, note that."""
        inside = list(stores((loop,)))
        unneeded = all(
            s.buffer.role == "scratch" and s.buffer not in self.g.plan.scratch for s, _ in inside
        )
        if not unneeded or any(one.accumulators for one, _ in nested_loops((loop,))):
            return False
        for store, made_in in inside:
            known = store.buffer in self.records
            self.records[store.buffer] = None if known else Record(store, (*self._loops, *made_in))
        return True

    def _barrier(self) -> None:
        self.g.line("tl.debug_barrier()")
        self.unseen.clear()

    # ---- loads

    def load(self, load: Load) -> Text:
        g = self.g
        if load.buffer in g.stored:
            value = self._forward(load)
            if value is not None:
                return value
            if load.buffer in self.unseen:
                self._barrier()
            self.seen.setdefault(load.buffer, set()).add(load.index)
        at = self._place(load.buffer, load.index, load.indirect)
        parts, tests = [at], []
        if load.mask is not None:
            mask = g.operand(load.mask)
            parts.append(mask)
            tests.append(cast(mask.text, load.mask.dtype, torch.bool))
        dims = frozenset().union(*(p.dims for p in parts))
        level = max(p.level for p in parts)
        for dim in reversed(g.plan.dims):
            if dim in dims and dim in g.masks:
                tests.insert(0, g.masks[dim].text)
                level = max(level, g.masks[dim].level)
        tests += g.not_empty(dims, level)
        offset = _offset(at.text) if at.dims else g.full(at.text, torch.int64)
        arguments = [f"{g.buffers[load.buffer]} + {offset}"]
        if tests:
            arguments.append(f"mask={' & '.join(tests)}")
        if load.mask is not None:
            other = load.other.value if load.other is not None else 0
            arguments.append(f"other={number(other, load.dtype)}")
        value = at._replace(text=f"tl.load({', '.join(arguments)})", dims=dims, level=level)
        if load.buffer in g.stored:
            return g.assign(load.buffer.name, value._replace(level=g.level), unique=True)
        return g.assign(f"{load.buffer.name}_value", value)

    def _place(self, buffer: Buffer, index: Size, indirect: tuple) -> Text:
        g = self.g
        bound = {}
        for atom, scalar in indirect:
            value = g.operand(scalar)
            bound[atom.id] = value._replace(text=cast(value.text, scalar.dtype, torch.int64))
        at = g.index_with(index, bound)
        if buffer.role != "scratch":
            return at
        point: Size = 0
        for axis in g.kernel.grid:
            point = point * axis.extent + axis.symbol
        start = g.index(point * buffer.extent)
        dims, level = at.dims | start.dims, max(at.level, start.level)
        return at._replace(text=f"{start.text} + {at.text}", dims=dims, level=level)

    def _forward(self, load: Load) -> Text | None:
        """The value the load reads, from what it was computed of."""
        g = self.g
        record = self.records.get(load.buffer)
        if record is None:
            return None
        store = record.store
        stand_for = forwarded(store, record.made_in, load, self._loops)
        if stand_for is None or not self._at_hand(store.value):
            return None
        saved_env, saved = g.env, dict(g.symbols)
        bound = {id: g.assign("at", g.index(expr)) for id, expr in stand_for.items()}
        if any(saved.get(id) != text for id, text in bound.items()):
            g.env = (store, *sorted((id, text.text) for id, text in bound.items()))
            g.symbols.update(bound)
        value = g.operand(store.value)
        g.env, g.symbols = saved_env, saved
        text = cast(value.text, store.value.dtype, load.buffer.dtype)
        return g.assign("t", value._replace(text=text))

    def _at_hand(self, value: Scalar) -> bool:
        known = {acc for scope in self.g.scopes for acc in scope.carries}
        used = {s.accumulator for s in reachable([value]) if isinstance(s, Carry)}
        return used <= known and computable_again(value, self.g.stored)

    # ---- stores

    def store(self, store: Store) -> None:
        g, buffer = self.g, store.buffer
        made = Record(store, self._loops)
        self.records[buffer] = None if buffer in self.records else made
        if buffer.role == "scratch" and buffer not in g.plan.scratch:
            return
        value = g.operand(store.value)
        text = cast(value.text, store.value.dtype, buffer.dtype)
        tests = [g.masks[dim].text for dim in g.plan.dims if dim in g.here and dim in g.masks]
        if store.mask is not None:
            tests.append(cast(g.operand(store.mask).text, store.mask.dtype, torch.bool))
        at = self._spread(self._place(buffer, store.index, store.indirect))
        if self.seen.get(buffer, set()) - {store.index}:
            self._barrier()
        arguments = [f"{g.buffers[buffer]} + {at}", text]
        if tests:
            arguments.append(f"mask={' & '.join(tests)}")
        function = "tl.store"
        if store.add:
            assert buffer.dtype in ATOMIC, f"no atomic addition of {buffer.dtype}"
            function, arguments = "tl.atomic_add", [*arguments, 'sem="relaxed"']
        g.line(f"{function}({', '.join(arguments)})")
        self.unseen.add(buffer)
        for scope in g.scopes:
            scope.volatile.clear()

    def _spread(self, at: Text) -> str:
        """The offset with all the lanes that store."""
        g = self.g
        if at.dims == g.here and at.dims:
            return _offset(at.text)
        shape = g.shape(g.here)
        if not at.dims:
            return f"tl.full({shape}, {at.text}, tl.int64)"
        return f"tl.broadcast_to({at.text}, {shape})"


def _offset(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
