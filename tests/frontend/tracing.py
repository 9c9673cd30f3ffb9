"""Run a function through the machine and the interpreter, and compare: results, changes of the
arguments, exceptions.

The trace is carried out by `Evaluator`, an emitter that does at once what an entry would do.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import jitshape.frontend.builtins_  # noqa: F401
from jitshape.frontend import sources as S
from jitshape.frontend.effects import Effects
from jitshape.frontend.lookup import class_attribute
from jitshape.frontend.machine import Machine, trace


class Evaluator:
    """An emitter whose code is a list of steps on a stack of real objects.  As in an entry, all
    sources are read before the first step."""

    def __init__(self, args: list[Any]) -> None:
        self.args, self.steps, self.stack = args, [], []
        self.sources: dict[S.Source, Any] = {}
        self.values: dict[int, Any] = {}  # kept alive: id() is the key
        self.made: dict[int, Any] = {}

    def run(self) -> Any:
        for step in self.steps:
            step()
        (result,) = self.stack
        return result

    def value(self, v: Any) -> None:
        if id(v) in self.values:
            self.steps.append(lambda: self.stack.append(self.made[id(v)]))
        elif v.source is not None and not getattr(v, "rebuild", False):
            self.source(v.source)
        else:
            v.reconstruct(self)
            if id(v) not in self.values:
                self.bind(v)

    def knows(self, v: Any) -> bool:
        return id(v) in self.values or v.source is not None

    def bind(self, v: Any) -> None:
        self.values[id(v)] = v
        self.steps.append(lambda: self.made.setdefault(id(v), self.stack[-1]))

    def const(self, object: Any) -> None:
        self.steps.append(lambda: self.stack.append(object))

    def source(self, source: S.Source) -> None:
        if source not in self.sources:
            self.sources[source] = load(source, self.args)
        self.steps.append(lambda: self.stack.append(self.sources[source]))

    def pops(self, n: int) -> list[Any]:
        taken = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return taken

    def pop(self) -> None:
        self.steps.append(self.stack.pop)

    def build(self, kind: str, n: int) -> None:
        def run() -> None:
            if kind == "map":
                flat = self.pops(2 * n)
                self.stack.append(dict(zip(flat[::2], flat[1::2])))
            else:
                self.stack.append(MAKE[kind](self.pops(n)))

        self.steps.append(run)

    def begin_call(self) -> None:
        pass

    def end_call(self, n: int, kwnames: tuple = ()) -> None:
        def run() -> None:
            args = self.pops(n)
            function = self.stack.pop()
            split = n - len(kwnames)
            self.stack.append(function(*args[:split], **dict(zip(kwnames, args[split:]))))

        self.steps.append(run)

    def store_attr(self, name: str) -> None:
        def run() -> None:
            value, object = self.pops(2)
            setattr(object, name, value)

        self.steps.append(run)

    def store_item(self) -> None:
        def run() -> None:
            value, container, key = self.pops(3)
            container[key] = value

        self.steps.append(run)

    def op(self, name: str, arg: Any) -> None:
        if name == "STORE_ATTR":
            self.store_attr(arg)
        else:
            self.steps.append(lambda: delattr(self.stack.pop(), arg))


MAKE = {"list": list, "tuple": tuple, "set": set, "slice": lambda parts: slice(*parts)}


def load(s: S.Source, args: list[Any]) -> Any:
    """The object at a source."""
    if isinstance(s, S.Local):
        return args[s.index]
    if isinstance(s, S.Held):
        return s.object
    base = load(s.base, args)
    if isinstance(s, S.InstanceDict):
        return vars(base)
    if isinstance(s, S.Key):
        return dict.__getitem__(base, s.key)
    if isinstance(s, S.Item):
        return (tuple if isinstance(base, tuple) else list).__getitem__(base, s.index)
    if isinstance(s, S.TypeAttribute):
        return class_attribute(base, s.name)
    return getattr(base, s.name)


def traced(
    function: FunctionType, args: Sequence[Any], known: Sequence[tuple[Any, Any]] = ()
) -> tuple[Machine, Any]:
    """The machine and the outcome of a trace that knows Values of the objects in `known`."""
    names = function.__code__.co_varnames

    def make(break_at: Any) -> tuple:
        machine = Machine(effects=Effects(), break_at=break_at)
        for real, value in known:
            machine.remember(real, value)
        slots = [machine.wrap(a, S.Local(i, names[i])) for i, a in enumerate(args)]
        return machine, function, slots

    return trace(make)


def run_traced(function: FunctionType, args: list[Any]) -> Any:
    """What the compiled code would do: its result, with the effects on the arguments done."""
    machine, outcome = traced(function, args)
    if outcome.cause is not None:
        raise outcome.cause
    evaluator = Evaluator(list(args))
    machine.effects.replay(evaluator)
    evaluator.value(outcome.value)
    result = evaluator.run()
    if outcome.kind == "raise":
        raise result
    return result


def outcome_of(run: Any, function: FunctionType, args: list[Any]) -> tuple:
    from jitshape.frontend.values.base import Break

    try:
        return "returned", run(function, args), args
    except Break:
        raise
    except BaseException as error:
        return "raised", type(error), error.args, args


def check(function: FunctionType, *args: Any) -> Any:
    """Traced and plain runs agree; the result of the plain one."""
    for_trace, for_plain = copy.deepcopy(list(args)), copy.deepcopy(list(args))
    found = outcome_of(run_traced, function, for_trace)
    plain = outcome_of(lambda f, a: f(*a), function, for_plain)
    assert same(found, plain), f"\ntraced {found!r}\nplain  {plain!r}"
    return plain[1]


def same(a: Any, b: Any) -> bool:
    """Equal in type, order and value, by `repr` where a class compares by identity."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(
            same(x, y) for x, y in zip(a.values(), b.values())
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if type(a).__eq__ is object.__eq__ and hasattr(a, "__dict__") and not isinstance(a, type):
        return a is b or same(vars(a), vars(b))
    return a == b or (a != a and b != b)
