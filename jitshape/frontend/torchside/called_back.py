"""Python code that autograd calls while it runs backward on symbolic tensors: formulas of the
user's, hooks.

In: machine values of a function and its arguments, and the step of the program that handed the
function to autograd.  Out: what it returns, run by the machine, so that all it reads is guarded.
Backward that the program calls itself runs in its place.  The backward behind the program's end
runs later than the trace, for a call that eager would make at any time, or never: code that would
be noticed there (it writes to what outlives it, draws random numbers, raises) must not be called,
and the trace is made again up to that step.  It is recorded outside of autocast, since calls of it
inside are seen to (passes/under_autocast.py).
Invariant: what is recorded behind the program's end depends on nothing that can happen later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jitshape import forks
from jitshape.errors import DataDependent
from jitshape.frontend import _evalframe
from jitshape.frontend.frame import Frame
from jitshape.frontend.machine import DEPTH_LIMIT, PYTHON_FRAMES_PER_CALL
from jitshape.frontend.torchside.autocast import outside_autocast
from jitshape.frontend.torchside.late_reads import late_read
from jitshape.frontend.torchside.watching import watched
from jitshape.frontend.values.base import (
    CLOCK,
    Break,
    Raised,
    Restart,
    Value,
    data_dependent,
)
from jitshape.ir.graph import Graph, Node, new_symbols
from jitshape.ir.graph import Value as GraphValue
from jitshape.ir.passes.functionalize import written_outside

if TYPE_CHECKING:
    from jitshape.frontend.capture import Capture
    from jitshape.frontend.machine import Machine

Dependence = Callable[[Any], frozenset[GraphValue]]


class CalledBack:
    """One thing that the program gave to autograd, such as a hook, at the current step."""

    def __init__(self, m: Machine, what: str) -> None:
        step = CLOCK.step()
        assert step is not None
        self.machine, self.what, self.step = m, what, step
        m.tracer.called_back.append(self)

    def close(self) -> None:
        """Let go of the values of the program."""
        vars(self).clear()

    @property
    def probing(self) -> bool:
        """Backward only looks whether it may run, and is undone."""
        return self.machine.tracer.trace.probing

    def refuse(self, reason: str) -> Break:
        """The cause of a break before the program gives this to autograd."""
        return Break("autograd", f"{self.what} {reason}")

    def run(self, call: Callable[[], Value]) -> Value:
        """`call()` runs the code."""
        trace = self.machine.tracer.trace
        general, trace.env.general = trace.env.general, False
        try:
            if self.machine.changed_late is None:
                return call()
            return self._run_late(call)
        finally:
            trace.env.general = general

    def _run_late(self, call: Callable[[], Value]) -> Value:
        m, graph = self.machine, self.machine.tracer.trace.graph
        start, touched = len(graph.nodes), m.effects.size()
        try:
            with m.stepping(self._refuse_reads):
                result = call()
        except Restart as again:
            raise Restart(self.step, again.cause) from None
        except (Break, DataDependent) as stop:
            cause = stop if isinstance(stop, Break) else data_dependent(stop)
            raise Restart(self.step, Break(cause.kind, cause.reason, cause.remedy)) from None
        except Raised as raised:
            name = raised.value.python_type().__name__
            raise Restart(self.step, self.refuse(f"raises {name} in backward")) from None
        problem = _noticed(graph.nodes[start:])
        if m.effects.size() > touched:
            problem = "writes to what exists outside"
        if problem is not None:
            raise Restart(self.step, self.refuse(f"{problem} in backward"))
        return result

    def _refuse_reads(self, frame: Frame) -> None:
        """The program may change its data between this call and its backward."""
        read = late_read(frame)
        if read is not None:
            reason = f"reads {read}, which may be another when backward runs"
            remedy = "pass it as an argument, or keep it in the context in forward"
            raise Restart(self.step, Break("autograd", f"{self.what} {reason}", remedy))

    def check_dependence(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        """Where some results of the program may get a gradient and others none: autograd calls
        the code if one of `given` is defined, so all must be at the same calls."""
        of = self.machine.tracer.dependence
        if of is None or self.machine.changed_late is None:
            return
        tangents = {of(g.value) for g in given if g is not None} - {frozenset()}
        wanted = next(iter(tangents), frozenset())
        if len(tangents) > 1 or any(of(r.value) != wanted for r in results if r is not None):
            reason = "gets gradients of several results, of which a call may lack some"
            raise Restart(self.step, self.refuse(reason))


def _noticed(nodes: list[Node]) -> str | None:
    """What of the recorded nodes must not happen at another time."""
    if any(node.token is not None for node in nodes):
        return "draws random numbers"
    if any(new_symbols(node) for node in nodes):
        return "needs numbers that exist only at run time"
    if written_outside(nodes):
        return "writes to a tensor"
    return None


@contextmanager
def program_ended(captured: Capture, tangents: int) -> Iterator[None]:
    """Round the backward behind the end of a trace, from this many results."""
    m, tracer = captured.machine, captured.tracer
    outer, CLOCK.machine = CLOCK.machine, m
    limit = sys.getrecursionlimit()
    m.changed_late = []
    tracer.dependence = _dependence(tracer.trace.graph) if tangents > 1 else None
    _evalframe.push_bypass()
    try:
        with forks.changed(lambda: sys.setrecursionlimit(limit)):
            sys.setrecursionlimit(limit + DEPTH_LIMIT * PYTHON_FRAMES_PER_CALL)
            with watched(program_ended), outside_autocast():
                yield
        _check_changes(captured, m.changed_late)
    finally:
        CLOCK.machine, m.changed_late, tracer.dependence = outer, None, None
        _evalframe.pop_bypass()


def _check_changes(captured: Capture, changed: list[Value | None]) -> None:
    """Objects that leave the trace have left it as the program had made them."""
    if not changed:
        return
    kept = captured.machine.kept_by(captured.outcome)
    for value in changed:
        if value is None or id(value) in kept or id(getattr(value, "owner", value)) in kept:
            first = captured.tracer.called_back[0]
            cause = first.refuse("or what else backward calls writes to an object that outlives it")
            raise Restart(first.step, cause)


def _dependence(graph: Graph) -> Dependence:
    """A function that tells on which inputs of backward a value depends."""
    known: dict[GraphValue, frozenset[GraphValue]] = {}
    nothing: frozenset[GraphValue] = frozenset()
    primals, seen = len(graph.inputs), [0]

    def of(value: GraphValue) -> frozenset[GraphValue]:
        for tangent in graph.inputs[primals:]:
            if tangent.name.startswith("tangent"):
                known.setdefault(tangent, frozenset([tangent]))
        for node in graph.nodes[seen[0] :]:
            found = nothing.union(*(known.get(x, nothing) for x in node.inputs()))
            known.update(dict.fromkeys(node.outs, found))
        seen[0] = len(graph.nodes)
        return known.get(value, nothing)

    return of
