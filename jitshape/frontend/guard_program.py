"""The assembler of guard programs: guards and extracted sources to the register code of C.

In: guards and sources.  Out: GuardProgram.  A step is (op, dst, a, b, number, object, guard);
_program.h defines the ops.  Each source is loaded once, after its parent; loading it emits its
own checks at once, so that whatever walks further walks over checked ground.  Ambient state comes
first (its readers may run code), then arguments, then relations between them, then the rest.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from jitshape.frontend import checks as C
from jitshape.frontend import sources as S
from jitshape.frontend._evalframe import FIELDS, OPS, Program, apart
from jitshape.frontend.checks import AMBIENT
from jitshape.frontend.guards import Assembled, Guard, GuardProgram
from jitshape.frontend.sources import Source
from jitshape.ir.conditions import BoolExpr
from jitshape.ir.symint import IntExpr, Size

FAST_AMBIENT: dict[str, Callable[[Any], tuple[str, int, Any]]] = {}  # -> (op, number, object)

# Of several checks of one source the cheap and discriminating come first.
_CHEAP_FIRST = (C.TypeIs, C.TensorMatches, C.Is, C.Equals, C.Length, C.Keys)
RANK = {check: rank for rank, check in enumerate(_CHEAP_FIRST)}
RELATIONS = (C.SameObject, C.Distinct, C.NoOverlap, C.Apart, C.SharesStorage, C.Holds)
ALONE = (*RELATIONS, C.Ambient)  # not checked together with the load of one source
NUMBER_OPS = {"size": "SIZE", "stride": "STRIDE", "offset": "OFFSET", "int": "INT", "len": "LEN"}


def rank(check: C.Check) -> int:
    return RANK.get(type(check), len(RANK))


def place(guard: Guard) -> int:
    """Where a guard stands: ambient, arguments, relations of sizes, parts of arguments, rest, and
    what calls functions: only for calls that the entry would serve."""
    if isinstance(guard.check, C.Ambient):
        return 6 if isinstance(guard.check, C.Remembers) else 0
    if isinstance(guard.check, C.Holds):
        return 2 if all(isinstance(s.base, S.Local) for _, s in guard.check.symbols) else 5
    if isinstance(guard.check, RELATIONS):
        return 5
    if isinstance(guard.source, S.Local):
        return 1
    return 3 if isinstance(S.root(guard.source), S.Local) else 4


def only_sizes(condition: Any) -> bool:
    """Whether a condition is made of integer polynomials, for which there are ops, and stays
    within what they compute with."""
    if isinstance(condition, BoolExpr):
        return all(map(only_sizes, condition.args))
    if type(condition) is IntExpr:
        return condition.is_plain
    return type(condition) in (int, bool) and abs(condition) < 1 << 62


def predicate(check: C.Holds) -> Callable[..., bool]:
    """The condition as a Python function of its symbols; where Python raises it does not hold."""
    names = ", ".join(name for name, _ in check.symbols)
    scope = {"math": math}
    return eval(f"lambda {names}: bool({check.condition})", scope)


def tensor_spec(check: C.TensorMatches) -> tuple:
    """The object of TENSOR."""
    from jitshape.frontend.calibrate import tensor_kind

    leaf = -1 if check.is_leaf is None else int(check.is_leaf)
    kind = tensor_kind(check.dtype, check.device)
    return check.type, check.keys, kind, check.requires_grad, leaf, check.sizes, check.strides


def apart_by(check: C.Apart, itemsizes: bytes) -> Callable[..., bool]:
    """The function of a PREDICATE; `itemsizes` of the tensors, in order."""
    return functools.partial(apart, check.written, itemsizes, check.groups)


def ambient_step(check: C.Ambient) -> tuple[str, int, Any]:
    """(op, number, object) of the step that reads ambient state in this process."""
    if isinstance(check, C.Remembers):
        return "AMBIENT", 0, (check.holds, True)
    if check.name not in AMBIENT:
        from jitshape.frontend import calibrate

        calibrate.install()
    fast = FAST_AMBIENT.get(check.name)
    return ("AMBIENT", 0, (AMBIENT[check.name], check.value)) if fast is None else fast(check.value)


class Assembler:
    def __init__(self, guards: tuple[Guard, ...], extract: tuple[Source, ...]) -> None:
        self.guards = sorted(guards, key=place)
        self.sources = extract
        self.steps: list[tuple] = []
        self.objects: dict[Source, int] = {}
        self.numbers: dict[Any, int] = {}
        self.slots = 0
        self.current = -1
        self.predicates: list[tuple[int, Callable[..., bool], list[int]]] = []
        self.itemsizes: dict[Source | None, int] = {}
        self.own: dict[Source, list[int]] = defaultdict(list)  # checks to emit with the load
        for index, guard in enumerate(self.guards):
            if not isinstance(guard.check, ALONE):
                self.own[self.checked_at(guard)].append(index)

    @staticmethod
    def checked_at(guard: Guard) -> Source:
        """The source whose register a guard reads: an empty field is asked of its base."""
        source = guard.source
        assert source is not None
        is_float = isinstance(source, S.Number) and source.kind == "float"
        return source.base if is_float or isinstance(guard.check, C.NullField) else source  # type: ignore

    def finish(self, to_keep: bool) -> GuardProgram:
        for index, guard in enumerate(self.guards):
            self.current = index
            if isinstance(guard.check, ALONE):
                self.check(guard)
            else:
                self.load(self.checked_at(guard))
        registers = tuple(self.extracted(source) for source in self.sources)
        for index, function, registers_read in self.predicates:
            self.current = index
            self.emit("PREDICATE", object=(function, *registers_read))
        counts = self.slots, len(self.objects), len(self.numbers)
        made = Assembled(tuple(self.steps), *counts, registers)
        kept = made if to_keep else None
        return GuardProgram(Program(*made), tuple(self.guards), self.sources, kept)

    def emit(
        self, op: str, dst: int = 0, a: int = 0, b: int = 0, number: int = 0, object: Any = None
    ) -> None:
        self.steps.append((OPS[op], dst, a, b, number, object, self.current))

    # ---- loads

    def load(self, source: Source) -> int:
        """The register of an object (or, for a Number, of a machine integer)."""
        if isinstance(source, S.Number):
            return self.number(source)
        base = getattr(source, "base", None)
        a = 0 if base is None or source in self.objects else self.load(base)
        register = self.objects.get(source)  # the base's own checks may have loaded it just now
        if register is None:
            op, number, object = LOADS[type(source)](self, source)
            register = self.objects[source] = len(self.objects)
            self.emit(op, register, a, number=number, object=object)
            self.own_checks(source)
        return register

    def own_checks(self, source: Source) -> None:
        outer = self.current
        for index in sorted(self.own.pop(source, ()), key=lambda i: rank(self.guards[i].check)):
            self.current = index
            self.check(self.guards[index])
        self.current = outer

    def slot(self, source: S.Local) -> tuple[str, int, Any]:
        self.slots = max(self.slots, source.index + 1)
        return "SLOT", source.index, None

    def fresh(self, key: Any) -> int:
        register = self.numbers[key] = len(self.numbers)
        return register

    def number(self, source: S.Number) -> int:
        register = self.numbers.get(source)
        if register is None:
            base = self.load(source.base)
            register = self.fresh(source)
            self.emit(NUMBER_OPS[source.kind], register, base, number=source.dim)
            self.own_checks(source)
        return register

    def extracted(self, source: Source) -> int:
        """Register to extract; a number is boxed, but Python ints and floats stay themselves."""
        if isinstance(source, S.Number) and source.kind in ("int", "float"):
            source = source.base
        known = self.numbers if isinstance(source, S.Number) else self.objects
        if source not in known:  # nobody guarded it: what is lacking is the path itself
            self.current = len(self.guards)
            self.guards.append(Guard(source, C.Present()))
        register = self.load(source)
        return ~register if isinstance(source, S.Number) else register

    # ---- checks

    def check(self, guard: Guard) -> None:
        CHECKS[type(guard.check)](self, guard.source, guard.check)

    def simple(self, op: str, source: Source, number: int = 0, object: Any = None) -> None:
        self.emit(op, a=self.load(source), number=number, object=object)

    def equals(self, source: Source, check: C.Equals) -> None:
        if isinstance(source, S.Number) and source.kind != "float":
            self.truth(self.operation("EQ", self.number(source), self.constant(check.value)))
        else:
            base = source.base if isinstance(source, S.Number) else source
            self.simple("EQUALS", base, object=check.value)

    def special_methods(self, source: Source, check: C.SpecialMethods) -> None:
        for name, method in check.present:
            self.simple("IS", S.TypeAttribute(source, name), object=method)
        for name in check.absent:
            self.simple("NO_TYPE_ATTRIBUTE", source, object=name)

    def definition(self, source: Source, check: C.Definition) -> None:
        for name, value in check.fields:
            self.simple("EQUALS", S.Field(source, name), object=value)

    def null_field(self, source: Source, check: C.NullField) -> None:
        name, base = source.name, source.base  # type: ignore[attr-defined]
        if name in FIELDS:
            self.simple("NULL_FIELD", base, number=FIELDS[name])
        else:
            self.simple("NULL_MEMBER", base, object=name)

    def tensor(self, source: Source, check: C.TensorMatches) -> None:
        self.simple("TENSOR", source, object=tensor_spec(check))

    def relation(self, op: str, source: Source, other: Source, number: int = 0) -> None:
        self.emit(op, a=self.load(source), b=self.load(other), number=number)

    def no_overlap(self, source: Source, check: C.NoOverlap) -> None:
        number = self.itemsize(source) << 8 | self.itemsize(check.other)
        self.relation("NO_OVERLAP", source, check.other, number)

    def apart(self, source: Source, check: C.Apart) -> None:
        tensors = (source, *check.others)
        function = apart_by(check, bytes(map(self.itemsize, tensors)))
        self.predicates.append((self.current, function, [self.load(t) for t in tensors]))

    def itemsize(self, source: Source) -> int:
        if not self.itemsizes:
            rows = ((guard.source, guard.check) for guard in self.guards)
            self.itemsizes = {
                s: check.dtype.itemsize for s, check in rows if isinstance(check, C.TensorMatches)
            }
        return self.itemsizes[source]

    def ambient(self, source: None, check: C.Ambient) -> None:
        op, number, object = ambient_step(check)
        self.emit(op, number=number, object=object)

    def refers_to(self, source: Source, check: C.RefersTo) -> None:
        registers = [self.load(source), self.load(check.other)]
        self.predicates.append((self.current, _refers_to, registers))

    def has_memory(self, source: Source, check: C.HasMemory) -> None:
        function = _is_whole if check.whole else _is_empty
        self.predicates.append((self.current, function, [self.load(source)]))

    # ---- relations of sizes

    def holds(self, source: Source, check: C.Holds) -> None:
        if not check.words or not only_sizes(check.condition):
            registers = [self.argument(number) for _, number in check.symbols]
            self.predicates.append((self.current, predicate(check), registers))
            return
        symbols = {name: self.load(number) for name, number in check.symbols}
        self.truth(self.condition(check.condition, symbols))

    def argument(self, number: Any) -> int:
        """The register of a predicate's argument, as _program.h encodes it."""
        if number.kind != "float":
            return ~self.load(number)
        register = self.load(number.base)
        self.simple("TYPE_IS", number.base, object=float)
        return register

    def truth(self, register: int) -> None:
        self.emit("TRUE_", a=register)

    def constant(self, value: int) -> int:
        key = ("CONST", value)
        if key not in self.numbers:
            self.emit("CONST", self.fresh(key), number=value)
        return self.numbers[key]

    def operation(self, op: str, a: int, b: int = 0) -> int:
        key = (op, a, b)
        if key not in self.numbers:
            self.emit(op, self.fresh(key), a, b)
        return self.numbers[key]

    def condition(self, value: Any, symbols: dict[str, int]) -> int:
        if not isinstance(value, BoolExpr):
            return self.constant(int(value))
        if value.op in ("and", "or"):
            registers = [self.condition(part, symbols) for part in value.args]
            return self.fold(value.op.upper(), registers)
        a, b = (self.size(side, symbols) for side in value.args)
        return self.operation(value.op.upper(), a, b)

    def fold(self, op: str, registers: list[int]) -> int:
        result = registers[0]
        for register in registers[1:]:
            result = self.operation(op, result, register)
        return result

    def size(self, value: Size, symbols: dict[str, int]) -> int:
        if type(value) is int:
            return self.constant(value)
        algebra = value.algebra  # type: ignore[union-attr]
        products = []
        for monomial, coefficient in algebra.terms(value):
            factors = [self.atom(algebra.atoms[id], symbols) for id in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, self.constant(coefficient))
            products.append(self.fold("MUL", factors))
        return self.fold("ADD", products) if products else self.constant(0)

    def atom(self, atom: Any, symbols: dict[str, int]) -> int:
        if atom.args is None:
            return symbols[atom.name]
        a, b = (self.size(argument, symbols) for argument in atom.args)
        return self.operation(atom.kind.upper(), a, b)


def _refers_to(reference: Any, object: Any) -> bool:
    return reference() is object


def _is_whole(tensor: Any) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _is_empty(tensor: Any) -> bool:
    return tensor.untyped_storage().nbytes() == 0


LOADS: dict[type, Callable[[Assembler, Any], tuple[str, int, Any]]] = {
    S.Local: Assembler.slot,
    S.Held: lambda asm, source: ("HELD", 0, source.object),
    S.InstanceDict: lambda asm, source: ("DICT", 0, None),
    S.Key: lambda asm, source: ("KEY", 0, source.key),
    S.Item: lambda asm, source: ("ITEM", source.index, None),
    S.TypeOf: lambda asm, source: ("TYPE", 0, None),
    S.TypeAttribute: lambda asm, source: ("TYPE_ATTRIBUTE", 0, source.name),
    S.Slot: lambda asm, source: ("MEMBER", 0, source.name),
    S.Field: lambda asm, source: (
        ("FIELD", FIELDS[source.name], None)
        if source.name in FIELDS
        else ("MEMBER", 0, source.name)
    ),
    S.Getter: lambda asm, source: ("GETTER", 0, source.name),
}

CHECKS: dict[type, Callable[[Assembler, Any, Any], None]] = {
    C.Present: lambda asm, source, check: None,
    C.IsWord: lambda asm, source, check: None,  # else it cannot be loaded
    C.TypeIs: lambda asm, source, check: asm.simple("TYPE_IS", source, object=check.type),
    C.Is: lambda asm, source, check: asm.simple("IS", source, object=check.object),
    C.Equals: Assembler.equals,
    C.Length: lambda asm, source, check: asm.simple("LENGTH", source, check.length),
    C.Keys: lambda asm, source, check: asm.simple("KEYS", source, object=tuple(check.keys)),
    C.Missing: lambda asm, source, check: asm.simple("MISSING", source, object=check.key),
    C.NoTypeAttribute: lambda asm, source, check: asm.simple(
        "NO_TYPE_ATTRIBUTE", source, object=check.name
    ),
    C.SpecialMethods: Assembler.special_methods,
    C.Definition: Assembler.definition,
    C.NullField: Assembler.null_field,
    C.MethodIs: lambda asm, source, check: asm.simple("METHOD", source, object=check.object),
    C.TensorMatches: Assembler.tensor,
    C.SameObject: lambda asm, source, check: asm.relation("SAME", source, check.other),
    C.RefersTo: Assembler.refers_to,
    C.HasMemory: Assembler.has_memory,
    C.Distinct: lambda asm, source, check: asm.relation("DISTINCT", source, check.other),
    C.NoOverlap: Assembler.no_overlap,
    C.Apart: Assembler.apart,
    C.SharesStorage: lambda asm, source, check: asm.relation("SHARES_STORAGE", source, check.other),
    C.Holds: Assembler.holds,
    C.Ambient: Assembler.ambient,
    C.Remembers: Assembler.ambient,
}
