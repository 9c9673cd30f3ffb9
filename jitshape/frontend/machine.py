"""The symbolic machine: executes the bytecode of a function on Values.

In: a Python function and the Values of its frame slots (`machine.run(function, slots)`).  Out: an
Outcome: what it returns, the exception it raises, or the frames as they stand at a break; and
beside it what was learnt: `guards` on objects that existed before, `effects` on them.
Invariant: no user code runs and no real object is written, so a trace can be thrown away and
made again; tracing twice executes the same steps.  A break leaves every frame before an
instruction, with its operands in place.  Where that is not so (a dunder method called by an
instruction, an instruction that had changed a value already) the outcome is "restart": trace
again with `break_at[step]`, which stops before the outermost instruction concerned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

import jitshape.frontend.opcodes  # noqa: F401  (registers the handlers)
from jitshape import forks
from jitshape.errors import DataDependent
from jitshape.frontend.arguments import argument_error, bind_arguments
from jitshape.frontend.checks import Guard, Is, Location, SameObject
from jitshape.frontend.frame import NULL, Callee, Frame, FrameSnapshot, Lasti
from jitshape.frontend.handling import Handlers, Handling
from jitshape.frontend.namespaces import Namespaces, Scope
from jitshape.frontend.opcodes.registry import bind
from jitshape.frontend.positions import SUSPENDS, is_piece
from jitshape.frontend.protocols import Protocols
from jitshape.frontend.sources import Held, Source, root
from jitshape.frontend.values.base import (
    CLOCK,
    Break,
    Cell,
    Raised,
    Restart,
    Value,
    data_dependent,
)
from jitshape.frontend.values.unobserved import Unobserved
from jitshape.frontend.wrapping import Wrapping

STEP_LIMIT = 20_000_000
GUARD_LIMIT = 40_000  # of a trace: what goes on behind a break has guards of its own
UNROLL_LIMIT = 4096
DEPTH_LIMIT = 150  # of inlined calls; deeper recursion runs natively
REFER_BACK = ("instance_dict", "dictionary", "_callee", "traceback")  # to the value they are of
PYTHON_FRAMES_PER_CALL = 12  # of the machine itself, an upper bound, to set the recursion limit


@dataclass(frozen=True)
class Outcome:
    """How a trace ended.  kind "return" and "raise": `value`.  "break": `cause` and `frames`,
    outermost first.  "restart": trace again with the entry `step: cause` in `break_at`."""

    kind: str
    value: Value | None = None
    cause: Break | None = None
    frames: tuple[FrameSnapshot, ...] = ()
    step: int = 0
    location: Location | None = None


class Machine(Protocols, Handlers, Namespaces, Wrapping):
    """One trace."""

    tracer: Any = None  # the torch side, where there is one
    root: Frame  # the outermost
    bound_by = ""  # what was read that other processes, or an edit elsewhere, have otherwise
    recursion_limit = 0  # the program's
    changed_late: list[Value | None] | None = None  # by code that runs when the program has ended
    before_each: Callable[[Frame], None] | None = None  # instruction

    def __init__(
        self,
        *,
        effects: Any = None,
        options: Any = None,
        break_at: Mapping[int, Break] | None = None,
    ) -> None:
        self.effects, self.options = effects, options
        self.unroll_limit = getattr(options, "unroll_limit", UNROLL_LIMIT)
        self.break_at = dict(break_at or {})
        self.guards: list[Guard] = []
        self.frame: Frame | None = None
        self.broke_at: Location | None = None
        self.generators: list[Any] = []  # and steps of asynchronous ones
        self.handling = Handling()
        self.steps = self.mutated_step = 0
        self.depth = self.frames_run = 0
        self.settled: set[int] = set()  # objects made by the trace that nothing changes
        self._held: dict[int, tuple[Any, Value]] = {}
        self.unread: dict[int, Unobserved] = {}  # by the id of what they are
        self._cells: dict[int, Cell] = {}
        self._scopes: dict[int, Scope] = {}
        self._lookups: dict[tuple[type, str], Value | None] = {}
        self._defined: set[type] = set()
        self._special: set[type] = set()
        self._generic: dict[tuple[type, str], bool] = {}
        self._locations: dict[tuple[int, int], Location] = {}
        self._literals: dict[int, tuple[Any, Value]] = {}
        self._set_next_stop()

    # ---- running

    def run(self, function: FunctionType, slots: list[Value | None]) -> Outcome:
        """Execute `function` from its start; `slots` are the values of its arguments in the
        order of its frame (positional, keyword-only, *args, **kwargs)."""
        code = function.__code__
        closure = tuple(
            self.cell(cell, Held(cell, name))
            for cell, name in zip(function.__closure__ or (), code.co_freevars)
        )
        callee = Callee(code, function.__globals__, function.__qualname__, closure=closure)
        if code.co_flags & SUSPENDS and not is_piece(code):
            cause = Break("generator", "the outermost frame is a generator or coroutine")
            return Outcome("break", cause=cause, location=self._location_of(code))
        self.called_in_handler = sys.exception() is not None
        limit = sys.getrecursionlimit()
        outer = CLOCK.machine
        self.recursion_limit = limit if outer is None else outer.recursion_limit
        CLOCK.machine = self
        try:
            with forks.changed(lambda: sys.setrecursionlimit(limit)):
                sys.setrecursionlimit(max(limit, limit + DEPTH_LIMIT * PYTHON_FRAMES_PER_CALL))
                return self._without_open_generators(self._outcome(callee, slots))
        finally:
            CLOCK.machine = outer

    def _outcome(self, callee: Callee, slots: list[Value | None]) -> Outcome:
        full = [*slots, *[None] * (callee.code.co_nlocals - len(slots))]
        try:
            return Outcome("return", self.enter(callee, full, resumable=True))
        except Raised as raised:
            raised.__traceback__ = raised.__context__ = None  # they hold the objects of the program
            return Outcome("raise", raised.value)
        except Restart as again:
            return Outcome("restart", cause=again.cause, step=again.step)
        except RecursionError:  # of the machine itself: calls that need no frames of the program's
            cause = Break("recursion", "the program's calls are nested too deep to be traced")
            return Outcome("restart", cause=cause, step=self.root.step)
        except Break as stop:
            where = self.broke_at or self._location_of(callee.code)
            stop.__traceback__ = stop.__context__ = None  # they hold the objects of the program
            if stop.restart is not None:
                return Outcome("restart", cause=stop, step=stop.restart, location=where)
            return Outcome("break", cause=stop, frames=tuple(stop.frames[::-1]), location=where)

    def _without_open_generators(self, outcome: Outcome) -> Outcome:
        """Dropping a generator runs the code that waits for its end: then it is made natively."""
        waiting = [g for g in self.generators if g.must_be_closed(self)]
        kept = self.kept_by(outcome) if waiting else set()
        for generator in waiting:
            if outcome.kind != "restart" and id(generator) not in kept:
                cause = Break("generator", f"{generator.qualname} is dropped before its end")
                return Outcome("restart", cause=cause, step=generator.made_at)
        return outcome

    def kept_by(self, outcome: Outcome) -> set[int]:
        """The ids of all values that leave the trace."""
        stack = [] if outcome.value is None else [outcome.value]
        for frame in outcome.frames:
            stack.extend(x for x in (*frame.slots, *frame.stack) if isinstance(x, Value))
        stack.extend(() if self.effects is None else self.effects.touched())
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if id(value) not in seen:
                seen.add(id(value))
                stack.extend(value.children())
        return seen

    def enter(self, callee: Callee, slots: list[Value | None], resumable: bool) -> Value:
        """Run a call to its end: what it returns (of a generator function: the generator)."""
        code = callee.code
        self.frames_run += 1
        n_more = len(code.co_cellvars) + len(code.co_freevars)
        if n_more:
            inner = sum(1 for name in code.co_cellvars if name not in code.co_varnames)
            slots = slots + [None] * (inner + len(code.co_freevars))
        frame = Frame(callee, slots, self.scope(callee.globals), self.frame, resumable)
        return self.execute(frame)

    def execute(self, frame: Frame, raised: Raised | None = None) -> Value:
        """Run a frame from `frame.index` until it returns or yields; with `raised`, from the
        exception raised there."""
        steps = frame.program.steps or bind(frame.program)
        back = frame.back = self.frame
        if back is None:
            self.root = frame
        self.frame, index = frame, frame.index
        self.depth += 1
        handled = self.handling.value
        if raised is not None:
            raised.value.passes(self, frame)
        try:
            if self.depth > DEPTH_LIMIT:
                self._too_deep()
            while True:
                if raised is not None:
                    index, raised = self.unwind(frame, raised), None
                try:
                    while True:
                        frame.index = index
                        self.steps = frame.step = step = self.steps + 1
                        if step >= self.stop_at:
                            self._stop_here(step)
                        run, arg = steps[index]
                        target = run(self, frame, arg)
                        if target is None:
                            index += 1
                        elif target >= 0:
                            index = target
                        else:
                            return frame.result
                except Raised as error:
                    raised = error
                    if error.again:
                        error.again = False
                    else:
                        error.value.passes(self, frame)
        except (Break, DataDependent) as error:
            stop = error if isinstance(error, Break) else data_dependent(error)
            self._leave(frame, stop, back)
            self.handling.value = handled
            raise stop from None
        finally:
            self.depth -= 1
            self.frame = back

    def unwind(self, frame: Frame, raised: Raised) -> int:
        """The handler of an exception raised at `frame.index`; without one it leaves."""
        frame.calling = None
        row = frame.program.handlers[frame.index]
        if row is None:
            frame.ended = True
            raise raised
        stack, standing = frame.stack, frame.standing()
        del stack[row.depth :]
        if row.lasti:
            stack.append(Lasti(standing))
        stack.append(raised.value)
        return row.target

    def _leave(self, frame: Frame, stop: Break, back: Frame | None) -> None:
        """Note the state of `frame` in a break on its way out."""
        if not stop.frames:
            self.broke_at = self.location()
            if self.mutated_step >= frame.step:
                stop.restart = frame.step
        stop.frames.append(frame.snapshot(self.handling.value))
        if not frame.resumable and back is not None:
            stop.restart = back.step

    def release(self) -> None:
        """Let go of the program's objects now: machine and values refer to each other."""
        known = self.known_values() if vars(self) else []
        for own in map(vars, known):  # a value and its parts refer to each other, too
            own.update((name, None) for name in REFER_BACK if name in own)
        vars(self).clear()

    # ---- stopping

    def stop(self, kind: str, reason: str, remedy: str = "") -> NoReturn:
        """End the graph before the current instruction."""
        raise Break(kind, reason, remedy)

    def mutated(self, value: Value | None = None) -> None:
        """`value` (None: any) is about to change in place."""
        self.mutated_step = self.steps
        if self.changed_late is not None:
            self.changed_late.append(value)

    def step_to_break_at(self) -> int:
        """The step to name in a Restart that is to stop before the current instruction."""
        frame, step = self.frame, self.steps
        if frame is not None:
            step = frame.step
        while frame is not None and frame.back is not None:
            if not frame.resumable:
                step = frame.back.step
            frame = frame.back
        return step

    def _set_next_stop(self) -> None:
        later = [step for step in self.break_at if step > self.steps]
        self.stop_at = min([*later, STEP_LIMIT]) if self.before_each is None else 0

    @contextmanager
    def stepping(self, before_each: Callable[[Frame], None]) -> Iterator[None]:
        """Tell of every instruction meanwhile, before it is executed."""
        outer, self.before_each = self.before_each, before_each
        self._set_next_stop()
        try:
            yield
        finally:
            self.before_each = outer
            self._set_next_stop()

    def _stop_here(self, step: int) -> None:
        if self.before_each is not None:
            assert self.frame is not None
            self.before_each(self.frame)
        cause = self.break_at.get(step)
        if cause is not None:
            raise Break(cause.kind, cause.reason, cause.remedy)
        self._set_next_stop()
        if step >= STEP_LIMIT:
            self.stop("step_limit", f"the trace is longer than {STEP_LIMIT} instructions")

    def _too_deep(self) -> NoReturn:
        cause = Break("recursion", f"calls nested deeper than {DEPTH_LIMIT}")
        raise Restart(self.root.step, cause)

    def let_go(self, *values: Value | None) -> None:
        """References to these are about to go; where one has a `__del__` it may run, here."""
        for value in values:
            if value is not None:
                value.dropped = True
                if value.finalized:
                    cls = value.python_type().__qualname__
                    self.stop("finalizer", f"a reference to a {cls} is dropped")

    def let_go_of_locals(self, frame: Frame, result: Value) -> None:
        """An inlined call returns: its variables go, but for what its callers hold as well."""
        if frame.back is not None:
            for value in frame.slots:
                if isinstance(value, Value) and value is not result:
                    if not value.finalized:
                        value.dropped = True
                    elif not is_held(value, frame.back):
                        self.let_go(value)

    # ---- calls

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return function.call(self, args, kwargs)

    def forward(
        self, caller: Value, target: Value, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """`target(*args, **kwargs)` where calling `caller` does nothing else."""
        frame = self.frame
        if frame is not None and frame.calling is caller:
            frame.calling = target
        return target.call(self, args, kwargs)

    def inline(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a Python function by running its code here."""
        callee: Callee = function.callee(self)
        slots = bind_arguments(callee, args, kwargs, self.new_tuple, self._keyword_dict)
        if slots is None:
            name = function.getattr(self, "__qualname__").constant()
            self.throw(TypeError, argument_error(callee, name, len(args), kwargs))
        frame = self.frame
        resumable = frame is not None and frame.calling is function
        if resumable:
            frame.calling = None
        return self.enter(callee, slots, resumable)

    def _keyword_dict(self, pairs: list[tuple[str, Value]]) -> Value:
        return self.new_dict([(self.const(key), value) for key, value in pairs])

    # ---- guards

    def guard(self, source: Source, check: Any) -> None:
        if self.settled and self._is_settled(source):
            return
        if len(self.guards) >= GUARD_LIMIT:
            self.stop("guard_limit", f"the trace relies on more than {GUARD_LIMIT} things")
        self.guards.append(Guard(source, check, self.location()))

    def _is_settled(self, source: Source | None) -> bool:
        found = None if source is None else root(source)
        return isinstance(found, Held) and id(found.object) in self.settled

    def same_object(self, value: Value) -> Any:
        """The check that an object is the one `value` stands for."""
        if value.source is not None:
            return SameObject(value.source)
        for object, held in self._held.values():
            if held is value:
                return Is(object)
        raise AssertionError(f"{value!r} stands for no real object")

    def location(self) -> Location | None:
        """The user's line of the instruction being executed."""
        frame = self.frame
        if frame is None:
            return None
        key = (id(frame.program), frame.index)
        place = self._locations.get(key)
        if place is None:
            program = frame.program
            line = program.lines[frame.index] or frame.callee.code.co_firstlineno
            place = self._locations[key] = Location(program.file, line, program.name)
        return place

    def locations(self) -> list[Location]:
        """The user's stack, outermost first."""
        here, places = self.frame, []
        try:
            while self.frame is not None:
                places.append(self.location())
                self.frame = self.frame.back
        finally:
            self.frame = here
        return places[::-1]

    def _location_of(self, code: Any) -> Location:
        return Location(code.co_filename, code.co_firstlineno, code.co_qualname)


def is_held(value: Value, frame: Frame | None) -> bool:
    """Whether a frame or one of its callers refers to the object, or something it holds does."""
    while frame is not None:
        for held in (*frame.slots, *frame.stack):
            if held is value:
                return True
            if isinstance(held, Value) and any(part is value for part in held.children()):
                return True
        frame = frame.back
    return False


def trace(
    make: Callable[[Mapping[int, Break]], tuple[Machine, FunctionType, list[Value | None]]],
    break_at: Mapping[int, Break] | None = None,
    attempts: int = 8,
) -> tuple[Machine, Outcome]:
    """Run a trace to its end: as often as it asks to be restarted, each time with another step
    to break at.  `make` gives a fresh machine, the function and the values of its slots."""
    break_at = dict(break_at or {})
    for _ in range(attempts):
        machine, function, slots = make(break_at)
        outcome = machine.run(function, slots)
        if outcome.kind != "restart" or outcome.step in break_at:
            return machine, outcome
        break_at = {outcome.step: outcome.cause}
    return machine, outcome


__all__ = ["NULL", "Machine", "Outcome", "trace"]
