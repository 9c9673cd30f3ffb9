"""Value: what the symbolic machine computes with, one subclass per kind of Python object.

A Value stands for exactly one object of the program: identity of Values is identity of objects.
Behaviour lives here, on the value; opcodes only arrange operands.  The methods below are the
slots of a type in C: they get operands of any kind and answer, return `NotImplemented`, raise
`Raised` (an exception of the user's program) or raise `Break` (cannot be captured).
`m` is the Machine: `m.wrap(object, source)` gives the Value of a real object (one Value per
object, guarded), `m.const(x)` of a literal, `m.guard(source, check)` adds a guard with the
current user line, `m.call(f, args, kwargs)` calls, `m.throw(TypeError, "...")` raises in the
user's program, `m.effects` records writes to objects that exist outside.
Also: `m.inline(function, args, kwargs)` runs the code of a FunctionValue; `m.binary(op, a, b)`,
`m.compare(op, a, b)` are the full protocols (both sides asked; they return a Value or raise
Raised); `m.identical(a, b)` is `a is b`; `m.as_int(value)` is `operator.index` as a real int
(specialises what is symbolic); `m.wrap_type(cls)` is the ClassValue of a class.

What the machine asks of values/*: it makes values only through the builders registered here
under `@builds(kind)`, and wraps real objects only through `@wraps(type)`.
  const      (m, object)             a literal or whatever else is immutable through and through
  tuple, list, set, frozenset        (m, items: list[Value])
  dict       (m, pairs: list[tuple[Value, Value]])     later keys win, as in a dict display
  slice      (m, start, stop, step)
  function   (m, code, globals: dict, qualname, defaults: Value | None, kwdefaults: Value | None,
             annotations: Value | None, closure: Value | None)     a tuple, a dict, a dict or
             tuple, a tuple of Cells; MAKE_FUNCTION.  The value has `callee(m) -> frame.Callee`
  method     (m, function, self)     a bound method; its `call` uses m.forward (see below)
An exception value has the fields `context`, `cause`: Value | None, and `suppress_context`: bool,
set by `assign(m, field, value)`; the machine sets `context` as the interpreter does, and calls
`passes(m, frame)` for every frame that the exception is raised in or comes through.
`m.mutated(self)` must be called before a value changes in place (append, store into an instance, an
iterator that advances): a Break that follows within one instruction then traces again up to that
instruction, instead of resuming in the middle of it.  `m.forward(self, target, args, kwargs)` is
`m.call(target, ...)` for a `call` that does nothing but call `target` and return what it
returns (bound methods, `__call__`): a break inside stays resumable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import CellType, GeneratorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

from jitshape.errors import DataDependent
from jitshape.frontend.sources import Source

if TYPE_CHECKING:
    from jitshape.frontend.emit import Emitter
    from jitshape.frontend.machine import Machine


class Raised(Exception):
    """An exception of the user's program, on its way through the machine.  `again`: it is raised
    once more where a handler ends, which its traceback does not show."""

    def __init__(self, value: Any, again: bool = False) -> None:
        self.value, self.again = value, again


class Break(Exception):
    """The machine cannot go on at this instruction: the graph ends here.

    `kind` names the cause in the catalogue (errors.py), `reason` says what was met, `remedy`
    what the user can do."""

    def __init__(self, kind: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind, self.reason, self.remedy = kind, reason, remedy
        self.frames: list[Any] = []  # FrameSnapshots, innermost first: the machine's
        self.restart: int | None = None  # step to break at in a second trace, if not resumable


def data_dependent(error: DataDependent) -> Break:
    """A decision that only a run can make ends the graph before it."""
    return Break("data_dependent", f"{error.what}: {error.because}", error.avoid)


SUSPENDS = "suspends"  # the kind of a Break at which nothing is lost: the function waits there


class Restart(Exception):
    """Trace again and break before instruction number `step`: raised where it turns out late
    that a value must not have come into being (a suspended generator that has to leave)."""

    def __init__(self, step: int, cause: Break) -> None:
        super().__init__(f"break at step {step}: {cause}")
        self.step, self.cause = step, cause


_FINALIZER_OF_C = GeneratorType.__del__


class Clock(threading.local):
    """Tells values that cannot leave a trace where in it they came into being."""

    machine: Any = None

    def step(self) -> int | None:
        """The step at which to break so that what is being made now is not made."""
        return None if self.machine is None else self.machine.step_to_break_at()


CLOCK = Clock()


def has_method(cls: type, name: str) -> bool:
    """`hasattr(cls, name)`, guarded where the class can change."""
    if CLOCK.machine is not None:
        CLOCK.machine.guard_class(cls, name)
    return hasattr(cls, name)


def has_finalizer(cls: type) -> bool:
    """Whether code of the program's runs when an instance goes: not what C does then."""
    return not isinstance(getattr(cls, "__del__", _FINALIZER_OF_C), WrapperDescriptorType)


Wrapper = Callable[["Machine", Any, "Source | None"], "Value"]
WRAPPERS: dict[type, Wrapper] = {}  # by the class of the object
WRAPPERS_OF_BASES: dict[type, Wrapper] = {}  # by the first class of its MRO found here
BUILDERS: dict[str, Callable[..., Value]] = {}


def wraps(*types: type, subclasses: bool = False) -> Callable[[Wrapper], Wrapper]:
    """Register how real objects of exactly these classes (or of any subclass) become Values.
    The wrapper adds the guards on the object at `source`; without a source the object is held
    by the trace itself and needs none."""

    def register(wrapper: Wrapper) -> Wrapper:
        for type_ in types:
            (WRAPPERS_OF_BASES if subclasses else WRAPPERS)[type_] = wrapper
        return wrapper

    return register


def builds(kind: str) -> Callable[[Any], Any]:
    """Register how the machine makes a value of this kind; kinds and arguments: see above."""

    def register(builder: Any) -> Any:
        BUILDERS[kind] = builder
        return builder

    return register


class Value:
    """Base of all values.  `source` is None for what the program made itself."""

    source: Source | None = None
    made_at: int | None = None  # step to break before, where this value must not be made
    finalized = False  # code of the user's runs when the last reference goes
    dropped = False  # the program let go of a reference: perhaps it was the last one
    remembered = True  # False: `wrap` makes a new Value each time (literals, guarded by value)

    def python_type(self) -> type:
        """The class of the object (`type(x)`)."""
        raise NotImplementedError(type(self).__name__)

    def type_value(self, m: Machine) -> Value:
        """`type(x)` as a Value; the default wraps python_type()."""
        return m.wrap_type(self.python_type())

    def is_constant(self) -> bool:
        """Whether `constant()` gives the object: immutable through and through, guarded."""
        return False

    def constant(self) -> Any:
        """The real object.  Only where is_constant()."""
        raise Break("unknown", f"a {self.python_type().__name__} is known only when the code runs")

    def attributes(self, m: Machine) -> Any:
        """The instance `__dict__` as a DictValue (storage only, no user code), or None."""
        return None

    def children(self) -> Iterable[Value]:
        """Values that the object refers to and that `reconstruct` pushes before it."""
        return ()

    def seen_again(self, m: Machine, source: Source) -> None:
        """The object was found at a second source.  Values whose wrapper pins the very object
        (functions, classes, modules) override this with the guard `Is`."""
        m.guard(source, m.same_object(self))

    def special(self, m: Machine, name: str) -> Value | None:
        """The method `name` looked up on the class and bound, as the interpreter looks up
        dunder methods; None if there is none."""
        return m.default_special(self, name)

    # ---- descriptors: the object found on a class

    def has_get(self) -> bool:
        return has_method(self.python_type(), "__get__")

    def is_data_descriptor(self) -> bool:
        cls = self.python_type()
        return has_method(cls, "__set__") or has_method(cls, "__delete__")

    def descr_get(self, m: Machine, instance: Value | None, owner: Value) -> Value:
        """`__get__`; only asked where has_get()."""
        return m.default_descr_get(self, instance, owner)

    def descr_set(self, m: Machine, instance: Value, value: Value) -> None:
        """`__set__`; only asked where is_data_descriptor()."""
        m.default_descr_set(self, instance, value)

    def descr_delete(self, m: Machine, instance: Value) -> None:
        m.default_descr_delete(self, instance)

    # ---- protocols.  The defaults look up and inline the dunder methods of python_type().

    def truth(self, m: Machine) -> bool:
        return m.default_truth(self)

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return m.default_call(self, args, kwargs)

    def hands_on(self) -> bool:
        """Whether `call` runs code in the machine, with its arguments as they are."""
        return False

    def getattr(self, m: Machine, name: str) -> Value:
        """Attribute by the full protocol; raises Raised(AttributeError)."""
        return m.default_getattr(self, name)

    def setattr(self, m: Machine, name: str, value: Value) -> None:
        m.default_setattr(self, name, value)

    def delattr(self, m: Machine, name: str) -> None:
        m.default_delattr(self, name)

    def getitem(self, m: Machine, key: Value) -> Value:
        return m.default_getitem(self, key)

    def setitem(self, m: Machine, key: Value, value: Value) -> None:
        m.default_setitem(self, key, value)

    def delitem(self, m: Machine, key: Value) -> None:
        m.default_delitem(self, key)

    def contains(self, m: Machine, item: Value) -> Value:
        return m.default_contains(self, item)

    def length(self, m: Machine) -> Value:
        return m.default_length(self)

    def iterate(self, m: Machine) -> Value:
        """`iter(x)`: a value whose `next` works."""
        return m.default_iterate(self)

    def next(self, m: Machine) -> Value | None:
        """The next item, or None at the end (StopIteration of a plain iterator)."""
        return m.default_next(self)

    def unary(self, m: Machine, op: str) -> Value:
        """op: "-", "+", "~"."""
        return m.default_unary(self, op)

    def binary(self, m: Machine, op: str, other: Value, reflected: bool) -> Any:
        """`self op other` (reflected: `other op self`); op: "+", ..., "@", "**", or in-place
        "+=", ... asked first with reflected False.  NotImplemented: the other side is asked."""
        return m.default_binary(self, op, other, reflected)

    def compare(self, m: Machine, op: str, other: Value) -> Any:
        """Rich comparison "<" "<=" "==" "!=" ">" ">="; may return NotImplemented."""
        return m.default_compare(self, op, other)

    def hash_key(self, m: Machine) -> Any:
        """A real, hashable Python object that is equal for equal values: the key under which
        dict and set values store them."""
        return m.default_hash_key(self)

    # ---- leaving the trace

    def write_back(self, e: Emitter) -> None:
        """Emit code that brings the real object at `source` to its final state: asked by
        effects of values that were touched."""
        raise Break("side_effect", f"{type(self).__name__} cannot be written back")

    def fill(self, e: Emitter) -> None:
        """Emit code that completes the object once the emitter has bound it."""

    def reconstruct(self, e: Emitter) -> None:
        """Emit code that pushes the object.  Called at most once per value and exit: the
        emitter keeps it in a local, so that identity is kept.  Where `source` is set and the
        object itself is wanted, the emitter loads the source instead of calling this.  What may
        contain itself pushes an empty object, calls `e.bind(self)`, then adds the contents."""
        self.cannot_leave(f"{type(self).__name__} cannot leave the compiled code")

    def cannot_leave(self, reason: str) -> NoReturn:
        """Have the trace made again, up to where this value was made."""
        cause = Break("reconstruct", reason)
        if self.made_at is None:
            raise cause
        raise Restart(self.made_at, cause)


class Cell(Value):
    """A closure cell.  `content` None: empty, or not read yet if `real` is a cell that exists
    outside (then `loaded` is False, and `m.load_cell` wraps the content on first use).  Get the
    one of a real cell from `m.cell(real, source)`; write through `m.store_cell`."""

    def __init__(
        self,
        content: Value | None = None,
        real: CellType | None = None,
        source: Source | None = None,
    ) -> None:
        self.content, self.real, self.source = content, real, source
        self.loaded = real is None

    def python_type(self) -> type:
        return CellType

    def children(self) -> Iterable[Value]:
        return () if self.content is None else (self.content,)

    def write_back(self, e: Emitter) -> None:
        if self.content is not None:
            e.value(self.content)
        e.value(self)
        e.op("DELETE_ATTR" if self.content is None else "STORE_ATTR", "cell_contents")

    def reconstruct(self, e: Emitter) -> None:
        e.begin_call()
        e.const(CellType)
        e.end_call(0)
        e.bind(self)
        if self.content is not None:
            self.write_back(e)


def unpack(m: Machine, value: Value) -> list[Value]:
    """All items of an iterable, in order."""
    items = []
    iterator = value.iterate(m)
    while (item := iterator.next(m)) is not None:
        items.append(item)
    return items


def unpack_sized(m: Machine, value: Value) -> list[Value]:
    """As `unpack`, for what makes a list or a tuple: it asks first how many items to expect."""
    items = []
    iterator = value.iterate(m)
    m.ask_length(value)
    while (item := iterator.next(m)) is not None:
        items.append(item)
    return items
