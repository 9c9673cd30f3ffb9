"""Turns what the pipeline knows into records for people.

In: guard programs, captures, compiled programs.  Out: GuardFailure and CompileRecord: text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jitshape.observe.records import CompileRecord, GuardFailure, is_detailed

if TYPE_CHECKING:
    from jitshape.entries import Entries
    from jitshape.frontend.guards import Failure, GuardProgram
    from jitshape.pipeline import Made


def recompile_failures(programs: Sequence[GuardProgram], slots: tuple) -> list[Failure]:
    """For each entry, newest first, the first guard that this call fails."""
    from jitshape.frontend.guards import explain

    found = [explain(program, slots) for program in reversed(programs)]
    return [failure for failure in found if failure is not None]


def told(failure: Failure) -> GuardFailure:
    """A failure in the user's terms."""
    guard = failure.guard
    return GuardFailure(
        source=str(guard.source) if guard.source is not None else "global state",
        demanded=guard.check.text(guard.source),
        seen=failure.observed,
        where=str(guard.location or ""),
        fix=fix_of(failure),
    )


def limit_text(name: str, where: str, entries: Entries, failures: Sequence[Failure]) -> str:
    """The warning of a function that is compiled again and again: why, and what helps."""
    cause = failures[0] if failures else None
    fix = fix_of(cause) if cause else ""
    return (
        f"{name} ({where}) was compiled {entries.compiles} times, the last time because "
        f"{cause or 'nothing matched'}.  To avoid it: {fix or 'keep that from changing'}.  "
        f"Compiled code goes on being used, the {entries.most} entries used last; "
        "JITSHAPE_LOGS=recompiles shows every reason"
    )


def fix_of(failure: Failure) -> str:
    """The smallest change that avoids the recompile, where there is one."""
    from jitshape.frontend.checks import Equals, TensorMatches

    guard = failure.guard
    if isinstance(guard.check, TensorMatches):
        dims = [part for part in failure.observed.split(", ") if part.startswith("size(")]
        if dims:
            numbers = sorted({int(part[5 : part.index(")")]) for part in dims})
            which = numbers[0] if len(numbers) == 1 else tuple(numbers)
            return f"jitshape.mark_dynamic({guard.source}, {which}) before the first call"
    if isinstance(guard.check, Equals) and type(guard.check.value) in (int, float):
        return f"dynamic=True, or pass {guard.source} as a tensor"
    return ""


def compile_record(
    name: str, function: Any, made: Made, failures: Sequence[Failure], seconds: float
) -> CompileRecord:
    """The record of one entry."""
    captured, compiled = made.capture, made.compiled
    code = function.__code__
    return CompileRecord(
        function=name,
        where=f"{code.co_filename}:{code.co_firstlineno}",
        kind="recompile" if failures else "compile",
        inputs=tuple(made.inputs),
        symbols=tuple(captured.symbol_texts()),
        failures=tuple(told(f) for f in failures),
        dynamic=tuple(str(d) for d in captured.policy.became_dynamic()),
        guards=tuple(map(str, made.program.guards)) if is_detailed() else (),
        graph=made.graph,
        kernels=tuple(k.name for k in compiled.kernels) if compiled else (),
        externs=dict(compiled.externs) if compiled else {},
        seconds=seconds,
    )
