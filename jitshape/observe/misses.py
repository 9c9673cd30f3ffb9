"""Why a call found no entry: every guard that the nearest entry's call fails, in the user's terms.

In: the guard programs of a function and the slots of a call.  Out: GuardFailures of the entry with
the fewest, one for each number, dtype, object or state that differs.
The first guard that fails is C's answer; the others are looked up from Python, so that a fix that
is derived from them avoids the whole miss and not only its first cause.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend.dynamic import is_argument
from jitshape.frontend.guards import (
    Absent,
    Failure,
    GuardProgram,
    differences,
    explain,
    observed,
    read,
)
from jitshape.frontend.sources import Source
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.symfloat import FloatExpr
from jitshape.observe.records import NUMBERS, GuardFailure

COMPARED_ENTRIES = 8  # the newest ones; older ones are rarely nearer
TENSOR_KINDS = {"dim()": "rank", "type": "tensor_type", "dispatch key set": "keys"}


def nearest_miss(programs: Sequence[GuardProgram], slots: tuple) -> tuple[GuardFailure, ...]:
    """The failures of the entry, of those compiled last, that has the fewest; none where there is
    no entry.  One that has other numbers for constants is no match for one that has symbols."""
    found = [failing(program, slots) for program in reversed(programs[-COMPARED_ENTRIES:])]
    return min((tuple(f) for f in found if f), key=_distance, default=())


def _distance(failures: Sequence[GuardFailure]) -> tuple[bool, int]:
    return any(f.kind in NUMBERS for f in failures), len(failures)


def failing(program: GuardProgram, slots: tuple) -> list[GuardFailure]:
    """All guards of one entry that the call fails; empty: it would hit."""
    first = explain(program, slots)
    if first is None:
        return []
    found = told(first, slots, program)
    for guard in program.guards:
        if guard is not first.guard and holds(guard, slots) is False:
            found += told(Failure(guard, observed(guard, slots)), slots, program)
    return list(dict.fromkeys(found))


# ---- judging one guard from Python


def holds(guard: C.Guard, slots: tuple) -> bool | None:
    """None: only C can tell."""
    judge = _JUDGES.get(type(guard.check))
    if judge is None or guard.source is None:
        return None
    try:
        return judge(guard.check, guard.source, slots)
    except (Absent, ArithmeticError, TypeError, AttributeError, RuntimeError):
        return None


def _equals(check: Any, source: Source, slots: tuple) -> bool | None:
    value = read(source, slots)
    if type(value) not in (int, float, bool, str, type(None)):
        return type(value) is type(check.value) and None
    return C.Equals(value) == check


def _matches(check: Any, source: Source, slots: tuple) -> bool:
    found = differences(check, read(source, slots))
    return [what for what, _, _ in found] == ["dispatch key set"]


def _relation(check: Any, source: Source, slots: tuple) -> bool | None:
    return truth_at(check.condition, {name: read(x, slots) for name, x in check.symbols})


def truth_at(condition: BoolExpr, values: Mapping[str, Any]) -> bool | None:
    """The truth of a condition where its symbols have these values, by name.  Raises KeyError."""

    def number(side: Any) -> Any:
        if isinstance(side, FloatExpr):
            return side.evaluate(
                lambda x: values[x.args[0].name] if isinstance(x, FloatExpr) else number(x)
            )
        return side if isinstance(side, (int, float)) else side.algebra.evaluate(side, values)

    return condition.evaluate(number)


_JUDGES: dict[type, Callable[[Any, Source, tuple], bool | None]] = {
    C.Equals: _equals,
    C.TensorMatches: _matches,
    C.Holds: _relation,
    C.TypeIs: lambda check, source, slots: type(read(source, slots)) is check.type,
    C.Is: lambda check, source, slots: read(source, slots) is check.object,
    C.Length: lambda check, source, slots: len(read(source, slots)) == check.length,
}


# ---- telling it


def told(failure: Failure, slots: tuple, program: GuardProgram) -> list[GuardFailure]:
    """A failed guard in the user's terms: for a tensor, each thing that differs."""
    guard = failure.guard
    where, line = place_of(guard.location)
    if isinstance(guard.check, C.TensorMatches):
        found = _tensor_differences(guard, slots)
        if found:
            return [_tensor_failure(guard.source, where, line, *row) for row in found]
    source = "the state of torch" if guard.source is None else str(guard.source)
    return [
        GuardFailure(
            source=source,
            demanded=guard.check.text(guard.source),  # type: ignore[arg-type]
            seen=_seen(failure),
            where=where,
            line=line,
            kind="specialised" if _was_symbolic(guard, program) else _kind_of(guard),
        )
    ]


def _was_symbolic(guard: C.Guard, program: GuardProgram) -> bool:
    """Whether a float that must be one number was a symbol to the trace: its class has a guard
    of its own."""
    if not isinstance(guard.check, C.Equals) or type(guard.check.value) is not float:
        return False
    return any(
        type(g.check) is C.TypeIs and g.check.type is float and g.source == guard.source
        for g in program.guards
    )


def _tensor_differences(guard: C.Guard, slots: tuple) -> list[tuple[str, Any, Any]]:
    """Strides that follow from sizes that differ are not told."""
    try:
        tensor = read(guard.source, slots)  # type: ignore[arg-type]
    except Absent:
        return []
    found = differences(guard.check, tensor)  # type: ignore[arg-type]
    sizes = any(what.startswith("size(") for what, _, _ in found)
    if sizes and type(tensor).is_contiguous(tensor):
        found = [row for row in found if not row[0].startswith("stride(")]
    return found


def _seen(failure: Failure) -> str:
    """The value alone where there is only one."""
    check = failure.guard.check
    if isinstance(check, C.Holds) and len(check.symbols) == 1:
        return failure.observed.rpartition(" = ")[2]
    return failure.observed


def _tensor_failure(
    source: Any, where: str, line: str, what: str, wanted: Any, seen: Any
) -> GuardFailure:
    kind = TENSOR_KINDS.get(what) or re.sub(r"\(\d+\)", "", what)
    return GuardFailure(
        source=f"{source}.{what}" if "(" in what else f"{source}",
        demanded=f"{source}.{what} == {wanted}" if kind != "keys" else f"the same {what}",
        seen=str(seen),
        where=where,
        line=line,
        kind=kind,
    )


def _kind_of(guard: C.Guard) -> str:
    check, source = guard.check, guard.source
    if isinstance(check, C.Equals):
        if type(check.value) not in (int, float):
            return "value"
        return "number" if source is not None and is_argument(source) else "attribute"
    if isinstance(check, C.Holds):
        number = check.symbols[0][1]
        single = len(check.symbols) == 1 and check.condition.op == "eq"
        constant = any(isinstance(side, (int, float)) for side in check.condition.args)
        if single and constant and isinstance(number, S.Number):
            return "specialised"
        return "relation"
    return _KINDS.get(type(check), "other")


_KINDS: dict[type, str] = {
    C.Is: "identity",
    C.TypeIs: "type",
    C.Length: "length",
    C.Keys: "entries",
    C.Missing: "entries",
    C.Present: "entries",
    C.Ambient: "state",
    C.Remembers: "state",
    C.NoOverlap: "memory",
    C.SharesStorage: "memory",
    C.SameObject: "memory",
    C.Distinct: "memory",
}


def place_of(location: Any) -> tuple[str, str]:
    """A location as text, and its source line."""
    if location is None:
        return "", ""
    return str(location), linecache.getline(location.file, location.line).strip()
