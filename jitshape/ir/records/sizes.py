"""What is known of sizes, as a record: the algebra with its atoms, and the ShapeEnv round it.

In: a ShapeEnv whose trace is over.  Out: a record, and from it a ShapeEnv that answers the same
questions about the same expressions.
Invariant: an expression is its terms, over atoms by their number; atoms are written in the order
in which they were made, so that each stands behind those it is made of.
"""

from __future__ import annotations

from typing import Any

from jitshape.ir.conditions import BoolExpr
from jitshape.ir.facts import Fact, Symbol
from jitshape.ir.graph import Location
from jitshape.ir.records.plain import Reader, Record, Tree, refuse, tree
from jitshape.ir.shape_env import ShapeEnv
from jitshape.ir.symfloat import FloatExpr
from jitshape.ir.symint import Algebra, Atom, IntExpr, measure


class AtomRecord(Record):
    kind: str
    name: str
    args: Tree  # two sizes, or None
    host: Tree  # operands that only the host computes with, or None
    lo: float | int
    hi: float | int
    hint: int | float | None


class SizesRecord(Record):
    """`known` are conditions; `replaced` and `floats` are pairs of an atom's number and a tree."""

    atoms: list[AtomRecord]
    intervals: list[tuple[Tree, float | int, float | int]]
    holes: list[tuple[Tree, list[int]]]
    symbols: list[tuple[int, list[int]]]  # atom, the values seen
    actual: dict[str, Tree]
    replaced: list[tuple[int, Tree]]
    known: list[Tree]
    floats: list[tuple[int, float | None, bool]]  # atom, value, specialised
    asserts: list[Tree]


def leaf(x: Any) -> Tree:
    """The tree of an expression, a condition, a fact or a line."""
    if type(x) is IntExpr:
        return ["size", *[[list(monomial), factor] for monomial, factor in x.terms]]
    if type(x) is FloatExpr:
        args = [x.args[0].id] if x.op == "symbol" else [tree(arg, leaf) for arg in x.args]
        return ["real", x.op, *args]
    if type(x) is BoolExpr:
        return ["condition", x.op, *[tree(arg, leaf) for arg in x.args]]
    if type(x) is Fact:
        where = None if x.location is None else line(x.location)
        return ["fact", tree(x.condition, leaf), where, x.op, x.specialised]
    return refuse(x)


def line(location: Any) -> Tree:
    return [location.file, location.line, location.function]


def write_sizes(env: ShapeEnv) -> SizesRecord:
    algebra = env.algebra
    atoms = [
        AtomRecord(atom.kind, atom.name, _operands(atom.args), _operands(atom.host), *_range(atom))
        for atom in algebra.atoms
    ]
    return SizesRecord(
        atoms,
        [(leaf(p), lo, hi) for p, (lo, hi) in algebra._intervals.items()],
        [(leaf(p), sorted(values)) for p, values in algebra.excluded()],
        [(_number(s.expr), list(s.hints)) for s in env.symbols.values()],
        {name: tree(value) for name, value in env._values.items()},
        [(id, tree(size, leaf)) for id, size in env._replaced.items()],
        sorted((leaf(condition) for condition in env._known), key=repr),
        [(id, value, id in env._fixed) for id, value in env._floats.items()],
        [leaf(fact) for fact in env.asserts],
    )


def _operands(x: tuple | None) -> Tree:
    return None if x is None else tree(tuple(x), leaf)


def _range(atom: Atom) -> tuple[float, float, Any]:
    return atom.lo, atom.hi, atom.hint


def _number(expr: IntExpr) -> int:
    return expr.terms[0][0][0]


class SizesReader(Reader):
    """Reads expressions of one ShapeEnv, made anew."""

    def __init__(self, record: SizesRecord) -> None:
        self.env = env = ShapeEnv()
        self.algebra: Algebra = env.algebra
        for atom in record.atoms:
            self._atom(atom)
        self.algebra._intervals = {self.read(p): (lo, hi) for p, lo, hi in record.intervals}
        self.algebra._holes = {self.read(p): set(values) for p, values in record.holes}
        self.algebra.version = 1
        for number, hints in record.symbols:
            name = self.algebra.atoms[number].name
            env.symbols[name] = Symbol(self.algebra.atom_expr(number), name, tuple(hints))
        env._values = {name: self.read(value) for name, value in record.actual.items()}
        env._actual = {n: v for n, v in env._values.items() if n in env.symbols}
        env._replaced = {id: self.read(size) for id, size in record.replaced}
        env._known = {self.read(condition) for condition in record.known}
        env._floats = {id: value for id, value, _ in record.floats}
        env._fixed = {id for id, _, fixed in record.floats if fixed}
        env.asserts = [self.read(fact) for fact in record.asserts]

    def _atom(self, record: AtomRecord) -> None:
        algebra = self.algebra
        args = None if record.args is None else self.read(record.args)
        atom = Atom(len(algebra.atoms), record.kind, args, record.name)
        atom.lo, atom.hi, atom.hint = record.lo, record.hi, record.hint
        operands = args
        if record.host is not None:
            operands = atom.host = self.read(record.host)
        if operands is not None:
            measure(atom, operands)
        algebra.atoms.append(atom)
        if operands is not None:
            algebra._atom_of[(record.kind, *operands)] = algebra.atom_expr(atom.id)

    def read_size(self, *terms: Any) -> Any:
        return self.algebra._make(tuple((tuple(monomial), factor) for monomial, factor in terms))

    def read_real(self, op: str, *args: Any) -> FloatExpr:
        if op == "symbol":
            return FloatExpr(op, (self.algebra.atoms[args[0]],))
        return FloatExpr(op, tuple(map(self.read, args)))

    def read_condition(self, op: str, *args: Any) -> BoolExpr:
        return BoolExpr(op, tuple(map(self.read, args)))

    def read_fact(self, condition: Any, where: Any, op: str, specialised: bool) -> Fact:
        location = None if where is None else Location(*where)
        return Fact(self.read(condition), location, op, specialised)
