"""The smallest change that avoids recompiles, and how many compiles it saves.

In: the CompileRecords of one function, in order.  Out: Fixes, those that save most first.
A fix answers for all failures of the misses that it counts: numbers that were static when they
changed become symbolic from the start; a line that needs one value of a size is named itself,
since no mark can help it; everything else is told what to keep the same.
Invariant: with the change applied, the same calls compile `saves` times less.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jitshape.observe.records import NUMBERS, PIECE, CompileRecord, GuardFailure

# kind of failure -> what to do about it; {source} and {line} are filled in
ADVICE = {
    "specialised": "do without the number {source} in {line}",
    "relation": "let {line} do the same whether or not {demanded}",
    "value": "keep {source} the same, or give each of its values a function of its own",
    "identity": "pass the same object as {source} each time: make it once, outside of the calls",
    "type": "pass {source} with the same type each time",
    "tensor_type": "pass {source} with the same type each time",
    "rank": "pass {tensor} with the same number of dimensions each time, by unsqueeze or flatten",
    "dtype": "pass {source} with the same dtype each time, by {source}.to(...)",
    "device": "pass {source} on the same device each time, by {source}.to(...)",
    "requires_grad": "pass {source} with the same requires_grad each time, by {source}.detach()",
    "is_leaf": "pass {source} always as a leaf of autograd, or never",
    "length": "pass {source} with the same length each time, or stack it into one tensor",
    "entries": "keep the keys and attributes of {source} the same",
    "state": "call it in the same state of torch each time: {demanded}",
    "memory": "pass tensors that share memory always, or never",
}


@dataclass(frozen=True)
class Fix:
    """`change` is what to write, `kind` where: "decorator", "mark", "environment" or "line"."""

    kind: str
    change: str
    because: str
    where: str
    saves: int


def fixes_of(compiles: Sequence[CompileRecord]) -> list[Fix]:
    """For one function."""
    again = [r for r in compiles if r.failures and not r.shared]
    groups: dict[tuple, list[CompileRecord]] = {}
    for record in again:
        groups.setdefault(_group(record), []).append(record)
    fixes = [_fix(key, records, compiles) for key, records in groups.items() if key is not None]
    return sorted((f for f in fixes if f.saves), key=lambda f: -f.saves)


def _group(record: CompileRecord) -> tuple | None:
    """Recompiles with equal groups are avoided by the same change.  None: by none, since a number
    changed that a line is going to need anyhow: that line is blamed from the next change on; or
    since no call before took the same branches, so that symbols would have been compiled again."""
    blocking = [f for f in record.failures if f.kind not in NUMBERS]
    if record.alike and all(f.kind == "relation" for f in blocking):
        blocking = []  # a call whose numbers were constants took the same branches
    if not blocking:
        rigid = {s for fact in record.facts if fact.specialised for s in fact.sources}
        avoided = record.alike and not rigid & {f.source for f in record.failures}
        return ("numbers",) if avoided else None
    return tuple(sorted({(f.kind, f.source, f.where) for f in blocking}))


def _fix(key: tuple, records: list[CompileRecord], compiles: Sequence[CompileRecord]) -> Fix:
    if key == ("numbers",):
        return _symbolic_from_start(records, compiles)
    causes = {(f.kind, f.source, f.where): f for r in reversed(records) for f in r.failures}
    first = causes[key[0]]
    changes = [_advice(causes[cause], compiles) for cause in key]
    return Fix(
        kind="line",
        change=" and ".join(dict.fromkeys(changes)),
        because=_story(records, first),
        where=f"{first.where}   {first.line}".rstrip() or compiles[0].where,
        saves=len(records),
    )


def _advice(failure: GuardFailure, compiles: Sequence[CompileRecord]) -> str:
    text = ADVICE.get(failure.kind, "keep {source} the same")
    line = f"`{failure.line}`" if failure.line else failure.where or compiles[0].function
    for record in compiles:
        for fact in record.facts:
            if fact.text == failure.demanded and fact.why == "broadcasting":
                text = "expand the operands of {line} to one size before the call"
    if failure.kind == "relation" and failure.demanded.endswith((" != 0", " != 1")):
        equal = failure.demanded.replace("!=", "==")
        text = f"avoid calls where {equal}, which {{line}} tells apart"
    tensor = failure.source.partition(".dim()")[0]
    return text.format(source=failure.source, line=line, demanded=failure.demanded, tensor=tensor)


def _story(records: Sequence[CompileRecord], failure: GuardFailure) -> str:
    """The values that were met at what failed."""
    seen = [f.seen for r in records for f in r.failures if f.source == failure.source]
    return f"{failure.demanded}, but it was {', then '.join(dict.fromkeys(seen))}"


# ---- numbers that were static when they changed


def _symbolic_from_start(records: list[CompileRecord], compiles: Sequence[CompileRecord]) -> Fix:
    failures = [f for r in records for f in r.failures if f.kind in NUMBERS]
    changed = list(dict.fromkeys(f.source for f in failures))
    change, kind = _change(changed, failures, compiles)
    sources = (changed or _became(compiles))[:4]  # none: relations alone told the calls apart
    return Fix(
        kind=kind,
        change=change,
        because="; ".join(_values(source, compiles) for source in sources),
        where=compiles[0].where,
        saves=len(records) if sources else 0,
    )


def _change(
    changed: list[str], failures: Sequence[GuardFailure], compiles: Sequence[CompileRecord]
) -> tuple[str, str]:
    """What makes these sources symbolic from the start, and where it is written."""
    kinds = {f.kind for f in failures}
    sources = [*changed, *(s for s in _became(compiles) if s not in changed)]
    if not kinds <= {"size", "number"}:
        return f"JITSHAPE_DYNAMIC_SOURCES={','.join(sources)!r}", "environment"
    if "dynamic=False" in compiles[0].mode:
        return "dynamic=True in place of dynamic=False", "decorator"
    if PIECE in compiles[0].function:  # its arguments are variables in the middle of a function
        return "@jitshape.compile(dynamic=True)", "decorator"
    tensors: dict[str, list[int]] = {}
    for source in sources:
        found = re.fullmatch(r"(.*)\.size\((\d+)\)", source)
        if found is None:
            return "@jitshape.compile(dynamic=True)", "decorator"
        tensors.setdefault(found[1], []).append(int(found[2]))
    if len(tensors) != 1:
        return "@jitshape.compile(dynamic=True)", "decorator"
    ((tensor, dims),) = tensors.items()
    which = str(dims[0]) if len(dims) == 1 else str(tuple(sorted(dims)))
    return f"jitshape.mark_dynamic({tensor}, {which}) before the first call", "mark"


def _became(compiles: Sequence[CompileRecord]) -> list[str]:
    """What is symbolic in the last entry and was not in the first, less what a line needs one
    value of: a mark could not hold."""
    first, last = (
        [text.partition(" = ")[2] for text in r.symbols] for r in (compiles[0], compiles[-1])
    )
    rigid = {s for fact in compiles[-1].facts if fact.specialised for s in fact.sources}
    return [s for s in last if s not in first and s not in rigid and ".stride(" not in s]


def _values(source: str, compiles: Sequence[CompileRecord]) -> str:
    """What it was in the calls that were compiled for."""
    found: dict[str, None] = {}
    for record in compiles:
        for failure in record.failures:
            if failure.source == source and failure.kind in NUMBERS:
                found[failure.demanded.partition("==")[2].strip()] = None
                found[failure.seen] = None
        if source in record.numbers:
            found[str(record.numbers[source])] = None
    return f"{source} was {', then '.join(found)}"
