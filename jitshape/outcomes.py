"""What a compile begins and ends with, whether there is torch or not.

In: how a trace ended.  Out: it is counted and told; what cannot be compiled is Native, or refused;
`Made` is what a compile gives.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jitshape.errors import InternalError
from jitshape.frontend.guards import assemble
from jitshape.frontend.sources import Local
from jitshape.frontend.values.base import SUSPENDS, Break, Restart
from jitshape.observe import counters, logs
from jitshape.observe.breaking import break_error, break_record, break_text
from jitshape.observe.records import BreakRecord, record
from jitshape.options import Options
from jitshape.stages import Native

if TYPE_CHECKING:
    from jitshape.backend.compile import Program
    from jitshape.frontend.guards import GuardProgram


@dataclass(frozen=True, eq=False)
class Called:
    """The program that an entry's code calls as `run`: `key` finds it ("": nothing does), on disk
    too where it is `kept`;
    `consumed` are the places of results whose graph a backward inside freed; `raises`: its ops
    may, for the values they find; `draws`: random numbers, before that."""

    run: Callable[..., Any]
    key: str = ""
    kept: bool = False
    consumed: tuple[int, ...] = ()
    raises: bool = False
    draws: bool = False


@dataclass(frozen=True, eq=False)
class Made:
    """A compiled entry and what people may want to know of it."""

    program: GuardProgram
    entry: types.FunctionType
    capture: Any
    inputs: tuple[str, ...]
    graph: str
    compiled: Program | None
    shares: bool  # the graph was compiled before
    varying: frozenset[str]  # the numbers in the result that are symbolic
    assumes: bool  # what may turn out otherwise when the graph runs
    called: Called | None = None  # None: no graph


def argument_slots(function: types.FunctionType) -> tuple[Local, ...]:
    """Where a call's arguments are found."""
    return tuple(Local(i, name) for i, name in enumerate(argument_names(function)))


def argument_names(function: types.FunctionType) -> tuple[str, ...]:
    """The names of the argument slots, in frame order."""
    code = function.__code__
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]


def bound_slots(
    function: types.FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """What the argument slots hold in a call with these arguments.  Raises TypeError."""
    bare = types.FunctionType(
        function.__code__, {}, function.__name__, function.__defaults__, function.__closure__
    )  # whose signature is its own, whatever the function says of itself
    bare.__kwdefaults__ = function.__kwdefaults__
    bound = inspect.signature(bare).bind(*args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.arguments[name] for name in argument_names(function))


def check_outcome(captured: Any, options: Options) -> None:
    """Send what cannot be compiled to plain Python, or refuse it."""
    outcome = captured.outcome
    if outcome.kind == "raise":
        counters.count_frame("raises")
        raise Native("the function raises", fallback=False)
    if outcome.kind == "return" or suspends(outcome):
        return
    if options.fullgraph:
        raise break_error(told_break(captured, options))
    assert outcome.cause is not None
    if not outcome.frames or outcome.cause.kind == "trace_function":
        told = told_break(captured, options)
        logs.log("graph_breaks", break_text(told))
        raise Native(f"{told.kind}: {told.reason}", fallback=True)


def suspends(outcome: Any) -> bool:
    """Whether the trace ended because the function waits, which is no graph break."""
    return outcome.kind == "break" and outcome.cause.kind == SUSPENDS


def told_break(captured: Any, options: Options) -> BreakRecord:
    return break_record(options.name or captured.function.__qualname__, captured.outcome)


def until_it_leaves(
    function: types.FunctionType,
    make: Callable[[dict[int, Break]], Any],
    finish: Callable[[Any], Any],
) -> Any:
    """`finish(make(break_at))`, of a new trace where `finish` gives None; where it finds something
    that cannot leave (Restart), up to the instruction that made it.  Where it ends in Native, that
    gets the guards read so far; a trace that nothing comes of is released."""
    break_at: dict[int, Break] = {}
    while True:
        traced = make(break_at)
        try:
            result = finish(traced)
        except Restart as again:
            traced.release()
            if break_at and again.step >= min(break_at):
                raise InternalError("leave", again) from again
            break_at = {again.step: again.cause}
        except Native as native:
            native.program = assemble(traced.guards(), argument_slots(function))
            traced.release()
            raise
        except BaseException:
            traced.release()
            raise
        else:
            if result is not None:
                return result
            traced.release()


def tell_outcome(captured: Any, options: Options) -> None:
    """Count the frames that are compiled; count, log and record the break it ends at."""
    counters.count_frame(handled=captured.machine.frames_run)
    if captured.outcome.kind != "return" and not suspends(captured.outcome):
        told = told_break(captured, options)
        counters.count("graph_breaks")
        counters.count_in("break_reasons", f"{told.kind}: {told.reason}")
        logs.log("graph_breaks", break_text(told))
        record(told)
