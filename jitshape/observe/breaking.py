"""Graph breaks for people: what ended a graph, in the user's line, and how to avoid it.

In: the function and the outcome of its trace.  Out: a BreakRecord, and under `fullgraph=True`
the GraphBreak that says the same.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING

from jitshape.errors import GraphBreak
from jitshape.observe.records import BreakRecord

if TYPE_CHECKING:
    from jitshape.frontend.machine import Outcome

TITLES = {
    "data_dependent_branch": "a Python branch needs the value of a tensor",
    "data_dependent": "the program needs a number that exists only when the graph runs",
    "torch_call": "a call that has to run outside the graph",
    "builtin": "a function of C whose behaviour is not modelled",
    "raises": "a call raises an exception",
    "reconstruct": "an object cannot leave the compiled code",
    "generator": "a generator cannot leave the compiled code",
    "async": "what only an event loop, or the interpreter, can see of asynchronous code",
    "tensor_attribute": "an attribute of a tensor that does not exist in a graph",
    "user_code": "code of the user's that C++ would call",
    "exception": "an exception from outside the graph",
    "recursion": "calls nested too deep",
    "side_effect": "an effect that cannot wait until the graph has run",
}


def break_record(name: str, outcome: Outcome) -> BreakRecord:
    """The record of a trace of the function `name` that ended at a break."""
    cause, place = outcome.cause, outcome.location
    assert cause is not None
    line = ""
    if place is not None:
        line = linecache.getline(place.file, place.line).strip()
    return BreakRecord(name, str(place or ""), cause.kind, cause.reason, cause.remedy, line)


def headline(record: BreakRecord) -> str:
    name = "".join(word.capitalize() for word in record.kind.split("_"))
    return f"{name}: {TITLES.get(record.kind, 'something that cannot be captured')}"


def break_error(record: BreakRecord) -> GraphBreak:
    """What `fullgraph=True` raises."""
    return GraphBreak(
        headline(record),
        where=f"{record.where}   {record.line}".rstrip(),
        because=record.reason,
        so="the graph would end before this line and a second one start after it",
        avoid=record.remedy or "compile without fullgraph=True",
    )


def break_text(record: BreakRecord) -> str:
    """What JITSHAPE_LOGS=graph_breaks prints."""
    rows = [headline(record), f"  at       {record.where}   {record.line}".rstrip()]
    rows.append(f"  because  {record.reason}")
    if record.remedy:
        rows.append(f"  to avoid {record.remedy}")
    return "\n".join(rows)
