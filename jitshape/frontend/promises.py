"""Do the marks and declared shapes hold?

In: a finished trace, whose facts say what the program needs of its sizes.  Out: nothing, or a
BrokenPromise that names the line, the op and the other tensors that force a size which the user
called dynamic to one value, to a part of its range, or to another declared size.
Invariant: what passes here is served by one entry for the whole range that the user gave.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from jitshape.errors import BrokenPromise
from jitshape.frontend.dynamic import Decision
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.facts import DECLARED, LAYOUT, describe
from jitshape.ir.types import TensorType

if TYPE_CHECKING:
    from jitshape.frontend.capture import Capture
    from jitshape.ir.facts import Fact
    from jitshape.ir.graph import Location

TRIED_IN_FULL = 4096
SAMPLE = (*range(34), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)


def check_promises(captured: Capture) -> None:
    """Raises BrokenPromise for the first promise that the trace does not keep."""
    strict = {d.source: d for d in captured.policy.decisions.values() if d.strict}
    if not strict:
        return
    for name, source in captured.tracer.symbols.items():
        if source.kind == "size" and str(source) in strict:
            _Check(captured, strict[str(source)], name).run()


class _Check:
    """One promise: `decision` about the symbol `name`."""

    def __init__(self, captured: Capture, decision: Decision, name: str) -> None:
        self.captured, self.decision, self.name = captured, decision, name
        self.env = captured.tracer.env
        self.texts = {n: str(s) for n, s in captured.tracer.symbols.items()}

    def run(self) -> None:
        symbol = self.env.symbols[self.name].expr
        value = self.env.simplify(symbol)
        if self.decision.unbacked:
            for fact in self.related():
                if fact.op not in (LAYOUT, DECLARED) and "range declared" not in fact.op:
                    raise self.broken(fact, f"a decision is taken on it: {self.text(fact)}")
        low, high = self.env.algebra.bounds(symbol)
        if low == high and not isinstance(value, int):
            value = int(low)
        if isinstance(value, int):
            raise self.specialised(value)
        self.check_relations()
        if self.decision.served_from is not None:
            self.check_range(value)

    def related(self) -> list[Fact]:
        """The facts about the symbol, and about what it is equal to by facts."""
        names, found = {self.name}, []
        for fact in [*self.env.facts, *reversed(self.env.facts)]:
            mine = {atom.name for atom in _symbols(fact)}
            if mine & names and fact not in found:
                found.append(fact)
                if isinstance(fact.condition, BoolExpr) and fact.condition.op == "eq":
                    names |= mine
        return found

    def specialised(self, value: int) -> BrokenPromise:
        facts = self.related()
        forcing = [f for f in facts if f.specialised] or facts
        if not forcing:
            return self.broken(None, f"{self.decision.source} must be {value}")
        return self.broken(forcing[0], f"{self.decision.source} must be {value}", value)

    def check_relations(self) -> None:
        """Sizes with different Dims must not turn out related."""
        relation = self.decision.relation
        if relation is None:
            return
        for fact in self.env.facts:
            roots = {self.root_of(atom.name) for atom in _symbols(fact)} - {None}
            if fact.op != DECLARED and relation.root.name in roots and len(roots) > 1:
                names = " and ".join(sorted(map(str, roots)))
                raise self.broken(fact, f"Dims {names} are related", same_dim=True)

    def root_of(self, name: str) -> str | None:
        decision = self.captured.policy.decisions.get(self.texts.get(name, ""))
        return decision.relation.root.name if decision and decision.relation else None

    def check_range(self, value: Any) -> None:
        """No fact excludes a size of the range; `value` is the size in the symbols that stay."""
        symbols = list(self.env.algebra.symbols(value))
        if len(symbols) != 1:
            return
        (symbol,) = symbols
        facts = [f for f in self.env.facts if {a.name for a in _symbols(f)} == {symbol.name}]
        for size in self.sizes():
            at = self.root_at(value, symbol.name, size)
            if at is None:
                continue
            for fact in facts:
                actual = {symbol.name: at}
                holds = fact.condition.evaluate(
                    lambda s, actual=actual: self.env.algebra.evaluate(s, actual)
                )
                if holds is False:
                    raise self.broken(
                        fact, f"{self.decision.source} = {size} is in its range but not served"
                    )

    def root_at(self, value: Any, name: str, size: int) -> int | None:
        """The value of the one symbol in `value`, a linear expression, at which it is `size`."""
        zero, one = (self.env.algebra.evaluate(value, {name: n}) for n in (0, 1))
        scale = one - zero
        if scale == 0 or (size - zero) % scale:
            return None
        return (size - zero) // scale

    def sizes(self) -> Iterable[int]:
        """Of the range, all, or those at its ends and some between."""
        low, high = self.decision.served_from or 0, self.decision.hi
        if high - low <= TRIED_IN_FULL:
            return range(low, int(high) + 1)
        last = [] if high == float("inf") else range(int(high) - 33, int(high) + 1)
        return sorted({low + n for n in SAMPLE} | set(last) | {997, 65537} - {*range(low)})

    # ---- the message

    def text(self, fact: Fact) -> str:
        return describe(fact, self.texts)

    def broken(
        self, fact: Fact | None, what: str, value: int | None = None, same_dim: bool = False
    ) -> BrokenPromise:
        promise = self.decision.reason.removeprefix("is dynamic: ").split(" says ")[0]
        others = list(self.others(fact, value)) if fact else []
        tensor = self.decision.source.rpartition(".size(")[0]
        foreign = [o for o in others if o.rpartition(".size(")[0] != tensor]
        others = foreign or others  # its own other sizes force it only where no tensor does
        because = ""
        if fact is not None:
            because = f"{fact.op or 'the program'} needs {self.text(fact)}"
            if others:
                because += f"; {' and '.join(f'{o} is {value}' for o in others)}"
        return BrokenPromise(
            f"{promise} of {self.decision.source} cannot hold: {what}",
            where=line_of(fact.location) if fact else "",
            because=because,
            avoid="give both the same Dim" if same_dim else self.remedy(others),
        )

    def remedy(self, others: list[str]) -> str:
        tensor, _, dim = self.decision.source.rpartition(".size(")
        if others:
            other, _, at = others[0].rpartition(".size(")
            both = f"mark_dynamic({other}, {at[:-1]}) too"
        else:
            both = "change that line"
        if self.decision.relation is not None or "dynamic_shapes" in self.decision.reason:
            return f'{both}, or "auto" in its place, which lets the program specialise'
        return f"{both}, or maybe_mark_dynamic({tensor}, {dim[:-1]}) to let the program specialise"

    def others(self, fact: Fact, value: int | None) -> Iterator[str]:
        """The inputs with a static size of `value` that meet this one at the fact's line."""
        if value is None or fact.location is None:
            return
        tracer = self.captured.tracer
        sources = {i.tensor.value: i.source for i in tracer.inputs}
        at_line = _inputs_at(tracer.trace.graph.nodes, fact.location) & set(sources)
        mine = self.decision.source
        for tensor in sources if len(at_line) < 2 else [t for t in sources if t in at_line]:
            assert isinstance(tensor.type, TensorType)
            for dim, size in enumerate(tensor.type.shape):
                text = f"{sources[tensor]}.size({dim})"
                if text != mine and self.env.simplify(size) == value:
                    yield text
                    break


def _symbols(fact: Fact) -> set[Any]:
    return set(fact.condition.symbols()) if isinstance(fact.condition, BoolExpr) else set()


def _inputs_at(nodes: Iterable[Any], location: Location) -> set[Any]:
    """The values that the nodes of this line are computed from."""
    made = {out: node for node in nodes for out in node.outs}
    place = location.file, location.line
    todo = [
        value
        for node in nodes
        if node.location and (node.location.file, node.location.line) == place
        for value in node.inputs()
    ]
    found: set[Any] = set()
    while todo:
        value = todo.pop()
        if value not in found:
            found.add(value)
            todo += made[value].inputs() if value in made else ()
    return found


def line_of(location: Location | None) -> str:
    """A location with its source text."""
    if location is None:
        return ""
    return f"{location}   {linecache.getline(location.file, location.line).strip()}".rstrip()
