"""The code of a compiled entry: call the graph, replay effects, rebuild the result.

In: Values (through `value`, which asks them to reconstruct themselves), effects (through the
stack operations below), and at the end the compiled graph.  Out: a function whose parameters are
the objects at `extract`, in that order, and that returns the user's result.
Invariant: each Value's object is pushed from one place (an argument, a graph output, or code run
once), so identity between objects of the program is identity between the objects made.
The body may be written before the graph is compiled: `outputs` says what it needs of it.
"""

from __future__ import annotations

import dis
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import InstrLocation

from jitshape.frontend.sources import Source

if TYPE_CHECKING:
    from jitshape.frontend.values.base import Value

VERSION = sys.version_info[:2]
SHAREABLE = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
BUILD = {
    "list": "BUILD_LIST",
    "tuple": "BUILD_TUPLE",
    "set": "BUILD_SET",
    "map": "BUILD_MAP",
    "slice": "BUILD_SLICE",
    "string": "BUILD_STRING",
}
CALL_PREFIX = ("PRECALL",) if VERSION == (3, 11) else ()
NULL_BEFORE_CALLABLE = VERSION < (3, 13)


class Constant:
    """Stands for an object in code under construction: `bytecode` would hash the object."""

    __slots__ = ("object",)

    def __init__(self, object: Any) -> None:
        self.object = object


def place_constants(code: types.CodeType) -> types.CodeType:
    """Put the objects in the places of their Constants."""
    objects = (c.object if type(c) is Constant else c for c in code.co_consts)
    made = code.replace(co_consts=tuple(objects))
    key = id(made)
    _emitted[key] = weakref.ref(made, lambda _: _emitted.pop(key, None))
    return made


_emitted: dict[int, weakref.ref[types.CodeType]] = {}


def is_emitted(code: types.CodeType) -> bool:
    """Whether jitshape made this code."""
    found = _emitted.get(id(code))
    return found is not None and found() is code


class Emitter:
    def __init__(self, code: types.CodeType) -> None:
        """`code` is the user's: its name, file and lines are what tracebacks show."""
        self.code = code
        self.body: list[Instr | Label] = []
        self._first: list[Instr | Label] = []
        self.outputs: dict[Hashable, str] = {}  # graph output key -> local, in graph order
        self._arguments: dict[Source, str] = {}
        self._values: dict[int, tuple[Value, str]] = {}
        self._temporaries = 0
        self.line(code.co_firstlineno)

    # ---- where objects come from

    def value(self, v: Value) -> None:
        """Push the object that `v` stands for."""
        known = self._values.get(id(v))
        if known is not None:
            self.load(known[1])
        elif v.source is not None and not getattr(v, "rebuild", False):
            self.source(v.source)
        else:
            v.reconstruct(self)
            if id(v) not in self._values:
                self.bind(v)
                v.fill(self)

    def knows(self, v: Value) -> bool:
        """Whether the object is there, or loaded from where it was found."""
        return id(v) in self._values or v.source is not None

    def bind(self, v: Value) -> None:
        """The object on top of the stack is `v`'s from now on; it stays there.  `value` does
        this after `reconstruct`; a container may do it itself before it pushes its items."""
        name = self.local("v")
        self._values[id(v)] = (v, name)
        self.op("COPY", 1)
        self.store(name)

    def source(self, source: Source) -> None:
        """Push the object at a source, which C extracts before the call."""
        name = self._arguments.setdefault(source, f"a{len(self._arguments)}")
        self.load(name)

    def output(self, key: Hashable) -> None:
        """Push the graph's output `key`; asking for it makes it an output."""
        self.load(self.outputs.setdefault(key, f"out{len(self.outputs)}"))

    def const(self, object: Any) -> None:
        """Push this very object."""
        self.op("LOAD_CONST", object if type(object) in SHAREABLE else Constant(object))

    @property
    def extract(self) -> tuple[Source, ...]:
        """What the entry must be called with."""
        return tuple(self._arguments)

    # ---- stack operations

    def op(self, name: str, *arg: Any) -> None:
        self.body.append(Instr(name, *arg, location=self.location))

    def label(self, label: Label) -> None:
        self.body.append(label)

    def line(self, lineno: int) -> None:
        """The user's line that the following code belongs to."""
        lineno = max(lineno, 1)
        self.location = InstrLocation(lineno, lineno, None, None)

    def local(self, name: str = "t") -> str:
        """A fresh local variable."""
        self._temporaries += 1
        return f"{name}.{self._temporaries}"

    def store(self, local: str) -> None:
        self.op("STORE_FAST", local)

    def load(self, local: str) -> None:
        self.op("LOAD_FAST", local)

    def pop(self) -> None:
        self.op("POP_TOP")

    def build(self, kind: str, n: int) -> None:
        """list, tuple, set, slice, string of n items, or map of n key-value pairs."""
        self.op(BUILD[kind], n)

    def begin_call(self) -> None:
        """Before the callable is pushed."""
        if NULL_BEFORE_CALLABLE:
            self.op("PUSH_NULL")

    def end_call(self, nargs: int, kwnames: Sequence[str] = ()) -> None:
        """After callable and `nargs` arguments, of which the last ones have `kwnames`."""
        if NULL_BEFORE_CALLABLE:
            if kwnames:
                self.op("KW_NAMES", tuple(kwnames))
            for name in (*CALL_PREFIX, "CALL"):
                self.op(name, nargs)
            return
        # From 3.13 on the place after the callable is NULL or the first argument.
        if nargs == len(kwnames):
            self.op("PUSH_NULL")
            for depth in range(nargs + 1, 1, -1):
                self.op("SWAP", depth)
        else:
            nargs -= 1
        if kwnames:
            self.op("LOAD_CONST", tuple(kwnames))
        self.op("CALL_KW" if kwnames else "CALL", nargs)

    def end_call_ex(self, keywords: bool = False) -> None:
        """After callable, tuple of arguments and, with `keywords`, a dict."""
        if not NULL_BEFORE_CALLABLE:
            self.op("PUSH_NULL")
            for depth in range(3 if keywords else 2, 1, -1):
                self.op("SWAP", depth)
        self.op("CALL_FUNCTION_EX", int(keywords))

    def call(self, function: Callable, *push: Callable[[], None]) -> None:
        """Call a constant function with what each of `push` pushes."""
        self.begin_call()
        self.const(function)
        for argument in push:
            argument()
        self.end_call(len(push))

    def load_attr(self, name: str) -> None:
        self.op("LOAD_ATTR", name if VERSION == (3, 11) else (False, name))

    def store_attr(self, name: str) -> None:
        """[value, object] --> []   object.name = value"""
        self.op("STORE_ATTR", name)

    def delete_attr(self, name: str) -> None:
        """[object] --> []"""
        self.op("DELETE_ATTR", name)

    def store_item(self) -> None:
        """[value, container, key] --> []   container[key] = value"""
        self.op("STORE_SUBSCR")

    def delete_item(self) -> None:
        """[container, key] --> []"""
        self.op("DELETE_SUBSCR")

    def drop_locals(self) -> None:
        """Let go of all objects, where the rest of the function no longer reads any: what is
        called from here on decides alone how long they live."""
        names = {i.arg for i in self.body if isinstance(i, Instr) and i.name == "STORE_FAST"}
        for name in sorted({*names, *self._arguments.values(), *self.outputs.values()}):
            self.op("LOAD_CONST", None)
            self.store(name)

    def before_graph(self, write: Callable[[Emitter], None]) -> None:
        """What `write` emits runs before the graph."""
        body, self.body = self.body, []
        write(self)
        self._first, self.body = [*self._first, *self.body], body

    # ---- the end

    def finish(
        self,
        globals: dict[str, Any],
        graph: Callable[..., tuple] | None = None,
        inputs: Sequence[Source] = (),
    ) -> types.FunctionType:
        """The entry: `graph(*inputs)` gives the outputs in the order of `outputs`, the body does
        the rest and has returned."""
        body, self.body = self.body, []
        self.line(self.code.co_firstlineno)
        self.op("RESUME", 0)
        self.body += self._first
        if graph is not None:
            self.call(graph, *(lambda s=s: self.source(s) for s in inputs))
            self._unpack_outputs()
        body = self.body + body
        return types.FunctionType(self._assemble(body), globals, self.code.co_name)

    def _unpack_outputs(self) -> None:
        if not self.outputs:
            self.pop()
            return
        self.op("UNPACK_SEQUENCE", len(self.outputs))
        for name in self.outputs.values():
            self.store(name)

    def _assemble(self, body: list[Instr | Label]) -> types.CodeType:
        result = Bytecode(body)
        result.name, result.filename = self.code.co_name, self.code.co_filename
        result.qualname, result.first_lineno = self.code.co_qualname, self.code.co_firstlineno
        result.argnames = list(self._arguments.values())
        result.argcount = len(result.argnames)
        result.flags = CompilerFlags.OPTIMIZED | CompilerFlags.NEWLOCALS
        return place_constants(result.to_code())


def listing(code: types.CodeType) -> str:
    """The code as JITSHAPE_LOGS=bytecode prints it: one instruction a line, user lines above."""
    rows: list[str] = []
    line = None
    for i in dis.get_instructions(code):
        number = i.positions.lineno if i.positions else None
        if number != line:
            line = number
            rows.append(f"# {code.co_filename}:{number}")
        rows.append(f"    {i.opname} {i.argrepr}".rstrip())
    return "\n".join(rows)
