"""What a launcher asks of a kernel's sizes, as one Python function.

In: a kernel and its plan.  Out: text of `geometry(*sizes)`, which gives the extents of the program
lanes, the longest row, whether an index may leave 32 bits, and the sizes (joined by or) whose
divisibility by 16 lets accesses be wide.
Invariant: the bound on indices holds for every lane inside the axes; indices that come from
memory are 64 bits wide anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jitshape.backend.codegen.exprs import emit
from jitshape.backend.codegen.triton_plan import (
    ALIGNMENT,
    Plan,
    axis_id,
    loads,
    nested_loops,
    stores,
)
from jitshape.backend.loops import IndexValue, Kernel, reachable, roots
from jitshape.ir.symint import Atom, IntExpr, Size

LARGE = 2**31 - 2**20  # lanes behind the axes' ends count further


class _Python:
    """`exprs.Target`: Python text."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names

    def integer(self, value: int) -> str:
        return str(value)

    def symbol(self, atom: Atom) -> str:
        return self.names[atom.id]

    def add(self, a: str, b: str) -> str:
        return f"({a} + {b})"

    def mul(self, a: str, b: str) -> str:
        return f"{a} * {b}"

    def divide(self, kind: str, a: str, b: str, unsigned: bool) -> str:
        return f"({a} {'//' if kind == 'floordiv' else '%'} max({b}, 1))"

    def extreme(self, kind: str, a: str, b: str) -> str:
        return f"{kind}({a}, {b})"


def geometry_text(kernel: Kernel, plan: Plan) -> str:
    names = {atom.id: f"s{i}" for i, atom in enumerate(kernel.sizes)}
    target = _Python(names)
    lanes = ", ".join(emit(group.extent, target) for group in plan.lanes)
    rows = [emit(loop.axis.extent, target) for loop in plan.spread]
    longest = f"max({', '.join(dict.fromkeys(rows))}, 1)" if rows else "1"
    wide = relevant_sizes(kernel, plan)
    either = " | ".join(names[atom.id] for atom in wide) or "0"
    bounds = dict.fromkeys(("0", *_bounds(kernel, plan, names)))
    large = f"max({', '.join(bounds)}, 0) > {LARGE}"
    parameters = ", ".join(names.values())
    comma = "," if len(plan.lanes) == 1 else ""
    return (
        f"def geometry({parameters}):\n    return ({lanes}{comma}), {longest}, {large}, {either}\n"
    )


def geometry(kernel: Kernel, plan: Plan) -> Callable[..., tuple[tuple[int, ...], int, bool, int]]:
    names: dict = {}
    exec(geometry_text(kernel, plan), names)
    return names.pop("geometry")


# ---- bounds of indices


def _expressions(kernel: Kernel) -> Iterable[Size]:
    yield from (axis.extent for axis in kernel.grid)
    yield from (loop.axis.extent for loop, _ in nested_loops(kernel.body))
    yield from (load.index for load, _ in loads(kernel.body))
    for store, _ in stores(kernel.body):
        yield store.index
    for statement in kernel.statements():
        for scalar in reachable(roots(statement)):
            if isinstance(scalar, IndexValue):
                yield scalar.expr


def _bounds(kernel: Kernel, plan: Plan, names: dict[int, str]) -> Iterable[str]:
    axes = [*kernel.grid, *(loop.axis for loop, _ in nested_loops(kernel.body))]
    extents = {axis_id(axis): axis.extent for axis in axes}
    bound = _Bound(names, extents)
    for expr in dict.fromkeys((plan.points, *_expressions(kernel))):
        if isinstance(expr, IntExpr):
            yield bound.of(expr)
    for buffer in plan.scratch:
        yield f"{bound.of(plan.points)} * {bound.of(buffer.extent)}"


class _Bound:
    """Text of a number no smaller than the expression's absolute value."""

    def __init__(self, names: dict[int, str], extents: dict[int, Size]) -> None:
        self.names, self.extents = names, extents

    def of(self, expr: Size) -> str:
        if not isinstance(expr, IntExpr):
            return str(abs(expr))
        parts = []
        for monomial, factor in expr.terms:
            atoms = [self._atom(expr.algebra.atoms[id]) for id in monomial]
            parts.append(" * ".join([str(abs(factor))] * (abs(factor) != 1 or not atoms) + atoms))
        return f"({' + '.join(parts)})" if len(parts) > 1 else parts[0]

    def _atom(self, atom: Atom) -> str:
        if atom.args is not None:
            if atom.kind in ("floordiv", "mod"):
                return self.of(atom.args[0])
            return f"max({self.of(atom.args[0])}, {self.of(atom.args[1])})"
        if atom.id in self.names:
            return self.names[atom.id]
        return self.of(self.extents[atom.id]) if atom.id in self.extents else "0"


# ---- divisibility


def relevant_sizes(kernel: Kernel, plan: Plan) -> tuple[Atom, ...]:
    """Sizes that decide how accesses are aligned: in strides, and where rows end."""
    known = {atom for atom, factor in kernel.facts if factor % ALIGNMENT == 0}
    exprs = [load.index for load, _ in loads(kernel.body)]
    exprs += [store.index for store, _ in stores(kernel.body)]
    if "r" in plan.dims and plan.row_first:
        exprs += [loop.axis.extent for loop in plan.spread]
    elif not plan.halves:
        exprs += [axis.extent for group in plan.lanes[-1:] for axis in group.axes[-1:]]
    found: dict[Atom, None] = {}
    for expr in exprs:
        for factors in _unaligned(expr, kernel, known):
            found.setdefault(max(factors, key=lambda atom: (_aligned_hint(atom), atom.id)))
    return tuple(sorted(found, key=lambda atom: atom.id))


def _unaligned(expr: Size, kernel: Kernel, known: set[Atom]) -> Iterable[list[Atom]]:
    """Of each term of unknown alignment, the sizes in it."""
    if not isinstance(expr, IntExpr):
        return
    sizes = {atom.id: atom for atom in kernel.sizes}
    for monomial, factor in expr.terms:
        factors = [sizes[id] for id in monomial if id in sizes]
        if factor % ALIGNMENT and factors and not known & set(factors):
            yield factors


def _aligned_hint(atom: Atom) -> bool:
    return isinstance(atom.hint, int) and atom.hint % ALIGNMENT == 0
