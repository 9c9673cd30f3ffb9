"""Names: the globals and builtins of functions, and the cells of closures.

In: the dicts and cells that functions hold.  Out: the Values of what stands in them.
Invariant: a name or cell is read once, under a guard, and from then on as the trace leaves it;
real ones are written by emitted code only.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from types import CellType
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.frontend.checks import NullField
from jitshape.frontend.sources import Field, Held, Source
from jitshape.frontend.values.base import Cell, Value
from jitshape.frontend.values.unobserved import unread


@dataclass
class Scope:
    """The globals of the functions of one module: names read or written so far."""

    globals: dict[str, Any]
    values: dict[str, Value] = field(default_factory=dict)


class Namespaces:
    """The part of the machine that resolves names."""

    if TYPE_CHECKING:
        _cells: dict[int, Cell]
        _scopes: dict[int, Scope]
        call: Any
        const: Any
        effects: Any
        guard: Any
        known_value: Any
        let_go: Any
        mutated: Any
        raise_value: Any
        wrap: Any
        wrap_type: Any

    def scope(self, globals: dict[str, Any]) -> Scope:
        scope = self._scopes.get(id(globals))
        if scope is None:
            scope = self._scopes[id(globals)] = Scope(globals)
        return scope

    def load_global(self, scope: Scope, name: str) -> Value:
        """A global read for the first time: the globals, then the builtins."""
        value = self.find_global(scope, name)
        if value is None:
            self.unknown_name(name)
        return value

    def unknown_name(self, name: str) -> NoReturn:
        cls = self.wrap_type(NameError)
        text = self.const(f"name '{name}' is not defined")
        self.raise_value(self.call(cls, [text], {"name": self.const(name)}))

    def find_global(self, scope: Scope, name: str) -> Value | None:
        value = scope.values.get(name)
        if value is None:
            value = self.namespace(scope).get_named(self, name)
            if value is None:
                table = scope.globals.get("__builtins__", builtins)
                table = table if isinstance(table, dict) else vars(table)
                value = self._names_of(scope, table, "builtins").get_named(self, name)
            if value is not None:
                scope.values[name] = value
        return value

    def namespace(self, scope: Scope) -> Any:
        """The value of a module's globals."""
        return self._names_of(scope, scope.globals, "globals()")

    def _names_of(self, scope: Scope, real: dict[str, Any], text: str) -> Any:
        """The value of a dict whose names `scope` keeps."""
        dictionary: Any = self.known_value(real) or self.wrap(real, Held(real, text))
        if not any(reader is scope.values for reader in dictionary.readers):
            dictionary.readers.append(scope.values)
        return dictionary

    def store_global(self, scope: Scope, name: str, value: Value) -> None:
        self.mutated(self.namespace(scope))
        self.namespace(scope).set_named(self, name, value)

    def delete_global(self, scope: Scope, name: str) -> None:
        self.mutated(self.namespace(scope))
        if not self.namespace(scope).delete_named(self, name):
            self.unknown_name(name)

    # ---- cells

    def argument(self, object: Any, source: Source) -> Value:
        """What a slot holds at the start: a resume function gets its cells as arguments."""
        if type(object) is CellType:
            return self.cell(object, source)
        return unread(self, object, source)

    def cell(self, real: CellType, source: Source | None) -> Cell:
        """The one Cell of a real closure cell."""
        cell = self._cells.get(id(real))
        if cell is None:
            cell = self._cells[id(real)] = Cell(real=real, source=source)
        return cell

    def load_cell(self, cell: Cell) -> Value | None:
        """What the cell holds; None: it is empty."""
        if not cell.loaded:
            cell.loaded = True
            try:
                content = cell.real.cell_contents
            except ValueError:
                self.guard(Field(cell.source, "cell_contents"), NullField())
            else:
                cell.content = self.wrap(content, Field(cell.source, "cell_contents"))
        return cell.content

    def store_cell(self, cell: Cell, value: Value | None) -> None:
        """Write a cell (None: empty it); one that exists outside is written by effects."""
        self.let_go(cell.content)
        self.mutated(cell)
        if cell.real is not None:
            self.effects.touch(cell)
        cell.content, cell.loaded = value, True
