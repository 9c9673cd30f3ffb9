"""How a trace leaves: the code that runs after the graph.

In: a Capture.  Out: an Exit: an Emitter whose body replays effects and ends in the result (or in
a resume function, after a break), and `keys`: what that code needs of the graph, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jitshape.frontend.breaks import Continuations, build_break
from jitshape.frontend.emit import Emitter
from jitshape.frontend.positions import is_piece
from jitshape.frontend.suspension import push_done

if TYPE_CHECKING:
    from jitshape.frontend.capture import Capture
    from jitshape.frontend.torchside.tensors import TensorValue
    from jitshape.ir.symint import Size


@dataclass(frozen=True, eq=False)
class Exit:
    """`keys`: TensorValue, Size or float expression, one for each graph output."""

    emitter: Emitter
    keys: tuple[TensorValue | Size | Any, ...]


def leave(capture: Capture, continuations: Continuations) -> Exit:
    """Code for a trace that returned, or that ended at a break."""
    outcome = capture.outcome
    e = Emitter(capture.function.__code__)
    capture.effects.replay(e)
    set_ambient(e, capture)
    if outcome.kind == "break":
        build_break(outcome.frames, e, continuations)
    else:
        assert outcome.kind == "return" and outcome.value is not None, outcome
        if is_piece(capture.function.__code__):
            push_done(e, outcome.value)
        else:
            e.value(outcome.value)
        e.op("RETURN_VALUE")
    return Exit(e, tuple(e.outputs))


def set_ambient(e: Emitter, capture: Capture) -> None:
    """Global state of torch as the program left it."""
    for set_, value in capture.ambient.items():
        e.call(set_, lambda value=value: e.const(value))
        e.pop()
