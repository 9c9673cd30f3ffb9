"""Guards and emitted code as records.

In: a guard program, the entry it belongs to, the objects both hold.  Out: an EntryRecord, and from
it, for a call in another process, the same guards and code, bound to that process's objects.
Invariant: every source, check and constant is written, or Unrecordable is raised; an entry that
was read serves a call only if its guards, assembled anew, hold of it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend._evalframe import OPS, Program
from jitshape.frontend.emit import place_constants
from jitshape.frontend.guard_program import ambient_step, apart_by, predicate, tensor_spec
from jitshape.frontend.guards import Absent, GuardProgram, read
from jitshape.frontend.records.objects import SINGLE, Found, Table, value
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.records import sizes
from jitshape.ir.records.plain import Record, Tree, Unreadable, Unrecordable
from jitshape.ir.records.sizes import SizesReader, SizesRecord, write_sizes

SOURCES: dict[str, type[S.Source]] = {
    cls.__name__: cls
    for cls in (
        *(S.Local, S.Held, S.InstanceDict, S.Key, S.Item, S.TypeOf, S.TypeAttribute, S.Slot),
        *(S.Field, S.Getter, S.Number),
    )
}
CHECKS: dict[str, type[C.Check]] = {
    cls.__name__: cls
    for cls in (
        *(C.Present, C.IsWord, C.TypeIs, C.Is, C.Equals, C.Length, C.Keys, C.Missing),
        *(C.NoTypeAttribute, C.SpecialMethods, C.Definition, C.NullField, C.MethodIs),
        *(C.TensorMatches, C.SameObject),
        *(C.Distinct, C.NoOverlap, C.Apart, C.SharesStorage, C.Holds, C.Ambient, C.Remembers),
    )
}
FIELDS = {
    cls: tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
    for cls in (*SOURCES.values(), *CHECKS.values())
}
# Ambient state that means the same in every process; of others the value is this process's own.
AMBIENT = frozenset(
    "grad_mode inference_mode default_dtype dispatch_keys mode_stacks default_device deterministic "
    "autocast autocast_cache functorch handled_exception".split()
)
BY_IDENTITY = frozenset(OPS[name] for name in ("HELD", "IS", "METHOD"))
CODE = (
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize"),
    *("co_flags", "co_code", "co_names", "co_varnames", "co_linetable", "co_exceptiontable"),
    *("co_freevars", "co_cellvars", "co_consts"),
)


Step = tuple[int, int, int, int, int, Tree, int]  # as guard_program.py has it
HERE = -1  # the op of a step that reads ambient state, which each process reads in its own way


class EntryRecord(Record):
    """`sources` are numbered; `guards` are (source, check, line) in the order of the program whose
    parts follow; `extract`, `tensors` and `numbers`: sources, the last with the text by which the
    history of values knows them."""

    objects: list[Tree]
    sizes: SizesRecord | None
    sources: list[Tree]
    guards: list[tuple[int | None, Tree, Tree]]
    assembled: tuple[tuple[Step, ...], int, int, int, tuple[int, ...]]
    extract: list[int]
    tensors: list[int]
    numbers: list[tuple[str, int]]
    code: Tree


class Writer:
    """Writes one entry; `graph` is the constant of its code that calls the program."""

    def __init__(self, function: types.FunctionType, program: GuardProgram, graph: Any) -> None:
        self.function, self.program, self.graph = function, program, graph
        self.sources: list[Tree] = []
        self._places: dict[S.Source, int] = {}
        self._noted: set[int] = set()  # of sources, which the guards hold
        self._at: dict[int, list[tuple[str, S.Source]]] = defaultdict(list)
        self.table = Table(function, self._found_at)
        for guard in program.guards:
            self._note(guard)

    def _note(self, guard: C.Guard) -> None:
        """The objects that a guard has found, and what they lead to."""
        check, source = guard.check, guard.source
        if isinstance(check, C.Is):
            self._at[id(check.object)].append(("at", source))  # type: ignore[arg-type]
            self.table.note(check.object)
        elif isinstance(check, (C.TypeIs, C.TensorMatches)):
            self._at[id(check.type)].append(("type_at", source))  # type: ignore[arg-type]
            self.table.note(check.type)
        elif isinstance(check, C.SpecialMethods) and isinstance(source, S.Held):
            for name, method in check.present:
                self.table.note_attribute(source.object, name, method)  # type: ignore[arg-type]
        while source is not None and id(source) not in self._noted:
            self._noted.add(id(source))
            if type(source) is S.Held:
                self.table.note(source.object)
            source = getattr(source, "base", None)

    def _found_at(self, x: Any) -> Tree | None:
        for kind, source in self._at.get(id(x), ()):
            try:
                return [kind, self.source(source)]
            except Unrecordable:  # found by way of itself
                continue
        return None

    # ---- parts

    def source(self, source: S.Source) -> int:
        place = self._places.get(source)
        if place is None:
            kind = type(source)
            if kind not in FIELDS:
                raise Unrecordable(f"a source of {kind.__name__}")
            row = [kind.__name__, *self.fields(source)]
            place = self._places[source] = len(self.sources)
            self.sources.append(row)
        return place

    def fields(self, x: Any) -> list[Tree]:
        """Of a source or check.  `object` is meant itself: not what is equal to it."""
        return [
            self.identity(getattr(x, name)) if name == "object" else self.tree(getattr(x, name))
            for name in FIELDS[type(x)]
        ]

    def identity(self, x: Any) -> Tree:
        return self.table.ref(x) if type(x) is tuple else self.tree(x)

    def tree(self, x: Any) -> Tree:
        return x if type(x) is str else value(x, self.leaf)

    def leaf(self, x: Any) -> Tree:
        if isinstance(x, S.Source):
            return ["source", self.source(x)]
        if type(x) is BoolExpr:
            return sizes.leaf(x)
        if x is self.graph and x is not None:
            return ["graph"]
        return self.table.ref(x)

    def check(self, check: C.Check) -> Tree:
        kind = type(check)
        if CHECKS.get(kind.__name__) is not kind:
            raise Unrecordable(f"a check of {kind.__name__}")
        if kind is C.Ambient and check.name not in AMBIENT:
            raise Unrecordable(f"ambient state: {check.name.partition(' (')[0]}")
        return [kind.__name__, *self.fields(check)]

    def code(self, code: types.CodeType) -> Tree:
        return [self.tree(getattr(code, name)) for name in CODE]

    def step(self, row: tuple) -> Step:
        """Objects as the sources and checks have them; what the process makes of a check is made
        anew where the step is read."""
        op, dst, a, b, number, object, guard = row
        check = self.program.guards[guard].check
        if isinstance(check, C.Ambient):
            return HERE, 0, 0, 0, 0, None, guard
        if object is None:
            made: Tree = None
        elif op == OPS["TENSOR"]:
            made = ["tensor", guard]
        elif op == OPS["PREDICATE"]:
            function, *registers = object
            itemsizes = function.args[1] if isinstance(check, C.Apart) else None
            made = ["predicate", guard, itemsizes, registers]
        else:
            made = self.identity(object) if op in BY_IDENTITY else self.tree(object)
        return op, dst, a, b, number, made, guard

    # ---- the whole

    def entry(self, code: types.CodeType, env: Any, numbers: dict[str, S.Source]) -> EntryRecord:
        guards = [
            (
                None if guard.source is None else self.source(guard.source),
                self.check(guard.check),
                None if guard.location is None else sizes.line(guard.location),
            )
            for guard in self.program.guards
        ]
        extract = [self.source(source) for source in self.program.extract]
        noted = [(text, self.source(source)) for text, source in numbers.items()]
        conditions = any(isinstance(guard.check, C.Holds) for guard in self.program.guards)
        tensors = [
            self.source(guard.source)  # type: ignore[arg-type]
            for guard in self.program.guards
            if isinstance(guard.check, C.TensorMatches)
        ]
        made = self.program.assembled
        assert made is not None
        assembled = made._replace(steps=tuple(map(self.step, made.steps)))
        written = self.code(code)
        self.table.ref(self.function)  # which globals and cells it has is told by its content
        return EntryRecord(
            self.table.finish(),
            write_sizes(env) if conditions else None,
            self.sources,
            guards,
            tuple(assembled),
            extract,
            tensors,
            noted,
            written,
        )


class Reader(SizesReader):
    """Reads an entry for one call of `function`, by its slots."""

    def __init__(
        self, record: EntryRecord, function: types.FunctionType, slots: Sequence[Any]
    ) -> None:
        self.record, self.function, self.slots = record, function, tuple(slots)
        self.graph: Any = None
        self.sources: list[Any] = [None] * len(record.sources)
        self.found = Found(function, self._at)
        self._has_sizes = False
        self._known: dict[S.Source, Any] = {}

    def at(self, place: int) -> Any:
        """The object at a source of the call.  Raises Absent."""
        return read(self.source(place), self.slots, self._known)

    def release(self) -> None:
        """Let go of the call and of what it led to: an entry lives longer."""
        self.slots = ()
        self._known.clear()

    def _at(self, path: Tree) -> Any:
        """The object, or its class, at a source of the call."""
        kind, place = path
        try:
            found = self.at(place)
        except Absent as error:
            raise Unreadable(f"nothing at {error}") from error
        return found if kind == "at" else type(found)

    def source(self, place: int) -> Any:
        found = self.sources[place]
        if found is None:
            name, *parts = self.record.sources[place]
            found = self.sources[place] = SOURCES[name](*map(self.read, parts))
        return found

    def read_source(self, place: int) -> Any:
        return self.source(place)

    def read_object(self, number: int) -> Any:
        return self.found.objects[number]

    def read_single(self, name: str) -> Any:
        return SINGLE[name]

    def read_graph(self) -> Any:
        return self.graph

    # ---- guards

    def check(self, place: int) -> C.Check:
        name, *parts = self.record.guards[place][1]
        if name == "Holds" and not self._has_sizes and self.record.sizes is not None:
            super().__init__(self.record.sizes)
            self._has_sizes = True
        return CHECKS[name](*map(self.read, parts))

    def guard(self, place: int) -> C.Guard:
        at, _, line = self.record.guards[place]
        source = None if at is None else self.source(at)
        location = None if line is None else C.Location(*line)
        return C.Guard(source, self.check(place), location)

    def step(self, row: Step) -> tuple:
        op, dst, a, b, number, made, guard = row
        if op == HERE:
            name, number, made = ambient_step(self.check(guard))  # type: ignore[arg-type]
            return OPS[name], dst, a, b, number, made, guard
        return op, dst, a, b, number, self.read(made), guard

    def read_tensor(self, guard: int) -> tuple:
        return tensor_spec(self.check(guard))  # type: ignore[arg-type]

    def read_predicate(self, guard: int, itemsizes: bytes | None, registers: list[int]) -> tuple:
        check: Any = self.check(guard)
        function = predicate(check) if itemsizes is None else apart_by(check, itemsizes)
        return function, *registers

    def guards(self) -> GuardProgram:
        """Raises Unreadable where an object is missing or has changed."""
        record = self.record
        self.found.read(record.objects)
        steps, *rest = record.assembled
        made = [row if row[5] is None and row[0] != HERE else self.step(row) for row in steps]
        return ReadProgram(Program(tuple(made), *rest), self)

    def tensors(self) -> list[Any]:
        return list(map(self.at, self.record.tensors))

    def code(self, graph: Any) -> types.CodeType:
        """The entry's code, calling `graph`."""
        self.graph, own = graph, self.function.__code__
        fields = dict(zip(CODE, map(self.read, self.record.code)))
        names = {name: getattr(own, name) for name in ("co_name", "co_qualname", "co_filename")}
        return place_constants(own.replace(co_firstlineno=own.co_firstlineno, **names, **fields))


class ReadProgram(GuardProgram):
    """Its guards and sources are read when somebody asks for them."""

    def __init__(self, program: Program, reader: Reader) -> None:
        self.program, self.reader, self.assembled = program, reader, None

    @functools.cached_property
    def guards(self) -> tuple[C.Guard, ...]:  # type: ignore[override]
        return tuple(map(self.reader.guard, range(len(self.reader.record.guards))))

    @functools.cached_property
    def extract(self) -> tuple[S.Source, ...]:  # type: ignore[override]
        return tuple(map(self.reader.source, self.reader.record.extract))
