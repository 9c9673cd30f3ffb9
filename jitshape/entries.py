"""The entries of one compiled function: which there are, and which of them go.

In: guard programs, each with the function that serves the calls it holds for.  Out: the entries of
the function's dispatcher, at most `most`, of which those go that served least lately.
Invariant: what the dispatcher has is the truth; entries that it dropped itself, because the
function got other code, are gone here too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jitshape.backend.compile import Program
    from jitshape.frontend._evalframe import Dispatcher, Entry
    from jitshape.frontend.guards import GuardProgram

LIMITS_KEPT = 8  # entries kept, in multiples of the recompile limit


@dataclass(frozen=True, eq=False)
class Known:
    """What there is to tell of an entry; `native`: it calls the function itself.  `number`: of
    the compiled ones, from 1."""

    guards: GuardProgram
    program: Program | None
    native: bool
    number: int


class Entries:
    """`compiles` counts all that were ever compiled."""

    def __init__(self, dispatcher: weakref.ref[Dispatcher], most: int) -> None:
        self._dispatcher, self.most = dispatcher, most
        self.compiles = 0
        self._known: dict[Entry, Known] = {}

    def add(
        self, guards: GuardProgram, function: Callable[..., Any], program: Program | None = None
    ) -> None:
        """A compiled entry."""
        self.compiles += 1
        self._add(function, Known(guards, program, False, self.compiles))

    def add_native(self, guards: GuardProgram, function: Callable[..., Any]) -> None:
        """An entry that needs no trace, or spares one that is known to lead to nothing."""
        self._add(function, Known(guards, None, True, 0))

    def _add(self, function: Callable[..., Any], known: Known) -> None:
        added = self.dispatcher.add_entry(known.guards.program, function)
        others = self.dispatcher.entries[:-1]
        if len(others) >= self.most:
            self.dispatcher.remove_entry(min(others, key=lambda entry: entry.used))
        self._known[added] = known
        self._known = {entry: self._known[entry] for entry in self.dispatcher.entries}

    @property
    def dispatcher(self) -> Dispatcher:
        found = self._dispatcher()
        assert found is not None  # it is what the user calls
        return found

    def clear(self) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            dispatcher.clear()
        self._known.clear()
        self.compiles = 0

    def known(self) -> list[tuple[Entry, Known]]:
        """The entries, oldest first."""
        dispatcher = self._dispatcher()
        entries = () if dispatcher is None else dispatcher.entries
        return [(entry, self._known[entry]) for entry in entries]

    def guards(self) -> list[GuardProgram]:
        """Of the compiled entries, oldest first."""
        return [known.guards for _, known in self.known() if not known.native]

    def programs(self) -> list[Program]:
        """The compiled graphs, oldest first."""
        return [known.program for _, known in self.known() if known.program is not None]
