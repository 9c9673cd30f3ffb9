"""Passes over graphs: valid graph in, valid graph out.

A pass states which properties of the graph it needs and which it gives; `run_passes` checks the
order, and verifies the graph between passes when asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jitshape.errors import InternalError, JitshapeError
from jitshape.ir.graph import Graph
from jitshape.ir.printer import print_graph
from jitshape.ir.verify import verify

FUNCTIONAL = "functional"  # no op mutates
CORE = "core"  # no composite op is left
DEDUPED = "deduped"  # no two equal pure nodes


@dataclass(frozen=True)
class Pass:
    """A function over graphs with its contract."""

    name: str
    run: Callable[[Graph], None]
    requires: frozenset[str]
    provides: frozenset[str]

    def __call__(self, graph: Graph) -> None:
        self.run(graph)


PASSES: dict[str, Pass] = {}


def graph_pass(
    requires: Iterable[str] = (), provides: Iterable[str] = ()
) -> Callable[[Callable[[Graph], None]], Pass]:
    """Register the decorated function under its name."""

    def register(run: Callable[[Graph], None]) -> Pass:
        name = run.__name__
        made = Pass(name, run, frozenset(requires), frozenset(provides))
        PASSES[name] = made
        return made

    return register


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    *,
    has: Iterable[str] = (),
    debug: bool = False,
) -> set[str]:
    """Run `passes` in order on a graph that already has the properties `has`; the properties
    it has then.  A fault inside a pass becomes an InternalError that shows the graph."""
    have = set(has)
    for step in passes:
        missing = step.requires - have
        assert not missing, f"{step.name} needs {sorted(missing)}"
        try:
            step.run(graph)
        except JitshapeError:
            raise
        except Exception as error:
            raise InternalError(step.name, error, print_graph(graph)) from error
        have |= step.provides
        if debug:
            verify(graph, step.name)
    return have
