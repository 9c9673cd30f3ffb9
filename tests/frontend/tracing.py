"""Run a function through the machine and the interpreter, and compare: results, changes of the
arguments, exceptions.

The trace is carried out by `Evaluator`, an emitter that does at once what an entry would do.
"""

from __future__ import annotations

import copy
from types import FunctionType
from typing import Any

import jitshape.frontend.builtins_  # noqa: F401
from jitshape.frontend import sources as S
from jitshape.frontend.effects import Effects
from jitshape.frontend.machine import Machine, trace


class Evaluator:
    """An emitter whose stack holds real objects."""

    def __init__(self, args: list[Any]) -> None:
        self.args, self.stack, self.made = args, [], {}

    def value(self, v: Any) -> None:
        if id(v) in self.made:
            self.stack.append(self.made[id(v)][0])
        elif v.source is not None:
            self.source(v.source)
        else:
            v.reconstruct(self)
            self.bind(v)

    def bind(self, v: Any) -> None:
        self.made.setdefault(id(v), (self.stack[-1], v))

    def const(self, object: Any) -> None:
        self.stack.append(object)

    def source(self, source: S.Source) -> None:
        self.stack.append(self.resolved[source] if source in self.resolved else self.load(source))

    resolved: dict = {}

    def load(self, s: S.Source) -> Any:
        if isinstance(s, S.Local):
            return self.args[s.index]
        if isinstance(s, S.Held):
            return s.object
        base = self.load(s.base)
        if isinstance(s, S.InstanceDict):
            return vars(base)
        if isinstance(s, S.Key):
            return dict.__getitem__(base, s.key)
        if isinstance(s, S.Item):
            kind = tuple if isinstance(base, tuple) else list
            return kind.__getitem__(base, s.index)
        return getattr(base, s.name)

    def pops(self, n: int) -> list[Any]:
        taken = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return taken

    def pop(self) -> None:
        self.stack.pop()

    def build(self, kind: str, n: int) -> None:
        if kind == "map":
            flat = self.pops(2 * n)
            self.stack.append(dict(zip(flat[::2], flat[1::2])))
            return
        items = self.pops(n)
        make = {"list": list, "tuple": tuple, "set": set, "slice": lambda x: slice(*x)}
        self.stack.append(make[kind](items))

    def begin_call(self) -> None:
        pass

    def end_call(self, n: int, kwnames: tuple = ()) -> None:
        args = self.pops(n)
        function = self.stack.pop()
        split = n - len(kwnames)
        self.stack.append(function(*args[:split], **dict(zip(kwnames, args[split:]))))

    def store_attr(self, name: str) -> None:
        value, object = self.pops(2)
        setattr(object, name, value)

    def store_item(self) -> None:
        value, container, key = self.pops(3)
        container[key] = value

    def op(self, name: str, arg: Any) -> None:
        if name == "STORE_ATTR":
            self.store_attr(arg)
        else:
            delattr(self.stack.pop(), arg)


def run_traced(function: FunctionType, args: list[Any]) -> Any:
    """What the compiled code would do: its result, with the effects on the arguments done."""
    names = function.__code__.co_varnames

    def make(break_at: Any) -> tuple:
        machine = Machine(effects=Effects(), break_at=break_at)
        return (
            machine,
            function,
            [machine.wrap(a, S.Local(i, names[i])) for i, a in enumerate(args)],
        )

    machine, outcome = trace(make)
    if outcome.cause is not None:
        raise outcome.cause
    evaluator = Evaluator(list(args))
    machine.effects.replay(evaluator)
    evaluator.value(outcome.value)
    result = evaluator.stack.pop()
    assert not evaluator.stack
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
    traced = outcome_of(run_traced, function, for_trace)
    plain = outcome_of(lambda f, a: f(*a), function, for_plain)
    assert same(traced, plain), f"\ntraced {traced!r}\nplain  {plain!r}"
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
