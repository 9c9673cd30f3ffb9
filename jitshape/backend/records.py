"""Programs as records: what another process needs to run one without compiling it.

In: a Program for the CPU.  Out: a ProgramRecord and, apart from it, the texts that people may ask
for; and from these the Program.
Invariant: a program that was read runs the same text and the same machine code; only what its
names stand for is looked up again (bindings.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jitshape.backend import runtime
from jitshape.backend.bindings import namespace
from jitshape.backend.compile import KernelInfo, Program, function_of
from jitshape.backend.faults import check_faults
from jitshape.backend.runtime import Signature
from jitshape.ir.layouts import Layouts
from jitshape.ir.records.graphs import read_graph, write_graph
from jitshape.ir.records.plain import Reader, Record, Tree, Unreadable, Unrecordable, tree

NOT_KEPT = "(no longer in the cache)"


class ProgramRecord(Record):
    """`launchers` are those of the module `code`; `kernels` has the launcher, name and origin of
    each kernel call; `checked` is the graph that says what is wrong with an index; `layouts`
    has that of the strides of results, and whether these may be copied."""

    source: str
    bindings: Tree
    launchers: list[Signature]
    code: bytes
    kernels: list[tuple[int, str, tuple[str, ...]]]
    externs: dict[str, int]
    log: list[str]
    checked: bytes | None
    layouts: tuple[bytes, bool] | None


Texts = list[tuple[str, str]]  # of each kernel: its loops, its generated code


def write_program(program: Program) -> tuple[ProgramRecord, Texts]:
    """Raises Unrecordable."""
    parts = program.parts
    if parts is None:
        raise Unrecordable("a program of another back end")
    made = parts.launchers
    if not all(isinstance(launcher, runtime.Launcher) for launcher in made):
        raise Unrecordable("kernels of another target")
    record = ProgramRecord(
        program.source,
        tree(parts.bindings),
        list(parts.signatures),
        made[0].engine.object_code if made else b"",
        [(place, k.name, k.origin) for place, k in zip(parts.places, program.kernels)],
        dict(program.externs),
        list(program.log),
        write_graph(parts.graph) if ("check",) in parts.bindings.values() else None,
        (parts.layouts.data, parts.layouts.copies) if parts.layouts is not None else None,
    )
    return record, [(k.text, k.source) for k in program.kernels]


def read_program(record: ProgramRecord, texts: Callable[[], Texts | None]) -> Program:
    """`texts` is called where people ask for them.  Raises Unreadable."""
    bindings = Reader().read(record.bindings)
    launchers = _launchers(record)
    layouts = record.layouts and Layouts(read_graph(record.layouts[0]), record.layouts[1])
    names = namespace(
        bindings, launchers, functools.partial(_check, record.checked or b""), layouts
    )
    known = functools.cache(texts)

    def text(place: int) -> tuple[str, str]:
        found = known()
        return found[place] if found is not None else (NOT_KEPT, NOT_KEPT)

    kernels = tuple(
        KernelInfo(name, tuple(origin), functools.partial(text, place))
        for place, (_, name, origin) in enumerate(record.kernels)
    )
    run = function_of(record.source, names)
    return Program(run, record.source, kernels, record.externs, tuple(record.log))


def _launchers(record: ProgramRecord) -> Sequence[runtime.Launcher]:
    if not record.launchers:
        return ()
    try:
        from jitshape.backend.jit import Engine  # LLVM, which programs for GPUs do without

        engine = Engine("", record.code)
    except RuntimeError as error:
        raise Unreadable(f"machine code: {error}") from error
    return [runtime.make_launcher(signature, engine) for signature in record.launchers]


def _check(graph: bytes, inputs: Sequence[Any]) -> None:
    check_faults(read_graph(graph), inputs)
