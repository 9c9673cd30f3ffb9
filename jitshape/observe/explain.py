"""`jitshape.explain(fn)(*args)`: compile and call, and say what came of it.

In: a compiled or plain callable.  Out: an Explanation, whose text is for a person and whose
fields are for a program.  The call really runs, side effects included.
"""

from __future__ import annotations

import functools
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jitshape.observe import counters, page, records, report, story
from jitshape.observe.fixes import Fix


@dataclass(frozen=True)
class Explanation:
    """`result` of the call, the `records` it made, the `stats` it added (integers only), and of
    the `functions` that took part in it what became of them so far: entries, misses, fixes."""

    result: Any
    records: tuple[records.Record, ...]
    stats: dict[str, int]
    functions: tuple[story.FunctionStory, ...]

    @property
    def graphs(self) -> list[str]:
        """The graphs compiled, as Python text."""
        return [r.graph for r in self.records if isinstance(r, records.CompileRecord) and r.graph]

    @property
    def guards(self) -> list[str]:
        """The guards of the entries made."""
        return [g for r in self.records if isinstance(r, records.CompileRecord) for g in r.guards]

    @property
    def break_reasons(self) -> list[str]:
        """Why graphs ended before their function did."""
        return [r.reason for r in self.records if isinstance(r, records.BreakRecord)]

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def fixes(self) -> list[Fix]:
        """What would have saved compiles, the most first."""
        found = [fix for function in self.functions for fix in function.fixes]
        return sorted(found, key=lambda fix: -fix.saves)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as `python -m jitshape explain --json` prints it."""
        return story.as_json(self.functions)

    def to_html(self) -> str:
        """One self-contained page."""
        return page.page(self.functions)

    def __str__(self) -> str:
        out = io.StringIO()
        report.print_report(self.records, out, self.functions)
        for graph in self.graphs:
            out.write(f"\n{graph}\n")
        if self.guards:
            out.write("\nguards\n" + "".join(f"    {g}\n" for g in self.guards))
        return out.getvalue()


def explain(fn: Callable) -> Callable[..., Explanation]:
    """A callable that compiles `fn` if it is not yet compiled, calls it and explains the call."""
    from jitshape import compiler

    compiled = compiler.compiled_or_same(fn)

    @functools.wraps(fn if hasattr(fn, "__name__") else type(fn).__call__)
    def call(*args: Any, **kwargs: Any) -> Explanation:
        before, known = counters.snapshot(), len(records.records())
        hits = _hits(compiler.live_entries())
        with records.detailed():
            result = compiled(*args, **kwargs)
        after = counters.snapshot()
        added = {key: after[key] - before[key] for key in counters.INTS}
        made, entries = records.records(), compiler.live_entries()
        took_part = {key for key, n in _hits(entries).items() if n > hits.get(key, 0)}
        took_part |= {(r.function, r.where) for r in made[known:]}
        told = [s for s in story.stories(made, entries) if (s.name, s.where) in took_part]
        return Explanation(result, made[known:], added, tuple(told))

    return call


def _hits(entries: list[records.EntryRecord]) -> Counter[tuple[str, str]]:
    """The calls served, by function."""
    found: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        found[entry.function, entry.where] += entry.hits
    return found
