"""Turns what the pipeline knows into records for people.

In: guard programs, captures, compiled programs.  Out: GuardFailure and CompileRecord: text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitshape.frontend.guards import Absent, read
from jitshape.observe import logs
from jitshape.observe.misses import place_of, truth_at
from jitshape.observe.records import (
    CompileRecord,
    GuardFailure,
    SizeFact,
    compiles_of,
    is_detailed,
)

if TYPE_CHECKING:
    from jitshape.entries import Entries, Known
    from jitshape.frontend.capture import Capture
    from jitshape.frontend.guards import Failure, GuardProgram
    from jitshape.observe.fixes import Fix
    from jitshape.pipeline import Made


EXPLAINED_ENTRIES = 16


def recompile_failures(entries: Sequence[Known], slots: tuple) -> dict[int, Failure]:
    """For each compiled entry, by its number and newest first, the first guard that this call
    fails; of many entries only the newest are asked."""
    from jitshape.frontend.guards import explain

    compiled = [known for known in entries if not known.native]
    found = {k.number: explain(k.guards, slots) for k in reversed(compiled[-EXPLAINED_ENTRIES:])}
    return {number: failure for number, failure in found.items() if failure is not None}


def recompile_text(title: str, failures: Mapping[int, Failure]) -> str:
    """What JITSHAPE_LOGS=recompiles shows of a call that no entry serves."""
    numbers: dict[str, list[str]] = {}
    for number, failure in failures.items():
        line = place_of(failure.guard.location)[1]
        numbers.setdefault(f"{failure}  {line}".rstrip(), []).append(str(number))
    rows = [
        f"  {'entry' if len(which) == 1 else 'entries'} {', '.join(which)}: {text}"
        for text, which in numbers.items()
    ]
    return "\n".join((f"{title} is compiled again: no entry serves this call", *rows))


def limit_text(
    name: str, where: str, entries: Entries, failures: Iterable[Failure], fixes: Sequence[Fix]
) -> str:
    """The warning of a function that is compiled again and again: why, and what helps."""
    cause = next(iter(failures), "nothing matched")
    fix = fixes[0].change if fixes else "keep that from changing"
    return (
        f"{name} ({where}) was compiled {entries.compiles} times, the last time because {cause}.  "
        f"To avoid it: {fix}.  Compiled code goes on being used, the {entries.most} entries used "
        "last; JITSHAPE_LOGS=recompiles shows every reason"
    )


def compile_record(
    name: str,
    where: str,
    made: Made,
    failures: Sequence[GuardFailure],
    seconds: float,
    number: int,
    dynamic: bool | None,
    slots: tuple[Any, ...],
) -> CompileRecord:
    """The record of the `number`th entry of a function, made for a call with `slots`; `failures`
    are the nearest entry's."""
    captured, compiled = made.capture, made.compiled
    kernels = compiled.kernels if compiled else ()
    earlier = compiles_of(name, where) if failures else ()
    return CompileRecord(
        function=name,
        where=where,
        kind="recompile" if failures else "compile",
        number=number,
        mode="" if dynamic is None else f"dynamic={dynamic}",
        shared=made.shares,
        inputs=tuple(made.inputs),
        symbols=tuple(captured.symbol_texts()),
        failures=tuple(failures),
        dynamic=tuple(str(d) for d in captured.policy.became_dynamic()),
        facts=tuple(size_facts(captured)),
        numbers=dict(_numbers(captured, slots)),
        alike=tuple(r.number for r in earlier if _meets_facts(r, captured)),
        guards=tuple(map(str, made.program.guards)) if is_detailed() else (),
        graph=made.graph,
        kernels=tuple(k.name for k in kernels),
        kernel_texts=tuple(k.text for k in kernels) if is_detailed() else (),
        externs=dict(compiled.externs) if compiled else {},
        seconds=seconds,
    )


def _numbers(captured: Capture, slots: tuple[Any, ...]) -> Iterator[tuple[str, int | float]]:
    """The sizes and numbers of the call that the trace read."""
    for text, source in captured.policy.observed.items():
        try:
            number = read(source, slots)
        except Absent:
            continue
        if type(number) in (int, float):
            yield text, number


def _meets_facts(earlier: CompileRecord, captured: Capture) -> bool:
    """Whether the call of an earlier entry had taken the same way, if its numbers were symbols."""
    from jitshape.ir.facts import LAYOUT

    names = {name: str(source) for name, source in captured.tracer.symbols.items()}
    numbers = earlier.numbers
    values = {name: numbers[text] for name, text in names.items() if text in numbers}
    try:
        facts = (f.condition for f in captured.tracer.env.facts if f.op != LAYOUT)
        return all(truth_at(condition, values) for condition in facts)
    except (KeyError, ArithmeticError, TypeError):  # something was not there to be read
        return False


def size_facts(captured: Capture) -> Iterator[SizeFact]:
    """What the trace needed of its sizes, but for how its inputs lie in memory."""
    from jitshape.ir.facts import LAYOUT, describe

    names = {name: str(source) for name, source in captured.tracer.symbols.items()}
    for fact in captured.tracer.env.facts:
        if fact.op == LAYOUT or isinstance(fact.condition, bool):
            continue
        where, line = place_of(fact.location)
        sources = {names[s.name]: None for s in fact.condition.symbols() if s.name in names}
        text = describe(fact, names)
        yield SizeFact(text, tuple(sources), fact.op, where, line, fact.specialised)


def log_entry(title: str, made: Made) -> None:
    """An entry's symbols, facts and guards, for the logs of these names."""
    rows = list(symbol_lines(made.capture)) if logs.enabled("dynamic") else []
    if rows:
        logs.log("dynamic", title, debug=all(debug for _, debug in rows))
    for row, debug in rows:
        logs.log("dynamic", f"  {row}", debug=debug)
    log_guards(title, made.program)


def log_guards(title: str, program: GuardProgram) -> None:
    if logs.enabled("guards"):
        guards = "".join(f"\n  {guard}" for guard in program.guards)
        logs.log("guards", title + guards)


def symbol_lines(captured: Any) -> Iterator[tuple[str, bool]]:
    """What JITSHAPE_LOGS=dynamic shows of a trace: each symbol, why it is one, and the line that
    read it first; each fact, and the line that needed it.  With True, what only +dynamic shows:
    strides and offsets that are read to be checked."""
    decisions = captured.policy.decisions
    for name, source in captured.tracer.symbols.items():
        decision = decisions.get(str(source))
        symbolic = decision is not None and decision.dynamic
        text = f"{name} = {decision if symbolic else source}"
        yield with_place(text, captured.tracer.read_at.get(name)), not symbolic
    for fact in size_facts(captured):
        kind = "specialised: " if fact.specialised else "needs "
        why = f" ({fact.why})" if fact.why else ""
        place = f"   # {fact.where}  {fact.line}".rstrip() if fact.where else ""
        yield f"{kind}{fact.text}{why}{place}", False


def with_place(text: str, location: Any) -> str:
    where, line = place_of(location)
    return f"{text}   # {where}  {line}".rstrip() if where else text
